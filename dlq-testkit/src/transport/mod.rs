//! Checks for transports, and the macro that makes each a visible test.
//!
//! A transport describes itself by a [`TransportFixture`] and calls
//! [`transport_conformance!`](crate::transport_conformance) once:
//!
//! ```
//! dlq_testkit::transport_conformance!(dlq_testkit::transport::MemoryFixture);
//! # fn main() {}
//! ```
//!
//! Every check gets a stream of its own. What a transport does not declare in its
//! [`Capabilities`](dlq_core::Capabilities) is not asked of it; a check that is left out says so in its output. Checks
//! are plain `async fn`s that panic when the transport breaks a promise, so that single ones can be called directly,
//! e.g. to see that they fail on a transport that is broken on purpose (see [`doubles`](crate::doubles)).

mod check;
mod fixture;
mod list_of_checks;

pub mod closing;
pub mod delivering;
#[cfg(feature = "explorer")]
pub mod end_to_end;
pub mod groups;
pub mod retry_queue;
pub mod settling;

pub use check::{Check, is_quick, run};
pub use fixture::{MemoryFixture, TransportFixture};
