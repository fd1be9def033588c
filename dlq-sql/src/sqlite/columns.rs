//! The columns of a letter's row: which are written together, and in which order they are bound and read.

use bytes::Bytes;
use dlq_core::store::OperationItem;
use dlq_core::{
    DeadLetter, Headers, History, LetterId, LetterState, LetterSummary, Message, OperationId,
    Origin, searchable,
};
use rusqlite::types::ToSql;
use rusqlite::{CachedStatement, Row as Record};

use super::codec::{self, Fields};
use super::error::{Fault, Result};
use super::row::{Held, Row};

/// Written once.
pub(super) const KEPT: &[&str] = &["letter_id", "created_at"];

/// What happens to a letter while it rests.
pub(super) const STATE: &[&str] = &[
    "status",
    "resolution",
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
    "finished_fence",
    "lapses",
];

/// What a run that failed changes.
pub(super) const RUN: &[&str] = &[
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

/// What only another death or an edit brings.
pub(super) const BODY: &[&str] = &[
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

/// What is read of every row: all but the message's bytes and the history.
pub(super) const HEAD: &[&str] = &[
    "seq",
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
    "finished_fence",
    "lapses",
    "item",
    "dedup_key",
    "edited_from",
];

/// Binds values one after another.
pub(super) struct Binder<'s, 'c> {
    statement: &'s mut CachedStatement<'c>,
    bound: usize,
}

impl<'s, 'c> Binder<'s, 'c> {
    pub(super) fn new(statement: &'s mut CachedStatement<'c>) -> Self {
        Self { statement, bound: 0 }
    }

    pub(super) fn put(&mut self, value: impl ToSql) -> Result<&mut Self> {
        self.bound += 1;
        self.statement.raw_bind_parameter(self.bound, value)?;
        Ok(self)
    }

    pub(super) fn kept(&mut self, row: &Row) -> Result<()> {
        self.put(row.letter.id.as_bytes())?.put(row.letter.state.created_at.as_nanos())?;
        Ok(())
    }

    pub(super) fn state(&mut self, row: &Row) -> Result<()> {
        let state = &row.letter.state;
        self.put(state.status.as_str())?
            .put(state.resolution.map(|resolution| resolution.as_str()))?
            .put(row.letter.reason.as_str())?
            .put(codec::nanos(state.due))?
            .put(codec::nanos(row.available_at()))?
            .put(state.retry_count)?
            .put(state.replays)?
            .put(state.seen)?
            .put(state.operation.as_ref().map(OperationId::as_bytes))?
            .put(row.item.map(|(_, index)| codec::signed(index)))?
            .put(state.updated_at.as_nanos())?
            .put(codec::nanos(state.last_retry_at))?
            .put(codec::signed(row.fence))?
            .put(codec::nanos(row.claim.as_ref().map(|held| held.until)))?
            .put(row.claim.as_ref().map(|held| held.former.as_str()))?
            .put(row.claim.as_ref().map(|held| held.owner.as_str()))?
            .put(row.finished.map(codec::signed))?
            .put(row.lapses)?;
        Ok(())
    }

    pub(super) fn run(&mut self, row: &Row) -> Result<()> {
        let letter = &row.letter;
        let error = letter.error();
        let lower = Some(searchable(&error)).filter(|lower| *lower != error);
        self.put(letter.generation)?
            .put(letter.cause.map(|cause| cause.as_str()))?
            .put(letter.class.as_str())?
            .put(letter.fingerprint.to_string())?
            .put(error)?
            .put(lower)?
            .put(letter.attempts)?
            .put(letter.crashes)?
            .put(letter.escalations)?
            .put(letter.died_at.as_nanos())?
            .put(codec::json(&letter.history))?;
        Ok(())
    }

    pub(super) fn body(&mut self, letter: &DeadLetter) -> Result<()> {
        let (message, origin) = (&letter.message, &letter.origin);
        self.put(message.id())?
            .put(message.subject())?
            .put(message.event())?
            .put(&letter.consumer)?
            .put(letter.service.as_deref())?
            .put(letter.deliveries)?
            .put(letter.confirmed)?
            .put(codec::nanos(message.published_at()))?
            .put(origin.cluster())?
            .put(origin.transport())?
            .put(origin.stream())?
            .put(origin.partition())?
            .put(origin.position().to_string())?
            .put(codec::json(&letter.attributes))?
            .put(codec::json(message.headers()))?
            .put(message.key().map(|key| &key[..]))?
            .put(message.payload().map(|payload| &payload[..]))?
            .put(codec::bindings(&letter.state.edited_from))?;
        Ok(())
    }
}

/// Reads [`HEAD`]. The letter has neither headers, key, payload nor history.
pub(super) fn read_head(record: &Record<'_>) -> Result<Row> {
    read(record).map(|(row, _)| row)
}

/// Reads [`HEAD`] for a list.
pub(super) fn read_summary(record: &Record<'_>) -> Result<LetterSummary> {
    let (row, head) = read(record)?;
    let mut summary = row.letter.summary();
    summary.error = head.error;
    summary.payload_size = head.payload_size;
    Ok(summary)
}

/// Reads [`HEAD`] and what follows it in a statement for whole letters.
pub(super) fn read_whole(record: &Record<'_>) -> Result<Row> {
    let (mut row, _) = read(record)?;
    let mut fields = Fields::after(record, HEAD.len());
    let message = &row.letter.message;
    let published_at = fields.time_or_none()?;
    let headers: Headers = fields.json("headers")?;
    let key: Option<Vec<u8>> = fields.next()?;
    let data: Option<Vec<u8>> = fields.next()?;
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

/// What a head shows that a letter without body cannot say.
struct Head {
    error: String,
    payload_size: Option<u64>,
}

fn read(record: &Record<'_>) -> Result<(Row, Head)> {
    let mut fields = Fields::after(record, 0);
    let seq = fields.next()?;
    let id = LetterId::from_bytes(fields.next()?);
    let generation = fields.next()?;
    let event_id: Option<String> = fields.next()?;
    let mut message = Message::tombstone(fields.next::<String>()?);
    if let Some(event_id) = event_id {
        message = message.with_id(event_id);
    }
    if let Some(event) = fields.next::<Option<String>>()? {
        message = message.with_event(event);
    }
    let (cluster, transport, stream): (String, String, String) =
        (fields.next()?, fields.next()?, fields.next()?);
    let partition: Option<u32> = fields.next()?;
    let mut origin = Origin::new(transport, stream, fields.word("position")?).with_cluster(cluster);
    if let Some(partition) = partition {
        origin = origin.with_partition(partition);
    }
    let consumer = fields.next()?;
    let service = fields.next()?;
    let reason = fields.word("reason")?;
    let class = fields.word("class")?;
    let cause = fields.word_or_none("cause")?;
    let error = fields.next()?;
    let fingerprint = fields.word("fingerprint")?;
    let (attempts, crashes) = (fields.next()?, fields.next()?);
    let (deliveries, escalations) = (fields.next()?, fields.next()?);
    let payload_size = fields.next::<Option<i64>>()?.map(codec::unsigned);
    let died_at = fields.time()?;
    let confirmed = fields.next()?;
    let attributes = fields.json("attributes")?;
    let state = LetterState {
        status: fields.word("status")?,
        resolution: fields.word_or_none("resolution")?,
        due: fields.time_or_none()?,
        retry_count: fields.next()?,
        replays: fields.next()?,
        operation: fields.next::<Option<[u8; 16]>>()?.map(OperationId::from_bytes),
        created_at: fields.time()?,
        updated_at: fields.time()?,
        last_retry_at: fields.time_or_none()?,
        seen: fields.next()?,
        edited_from: Vec::new(),
    };
    let operation = state.operation;
    let letter = DeadLetter {
        id,
        generation,
        message,
        origin,
        consumer,
        service,
        reason,
        class,
        cause,
        history: History::new(),
        attempts,
        deliveries,
        crashes,
        escalations,
        fingerprint,
        died_at,
        confirmed,
        attributes,
        state,
    };
    let mut row = Row::new(letter);
    row.seq = seq;
    row.fence = codec::unsigned(fields.next()?);
    let until = fields.time_or_none()?;
    let former = fields.word_or_none("claim_former")?;
    let owner: Option<String> = fields.next()?;
    row.claim = match (until, former) {
        (Some(until), Some(former)) => {
            Some(Held { former, until, owner: owner.unwrap_or_default() })
        }
        _ => None,
    };
    row.finished = fields.next::<Option<i64>>()?.map(codec::unsigned);
    row.lapses = fields.next()?;
    row.item = operation.zip(fields.next::<Option<i64>>()?.map(codec::unsigned));
    row.key = fields.next()?;
    row.letter.state.edited_from = fields.bindings()?;
    row.counted = Some(row.count_key());
    Ok((row, Head { error, payload_size }))
}

/// The columns of an operation's items, in the order in which [`read_item`] reads them.
pub(super) const ITEM: &str = "i.idx, i.letter_id, i.generation, i.outcome, i.why, i.at";

pub(super) fn read_item(record: &Record<'_>) -> Result<OperationItem> {
    let mut fields = Fields::after(record, 0);
    Ok(OperationItem {
        index: codec::unsigned(fields.next()?),
        letter: LetterId::from_bytes(fields.next()?),
        generation: fields.next()?,
        outcome: fields.word("outcome")?,
        why: fields.next()?,
        at: fields.time()?,
    })
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        Self::corrupt("JSON", &error)
    }
}
