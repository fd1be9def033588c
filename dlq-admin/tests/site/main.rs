//! The console and the HTTP interface, asked over whole requests.

#![allow(clippy::unwrap_used, reason = "a test ends with the first thing that is wrong")]

mod access;
mod api;
mod changes;
mod common;
mod console;
mod events;
mod hostile;
mod logs;
mod mask;
mod search;
mod triage;
