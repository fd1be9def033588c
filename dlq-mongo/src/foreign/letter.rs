//! From a document to a letter.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use dlq_core::store::rules::born;
use dlq_core::{
    Attempt, Cause, DeadLetter, ErrorClass, Failure, Header, Headers, History, LetterId, MAX_TEXT,
    Message, Origin, Position, Reason, Resolution, Status, Timestamp,
};
use mongodb::bson::RawDocument;

use super::BadDocument;
use super::field::{Meaning, meaning};
use super::value::{self, Value, hex};

/// Most bytes of one document in attributes of unknown fields: lists show them.
const MAX_UNKNOWN: usize = 1 << 20;

/// Everything that the documents of a collection have in common.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) cluster: String,
    pub(super) stream: String,
    pub(super) consumer: String,
    pub(super) service: Option<String>,
    pub(super) class: ErrorClass,
    /// Time of opening by the server's clock.
    pub(super) opened_at: Timestamp,
    pub(super) skipped: Vec<String>,
}

impl Reader {
    pub(super) fn read(&self, document: &RawDocument) -> Result<DeadLetter, BadDocument> {
        let bad = |key: &str, why: String| {
            let key = format!("_id={key}").chars().take(200).collect();
            BadDocument { key, why }
        };
        let mut values: Vec<(&str, Value<'_>)> = Vec::new();
        for element in value::elements(document) {
            let (name, value) = element.map_err(|why| {
                let id = values.iter().find(|(name, _)| *name == "_id");
                bad(&id.and_then(|(_, id)| id.shown().ok()).unwrap_or_default(), why)
            })?;
            values.push((name, value));
        }
        let Some((_, id)) = values.iter().find(|(name, _)| *name == "_id").copied() else {
            return Err(bad("", "it has no `_id`".to_owned()));
        };
        let key = id.shown().map_err(|why| bad("", format!("field `_id`: {why}")))?;
        let origin = Origin::new("mongodb", &*self.stream, position(id.type_name(), &key))
            .with_cluster(&*self.cluster);
        let mut fields = Fields { reader: self, values, attributes: BTreeMap::new() };
        fields.letter(origin).map_err(|why| bad(&key, why))
    }
}

/// The place of a document in its collection: a hash of its key.
fn position(type_name: &str, key: &str) -> Position {
    // A number and a text with the same digits are different keys.
    let text = format!("{type_name}:{key}");
    let hash = LetterId::of(&Origin::new("mongodb", text, Position::Offset(0)), None, "");
    let number = u128::from_be_bytes(*hash.as_bytes());
    // The halves of 128 bits.
    Position::Pair((number >> 64) as u64, number as u64)
}

/// The fields of one document.
struct Fields<'d> {
    reader: &'d Reader,
    values: Vec<(&'d str, Value<'d>)>,
    attributes: BTreeMap<String, String>,
}

impl<'d> Fields<'d> {
    /// The letter, or what is wrong with the document.
    fn letter(&mut self, origin: Origin) -> Result<DeadLetter, String> {
        self.keep_unknown()?;
        let message = self.message()?;
        let created = self.time("created_at")?;
        let retried = self.time("retried_at")?;
        let quarantined = self.time("quarantined_at")?;
        // A letter has one time at which it was last changed, and it may be another one.
        if quarantined.is_some() {
            self.keep("quarantined_at")?;
        }
        let known = || [created, retried, quarantined].into_iter().flatten();
        let died_at = created.or_else(|| known().min()).unwrap_or_else(|| {
            self.attributes.insert("import.created-at".to_owned(), "unknown".to_owned());
            self.reader.opened_at
        });
        let (status, resolution) = match (retried, quarantined) {
            (_, Some(_)) => (Status::Quarantined, None),
            (Some(_), None) => (Status::Resolved, Some(Resolution::Succeeded)),
            (None, None) => (Status::Pending, None),
        };
        let mut state = born(died_at).with_status(status);
        state.resolution = resolution;
        state.retry_count = self.count("retry_count")?;
        state.updated_at = known().max().unwrap_or(died_at);
        state.last_retry_at = retried;
        let mut history = History::new();
        if let Some(error) = self.long("error")? {
            let mut failure = Failure::new(self.reader.class, Cause::Error, "", &error);
            failure.at = died_at;
            history.push(Attempt { number: 1, generation: 0, failure });
        }
        let service = self.text("source")?.map(Cow::into_owned);
        let consumer = self.reader.consumer.clone();
        // Read again for another consumer, it is the same letter.
        let id = LetterId::of(&origin, None, "");
        let mut letter = DeadLetter::new(message, origin, consumer, Reason::Exhausted).with_id(id);
        letter.class = self.reader.class;
        letter = letter.with_history(history);
        letter.service = service.or_else(|| self.reader.service.clone());
        letter.attempts = u32::from(letter.failure().is_some());
        letter.died_at = died_at;
        letter.attributes = std::mem::take(&mut self.attributes);
        letter.state = state;
        Ok(letter)
    }

    fn message(&mut self) -> Result<Message, String> {
        let event = self.text("event_name")?.ok_or("it has no `event_name`")?;
        let payload = self.payload()?;
        let mut message = Message::tombstone(&*event).with_payload(payload).with_event(&*event);
        if let Some(id) = self.text("original_id")? {
            message = message.with_id(&*id);
        }
        Ok(message.with_headers(self.headers()?))
    }

    fn payload(&mut self) -> Result<Option<Bytes>, String> {
        let Some(value) = self.find("payload") else { return Ok(None) };
        let bytes = match value {
            Value::Bytes(bytes) => return Ok(Some(Bytes::copy_from_slice(bytes))),
            Value::Text(bytes) => Bytes::copy_from_slice(bytes),
            Value::Other(mongodb::bson::RawBsonRef::Binary(binary)) => {
                Bytes::copy_from_slice(binary.bytes)
            }
            other => Bytes::from(other.shown()?.into_owned()),
        };
        let type_name = value.type_name().to_owned();
        self.attributes.insert("import.payload-type".to_owned(), type_name);
        Ok(Some(bytes))
    }

    /// The headers; metadata that are not all texts are kept beside them as they are.
    fn headers(&mut self) -> Result<Headers, String> {
        let mut headers = Headers::new();
        let Some(metadata) = self.find("metadata") else { return Ok(headers) };
        let Value::Document(metadata) = metadata else {
            self.keep("metadata")?;
            return Ok(headers);
        };
        let mut is_exact = true;
        for entry in value::elements(metadata) {
            let (name, value) = entry.map_err(|why| format!("field `metadata`: {why}"))?;
            let bytes = match value {
                Value::Text(bytes) => Bytes::copy_from_slice(bytes),
                other => {
                    is_exact = false;
                    Bytes::from(other.shown()?.into_owned())
                }
            };
            headers.push(Header { name: name.to_owned().into(), value: Some(bytes) });
        }
        // Without a header an empty document and null would look the same.
        if !is_exact || headers.is_empty() {
            self.keep("metadata")?;
        }
        Ok(headers)
    }

    /// Puts unknown fields into attributes.
    fn keep_unknown(&mut self) -> Result<(), String> {
        let skipped = &self.reader.skipped;
        self.values.retain(|(name, _)| meaning(name, skipped) != Meaning::Skipped);
        let of_ours = |(name, _): &&(&str, _)| meaning(name, skipped) == Meaning::Attribute;
        let unknown: Vec<_> = self.values.iter().filter(of_ours).map(|(name, _)| *name).collect();
        let mut kept = 0;
        for name in unknown {
            self.keep(name)?;
            let size = self.attributes.get(&name_of(name)).map_or(0, String::len);
            kept += size;
            if kept > MAX_UNKNOWN {
                return Err(format!(
                    "its fields that are not known hold more than {MAX_UNKNOWN} bytes, of which {size} are in `{name}`; \
                     leave that field out"
                ));
            }
        }
        Ok(())
    }

    /// Keeps a value as an attribute.
    fn keep(&mut self, name: &str) -> Result<(), String> {
        if let Some(value) = self.find(name) {
            let shown = value.shown().map_err(|why| format!("field `{name}`: {why}"))?;
            self.attributes.insert(name_of(name), shown.into_owned());
        }
        Ok(())
    }

    /// The value of a field; `None` for null.
    fn find(&self, name: &str) -> Option<Value<'d>> {
        let found = self.values.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value).filter(|value| !matches!(value, Value::Null))
    }

    /// A text. One that is not UTF-8 is kept beside it as its bytes.
    fn text(&mut self, name: &str) -> Result<Option<Cow<'d, str>>, String> {
        let Some(value) = self.find(name) else { return Ok(None) };
        let Value::Text(bytes) = value else { return Err(refusal(name, value, "a text")) };
        let text = String::from_utf8_lossy(bytes);
        if let Cow::Owned(_) = text {
            self.attributes.insert(name_of(name), hex(bytes));
        }
        Ok(Some(text))
    }

    /// A text that a history holds cut: then the whole is kept beside it.
    fn long(&mut self, name: &str) -> Result<Option<Cow<'d, str>>, String> {
        let text = self.text(name)?;
        if text.as_ref().is_some_and(|text| text.len() > MAX_TEXT) {
            self.keep(name)?;
        }
        Ok(text)
    }

    fn count(&self, name: &str) -> Result<u32, String> {
        let Some(value) = self.find(name) else { return Ok(0) };
        let count = value.whole().and_then(|number| u32::try_from(number).ok());
        count.ok_or_else(|| refusal(name, value, "a count"))
    }

    fn time(&self, name: &str) -> Result<Option<Timestamp>, String> {
        let Some(value) = self.find(name) else { return Ok(None) };
        let time = match value {
            Value::Time(millis) => value::time(millis),
            Value::Text(bytes) => {
                std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok())
            }
            _ => None,
        };
        let wanted = "a time between the years 1678 and 2261";
        time.map(Some).ok_or_else(|| refusal(name, value, wanted))
    }
}

fn refusal(name: &str, value: Value<'_>, wanted: &str) -> String {
    let shown: String = value.shown().unwrap_or_default().chars().take(80).collect();
    format!("field `{name}` is `{shown}` ({}), which is not {wanted}", value.type_name())
}

/// The name of the attribute with a field's value.
fn name_of(field: &str) -> String {
    format!("column.{field}")
}
