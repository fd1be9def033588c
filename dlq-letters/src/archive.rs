//! Letters in the archive, as documents.
//!
//! A letter that is small is in one document, with when and by whom it was deleted. Of one that is not the document has what a
//! list shows, and its parts are in others. All are written and taken away in the step that changes the letter.

use dlq_core::store::{Actor, ArchiveFilter, Archived};
use dlq_core::{
    Cursor, DeadLetter, History, LetterId, LetterSummary, Message, StoreError, StoreErrorKind,
    Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::verbs::json;
use crate::{DocumentKey, DocumentKind, Rows, Stop};

/// The most bytes of a document with a whole letter. A list reads a hundred of them at once.
const INLINE: usize = 64 * 1024;
/// The most bytes of a part. Every store takes so large a document.
const PART: usize = 4 * 1024 * 1024;

/// A document of the archive.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ArchivedCopy {
    pub(crate) by: Actor,
    /// The letter; without payload, key, headers and all but the last attempt if it is in parts.
    letter: DeadLetter,
    /// Number of bytes of the payload, if the letter is in parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<u64>,
    /// Number of bytes of the letter, as text.
    #[serde(default)]
    pub(crate) bytes: u64,
    /// Number of its parts; 0 if it is here.
    #[serde(default)]
    parts: usize,
}

/// Copies a letter, which is deleted now, to the archive.
pub(crate) fn write(rows: &mut Rows, letter: &DeadLetter, by: &Actor) {
    let key = DocumentKey::archived(rows.now(), letter.id);
    let whole = json(letter);
    let bytes = whole.len() as u64;
    if whole.len() <= INLINE {
        // The same as the text of an `ArchivedCopy`. A letter is not made into text twice, as thousands are deleted at once.
        let text = format!("{{\"by\":{},\"bytes\":{bytes},\"letter\":{whole}}}", json(by));
        rows.set_document(key, Some(text));
        return;
    }
    let parts = split(&whole);
    let payload = letter.message.payload().map(|payload| payload.len() as u64);
    let (by, parts_count) = (by.clone(), parts.len());
    let copy = ArchivedCopy { by, letter: head(letter), payload, bytes, parts: parts_count };
    for (number, part) in parts.into_iter().enumerate() {
        rows.set_document(key.archived_part(number), Some(part.to_owned()));
    }
    rows.set_document(key, Some(json(&copy)));
}

fn split(mut text: &str) -> Vec<&str> {
    let mut parts = Vec::with_capacity(text.len() / PART + 1);
    while !text.is_empty() {
        let mut end = PART.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let (part, rest) = text.split_at(end);
        parts.push(part);
        text = rest;
    }
    parts
}

/// The letter without what may be large.
fn head(letter: &DeadLetter) -> DeadLetter {
    let former = &letter.message;
    let mut message = Message::tombstone(former.subject_shared().clone());
    if let Some(id) = former.id() {
        message = message.with_id(id);
    }
    if let Some(event) = former.event() {
        message = message.with_event(event);
    }
    if let Some(at) = former.published_at() {
        message = message.with_published_at(at);
    }
    let mut head = letter.clone().with_message(message);
    head.history = History::new();
    if let Some(last) = letter.history.attempts().last() {
        head.history.push(last.clone());
    }
    head
}

/// The place of a letter in the archive: when it was deleted, and its id. `None` if the name is none of ours.
pub(crate) fn place(name: &str) -> Option<(Timestamp, LetterId)> {
    let Cursor { created_at, id, .. } = name.parse().ok()?;
    Some((created_at, id))
}

/// Returns the key of a document of the archive.
pub(crate) fn key(name: String) -> DocumentKey {
    DocumentKey { kind: DocumentKind::Archived, name }
}

impl ArchivedCopy {
    /// Reads the text of a document.
    pub(crate) fn read(key: &DocumentKey, text: &str) -> Result<Self, StoreError> {
        serde_json::from_str(text).map_err(|error| corrupt(key, &error))
    }

    /// Returns true if the filter selects it. Its time and its id have been looked at.
    pub(crate) fn is_selected(&self, filter: &ArchiveFilter) -> bool {
        filter.may_be_by(&self.by) && filter.letters.matches(&self.letter)
    }

    /// Returns what a list shows.
    pub(crate) fn shown(self, deleted_at: Timestamp) -> Archived {
        let mut summary: LetterSummary = self.letter.summary();
        if self.parts > 0 {
            summary.payload_size = self.payload;
        }
        Archived::new(summary, deleted_at, self.by)
    }

    /// The keys of its parts.
    pub(crate) fn parts<'k>(
        &self,
        key: &'k DocumentKey,
    ) -> impl Iterator<Item = DocumentKey> + use<'k> {
        (0..self.parts).map(|number| key.archived_part(number))
    }

    /// Returns the whole letter. Its parts are locked with it.
    pub(crate) fn whole(self, key: &DocumentKey, rows: &mut Rows) -> Result<DeadLetter, Stop> {
        if self.parts == 0 {
            return Ok(self.letter);
        }
        let mut text = String::new();
        let mut is_missing = false;
        for part in self.parts(key) {
            match rows.document(&part) {
                Ok(part) => text.push_str(part.unwrap_or_default()),
                Err(Stop::Missing) => is_missing = true,
                Err(failed) => return Err(failed),
            }
        }
        if is_missing {
            return Err(Stop::Missing);
        }
        serde_json::from_str(&text).map_err(|error| corrupt(key, &error).into())
    }
}

fn corrupt(key: &DocumentKey, error: &serde_json::Error) -> StoreError {
    let detail = format!(
        "document {key} cannot be read: {error}; was it changed by hand, or written by a later version?"
    );
    StoreError::new(StoreErrorKind::Corrupt, "read the archive").with_detail(detail)
}
