//! Rows as documents: which fields are written together, and how they are read.
//!
//! | fields | written |
//! |---|---|
//! | state: status, times, counts, claim, operation | with every change |
//! | run: generation, class, cause, error, history | when a run has failed, and with everything |
//! | body: message, origin, consumer, attributes | with everything |
//!
//! A field that has no value is absent, so that sparse indexes pass over it. Times are nanoseconds, as 64-bit integers.

use std::fmt::Display;
use std::str::FromStr;

use bytes::Bytes;
use dlq_core::{
    Binding, DeadLetter, Header, Headers, History, LetterId, LetterSummary, Message, OperationId,
    Origin, Timestamp, searchable,
};
use dlq_letters::{Held, Row};
use mongodb::bson::{Bson, Document, doc};

use crate::error::{Fault, Result};
use crate::keys;

/// Fields of a letter that heads do not have, as a projection.
pub(crate) fn head() -> Document {
    doc! { "payload": 0_i32, "message_key": 0_i32, "headers": 0_i32, "history": 0_i32, "search": 0_i32 }
}

/// Fields that are set, and fields that are taken away.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Change {
    pub(crate) set: Document,
    pub(crate) unset: Document,
}

impl Change {
    fn put(&mut self, name: &str, value: impl Into<Bson>) {
        self.set.insert(name, value);
    }

    /// Sets the field, or takes it away where there is no value.
    pub(crate) fn optional(&mut self, name: &str, value: Option<impl Into<Bson>>) {
        match value {
            Some(value) => self.put(name, value),
            None => {
                // Absent and not null, since filters and indexes ask whether a field exists.
                self.unset.insert(name, "");
            }
        }
    }
}

pub(crate) fn time(at: Timestamp) -> Bson {
    Bson::Int64(at.as_nanos())
}

pub(crate) fn count(count: u32) -> Bson {
    Bson::Int64(count.into())
}

fn unsigned(number: u64) -> Bson {
    // BSON has no unsigned integers. The cast keeps all bits, and reading turns it round.
    Bson::Int64(number.cast_signed())
}

/// A whole number, in whichever type the server answers.
pub(crate) fn number(document: &Document, name: &str) -> Option<i64> {
    match document.get(name)? {
        Bson::Int64(number) => Some(*number),
        Bson::Int32(number) => Some((*number).into()),
        #[allow(clippy::cast_possible_truncation, reason = "counts of the server are whole")]
        Bson::Double(number) => Some(*number as i64),
        _ => None,
    }
}

pub(crate) fn text<'d>(document: &'d Document, name: &str) -> Option<&'d str> {
    document.get_str(name).ok()
}

/// Fields that change while a letter rests.
pub(crate) fn put_state(row: &Row, to: &mut Change) {
    let (letter, state) = (&row.letter, &row.letter.state);
    to.put("status", state.status.as_str());
    to.optional("resolution", state.resolution.map(|resolution| resolution.as_str()));
    to.put("reason", letter.reason.as_str());
    to.optional("due", state.due.map(time));
    to.optional("available", row.available_at().map(time));
    to.put("retries", count(state.retry_count));
    to.put("replays", count(state.replays));
    to.put("seen", count(state.seen));
    to.optional("operation", state.operation.map(keys::operation));
    to.optional("item", row.item.map(|(_, index)| unsigned(index)));
    to.put("updated", time(state.updated_at));
    to.optional("last_retry", state.last_retry_at.map(time));
    to.put("fence", unsigned(row.fence));
    to.optional("claim_until", row.claim.as_ref().map(|held| time(held.until)));
    to.optional("claim_former", row.claim.as_ref().map(|held| held.former.as_str()));
    to.optional("claim_owner", row.claim.as_ref().map(|held| held.owner.as_str()));
    to.optional("claim_sender", row.claim.as_ref().and_then(|held| held.sender.as_deref()));
    to.optional("finished", row.finished.map(unsigned));
    to.put("lapses", count(row.lapses));
    to.optional("dedup", row.key.as_ref().map(|key| keys::binary(key.to_bytes())));
    // The token finds what one call has claimed. Whatever is written afterwards makes it another claim, or none.
    to.unset.insert("claim_token", "");
}

/// Fields that a failed run changes, but for the history.
pub(crate) fn put_run(letter: &DeadLetter, to: &mut Change) {
    let error = letter.error();
    // It is kept only where it differs, since it is as long as the error itself.
    let lower = Some(searchable(&error)).filter(|lower| *lower != error);
    to.put("generation", count(letter.generation));
    to.optional("cause", letter.cause.map(|cause| cause.as_str()));
    to.put("class", letter.class.as_str());
    to.put("fingerprint", letter.fingerprint.to_string());
    to.put("error", error);
    to.optional("search", lower);
    to.put("attempts", count(letter.attempts));
    to.put("crashes", count(letter.crashes));
    to.put("escalations", count(letter.delayed_retries));
    to.put("died", time(letter.died_at));
}

/// Fields that only another death or an edit changes, but for the bytes of the message.
pub(crate) fn put_body(letter: &DeadLetter, to: &mut Change) {
    let (message, origin) = (&letter.message, &letter.origin);
    to.put("created", time(letter.state.created_at));
    to.optional("message_id", message.id());
    to.put("subject", message.subject());
    to.optional("event", message.event());
    to.put("consumer", letter.consumer.as_str());
    to.optional("service", letter.service.as_deref());
    to.put("deliveries", count(letter.deliveries));
    to.put("confirmed", letter.confirmed);
    to.optional("published", message.published_at().map(time));
    let mut place = doc! {
        "cluster": origin.cluster(),
        "transport": origin.transport(),
        "stream": origin.stream(),
        "position": origin.position().to_string(),
    };
    if let Some(partition) = origin.partition() {
        place.insert("partition", count(partition));
    }
    to.put("origin", place);
    // Pairs, since names may hold dots and dollars.
    let attributes = letter
        .attributes
        .iter()
        .map(|(name, value)| Bson::Document(doc! { "k": name.as_str(), "v": value.as_str() }));
    to.put("attributes", attributes.collect::<Vec<_>>());
    // Lists show the size, and a head has no payload to measure.
    let size = message.payload().map(|payload| unsigned(payload.len() as u64));
    to.optional("payload_size", size);
    let former = &letter.state.edited_from;
    let bytes: Vec<u8> = former.iter().flat_map(|binding| *binding.as_bytes()).collect();
    to.optional("edited_from", (!former.is_empty()).then(|| keys::binary(bytes)));
}

/// The bytes of a message: payload, key and headers.
pub(crate) fn bytes_of(message: &Message) -> Document {
    let mut document = Document::new();
    if let Some(payload) = message.payload() {
        document.insert("payload", keys::binary(&payload[..]));
    }
    if let Some(key) = message.key() {
        document.insert("message_key", keys::binary(&key[..]));
    }
    let headers = message.headers().iter().map(|header| {
        let mut pair = doc! { "n": keys::binary(&header.name[..]) };
        // A header without a value is another one than a header with an empty value.
        if let Some(value) = &header.value {
            pair.insert("v", keys::binary(&value[..]));
        }
        Bson::Document(pair)
    });
    document.insert("headers", headers.collect::<Vec<_>>());
    document
}

/// Reads the fields of [`bytes_of`] into a message.
pub(crate) fn read_bytes(from: &mut Document, message: Message) -> Message {
    let mut take = |name| match from.remove(name) {
        Some(Bson::Binary(binary)) => Some(Bytes::from(binary.bytes)),
        _ => None,
    };
    let (payload, key) = (take("payload"), take("message_key"));
    let mut headers = Headers::new();
    if let Some(Bson::Array(pairs)) = from.remove("headers") {
        for pair in pairs {
            let Bson::Document(mut pair) = pair else { continue };
            let mut take = |name| match pair.remove(name) {
                Some(Bson::Binary(binary)) => Some(Bytes::from(binary.bytes)),
                _ => None,
            };
            headers.push(Header { name: take("n").unwrap_or_default(), value: take("v") });
        }
    }
    let mut message = message.with_headers(headers).with_payload(payload);
    if let Some(key) = key {
        message = message.with_key(key);
    }
    message
}

pub(crate) fn history_text(history: &History) -> Result<String> {
    serde_json::to_string(history).map_err(|error| Fault::corrupt("history", &error))
}

pub(crate) fn read_history(text: &str) -> Result<History> {
    serde_json::from_str(text).map_err(|error| Fault::corrupt("history", &error))
}

struct Fields<'d>(&'d Document);

impl Fields<'_> {
    fn there<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| {
            Fault::corrupt(&format!("letter's `{name}`"), &"it is missing or of another type")
        })
    }

    fn text(&self, name: &str) -> Result<String> {
        self.there(name, text(self.0, name)).map(str::to_owned)
    }

    fn text_or_none(&self, name: &str) -> Option<String> {
        text(self.0, name).map(str::to_owned)
    }

    fn word<T: FromStr<Err: Display>>(&self, name: &str) -> Result<T> {
        let text = self.there(name, text(self.0, name))?;
        text.parse().map_err(|error| Fault::corrupt(&format!("letter's `{name}`"), &error))
    }

    fn word_or_none<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>> {
        if self.0.contains_key(name) { self.word(name).map(Some) } else { Ok(None) }
    }

    fn count(&self, name: &str) -> Result<u32> {
        let number = self.there(name, number(self.0, name))?;
        u32::try_from(number).map_err(|error| Fault::corrupt(&format!("letter's `{name}`"), &error))
    }

    fn time(&self, name: &str) -> Result<Timestamp> {
        self.there(name, self.time_or_none(name))
    }

    fn time_or_none(&self, name: &str) -> Option<Timestamp> {
        number(self.0, name).map(Timestamp::from_nanos)
    }

    fn unsigned_or_none(&self, name: &str) -> Option<u64> {
        number(self.0, name).map(i64::cast_unsigned)
    }
}

/// The id of a letter's document.
pub(crate) fn letter_id(document: &Document) -> Result<LetterId> {
    let id = keys::id(document.get("_id")).map(LetterId::from_bytes);
    id.ok_or_else(|| Fault::corrupt("id of a letter", &"it is not 16 bytes"))
}

/// The version of a document, which grows with every change.
pub(crate) fn version(document: &Document) -> i64 {
    number(document, "v").unwrap_or(0)
}

/// The operation whose items or letters a document belongs to.
pub(crate) fn operation_id(document: &Document, name: &str) -> Option<OperationId> {
    keys::id(document.get(name)).map(OperationId::from_bytes)
}

/// Reads a row without the message's bytes and the history.
pub(crate) fn read_row(document: &Document) -> Result<Row> {
    let fields = Fields(document);
    let mut message = Message::tombstone(fields.text("subject")?);
    if let Some(id) = text(document, "message_id") {
        message = message.with_id(id);
    }
    if let Some(event) = text(document, "event") {
        message = message.with_event(event);
    }
    if let Some(at) = fields.time_or_none("published") {
        message = message.with_published_at(at);
    }
    let former = keys::bytes(document.get("edited_from")).unwrap_or_default();
    let (former, rest) = former.as_chunks();
    if !rest.is_empty() {
        return Err(Fault::corrupt("list of bindings", &"it does not end with a whole one"));
    }
    let mut letter = DeadLetter::identified(
        letter_id(document)?,
        fields.word("fingerprint")?,
        message,
        read_origin(document)?,
        fields.text("consumer")?,
        fields.word("reason")?,
    );
    letter.generation = fields.count("generation")?;
    letter.service = fields.text_or_none("service");
    letter.class = fields.word("class")?;
    letter.cause = fields.word_or_none("cause")?;
    letter.attempts = fields.count("attempts")?;
    letter.deliveries = fields.count("deliveries")?;
    letter.crashes = fields.count("crashes")?;
    letter.delayed_retries = fields.count("escalations")?;
    letter.died_at = fields.time("died")?;
    letter.confirmed = document.get_bool("confirmed").unwrap_or(false);
    letter.attributes = read_attributes(document);
    let state = &mut letter.state;
    state.status = fields.word("status")?;
    state.resolution = fields.word_or_none("resolution")?;
    state.due = fields.time_or_none("due");
    state.retry_count = fields.count("retries")?;
    state.replays = fields.count("replays")?;
    state.operation = operation_id(document, "operation");
    state.created_at = fields.time("created")?;
    state.updated_at = fields.time("updated")?;
    state.last_retry_at = fields.time_or_none("last_retry");
    state.seen = fields.count("seen")?;
    state.edited_from = former.iter().copied().map(Binding::from_bytes).collect();
    let operation = state.operation;
    let mut row = Row::new(letter);
    row.tag = version(document);
    row.fence = fields.unsigned_or_none("fence").unwrap_or(0);
    if let Some(until) = fields.time_or_none("claim_until") {
        row.claim = Some(Held {
            former: fields.word("claim_former")?,
            until,
            owner: fields.text_or_none("claim_owner").unwrap_or_default(),
            sender: fields.text_or_none("claim_sender"),
        });
    }
    row.finished = fields.unsigned_or_none("finished");
    row.lapses = fields.count("lapses")?;
    row.item = operation.zip(fields.unsigned_or_none("item"));
    row.key = keys::bytes(document.get("dedup")).map(keys::dedup).transpose()?;
    Ok(row)
}

/// Reads what a list shows of a letter.
pub(crate) fn read_summary(document: &Document) -> Result<LetterSummary> {
    let mut summary = read_row(document)?.letter.summary();
    summary.error = Fields(document).text("error")?;
    summary.payload_size = Fields(document).unsigned_or_none("payload_size");
    Ok(summary)
}

fn read_origin(document: &Document) -> Result<Origin> {
    let origin = document.get_document("origin");
    let origin = origin.map_err(|error| Fault::corrupt("letter's `origin`", &error))?;
    let fields = Fields(origin);
    let place =
        Origin::new(fields.text("transport")?, fields.text("stream")?, fields.word("position")?);
    let place = place.with_cluster(fields.text("cluster")?);
    Ok(match number(origin, "partition").and_then(|number| u32::try_from(number).ok()) {
        Some(partition) => place.with_partition(partition),
        None => place,
    })
}

fn read_attributes(document: &Document) -> std::collections::BTreeMap<String, String> {
    let pairs = document.get_array("attributes").into_iter().flatten();
    let pairs = pairs.filter_map(|pair| {
        let pair = pair.as_document()?;
        Some((text(pair, "k")?.to_owned(), text(pair, "v")?.to_owned()))
    });
    pairs.collect()
}
