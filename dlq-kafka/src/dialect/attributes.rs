//! Attributes of a letter.

use std::collections::BTreeMap;

use super::gap::{DIALECT, Gap, POINTER, PREVIOUS, UNKNOWN, UNREADABLE_HEADERS};
use super::story::Story;
use crate::client::wire::REST;

/// Number of bytes of a header that an attribute keeps.
const MAX_ATTRIBUTE: usize = 1024;

impl Story<'_> {
    /// The attributes; `is_judged` tells whether anything speaks for class and reason.
    pub(super) fn attributes(&self, is_judged: bool) -> BTreeMap<String, String> {
        let mut attributes = BTreeMap::new();
        for (name, value) in self.fields.unread(is_state) {
            let kept: &mut String = attributes.entry(shown(name)).or_default();
            if !kept.is_empty() {
                kept.push('\n');
            }
            kept.push_str(&shown(value));
        }
        // Cut after joining: a name that stands there many times may not make the letter as large as its record.
        attributes.values_mut().for_each(cut);
        let mut set = |name: &str, value: String| attributes.insert(name.to_owned(), value);
        if let Some(dialect) = self.dialect {
            set(DIALECT, dialect.to_string());
        }
        // A letter that never moved would only repeat its origin here.
        let has_moved = self.newest != self.birth || self.replayed_from().is_some();
        if let Some(newest) = self.newest.filter(|_| has_moved) {
            set(PREVIOUS, newest.to_string());
        }
        if let Some(newest) = self.newest.filter(|_| self.is_pointer) {
            set(POINTER, newest.to_string());
        }
        if self.fields.record.unreadable_headers > 0 {
            set(UNREADABLE_HEADERS, self.fields.record.unreadable_headers.to_string());
        }
        let unknown = self.gaps(is_judged).map(Gap::as_str).collect::<Vec<_>>().join(",");
        if !unknown.is_empty() {
            set(UNKNOWN, unknown);
        }
        attributes
    }

    fn gaps(&self, is_judged: bool) -> impl Iterator<Item = Gap> {
        let is_dated = self.fields.record.timestamp.is_some() && !self.keeps_time;
        let is_born = self.birth.is_some() || self.replayed_from().is_some();
        let gaps = [
            (Gap::Topic, !is_born && self.topic.is_none()),
            (Gap::Origin, !is_born),
            (Gap::Consumer, self.consumer.is_none()),
            (Gap::Class, !is_judged),
            (Gap::Reason, !is_judged),
            (Gap::Attempts, self.attempts.is_none()),
            (Gap::DiedAt, !is_dated),
            (Gap::Payload, self.is_pointer),
        ];
        gaps.into_iter().filter_map(|(gap, is_there)| is_there.then_some(gap))
    }
}

/// Headers that say how far a retry has come. Sent back, they would make a consumer go on counting; so they never are.
pub(super) fn is_state(name: &[u8]) -> bool {
    name.starts_with(b"retry_topic-")
        || name.starts_with(b"delayed-retry-")
        || name == b"kafka_deliveryAttempt"
        || name == REST.as_bytes()
}

/// Bytes as text where they are text, else escaped.
fn shown(bytes: &[u8]) -> String {
    let is_plain = |char: char| !char.is_control() || matches!(char, '\n' | '\r' | '\t');
    match std::str::from_utf8(bytes) {
        // Control characters are escaped: these texts are shown in terminals.
        Ok(text) if text.chars().all(is_plain) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

fn cut(text: &mut String) {
    if text.len() > MAX_ATTRIBUTE {
        let end = (0..=MAX_ATTRIBUTE).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
}
