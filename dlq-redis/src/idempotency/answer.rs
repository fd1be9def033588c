//! Answers of scripts.

use std::time::Duration;

use dlq_core::Timestamp;
use redis::Value;

use crate::client::{as_array, as_int, as_text};

/// Answer of a script: a word, and what belongs to it.
pub(super) struct Reply(pub(super) Value);

impl Reply {
    fn item(&self, index: usize) -> &Value {
        as_array(&self.0).get(index).unwrap_or(&Value::Nil)
    }

    pub(super) fn text(&self, index: usize) -> String {
        as_text(self.item(index)).unwrap_or_default()
    }

    pub(super) fn word(&self) -> String {
        self.text(0)
    }

    pub(super) fn count(&self, index: usize) -> u32 {
        u32::try_from(as_int(self.item(index))).unwrap_or(u32::MAX)
    }

    pub(super) fn span(&self, index: usize) -> Duration {
        Duration::from_micros(u64::try_from(as_int(self.item(index))).unwrap_or(0))
    }

    pub(super) fn time(&self, index: usize) -> Timestamp {
        Timestamp::from_nanos(as_int(self.item(index)).saturating_mul(1_000))
    }
}
