use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::{Binding, DeadLetter, LetterId, Message, Status, StoreErrorKind, Timestamp};

/// Changes of an operator to the message of one letter: its payload, its headers. Changes of headers apply in the order
/// in which they were added.
///
/// ```
/// use dlq_core::Message;
/// use dlq_core::store::Edit;
///
/// let message = Message::new("orders", "{\"total\":\"12\"}").with_header("v", "1");
/// let edited = Edit::new().payload("{\"total\":12}").remove_header("v").apply(&message)?;
/// assert_eq!(edited.payload().map(|payload| &payload[..]), Some(&b"{\"total\":12}"[..]));
/// assert!(Edit::new().payload("{\"total\":").apply(&message).is_err(), "it was JSON and would not be any more");
/// # Ok::<(), dlq_core::store::EditError>(())
/// ```
///
/// # Which death an edited letter is of
///
/// The same as before: an edit changes neither identity nor generation. The letter remembers the bytes (payload and
/// key) that it had before each edit, as [`LetterState::edited_from`](crate::LetterState::edited_from), for as long as
/// it rests in a store, and a death that carries bytes which the letter has or had is a death of this letter (G2):
///
/// | what arrives | to a letter edited in generation *g* | and then |
/// |---|---|---|
/// | a death of *g* with the bytes before the edit (the broker handed the message out again) | is known | nothing changes: no second letter, and the edit stays |
/// | a death of *g* with the edited bytes | is known | nothing changes |
/// | a lower one with any of these bytes | is out of date | nothing changes |
/// | a higher one, whatever it carries | is news | the letter takes it over, and goes on remembering |
/// | a death up to *g* with bytes that the letter never had | is another message | both are kept |
/// | the end of a claim made before the edit | has a worthless token | nothing changes |
///
/// An edit is one step: when the process dies, the letter, what it remembers and the audit all say that it happened, or
/// that it did not. Made again it finds nothing to change.
#[derive(Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Edit {
    /// The payload to set: the outer `None` leaves it as it is, the inner `None` removes it.
    payload: Option<Option<Bytes>>,
    /// Changes by name: the value to set, or `None` to remove the header.
    headers: Vec<(Bytes, Option<Bytes>)>,
    expected: Option<Binding>,
    allow_invalid: bool,
}

impl Edit {
    /// An edit that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the payload.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = Some(Some(payload.into()));
        self
    }

    /// Takes the payload away, which makes the message a tombstone.
    pub fn no_payload(mut self) -> Self {
        self.payload = Some(None);
        self
    }

    /// Replaces every header called `name` by one.
    pub fn set_header(mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), Some(value.into())));
        self
    }

    /// Removes every header called `name`.
    pub fn remove_header(mut self, name: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), None));
        self
    }

    /// Refuses unless payload and key are those of `letter` when the edit is made. Defaults to any.
    pub fn expecting(mut self, letter: &DeadLetter) -> Self {
        self.expected = Some(Binding::of(&letter.id, &letter.message));
        self
    }

    /// Takes a payload that is not JSON where the one before was. Defaults to no.
    pub fn allow_invalid(mut self) -> Self {
        self.allow_invalid = true;
        self
    }

    /// The edit that gives `letter` back what it was before the edit of which `subject` is the text in the audit. Undone itself,
    /// it is made again.
    ///
    /// # Errors
    ///
    /// [`EditError::Changed`] when the letter is not what that edit left, and [`EditError::NotKept`] when the audit does not
    /// hold all that is needed: of a payload its first 64 KiB, of a header its value up to 4 KiB, and one of each name.
    pub fn undoing(subject: &str, letter: &DeadLetter) -> Result<Self, EditError> {
        let unreadable = |_| EditError::NotKept { what: "what was edited".to_owned() };
        let kept: Kept = serde_json::from_str(subject).map_err(unreadable)?;
        let message = &letter.message;
        // A later death has brought its own bytes, which an undo must not overwrite.
        if kept.letter != letter.id || kept.generation != letter.generation {
            return Err(EditError::Changed);
        }
        // The former payload is given back even if it was no JSON.
        let mut edit = Self::new().allow_invalid();
        if let Some(payload) = &kept.payload {
            // A long payload is compared as well: beside its start the audit has its length and its hash.
            if payload.after != shown_payload(message, AFTER) {
                return Err(EditError::Changed);
            }
            let lost = || EditError::NotKept { what: "the payload".to_owned() };
            edit.payload = Some(whole(&payload.before).ok_or_else(lost)?);
        }
        for header in &kept.headers {
            let lost = || EditError::NotKept { what: format!("the header {}", header.name) };
            let name = whole(&header.name).flatten().ok_or_else(lost)?;
            if header.after != values(message, &name, AFTER) {
                return Err(EditError::Changed);
            }
            let value = match header.before.as_slice() {
                [] => None,
                // A header without a value is none that can be set.
                [one] => Some(whole(one).flatten().ok_or_else(lost)?),
                _ => return Err(lost()),
            };
            edit.headers.push((name, value));
        }
        Ok(edit)
    }

    /// The message as it would be.
    ///
    /// # Errors
    ///
    /// [`EditError::NotJson`] when the payload was valid JSON and would not be any more.
    pub fn apply(&self, message: &Message) -> Result<Message, EditError> {
        let mut headers = message.headers().clone();
        for (name, value) in &self.headers {
            let Some(value) = value else {
                headers.retain(|header| header.name != *name);
                continue;
            };
            let mut there = headers.iter().filter(|header| header.name == *name);
            let is_so = there.next().is_some_and(|header| header.value.as_ref() == Some(value));
            // `set` moves a header to the end, so one that is right already is left where it stands and counts as no change.
            if !is_so || there.next().is_some() {
                headers.set(name.clone(), value.clone());
            }
        }
        let edited = message.clone().with_headers(headers);
        let Some(payload) = &self.payload else { return Ok(edited) };
        // Only what was JSON has to stay JSON, and a tombstone is no text that could be invalid.
        if let (false, Some(before), Some(after)) = (self.allow_invalid, message.payload(), payload)
            && is_json(before).is_ok()
        {
            is_json(after)?;
        }
        Ok(edited.with_payload(payload.clone()))
    }

    /// Edits `letter`, for a store that has looked it up and writes it with the audit in the same step.
    ///
    /// When it was changed, a claim of it whose lease has ended is void.
    ///
    /// # Errors
    ///
    /// When the letter is in somebody's hands or not dead, has other bytes than were expected, or the payload would not
    /// be JSON any more.
    pub fn amend(
        &self,
        letter: &mut DeadLetter,
        hands: Hands,
        now: Timestamp,
    ) -> Result<Amended, EditError> {
        if hands.is_held {
            return Err(EditError::Held);
        }
        if hands.is_record {
            return Err(EditError::NotDead);
        }
        let binding = Binding::of(&letter.id, &letter.message);
        if self.expected.is_some_and(|expected| expected != binding) {
            return Err(EditError::Changed);
        }
        let after = self.apply(&letter.message)?;
        // The text for the audit compares before and after, so it is made while the letter still has its former
        // message.
        let subject = self.subject(letter, &after);
        let is_changed = after != letter.message;
        if is_changed {
            let state = &mut letter.state;
            let has_other_bytes = Binding::of(&letter.id, &after) != binding;
            // Edits back and forth come to the same bytes again, which are remembered once.
            if has_other_bytes && !state.edited_from.contains(&binding) {
                state.edited_from.push(binding);
            }
            // The lease has ended, or the edit was refused above. The store voids that claim, so the letter is due at once.
            if state.status == Status::Replaying {
                state.status = Status::Pending;
                state.due = Some(now);
            }
            state.updated_at = now;
            letter.message = after;
        }
        Ok(Amended { is_changed, subject })
    }

    /// Returns the text for the audit.
    fn subject(&self, letter: &DeadLetter, after: &Message) -> String {
        let before = &letter.message;
        let mut subject = json!({ "letter": letter.id, "generation": letter.generation });
        if before.payload() != after.payload() {
            subject["payload"] = json!({
                "before": shown_payload(before, BEFORE),
                "after": shown_payload(after, AFTER),
            });
        }
        let mut headers = Vec::new();
        for (n, (name, _)) in self.headers.iter().enumerate() {
            let (before, after) = (values(before, name, AFTER), values(after, name, AFTER));
            // Two changes of one header make one difference.
            let is_repeated = self.headers[..n].iter().any(|(other, _)| other == name);
            if before != after && !is_repeated {
                headers
                    .push(json!({ "name": shown(name, AFTER), "before": before, "after": after }));
            }
        }
        if !headers.is_empty() {
            subject["headers"] = headers.into();
        }
        subject.to_string()
    }
}

impl fmt::Debug for Edit {
    /// Shows everything but the payload and the values of headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Payloads and values of headers may be personal data, and what is shown here ends in logs.
        let length = self.payload.as_ref().map(|payload| payload.as_ref().map(Bytes::len));
        let headers: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Edit")
            .field("payload", &length)
            .field("headers", &headers)
            .field("expected", &self.expected)
            .field("allow_invalid", &self.allow_invalid)
            .finish()
    }
}

/// State of a letter's ownership, as its store knows it. An edit is refused if either is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hands {
    /// True if somebody has claimed the letter and the lease has not ended.
    pub is_held: bool,
    /// True if the letter is a retry record: `retrying`, or claimed from there.
    pub is_record: bool,
}

/// Result of an edit for a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Amended {
    /// True if anything of the letter differs.
    pub is_changed: bool,
    /// Text for the audit, as JSON.
    pub subject: String,
}

/// Reason why a letter was not edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// There is none.
    #[error("no letter has the id {0}; list them to see which there are")]
    Unknown(LetterId),
    /// Somebody has claimed it.
    #[error("a consumer is running the letter now; edit it when that has ended")]
    Held,
    /// It waits for another attempt, or that attempt was interrupted.
    #[error(
        "the message is not dead: it waits for another attempt; edit it once it is, or mark it as quarantined first"
    )]
    NotDead,
    /// Its bytes are not those that were expected.
    #[error("the payload of the letter has changed meanwhile; look at it again")]
    Changed,
    /// It cannot be undone, since the audit does not hold what was before.
    #[error(
        "the edit cannot be undone: the audit does not hold {what} as it was; edit the letter by hand"
    )]
    NotKept {
        /// The part that is lacking.
        what: String,
    },
    /// The payload was valid JSON and would not be any more.
    #[error(
        "the payload was JSON and would not be any more: line {line}, column {column}: {why}; correct it, or allow it \
         to be invalid"
    )]
    NotJson {
        /// The line, from 1.
        line: usize,
        /// The column in bytes, from 1; 0 before the first.
        column: usize,
        /// Problem that was found there.
        why: String,
    },
}

impl EditError {
    /// The kind of the store's error.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        match self {
            Self::Unknown(_) => StoreErrorKind::NotFound,
            Self::Held | Self::NotDead | Self::Changed => StoreErrorKind::Conflict,
            Self::NotJson { .. } | Self::NotKept { .. } => StoreErrorKind::Refused,
        }
    }
}

fn is_json(bytes: &[u8]) -> Result<(), EditError> {
    // The parser skips the bytes of strings that it ignores, so it would accept those that are not UTF-8.
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        EditError::NotJson { line, column, why: "a byte that is not UTF-8".to_owned() }
    })?;
    // Only the syntax matters here, so no value is built.
    serde_json::from_str::<IgnoredAny>(text).map(|_| ()).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        // The place is in the text of the error as well, and stands in fields here.
        let why = text.rsplit_once(" at line ").map_or(text.as_str(), |(why, _)| why).to_owned();
        EditError::NotJson { line, column, why }
    })
}

/// Number of bytes of a payload that the audit keeps of what was before an edit, by which it is undone.
const BEFORE: usize = 64 * 1024;
/// Number of bytes that it keeps of everything else.
const AFTER: usize = 4 * 1024;

/// The text of an edit in the audit.
#[derive(Deserialize)]
struct Kept {
    letter: LetterId,
    generation: u32,
    payload: Option<KeptPayload>,
    // An edit that changed no header leaves this field out.
    #[serde(default)]
    headers: Vec<KeptHeader>,
}

#[derive(Deserialize)]
struct KeptPayload {
    before: Value,
    after: Value,
}

#[derive(Deserialize)]
struct KeptHeader {
    name: Value,
    before: Vec<Value>,
    after: Vec<Value>,
}

/// The bytes that are [shown], `None` if they are not all there; within, `None` for no bytes.
fn whole(shown: &Value) -> Option<Option<Bytes>> {
    if shown.is_null() {
        return Some(None);
    }
    crate::bytes_text::deserialize(shown).ok().map(Some)
}

fn shown_payload(message: &Message, limit: usize) -> Value {
    message.payload().map(|payload| shown(payload, limit)).into()
}

/// The values of the headers called `name`, the first of them when there are many.
fn values(message: &Message, name: &Bytes, limit: usize) -> Vec<Value> {
    const MOST: usize = 16;
    let mut all = message.headers().iter().filter(|header| header.name == *name);
    let value = |value: &Bytes| shown(value, limit);
    let mut values: Vec<_> =
        all.by_ref().take(MOST).map(|header| header.value.as_ref().map(value).into()).collect();
    let more = all.count();
    if more > 0 {
        values.push(json!({ "more": more }));
    }
    values
}

/// Bytes as text where they are text and in base64 where they are not; of more than `limit` bytes only the first, with
/// the length and the BLAKE3 hash of all.
fn shown(bytes: &Bytes, limit: usize) -> Value {
    let text = |bytes: Bytes| {
        crate::bytes_text::serialize(&bytes, serde_json::value::Serializer).unwrap_or(Value::Null)
    };
    if bytes.len() <= limit {
        return text(bytes.clone());
    }
    let mut start = &bytes[..limit];
    // A character that the limit cuts in two is left out.
    if let Err(error) = std::str::from_utf8(start)
        && error.error_len().is_none()
    {
        start = &start[..error.valid_up_to()];
    }
    json!({
        "start": text(bytes.slice_ref(start)),
        "length": bytes.len(),
        "blake3": blake3::hash(bytes).to_hex().as_str(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_json_stays_json() {
        let json = Message::new("s", "{\"a\":1}");
        let refused = |payload: &'static [u8]| match Edit::new().payload(payload).apply(&json) {
            Err(EditError::NotJson { line, column, .. }) => (line, column),
            other => panic!("{payload:?}: {other:?}"),
        };
        assert_eq!(refused(b"{\n  \"a\": 1,\n}"), (3, 1));
        assert_eq!(refused(b"{\n\"\xff\"}"), (2, 2));
        assert_eq!(refused(b""), (1, 0));
        assert!(Edit::new().payload("nonsense").allow_invalid().apply(&json).is_ok());
        assert!(Edit::new().no_payload().apply(&json).is_ok());
        let text = Message::new("s", "plain");
        assert!(Edit::new().payload("other").apply(&text).is_ok());
    }

    #[test]
    fn headers_change_in_order() {
        let message = Message::new("s", "")
            .with_header("a", "1")
            .with_header("b", "2")
            .with_header("b", "3")
            .with_header("c", "4");
        let edit = Edit::new().set_header("a", "1").set_header("b", "3").remove_header("c");
        let edited = edit.apply(&message).unwrap();
        let expected = Message::new("s", "").with_header("a", "1").with_header("b", "3");
        assert_eq!(edited, expected, "a header that is so already keeps its place");
    }

    fn dead(message: Message) -> DeadLetter {
        let origin = crate::Origin::new("memory", "orders", crate::Position::Offset(1));
        DeadLetter::new(message, origin, "billing", crate::Reason::Manual)
    }

    const FREE: Hands = Hands { is_held: false, is_record: false };

    #[test]
    fn an_edit_is_undone_and_made_again() {
        let first = Message::new("s", "{\"a\":1}").with_header("a", "1").with_header("b", "\u{1}");
        let edits = [
            Edit::new().payload("[]"),
            Edit::new().no_payload().set_header("a", Bytes::from_static(b"\xff")),
            Edit::new().payload("x").allow_invalid().remove_header("b").set_header("new", ""),
        ];
        for edit in edits {
            let mut letter = dead(first.clone());
            let made = edit.amend(&mut letter, FREE, Timestamp::EPOCH).unwrap();
            let edited = letter.message.clone();
            let undone = Edit::undoing(&made.subject, &letter).unwrap();
            let undone = undone.amend(&mut letter, FREE, Timestamp::EPOCH).unwrap();
            let by_name = |message: &Message| {
                let mut headers: Vec<_> = message.headers().iter().cloned().collect();
                headers.sort_by(|one, other| one.name.cmp(&other.name));
                (message.payload().cloned(), headers)
            };
            assert_eq!(by_name(&letter.message), by_name(&first));
            assert_eq!(Edit::undoing(&made.subject, &letter), Err(EditError::Changed));
            let again = Edit::undoing(&undone.subject, &letter).unwrap();
            assert_eq!(by_name(&again.apply(&letter.message).unwrap()), by_name(&edited));
        }
    }

    #[test]
    fn what_the_audit_does_not_hold_is_not_undone() {
        let lost = |message: Message, edit: Edit| {
            let mut letter = dead(message);
            let made = edit.amend(&mut letter, FREE, Timestamp::EPOCH).unwrap();
            match Edit::undoing(&made.subject, &letter) {
                Err(EditError::NotKept { what }) => what,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            lost(Message::new("s", vec![b'x'; BEFORE + 1]), Edit::new().payload("")),
            "the payload"
        );
        let twice = Message::new("s", "").with_header("h", "1").with_header("h", "2");
        assert_eq!(lost(twice, Edit::new().remove_header("h")), "the header \"h\"");
        let letter = dead(Message::new("s", ""));
        let foreign = Edit::undoing("{}", &letter);
        assert_eq!(foreign, Err(EditError::NotKept { what: "what was edited".to_owned() }));
    }

    #[test]
    fn what_is_long_is_cut_at_a_character() {
        let long = Bytes::from("x".to_owned() + &"é".repeat(100));
        let cut = shown(&long, 10);
        assert_eq!(cut["start"], "xéééé");
        assert_eq!(cut["length"], 201);
        assert_eq!(cut["blake3"], blake3::hash(&long).to_hex().as_str());
        assert_eq!(shown(&Bytes::from_static(b"\xff\0"), 10), json!({ "base64": "/wA=" }));
    }
}
