//! Handlers: an async function and its policy, as one service that ends in a [`Verdict`](crate::stage::Verdict).
//!
//! # Where it goes
//!
//! Into a [`Router`](crate::router::Router) or straight into a [`Consumer`](crate::consumer), which wraps it with
//! dead-letter routing, metrics and trace. A [`HandlerStack`] is composed of the same layers that can be composed by
//! hand, outermost first: retry, permit, idempotency, timeout, panic guard, classify.
//!
//! # Example
//!
//! With the attribute, the policy stands beside the function, which stays an ordinary function:
//!
//! ```
//! use dlq_tower::dlq_handler;
//! use dlq_tower::handler::Handles;
//! # use bytes::Bytes;
//!
//! #[dlq_handler(name = "mail.send", max_attempts = 5, timeout = "10s")]
//! async fn send(payload: Bytes) -> Result<(), std::io::Error> {
//!     if payload.is_empty() { Err(std::io::Error::other("no mail")) } else { Ok(()) }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! assert!(send(Bytes::from_static(b"hello")).await.is_ok());
//!
//! let stack = send::handler().build().unwrap();
//! assert_eq!(stack.names(), ["mail.send".into()]);
//! # }
//! ```
//!
//! Without it, the same is said in code, see [`handler()`]. Functions and closures of up to twelve
//! [extractors](crate::extract) are handlers; they return `Result<(), E>` or nothing.
//!
//! # Layers of one's own
//!
//! [`HandlerBuilder::layer`] puts any layer of `tower` around the function, inside all that is said above, and
//! [`RouterBuilder::layer`](crate::router::RouterBuilder::layer) does so for every handler of a router.
//! [`ShareLayer`] makes one service of a layer for all of them, as a rate limit needs, and
//! [`ClassifyErrorsLayer`](crate::classify::ClassifyErrorsLayer) judges a layer's errors. [`service()`](service())
//! makes a service of the function alone, for a stack that is composed by hand.
//!
//! # Settings
//!
//! Whatever is set twice is decided by who is closer to the running program, not by the order of calls:
//!
//! 1. the defaults,
//! 2. the attribute,
//! 3. code: the methods of [`HandlerBuilder`],
//! 4. configuration: [`HandlerBuilder::configure`],
//! 5. the environment: [`HandlerBuilder::env`].
//!
//! Contradictions between them are found by [`HandlerBuilder::build`].
//!
//! # Names
//!
//! Keys, letters and retry records are kept by the handler's name, which the attribute derives from the module path and
//! the function. Two functions of one name over one store are refused: where they share keys by `HandlerBuilder::build`,
//! where they share letters by [`ConsumerBuilder::build`](crate::consumer::ConsumerBuilder::build). One function may be
//! built as often as it is needed, and another may follow it once its handlers and consumers are gone.
//!
//! # On failure
//!
//! The error is classified by the attribute's `terminal`, then by its `classify` or the error's own
//! [`Classify`](dlq_core::Classify); an error that nobody has classified is transient. A message that the function's
//! arguments [cannot be taken from](crate::extract::Rejection) is given up without a run. A panic is permanent unless
//! the policy says otherwise.
//!
//! # Cost
//!
//! Messages in flight at once take an allocation each, and later ones reuse it; each `.layer(…)` takes another at each
//! attempt. A handler that is at its limit of
//! [concurrency] does not make the stack unready: its messages wait in their own futures, without a permit, so that
//! those of other handlers go on.
//!
//! [concurrency]: HandlerBuilder::concurrency

mod builder;
mod config;
mod env;
mod error;
mod failed;
mod function;
mod handles;
mod keys;
mod layered;
mod names;
mod output;
mod place;
mod service;
mod share;
mod stack;
mod unclassified;

pub use crate::InvalidConfig;
pub use builder::{HandlerBuilder, handler};
pub use config::{HandlerConfig, HandlerOverrides};
pub use env::check_env;
pub use error::{HandlerError, ResultExt};
pub use failed::{Failed, Judge};
pub use function::HandlerFn;
pub use handles::Handles;
pub use keys::ToKey;
pub use layered::{AttemptFuture, HandlerService};
pub use names::FunctionId;
pub use output::{HandlerFailure, HandlerOutput};
pub use place::StackFuture;
pub use service::service;
pub use share::{Chosen, ChosenFuture, Share, ShareLayer};
pub use stack::{HandlerStack, IntoStack};
pub use unclassified::Unclassified;

pub(crate) use builder::check_name;
pub(crate) use error::SelfDescribed;
#[doc(hidden)]
pub use failed::BoxClassifier;
pub(crate) use layered::Layers;
pub(crate) use names::{Taken, same_variables};
