//! The transport on real servers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod conformance;
mod fixture;
