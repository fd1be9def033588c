//! [`Message`]: what the producer sent, untouched, and its [`Headers`].

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// A header: a name and a value, both kept byte for byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The name as the broker gave it; usually UTF-8.
    #[serde(with = "crate::bytes_text")]
    pub name: Bytes,
    /// The value; `None` where the broker knows headers without a value.
    #[serde(with = "crate::bytes_text::option")]
    pub value: Option<Bytes>,
}

/// The headers of a message: an ordered list in which a name may occur more than once.
///
/// ```
/// use dlq_core::Headers;
///
/// let mut headers = Headers::new();
/// headers.append("tag", "a");
/// headers.append("tag", "b");
/// assert_eq!(headers.get_all("tag").collect::<Vec<_>>(), [b"a", b"b"]);
/// headers.set("tag", "c");
/// assert_eq!(headers.len(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(Vec<Header>);

impl Headers {
    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the number of headers; repeated names count each time.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no headers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All headers in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Header> {
        self.0.iter()
    }

    /// The last value under `name`, which is the one a later hop wrote.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        // Whoever adds a header to those present writes behind them, so the last one is the latest.
        self.0.iter().rev().find(|header| header.name == name).and_then(|h| h.value.as_deref())
    }

    /// The last value under `name`, if it is UTF-8.
    #[must_use]
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Every value under `name`, in order.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |h| h.name == name).filter_map(|h| h.value.as_deref())
    }

    /// Adds a header after those present.
    pub fn append(&mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.0.push(Header { name: name.into(), value: Some(value.into()) });
    }

    /// Replaces every header called `name` by one.
    pub fn set(&mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) {
        let name = name.into();
        self.0.retain(|header| header.name != name);
        self.0.push(Header { name, value: Some(value.into()) });
    }

    /// Removes every header called `name`.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|header| header.name != name);
    }

    /// Keeps the headers for which `keep` is true.
    pub fn retain(&mut self, keep: impl FnMut(&Header) -> bool) {
        self.0.retain(keep);
    }

    /// Adds a header as it is, name and value byte for byte.
    pub fn push(&mut self, header: Header) {
        self.0.push(header);
    }
}

impl FromIterator<Header> for Headers {
    fn from_iter<I: IntoIterator<Item = Header>>(headers: I) -> Self {
        Self(headers.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a Headers {
    type Item = &'a Header;
    type IntoIter = std::slice::Iter<'a, Header>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Message as the producer sent it: subject, key, headers, payload and publish time. The framework never changes it.
///
/// An absent payload (`None`) is a tombstone and differs from an empty one; so for the key.
///
/// ```
/// use dlq_core::Message;
///
/// let message = Message::new("orders.created", r#"{"id":1}"#).with_key("customer-7").with_id("evt-1");
/// assert_eq!(message.subject(), "orders.created");
/// assert_eq!(message.payload().unwrap().len(), 8);
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct Message {
    id: Option<Arc<str>>,
    subject: Arc<str>,
    event: Option<Arc<str>>,
    #[serde(with = "crate::bytes_text::option")]
    key: Option<Bytes>,
    headers: Headers,
    #[serde(with = "crate::bytes_text::option")]
    payload: Option<Bytes>,
    published_at: Option<Timestamp>,
}

impl Message {
    /// A message with a payload.
    pub fn new(subject: impl Into<Arc<str>>, payload: impl Into<Bytes>) -> Self {
        Self::tombstone(subject).with_payload(Some(payload.into()))
    }

    /// A message without a payload.
    pub fn tombstone(subject: impl Into<Arc<str>>) -> Self {
        Self {
            id: None,
            subject: subject.into(),
            event: None,
            key: None,
            headers: Headers::new(),
            payload: None,
            published_at: None,
        }
    }

    /// Sets the producer's own id of the message. Defaults to none.
    pub fn with_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the type of the event that the message reports. Defaults to none.
    pub fn with_event(mut self, event: impl Into<Arc<str>>) -> Self {
        self.event = Some(event.into());
        self
    }

    /// Sets the key. Defaults to none.
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header after those present.
    pub fn with_header(mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.headers.append(name, value);
        self
    }

    /// Replaces all headers.
    pub fn with_headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Replaces the payload; `None` makes a tombstone. Key and headers stay.
    pub fn with_payload(mut self, payload: Option<Bytes>) -> Self {
        self.payload = payload;
        self
    }

    /// Sets the time at which the producer or the broker says it was published. It is part of the identity of the
    /// message's [letter](crate::LetterId), so each reading of the message has to give the same. Defaults to none.
    pub fn with_published_at(mut self, at: Timestamp) -> Self {
        self.published_at = Some(at);
        self
    }

    /// Takes id and type of the event from the headers of these names.
    pub(crate) fn named_by(mut self, id: Option<&str>, event: Option<&str>) -> Self {
        if let Some(name) = id {
            // The header that was named is the only source: without it the message has no id, whatever it had before.
            self.id = self.headers.get_str(name).map(Arc::from);
        }
        if let Some(name) = event {
            self.event = self.headers.get_str(name).map(Arc::from);
        }
        self
    }

    /// The producer's own id of the message.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns the address of the message: NATS subject, Kafka topic, Redis stream key.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The subject, shared.
    #[must_use]
    pub fn subject_shared(&self) -> &Arc<str> {
        &self.subject
    }

    /// The type of the event that the message reports.
    #[must_use]
    pub fn event(&self) -> Option<&str> {
        self.event.as_deref()
    }

    /// The key; absent differs from empty.
    #[must_use]
    pub fn key(&self) -> Option<&Bytes> {
        self.key.as_ref()
    }

    /// The headers.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The payload; absent (a tombstone) differs from empty.
    #[must_use]
    pub fn payload(&self) -> Option<&Bytes> {
        self.payload.as_ref()
    }

    /// When it was published.
    #[must_use]
    pub fn published_at(&self) -> Option<Timestamp> {
        self.published_at
    }
}

impl fmt::Debug for Message {
    /// Shows everything but the payload, of which only the length is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("subject", &self.subject)
            .field("event", &self.event)
            .field("key", &self.key)
            // Headers may hold personal data or secrets, and what is shown here ends in logs.
            .field("headers", &self.headers.len())
            .field("payload", &self.payload.as_ref().map(Bytes::len))
            .field("published_at", &self.published_at)
            .finish()
    }
}
