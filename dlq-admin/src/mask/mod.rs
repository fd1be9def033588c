//! Rules by which parts of messages are masked before anybody sees them.
//!
//! ```
//! use dlq_admin::mask::Mask;
//! use dlq_core::Message;
//!
//! let mask = Mask::new(["$.card.number", "$..email", "headers.authorization"])?;
//! let message = Message::new("orders", r#"{"card":{"number":4111},"total":12.50}"#);
//! let masked = mask.message(&message).unwrap();
//! assert_eq!(masked.payload().unwrap(), r#"{"card":{"number":"***"},"total":12.50}"#);
//! # Ok::<(), dlq_admin::mask::InvalidRule>(())
//! ```
//!
//! # Rules
//!
//! | rule | masks |
//! |---|---|
//! | `$.card.number`, `$.card['number']` | the value of a field |
//! | `$.items[0].iban`, `$.items[*].iban` | one element, or each |
//! | `$.customer.*.email` | `*` stands for any field or element |
//! | `$..email` | every field of this name, however deep |
//! | `$` | the whole payload |
//! | `headers.authorization`, `headers.*` | the values of headers of this name in upper or lower case, or of all |
//! | `key` | the key |
//!
//! A value, or all that is within it, becomes [`MASK`]; every other character of the payload stays as it is. A payload that
//! is not JSON is shown by its size and hash alone where a rule begins with `$`, since nobody knows where in it the values are.
//! JSON within a string is a string: name the field that holds it.
//!
//! Texts of errors, attributes, subjects and ids are not masked: a consumer that writes secrets there has to be changed.

mod json;
mod rule;

pub use rule::{InvalidRule, Rule};

use bytes::Bytes;
use dlq_core::store::AuditEntry;
use dlq_core::{DeadLetter, Header, Headers, Message};
use serde_json::{Value, json};

use json::Masked;
use rule::Path;

/// Text that stands where something is masked.
pub const MASK: &str = "***";

/// Name of the attribute of letters of which parts are masked. Its value names the parts.
pub const MASKED: &str = "dlq.masked";

/// Rules by which parts of messages are masked. See the [module's page](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Mask {
    paths: Vec<Path>,
    headers: Vec<rule::HeaderName>,
    has_key: bool,
}

impl Mask {
    /// Reads rules.
    ///
    /// # Errors
    ///
    /// When a text is no rule.
    pub fn new<R: AsRef<str>>(rules: impl IntoIterator<Item = R>) -> Result<Self, InvalidRule> {
        rules.into_iter().map(|rule| rule.as_ref().parse::<Rule>()).collect()
    }

    /// Adds the rules of another.
    pub fn and(mut self, other: Self) -> Self {
        self.paths.extend(other.paths);
        self.headers.extend(other.headers);
        self.has_key |= other.has_key;
        self
    }

    /// Returns true without any rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.headers.is_empty() && !self.has_key
    }

    /// Returns the message with its parts masked; `None` where no part of it is.
    #[must_use]
    pub fn message(&self, message: &Message) -> Option<Message> {
        // Most have no rules, and an export of many letters need not compare them all.
        if self.is_empty() {
            return None;
        }
        let mut masked = message.clone();
        if let Some(payload) = message.payload() {
            masked = masked.with_payload(Some(self.payload(payload)));
        }
        // A message without a key stays without one, which says nothing secret and means something to Kafka.
        if self.has_key && message.key().is_some() {
            masked = masked.with_key(MASK);
        }
        if message.headers().iter().any(|header| self.is_secret(&header.name)) {
            masked = masked.with_headers(self.headers(message.headers()));
        }
        (masked != *message).then_some(masked)
    }

    /// Returns the letter with parts of its message masked, which the attribute [`MASKED`] then says; `None` where no part
    /// is.
    #[must_use]
    pub fn letter(&self, letter: &DeadLetter) -> Option<DeadLetter> {
        let message = self.message(&letter.message)?;
        let parts = [
            ("payload", letter.message.payload() != message.payload()),
            ("headers", letter.message.headers() != message.headers()),
            ("key", letter.message.key() != message.key()),
        ];
        let parts: Vec<_> = parts.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
        let mut masked = letter.clone().with_message(message);
        // The mark travels with the letter, so that an export which is imported elsewhere is known to lack its values.
        masked.attributes.insert(MASKED.to_owned(), parts.join(", "));
        Some(masked)
    }

    /// Returns an entry of the audit with its parts masked: an edit quotes what was before and after.
    #[must_use]
    pub fn entry(&self, entry: &AuditEntry) -> AuditEntry {
        let mut masked = entry.clone();
        if entry.action != "edit" || self.is_empty() {
            return masked;
        }
        // Stores write subjects as documents, and whatever is none quotes no message.
        let Ok(Value::Object(mut subject)) = serde_json::from_str(&entry.subject) else {
            return masked;
        };
        for side in ["before", "after"] {
            if let Some(value) = subject.get_mut("payload").and_then(|it| it.get_mut(side)) {
                self.quoted(value);
            }
        }
        for header in subject.get_mut("headers").and_then(Value::as_array_mut).into_iter().flatten()
        {
            let name = header["name"].as_str().unwrap_or_default().to_owned();
            // A name that is not text is in base64, and no rule names it; all of them are meant by `*`.
            if self.is_secret(name.as_bytes()) {
                for side in ["before", "after"] {
                    for value in header[side].as_array_mut().into_iter().flatten() {
                        *value = json!(MASK);
                    }
                }
            }
        }
        masked.subject = Value::Object(subject).to_string();
        masked
    }

    /// Returns true if an edit would write [`MASK`] where a value was masked: what was shown masked was taken for what is
    /// there.
    #[must_use]
    pub fn is_written(&self, before: &Message, after: &Message) -> bool {
        // They are counted and not only looked for, as a message may well hold the mask at a place that was always so.
        self.masks_in(after) > self.masks_in(before)
    }

    /// Number of places that rules mask, and that hold no more than the mask.
    fn masks_in(&self, message: &Message) -> usize {
        let in_payload = match message.payload().map(|payload| json::masked(payload, &self.paths)) {
            Some(Some(Masked { idle, .. })) => idle,
            Some(None) => {
                let payload = message.payload().map(|payload| &payload[..]).unwrap_or_default();
                usize::from(!self.paths.is_empty() && payload.starts_with(MASK.as_bytes()))
            }
            None => 0,
        };
        let is_mask = |header: &&Header| header.value.as_deref() == Some(MASK.as_bytes());
        let headers = message.headers().iter().filter(is_mask);
        in_payload + headers.filter(|header| self.is_secret(&header.name)).count()
    }

    /// Returns a payload as it may be seen.
    fn payload(&self, payload: &Bytes) -> Bytes {
        // An empty payload is not JSON, and has nothing to mask.
        if self.paths.is_empty() || payload.is_empty() {
            return payload.clone();
        }
        match json::masked(payload, &self.paths) {
            Some(masked) => masked.text.into(),
            None => {
                // The hash lets somebody see that two letters have the same payload without seeing it.
                let hash = blake3::hash(payload).to_hex();
                let size = payload.len();
                format!("{MASK} {size} bytes that are not JSON, BLAKE3 {hash}").into()
            }
        }
    }

    fn headers(&self, headers: &Headers) -> Headers {
        let masked = headers.iter().map(|header| match &header.value {
            // A header without a value is shown as such: that it has none is no secret.
            Some(_) if self.is_secret(&header.name) => Header {
                name: header.name.clone(),
                value: Some(Bytes::from_static(MASK.as_bytes())),
            },
            _ => header.clone(),
        });
        masked.collect()
    }

    fn is_secret(&self, header: &[u8]) -> bool {
        self.headers.iter().any(|rule| rule.is(header))
    }

    /// Masks a payload as the audit quotes it: a text, bytes in base64, or the beginning of many.
    fn quoted(&self, value: &mut Value) {
        match value {
            _ if self.paths.is_empty() => {}
            Value::Null => {}
            Value::String(text) => {
                let masked = self.payload(&Bytes::from(std::mem::take(text)));
                *text = String::from_utf8_lossy(&masked).into_owned();
            }
            // Half a document is no JSON, so its values cannot be found.
            other => *other = json!(MASK),
        }
    }
}

impl FromIterator<Rule> for Mask {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        let mut mask = Self::default();
        mask.extend(rules);
        mask
    }
}

impl Extend<Rule> for Mask {
    fn extend<I: IntoIterator<Item = Rule>>(&mut self, rules: I) {
        for rule in rules {
            match rule {
                Rule(rule::Part::Payload(path)) => self.paths.push(path),
                Rule(rule::Part::Header(name)) => self.headers.push(name),
                Rule(rule::Part::Key) => self.has_key = true,
            }
        }
    }
}
