//! Everything that needs a real broker.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod feed;
mod fixture_feed;
