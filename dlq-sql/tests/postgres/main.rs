//! What the store on Postgres has to pass, against a real server: the conformance suites, and what is its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fixture;
mod opening;
mod tables;
