//! The command at a store: what makes it comfortable, and what keeps passwords off the screen.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bench;
mod check;
#[path = "../common/mod.rs"]
mod common;
mod completions;
mod contexts;
mod migrate;
mod op;
#[cfg(feature = "nats")]
mod passwords;
#[path = "../common/process.rs"]
mod process;
mod search;
mod terminal;
