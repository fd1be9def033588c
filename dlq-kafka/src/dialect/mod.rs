//! Reads dead letters, whoever wrote them.

mod unknown;

use std::sync::Arc;

use dlq_core::DeadLetter;

use crate::record::Record;
use crate::wire;

/// The letter in a record of a dead-letter topic. Never fails: of what cannot be understood the bytes are kept, and what
/// is not known stays unknown.
pub fn letter(record: &Record, cluster: &Arc<str>) -> DeadLetter {
    wire::letter(record, cluster).unwrap_or_else(|| unknown::letter(record, cluster))
}
