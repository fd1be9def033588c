//! The columns of a letter's row: which are written together, and in which order they are bound and read.

use std::borrow::Cow;

use bytes::Bytes;
use dlq_core::store::OperationItem;
use dlq_core::store::rules::DedupKey;
use dlq_core::{
    DeadLetter, Headers, LetterSummary, Message, OperationId, Order, Origin, Timestamp, searchable,
};
use dlq_letters::{Held, Row};

use crate::error::{Fault, Result};
use crate::values::{Put, Take, json, signed};

/// Written once.
pub(crate) const KEPT: &[&str] = &["letter_id"];

/// When it came to be a letter: written once, and again when a retry record dies.
pub(crate) const SINCE: &[&str] = &["created_at"];

/// Columns of a letter's state at rest.
pub(crate) const STATE: &[&str] = &[
    "status",
    "resolution",
    // A letter that is set aside by a replay is given another reason (G7).
    "reason",
    "retry_after",
    "available_at",
    "retry_count",
    "replays",
    "seen",
    "operation",
    "item",
    "updated_at",
    "last_retry_at",
    "claim_fence",
    "claim_until",
    "claim_former",
    "claim_owner",
    "claim_sender",
    "finished_fence",
    "lapses",
];

/// Columns that a failed run changes.
pub(crate) const RUN: &[&str] = &[
    "generation",
    "cause",
    "class",
    "fingerprint",
    "error",
    "error_search",
    "attempts",
    "crashes",
    "escalations",
    "died_at",
    "history",
];

/// Columns that only another death or an edit changes.
pub(crate) const BODY: &[&str] = &[
    "event_id",
    "subject",
    "event_type",
    "consumer",
    "service",
    "deliveries",
    "confirmed",
    "published_at",
    "cluster",
    "transport",
    "stream",
    "partition",
    "position",
    "attributes",
    "headers",
    "key",
    "data",
    "edited_from",
];

/// Columns that are read of every row: all but the message's bytes and the history.
pub(crate) const HEAD: &[&str] = &[
    "letter_id",
    "generation",
    "event_id",
    "subject",
    "event_type",
    "cluster",
    "transport",
    "stream",
    "partition",
    "position",
    "consumer",
    "service",
    "reason",
    "class",
    "cause",
    "error",
    "fingerprint",
    "attempts",
    "crashes",
    "deliveries",
    "escalations",
    // Lists show the size of a payload, and read none.
    "length(t.data)",
    "died_at",
    "confirmed",
    "attributes",
    "status",
    "resolution",
    "retry_after",
    "retry_count",
    "replays",
    "operation",
    "created_at",
    "updated_at",
    "last_retry_at",
    "seen",
    "claim_fence",
    "claim_until",
    "claim_former",
    "claim_owner",
    "claim_sender",
    "finished_fence",
    "lapses",
    "item",
    "dedup_key",
    "edited_from",
];

/// The parts of a row, as its columns have them.
pub(crate) struct Parts<'v> {
    pub(crate) letter: &'v DeadLetter,
    pub(crate) available_at: Option<Timestamp>,
    pub(crate) item: Option<(OperationId, u64)>,
    pub(crate) fence: u64,
    pub(crate) claim: Option<&'v Held>,
    pub(crate) finished: Option<u64>,
    pub(crate) lapses: u32,
}

impl<'v> From<&'v Row> for Parts<'v> {
    fn from(row: &'v Row) -> Self {
        Self {
            letter: &row.letter,
            available_at: row.available_at(),
            item: row.item,
            fence: row.fence,
            claim: row.claim.as_ref(),
            finished: row.finished,
            lapses: row.lapses,
        }
    }
}

/// [`KEPT`].
pub(crate) fn put_kept<'v>(row: impl Into<Parts<'v>>, to: &mut impl Put<'v>) -> Result<()> {
    to.bytes(Some(row.into().letter.id.as_bytes()))
}

/// [`SINCE`].
pub(crate) fn put_since<'v>(row: impl Into<Parts<'v>>, to: &mut impl Put<'v>) -> Result<()> {
    to.time(Some(row.into().letter.state.created_at))
}

/// [`STATE`].
pub(crate) fn put_state<'v>(row: impl Into<Parts<'v>>, to: &mut impl Put<'v>) -> Result<()> {
    let row = row.into();
    let state = &row.letter.state;
    to.word(state.status.as_str())?;
    to.text(state.resolution.map(|resolution| resolution.as_str().into()))?;
    to.word(row.letter.reason.as_str())?;
    to.time(state.due)?;
    to.time(row.available_at)?;
    to.count(state.retry_count)?;
    to.count(state.replays)?;
    to.count(state.seen)?;
    to.bytes(state.operation.as_ref().map(|id| &id.as_bytes()[..]))?;
    to.int(row.item.map(|(_, index)| signed(index)))?;
    to.time(Some(state.updated_at))?;
    to.time(state.last_retry_at)?;
    to.int(Some(signed(row.fence)))?;
    to.time(row.claim.map(|held| held.until))?;
    to.text(row.claim.map(|held| held.former.as_str().into()))?;
    to.text(row.claim.map(|held| held.owner.as_str().into()))?;
    to.text(row.claim.and_then(|held| held.sender.as_deref()).map(Cow::from))?;
    to.int(row.finished.map(signed))?;
    to.count(row.lapses)
}

/// [`RUN`].
pub(crate) fn put_run<'v>(row: impl Into<Parts<'v>>, to: &mut impl Put<'v>) -> Result<()> {
    let letter = row.into().letter;
    let error = letter.error();
    // Searches look at the error in lower case. Where it is that already, the second column stays empty.
    let lower = Some(searchable(&error)).filter(|lower| *lower != error);
    to.count(letter.generation)?;
    to.text(letter.cause.map(|cause| cause.as_str().into()))?;
    to.word(letter.class.as_str())?;
    to.text(Some(letter.fingerprint.to_string().into()))?;
    to.text(Some(error.into()))?;
    to.text(lower.map(Cow::from))?;
    to.count(letter.attempts)?;
    to.count(letter.crashes)?;
    to.count(letter.delayed_retries)?;
    to.nanos(Some(letter.died_at))?;
    to.json(json(&letter.history))
}

/// [`BODY`].
pub(crate) fn put_body<'v>(letter: &'v DeadLetter, to: &mut impl Put<'v>) -> Result<()> {
    let (message, origin) = (&letter.message, &letter.origin);
    to.text(message.id().map(Cow::from))?;
    to.word(message.subject())?;
    to.text(message.event().map(Cow::from))?;
    to.word(&letter.consumer)?;
    to.text(letter.service.as_deref().map(Cow::from))?;
    to.count(letter.deliveries)?;
    to.flag(letter.confirmed)?;
    to.nanos(message.published_at())?;
    to.word(origin.cluster())?;
    to.word(origin.transport())?;
    to.word(origin.stream())?;
    to.int(origin.partition().map(i64::from))?;
    to.text(Some(origin.position().to_string().into()))?;
    to.json(json(&letter.attributes))?;
    to.json(json(message.headers()))?;
    to.bytes(message.key().map(|key| &key[..]))?;
    to.bytes(message.payload().map(|payload| &payload[..]))?;
    // One after another; nothing when there is none.
    let former = &letter.state.edited_from;
    let bytes = || former.iter().flat_map(|binding| *binding.as_bytes()).collect();
    to.owned_bytes((!former.is_empty()).then(bytes))
}

/// Reads [`HEAD`]. The letter has neither headers, key, payload nor history.
pub(crate) fn read_head(fields: &mut impl Take) -> Result<Row> {
    read(fields).map(|(row, _)| row)
}

/// Reads [`HEAD`] for a list.
pub(crate) fn read_summary(fields: &mut impl Take) -> Result<LetterSummary> {
    let (row, head) = read(fields)?;
    let mut summary = row.letter.summary();
    // A head has no history, from which a letter knows its error, and no payload to measure: the columns say both.
    summary.error = head.error;
    summary.payload_size = head.payload_size;
    Ok(summary)
}

/// Reads [`HEAD`] and what follows it in a statement for whole letters.
pub(crate) fn read_whole(fields: &mut impl Take) -> Result<Row> {
    let (mut row, _) = read(fields)?;
    let message = &row.letter.message;
    let published_at = fields.nanos_or_none()?;
    let headers: Headers = fields.json("headers")?;
    let key = fields.bytes_or_none()?;
    let data = fields.bytes_or_none()?;
    let mut whole = Message::tombstone(message.subject_shared().clone())
        .with_headers(headers)
        .with_payload(data.map(Bytes::from));
    if let Some(id) = message.id() {
        whole = whole.with_id(id);
    }
    if let Some(event) = message.event() {
        whole = whole.with_event(event);
    }
    if let Some(key) = key {
        whole = whole.with_key(key);
    }
    if let Some(at) = published_at {
        whole = whole.with_published_at(at);
    }
    row.letter.message = whole;
    row.letter.history = fields.json("history")?;
    Ok(row)
}

/// Fields of a head that a letter without body cannot carry.
struct Head {
    error: String,
    payload_size: Option<u64>,
}

fn read(fields: &mut impl Take) -> Result<(Row, Head)> {
    let id = fields.letter()?;
    let generation = fields.count()?;
    let event_id = fields.text_or_none()?;
    let mut message = Message::tombstone(fields.text()?);
    if let Some(event_id) = event_id {
        message = message.with_id(event_id);
    }
    if let Some(event) = fields.text_or_none()? {
        message = message.with_event(event);
    }
    let (cluster, transport, stream) = (fields.text()?, fields.text()?, fields.text()?);
    let partition = fields.int_or_none()?;
    let mut origin = Origin::new(transport, stream, fields.word("position")?).with_cluster(cluster);
    if let Some(partition) = partition {
        let partition =
            u32::try_from(partition).map_err(|error| Fault::corrupt("partition", &error))?;
        origin = origin.with_partition(partition);
    }
    let consumer = fields.text()?;
    let service = fields.text_or_none()?;
    let reason = fields.word("reason")?;
    let class = fields.word("class")?;
    let cause = fields.word_or_none("cause")?;
    let error = fields.text()?;
    let fingerprint = fields.word("fingerprint")?;
    let mut letter = DeadLetter::identified(id, fingerprint, message, origin, consumer, reason);
    letter.generation = generation;
    letter.service = service;
    letter.class = class;
    letter.cause = cause;
    // Fields are read in the order of the columns.
    letter.attempts = fields.count()?;
    letter.crashes = fields.count()?;
    letter.deliveries = fields.count()?;
    letter.delayed_retries = fields.count()?;
    let payload_size = fields.int_or_none()?.map(i64::cast_unsigned);
    letter.died_at = Timestamp::from_nanos(fields.int()?);
    letter.confirmed = fields.flag()?;
    letter.attributes = fields.json("attributes")?;
    let state = &mut letter.state;
    state.status = fields.word("status")?;
    state.resolution = fields.word_or_none("resolution")?;
    state.due = fields.time_or_none()?;
    state.retry_count = fields.count()?;
    state.replays = fields.count()?;
    state.operation = fields.id_or_none()?.map(OperationId::from_bytes);
    state.created_at = fields.time()?;
    state.updated_at = fields.time()?;
    state.last_retry_at = fields.time_or_none()?;
    state.seen = fields.count()?;
    let operation = state.operation;
    let mut row = Row::new(letter);
    row.fence = fields.unsigned()?;
    let until = fields.time_or_none()?;
    let former = fields.word_or_none("claim_former")?;
    let owner = fields.text_or_none()?;
    let sender = fields.text_or_none()?;
    // Both are written together. A row that has only one of them was changed by hand, and counts as not claimed.
    row.claim = match (until, former) {
        (Some(until), Some(former)) => {
            Some(Held { former, until, owner: owner.unwrap_or_default(), sender })
        }
        _ => None,
    };
    row.finished = fields.int_or_none()?.map(i64::cast_unsigned);
    row.lapses = fields.count()?;
    row.item = operation.zip(fields.int_or_none()?.map(i64::cast_unsigned));
    row.key = fields.bytes_or_none()?.map(|key| dedup_key(&key)).transpose()?;
    row.letter.state.edited_from = fields.bindings()?;
    Ok((row, Head { error, payload_size }))
}

/// The columns of an operation's items, in the order in which [`read_item`] reads them.
pub(crate) const ITEM: &str = "i.idx, i.letter_id, i.generation, i.outcome, i.why, i.at";

pub(crate) fn read_item(fields: &mut impl Take) -> Result<OperationItem> {
    Ok(OperationItem {
        index: fields.unsigned()?,
        letter: fields.letter()?,
        generation: fields.count()?,
        outcome: fields.word("outcome")?,
        why: fields.text_or_none()?,
        at: fields.time()?,
    })
}

/// Reads the key of an original message.
pub(crate) fn dedup_key(bytes: &[u8]) -> Result<DedupKey> {
    DedupKey::from_bytes(bytes)
        .ok_or_else(|| Fault::corrupt("key of an original", &"it is cut off"))
}

/// The condition of documents that come after the one whose name follows.
pub(crate) fn name_after(order: Order) -> &'static str {
    match order {
        Order::OldestFirst => " AND name > ",
        Order::NewestFirst => " AND name < ",
    }
}

/// The order of documents, and the beginning of their limit.
pub(crate) fn by_name(order: Order) -> &'static str {
    match order {
        Order::OldestFirst => " ORDER BY name LIMIT ",
        Order::NewestFirst => " ORDER BY name DESC LIMIT ",
    }
}
