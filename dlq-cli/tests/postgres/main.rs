//! The command at a real server of Postgres: every verb, and what can go wrong.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad_input;
mod check;
#[path = "../common/mod.rs"]
mod common;
mod fixture;
mod import;
mod migrate;
mod passwords;
#[path = "../common/process.rs"]
mod process;
#[path = "../common/postgres.rs"]
mod schema;
#[path = "../common/scrape.rs"]
mod scrape;
mod serve;
mod verbs;
mod watch;
