use std::mem::take;

use dlq_core::log::{Content, Entry};

/// Counts what a reader has passed over, and tells of it in one line: somebody may have written thousands of them.
#[derive(Debug, Default)]
pub(super) struct Passed {
    foreign: u64,
    damaged: u64,
    /// The first of them, and why it cannot be read.
    first: Option<(String, String)>,
}

impl Passed {
    /// Notes those that are no letters.
    pub(super) fn note(&mut self, entries: &[Entry]) {
        for entry in entries {
            let why = match &entry.content {
                Content::Letter(_) | Content::Outline(_) => continue,
                Content::Foreign => {
                    self.foreign += 1;
                    "it was not written as a letter"
                }
                Content::Damaged(why) => {
                    self.damaged += 1;
                    why
                }
            };
            self.first.get_or_insert_with(|| (entry.place.position().to_string(), why.to_owned()));
        }
    }

    /// Tells of what was passed over since the last time.
    pub(super) fn tell(&mut self) {
        let (foreign, damaged) = (take(&mut self.foreign), take(&mut self.damaged));
        if let Some((id, why)) = self.first.take() {
            tracing::warn!(
                foreign,
                damaged,
                first = %id,
                %why,
                "entries among the dead letters are no letters; they are passed over"
            );
        }
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        self.tell();
    }
}
