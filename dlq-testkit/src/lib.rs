//! Conformance suites for stores, transports and the dead letters of brokers, and doubles that fail on purpose.
//!
//! | module | for |
//! |---|---|
//! | [`transport`] | checks for transports ([`transport_conformance!`]) |
//! | [`broker`] | checks for the dead letters of brokers ([`broker_conformance!`]) |
//! | [`store`] | checks for stores ([`store_conformance!`]) |
//! | [`idempotency`] | checks for idempotency stores ([`idempotency_conformance!`]) |
//! | [`outbox`] | checks for outboxes ([`outbox_conformance!`]) |
//! | [`fixtures`] | messages, letters and a clock that tests move |
//! | [`faulty`] | stores that lose, forget or repeat, by which the checks themselves are checked |
//! | [`doubles`] | transports that do |
//! | `explorer` | whole consumers, disturbed at every step (feature `explorer`, on by default) |
//!
//! A dependency of tests only.

pub mod broker;
pub mod doubles;
#[cfg(feature = "explorer")]
pub mod explorer;
pub mod faulty;
pub mod fixtures;
pub mod idempotency;
pub mod outbox;
pub mod store;
pub mod transport;

mod account;
mod run;

#[doc(hidden)]
pub use run::run;
