//! Each layer by itself, and all of them together, under paused time.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the answer")]

mod adversary;
mod attempts;
mod audit;
mod dead_letter;
mod foreign;
mod idempotency;
mod in_flight;
mod metrics;
mod retry;
mod support;
mod whole;
