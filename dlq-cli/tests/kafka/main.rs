//! The command at a real broker of Kafka: every verb, what can go wrong, and processes that are killed.

#![cfg(feature = "kafka")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod alert;
mod bad_input;
mod check;
#[path = "../common/mod.rs"]
mod common;
mod console;
mod fixture;
#[allow(dead_code, reason = "others need all of it")]
#[path = "../common/http.rs"]
mod http;
mod ingest;
#[path = "../common/process.rs"]
mod process;
mod replay;
#[cfg(feature = "postgres")]
#[path = "../common/postgres.rs"]
mod schema;
#[path = "../common/scrape.rs"]
mod scrape;
mod serve;
mod to_origin;
#[cfg(all(feature = "nats", feature = "postgres"))]
mod two_senders;
mod verbs;
