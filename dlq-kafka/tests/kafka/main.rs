//! What the transport on Kafka has to pass, all against the real broker.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod access;
mod admin;
mod fixture_topics;
mod lag;
mod topics;
