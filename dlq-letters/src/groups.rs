//! Records of groups of errors, as documents.

use std::collections::BTreeMap;

use dlq_core::store::{GroupKey, GroupRecord};
use dlq_core::{StoreError, StoreErrorKind, Timestamp};

use crate::{DocumentKey, LetterChange, Rows, Stop};

/// Reads the record of a group that may be written then; `None` if there is none.
pub(crate) fn read(rows: &mut Rows, key: &GroupKey) -> Result<Option<GroupRecord>, Stop> {
    let key = DocumentKey::group(key);
    let text = rows.document(&key)?;
    text.map(|text| parse(&key, text)).transpose()
}

/// Looks at the record of a group; `None` if there is none.
pub(crate) fn look(rows: &mut Rows, key: &GroupKey) -> Result<Option<GroupRecord>, Stop> {
    let key = DocumentKey::group(key);
    let text = rows.glimpse(&key)?;
    text.map(|text| parse(&key, text)).transpose()
}

fn parse(key: &DocumentKey, text: &str) -> Result<GroupRecord, Stop> {
    serde_json::from_str(text).map_err(|error| {
        let detail = format!("document {key} cannot be read: {error}; was it changed by hand?");
        let error = StoreError::new(StoreErrorKind::Corrupt, "read the group of errors");
        error.with_detail(detail).into()
    })
}

/// Writes the record of a group that was read.
pub(crate) fn write(rows: &mut Rows, key: &GroupKey, record: &GroupRecord) {
    // All of it has a text form.
    let text = serde_json::to_string(record).unwrap_or_default();
    rows.set_document(DocumentKey::group(key), Some(text));
}

/// Groups that letters leave by the changes of a verb, and when the earliest of those letters was stored.
#[derive(Debug, Default)]
pub(crate) struct Left(BTreeMap<GroupKey, Timestamp>);

impl Left {
    /// Returns the groups that these letters leave, because they are deleted or have died of something else.
    pub(crate) fn by<'r>(changes: impl Iterator<Item = LetterChange<'r>>) -> Self {
        let mut left = Self::default();
        for LetterChange { before, after, .. } in changes {
            // A retry record is not dead, and leaves no error behind.
            let Some(row) = before.filter(|row| !row.is_record()) else { continue };
            let before = &row.letter;
            // Nearly every change keeps the group, and is not to cost a copy.
            let stays = after.is_some_and(|row| {
                row.letter.fingerprint == before.fingerprint
                    && row.letter.consumer == before.consumer
            });
            if !stays {
                let stored = before.state.created_at;
                let key = GroupKey::new(before.consumer.clone(), before.fingerprint);
                let first = left.0.entry(key).or_insert(stored);
                *first = stored.min(*first);
            }
        }
        left
    }

    /// Keeps when these groups were first seen, which nobody could tell from the letters that are left.
    pub(crate) fn remember(self, rows: &mut Rows) -> Result<(), Stop> {
        let mut is_missing = false;
        // It goes on past a record that is not loaded, so that all of them are loaded at once.
        for (key, stored) in self.0 {
            let mut record = match read(rows, &key) {
                Ok(record) => record.unwrap_or_default(),
                Err(Stop::Missing) => {
                    is_missing = true;
                    continue;
                }
                Err(failed) => return Err(failed),
            };
            if record.first_seen.is_none_or(|first| stored < first) {
                record.first_seen = Some(stored);
                write(rows, &key, &record);
            }
        }
        if is_missing { Err(Stop::Missing) } else { Ok(()) }
    }
}
