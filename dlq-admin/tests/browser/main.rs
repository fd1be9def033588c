//! The console in a real browser, as somebody on call uses it: each task on SQLite and on PostgreSQL.
//!
//! Writes screenshots to the folder that `DLQ_SCREENSHOTS` names, or else to `screenshots` in the target folder.

#![allow(clippy::unwrap_used, reason = "a test ends with the first thing that is wrong")]

mod browser;
mod looks;
mod page;
mod replays;
mod store;
mod tasks;
mod world;
