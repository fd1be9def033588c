//! Encoding of a message and its facts as a record of Kafka.
//!
//! Key, value and headers of a record are the message's; the headers of the protocol come after the producer's. What
//! neither says travels in one header of JSON, [`REST`], which is left out when there is nothing to say.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::protocol::{self, Decoded, Facts, Ours, names, of_death, split_without};
use dlq_core::{DeadLetter, Header, Headers, Message, Origin, Position, Timestamp};
use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use serde::{Deserialize, Serialize};

use crate::client::record::{Record, kafka};

/// The header with what nothing else says. Believed on our own topics only.
pub(crate) const REST: &str = "dlq.kafka.rest";

/// Maximum time by which a record may be due later than others of its stage.
pub(crate) const LATEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Facts that neither the record nor another header carries.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Rest {
    /// The producer's own id of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<Arc<str>>,
    /// The subject, where it is another than the topic it was born in.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<Arc<str>>,
    /// Origin of the message, if it was not a partition of this cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<Origin>,
    /// All of the producer's headers, where the client could not write a name of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Headers>,
    /// Facts of a letter only.
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<Facts>,
    /// Group of the retry record, in a topic that several groups share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<Arc<str>>,
}

impl Rest {
    pub(crate) fn of(message: &Message, origin: &Origin) -> Self {
        // If one header cannot be written, all of them go into `REST`: names may repeat, and their order is the producer's
        // (G8).
        let is_exact = message.headers().iter().all(|header| name(header).is_some());
        // Readers fill in their own alias where none is said, so any other than `default` is written out.
        let is_plain = origin.transport() == "kafka"
            && origin.cluster() == "default"
            && origin.partition().is_some()
            && matches!(origin.position(), Position::Offset(_));
        Self {
            id: message.id().map(Arc::from),
            event: message.event().map(Arc::from),
            subject: (message.subject() != origin.stream())
                .then(|| Arc::clone(message.subject_shared())),
            origin: (!is_plain).then(|| origin.clone()),
            headers: (!is_exact).then(|| message.headers().clone()),
            facts: None,
            group: None,
        }
    }
}

/// The name of a header as the client writes it; `None` where it cannot.
fn name(header: &Header) -> Option<&str> {
    std::str::from_utf8(&header.name).ok().filter(|name| !name.contains('\0'))
}

/// The headers of a record, and what else is to be said.
pub(crate) fn pack(written: &Headers, rest: &Rest) -> Result<OwnedHeaders, serde_json::Error> {
    let headers = OwnedHeaders::new_with_capacity(written.len() + 1);
    with_rest(written.iter().fold(headers, insert), rest)
}

/// The same of a producer's headers and ours.
pub(crate) fn pack_ours(
    producers: &Headers,
    ours: &Ours,
    rest: &Rest,
) -> Result<OwnedHeaders, serde_json::Error> {
    let headers = OwnedHeaders::new_with_capacity(producers.len() + ours.len() + 1);
    let producers = protocol::producers(producers);
    let headers = producers.fold(headers, |headers, header| insert(headers, &header));
    let headers = ours.iter().fold(headers, |headers, (key, value)| {
        headers.insert(KafkaHeader { key, value: Some(value) })
    });
    with_rest(headers, rest)
}

fn insert(headers: OwnedHeaders, header: &Header) -> OwnedHeaders {
    // Where the client cannot write a name, all of the headers are in `REST`.
    let Some(key) = name(header) else { return headers };
    headers.insert(KafkaHeader { key, value: header.value.as_deref() })
}

fn with_rest(headers: OwnedHeaders, rest: &Rest) -> Result<OwnedHeaders, serde_json::Error> {
    // Most records say nothing here, and pay for no header and no JSON.
    if *rest == Rest::default() {
        return Ok(headers);
    }
    let rest = serde_json::to_string(rest)?;
    Ok(headers.insert(KafkaHeader { key: REST, value: Some(&rest) }))
}

/// The headers of the record of a letter, with one more attribute if it has none of that name.
pub(crate) fn pack_letter(
    letter: &DeadLetter,
    attribute: Option<(&str, &str)>,
) -> Result<OwnedHeaders, serde_json::Error> {
    let mut rest = Rest::of(&letter.message, &letter.origin);
    let mut facts = Facts::of(letter);
    if let Some((name, value)) = attribute {
        // A letter that was copied from elsewhere may name its group already, and that is the one whose handler failed.
        facts.attributes.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    rest.facts = Some(facts);
    pack_ours(letter.message.headers(), &of_death(letter), &rest)
}

/// A record that we wrote, taken apart.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// The message as its producer sent it.
    pub(crate) message: Message,
    pub(crate) decoded: Decoded,
    /// Origin of the message, as far as the record says.
    pub(crate) origin: Option<Origin>,
    pub(crate) group: Option<Arc<str>>,
    facts: Option<Facts>,
}

impl Unpacked {
    /// Returns true if a sink of ours wrote the record.
    pub(crate) fn is_letter(&self) -> bool {
        self.facts.is_some()
    }
}

/// Reads what [`pack`] wrote. Never fails: of a record that somebody else wrote, `origin` is `None`.
pub(crate) fn unpack(record: &Record, cluster: &Arc<str>) -> Unpacked {
    let (producers, decoded) = split_ours(&record.headers);
    // A header that is no JSON of ours is taken for absent: any producer can write this name, and reading never fails (G8).
    let rest = record.headers.get(REST).and_then(|rest| serde_json::from_slice::<Rest>(rest).ok());
    let rest = rest.unwrap_or_default();
    let born = &decoded.original;
    let origin = rest.origin.or_else(|| {
        // Ours say the partition, so a record without it was written by somebody else.
        born.origin(kafka(), Arc::clone(cluster)).filter(|origin| origin.partition().is_some())
    });
    let subject = rest.subject.or_else(|| born.topic.as_deref().map(Arc::from));
    let subject = subject.unwrap_or_else(|| Arc::clone(&record.topic));
    let mut message = Message::tombstone(subject)
        .with_payload(record.value.clone())
        .with_headers(rest.headers.unwrap_or(producers));
    if let Some(key) = &record.key {
        message = message.with_key(key.clone());
    }
    if let Some(at) = born.timestamp {
        message = message.with_published_at(at);
    }
    if let Some(id) = rest.id {
        message = message.with_id(id);
    }
    if let Some(event) = rest.event {
        message = message.with_event(event);
    }
    Unpacked { message, decoded, origin, group: rest.group, facts: rest.facts }
}

/// The letter in a record, if one of our sinks wrote it.
pub(crate) fn letter(record: &Record, cluster: &Arc<str>) -> Option<DeadLetter> {
    let Unpacked { message, decoded, origin, facts, .. } = unpack(record, cluster);
    let facts = facts?;
    let written = record.timestamp.unwrap_or(facts.died_at);
    facts.into_letter(decoded, message, origin?, written)
}

/// The producer's headers, and what ours say.
pub(crate) fn split_ours(headers: &Headers) -> (Headers, Decoded) {
    split_without(headers, |name| name == REST.as_bytes())
}

/// When a retry record may run: what its header says, but no more than a day later than a record of this stage is due, so
/// that a clock from the future keeps nothing for years; without a header, its timestamp and the stage's delay. The day
/// begins when the record was written, and so does not begin anew with each process that reads it.
pub(crate) fn due(
    decoded: &Decoded,
    timestamp: Option<Timestamp>,
    delay: Duration,
    now: Timestamp,
) -> Timestamp {
    let due = decoded.due.or_else(|| timestamp.map(|at| at.after(delay))).unwrap_or(now);
    due.min(written(timestamp, now).after(delay.saturating_add(LATEST)))
}

/// When a record was written: a producer may say anything, but it was not later than now.
fn written(timestamp: Option<Timestamp>, now: Timestamp) -> Timestamp {
    timestamp.unwrap_or(now).min(now)
}

/// Shortest time that a record stands in a stage until it is written into it again.
const SHORTEST: Duration = Duration::from_secs(5);

/// When a record that is not due by then is written into its stage again, as what follows it there does not wait for it.
/// `None` of one that waits no longer than its stage.
pub(crate) fn again(
    due: Timestamp,
    timestamp: Option<Timestamp>,
    delay: Duration,
    now: Timestamp,
) -> Option<Timestamp> {
    // The clock of the brokers may be another, and a record that has a second left is not worth the writing.
    const WORTH: Duration = Duration::from_secs(1);
    let at = written(timestamp, now).after(delay.max(SHORTEST));
    (due > at.after(WORTH)).then_some(at)
}

/// Returns true if the client can write a record again as it stands.
pub(crate) fn is_writable(record: &Record) -> bool {
    record.unreadable_headers == 0 && record.headers.iter().all(|header| name(header).is_some())
}

/// The headers of a retry record that is written again as it stands and is due then.
pub(crate) fn pack_again(record: &Record, due: Timestamp) -> OwnedHeaders {
    let is_due = |header: &Header| header.name == names::RETRY_DUE;
    // The last one is replaced in its place, since readers believe the last, and the order of the others stays.
    let last = record.headers.iter().rposition(is_due);
    let due = due.to_string();
    let headers = OwnedHeaders::new_with_capacity(record.headers.len() + 1);
    let due = || KafkaHeader { key: names::RETRY_DUE, value: Some(&due) };
    let each = record.headers.iter().enumerate();
    let headers = each.fold(headers, |headers, (at, header)| match last {
        Some(last) if last == at => headers.insert(due()),
        _ => insert(headers, header),
    });
    if last.is_none() { headers.insert(due()) } else { headers }
}

/// The name of the header by which our records are told.
pub(crate) const VERSION: &str = names::VERSION;
