//! What the transport on Kafka has to pass: the conformance suite, and what is its own, all against a real broker.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod feed;
mod fixture_feed;
mod fixture_replay;
mod letters;
