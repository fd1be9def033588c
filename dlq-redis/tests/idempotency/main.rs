//! Idempotency on Redis, against real servers: the conformance suite on each of them, and what is its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[cfg(feature = "cluster")]
mod cluster;
mod conformance;
mod cut;
#[cfg(feature = "sentinel")]
mod failover;
mod fixture;
mod foreign;
mod forgetting;
mod memory;
mod one_key;
mod racing;
mod restarts;
mod rights;
