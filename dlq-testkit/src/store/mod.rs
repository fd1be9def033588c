//! Checks for stores, and the macro that makes each a visible test.
//!
//! A store describes itself by a [`StoreFixture`] and calls [`store_conformance!`](crate::store_conformance) once:
//!
//! ```
//! dlq_testkit::store_conformance!(dlq_testkit::store::MemoryFixture);
//! # fn main() {}
//! ```
//!
//! Every check gets a store of its own. It is a plain `async fn` that panics when the store breaks a promise, so that
//! single checks can be called directly, e.g. to see that they fail on a store that is broken on purpose.

mod check;
mod fixture;
mod list_of_checks;
#[cfg(feature = "proptest")]
pub mod model;

pub mod archive;
pub mod checkups;
pub mod claims;
pub mod concurrency;
pub mod dedup;
pub mod dispatches;
pub mod edits;
pub mod filters;
pub mod finishes;
pub mod handles;
pub mod hostile;
pub mod lists;
pub mod maintenance;
pub mod operations;
pub mod pace;
pub mod puts;
pub mod reads;
pub mod restores;
pub mod retry_queue;
pub mod schedules;
pub mod sends;
pub mod statistics;
pub mod triage;
pub mod workers;

pub use check::{Check, run};
pub use fixture::{MemoryFixture, OptimisticFixture, StoreFixture};
