//! The command at a real server of NATS: every verb, what can go wrong, and processes that are killed.

#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad_input;
mod check;
#[path = "../common/mod.rs"]
mod common;
mod console;
mod creds;
mod fixture;
#[allow(dead_code, reason = "others need all of it")]
#[path = "../common/http.rs"]
mod http;
mod ingest;
#[cfg(feature = "postgres")]
mod outages;
#[path = "../common/process.rs"]
mod process;
mod replay;
mod route;
#[cfg(feature = "postgres")]
#[path = "../common/postgres.rs"]
mod schema;
#[path = "../common/scrape.rs"]
mod scrape;
mod serve;
mod to_origin;
mod verbs;
