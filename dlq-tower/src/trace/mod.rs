//! Trace: a `tracing` span around each message in flight, with the W3C trace context that came in its headers.
//!
//! # Where it goes
//!
//! Outermost. Everything that the other layers and the handler log stands in its span.
//!
//! # Example
//!
//! The handler reads the context of the message it handles, and hands it on to the messages it publishes:
//!
//! ```
//! use dlq_core::{Headers, Message};
//! use dlq_tower::trace::TraceContext;
//!
//! let message = Message::new("orders", "{}")
//!     .with_header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
//!
//! let context = TraceContext::from_headers(message.headers());
//! let parent = context.parent().unwrap();
//! assert_eq!(parent.trace_id(), "0af7651916cd43dd8448eb211c80319c");
//! assert!(parent.is_sampled());
//!
//! let mut outgoing = Headers::new();
//! context.write_to(&mut outgoing);
//! assert_eq!(outgoing.get_str("traceparent"), message.headers().get_str("traceparent"));
//! ```
//!
//! # The span
//!
//! `message`, at level `INFO`, with the fields `consumer`, `subject`, `event`, `message_id`, `origin`, `attempt`,
//! `deliveries`, `generation`, `trace_id`, `parent_id` and, when it is settled, `outcome` (`succeeded`, `duplicate`,
//! `dead`, `escalated`, `deferred` or `unsettled`). A field that is not known is left out.
//!
//! # On failure
//!
//! Headers that are not what the W3C recommendations [Trace Context] and [Baggage] say are ignored, never an error.
//!
//! # Cost
//!
//! A span that nobody listens to costs a few nanoseconds; headers are read only when somebody does.
//!
//! [Trace Context]: https://www.w3.org/TR/trace-context/
//! [Baggage]: https://www.w3.org/TR/baggage/

mod context;
mod future;
mod layer;
mod service;

pub use context::{TraceContext, TraceParent};
pub use future::ResponseFuture;
pub use layer::TraceLayer;
pub use service::Trace;
