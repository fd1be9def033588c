//! Texts and documents about letters, as the console, the HTTP interface and the command show them.

mod audit;
mod consumers;
mod diff;
mod json;
mod replay;
mod text;

pub use audit::{audit_diff, audit_entry, audit_subject};
pub use consumers::consumer_names;
pub use diff::diff;
pub use json::indented;
pub use replay::{replay_plan, skipped};
pub use text::{age, bytes, escape};

use serde::Serialize;

/// Version of the JSON documents; raised when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// A JSON document, which is an object, with its `schema_version`.
#[derive(Debug, Serialize)]
pub struct Document<'a, T: Serialize> {
    schema_version: u32,
    #[serde(flatten)]
    value: &'a T,
}

impl<'a, T: Serialize> Document<'a, T> {
    /// The document of `value`, which has to be an object in JSON.
    pub fn new(value: &'a T) -> Self {
        Self { schema_version: SCHEMA_VERSION, value }
    }
}
