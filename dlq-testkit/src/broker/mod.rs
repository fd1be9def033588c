//! Checks for what the dead letters of a broker can do, and the macro that makes each a visible test.
//!
//! A broker describes a place for its dead letters by a [`BrokerFixture`] and calls
//! [`broker_conformance!`](crate::broker_conformance) once:
//!
//! ```
//! dlq_testkit::broker_conformance!(dlq_testkit::broker::MemoryFixture);
//! # fn main() {}
//! ```
//!
//! The checks read letters and compare the answers with those of a [store](dlq_letters::memory::MemoryStore), send
//! letters back, and feed them into a store. Every check works at a place of its own. A check that a broker has nothing
//! for (e.g. letters that only point at their payload) is left out, and says so in its output. Checks are plain
//! `async fn`s that panic when a promise is broken, so that single ones can be called directly, e.g. to see that they
//! fail at a [`MemoryFixture`] with a [`Flaw`].

mod check;
mod fixture;
mod letters;
mod list_of_checks;
mod memory;
mod steps;

pub mod ingest;
pub mod killed;
pub mod reading;
pub mod replay;
pub mod targets;

pub use check::{Check, run};
pub use fixture::{Arrived, BrokerFixture, Mark, ReplaySpec, ReplayTarget};
pub use letters::LogLetters;
pub use memory::{Flaw, MemoryEntries, MemoryFixture, MemoryLog, MemoryReplay};
