//! What the end-to-end tests and the program that they kill have in common.

mod broker;
mod feed;
mod journal;

pub use broker::{FileBroker, FileSettle};
pub use feed::{KILLER, Kind, MESSAGES, kind, message};
pub use journal::Journal;

/// The consumer's name.
pub const CONSUMER: &str = "tests.work";
