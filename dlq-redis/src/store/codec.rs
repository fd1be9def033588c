//! A row as fields of a hash, and back.
//!
//! | field | what |
//! |---|---|
//! | `v` | version: the number of the commit that wrote it |
//! | `s` | state, claim and counts: [`Changed::State`] |
//! | `r` | what a run changes: [`Changed::Run`]; with the text of the latest error |
//! | `b` | what only another death or an edit brings, but bytes |
//! | `o` | operation and index of its item, for scripts |
//! | `q` | key of the original message, of the one letter that has it |
//! | `y`, `e` | history; headers |
//! | `k`, `d` | key; payload. Absent differs from empty |

use std::collections::BTreeMap;

use dlq_core::store::rules::DedupKey;
use dlq_core::{
    Binding, DeadLetter, Headers, LetterId, LetterSummary, Message, OperationId, Origin, Timestamp,
};
use dlq_letters::{Changed, Held, Row};
use serde::{Deserialize, Serialize};

use super::fault::{Fault, Result};
use super::names::Bytes;

/// Fields of a hash, one name and one value after another.
pub(super) type Fields = Vec<Bytes>;

#[derive(Serialize, Deserialize)]
struct State {
    status: String,
    reason: String,
    created: i64,
    updated: i64,
    seen: u32,
    fence: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resolution: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due: Option<i64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    retries: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    replays: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    operation: Option<OperationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_retry: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim: Option<Claim>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finished: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    lapses: u32,
}

#[derive(Serialize, Deserialize)]
struct Claim {
    until: i64,
    former: String,
    owner: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sender: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Run {
    generation: u32,
    class: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    fingerprint: String,
    error: String,
    attempts: u32,
    crashes: u32,
    delayed_retries: u32,
    died: i64,
}

#[derive(Serialize, Deserialize)]
struct Body {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    subject: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    event: Option<String>,
    consumer: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    deliveries: u32,
    confirmed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    published: Option<i64>,
    origin: Origin,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    edited_from: Vec<Binding>,
    /// Length of the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Key {
    is_event: bool,
    name: String,
    id: String,
    consumer: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// The fields that `changed` covers, and those to delete.
pub(super) fn fields(row: &Row, changed: Changed) -> (Fields, Vec<&'static str>) {
    let (mut fields, mut gone) = (Vec::new(), Vec::new());
    let mut set = |name: &'static str, value: Option<Bytes>| match value {
        Some(value) => fields.extend([name.as_bytes().to_vec(), value]),
        None => gone.push(name),
    };
    // State, item and key are written by every change, as they are small.
    set("s", Some(json(&state(row))));
    // Apart from the state, which is JSON: the scripts read where the item of a letter is.
    set("o", row.item.map(|(id, index)| format!("{id}:{index}").into_bytes()));
    set("q", row.key.as_ref().map(|key| json(&key_of(key))));
    let letter = &row.letter;
    if changed != Changed::State {
        set("r", Some(json(&run(letter))));
        set("y", (!letter.history.is_empty()).then(|| json(&letter.history)));
    }
    if changed == Changed::All {
        let message = &letter.message;
        set("b", Some(json(&body(letter))));
        set("e", (!message.headers().is_empty()).then(|| json(message.headers())));
        set("k", message.key().map(|key| key.to_vec()));
        set("d", message.payload().map(|payload| payload.to_vec()));
    }
    (fields, gone)
}

fn state(row: &Row) -> State {
    let state = &row.letter.state;
    State {
        status: state.status.to_string(),
        reason: row.letter.reason.to_string(),
        created: state.created_at.as_nanos(),
        updated: state.updated_at.as_nanos(),
        seen: state.seen,
        fence: row.fence,
        resolution: state.resolution.map(|resolution| resolution.to_string()),
        due: state.due.map(Timestamp::as_nanos),
        retries: state.retry_count,
        replays: state.replays,
        operation: state.operation,
        last_retry: state.last_retry_at.map(Timestamp::as_nanos),
        claim: row.claim.as_ref().map(|held| Claim {
            until: held.until.as_nanos(),
            former: held.former.to_string(),
            owner: held.owner.clone(),
            sender: held.sender.clone(),
        }),
        finished: row.finished,
        lapses: row.lapses,
    }
}

fn run(letter: &DeadLetter) -> Run {
    Run {
        generation: letter.generation,
        class: letter.class.to_string(),
        cause: letter.cause.map(|cause| cause.to_string()),
        fingerprint: letter.fingerprint.to_string(),
        // Beside the history, since lists and searches read heads, which leave that out.
        error: letter.error(),
        attempts: letter.attempts,
        crashes: letter.crashes,
        delayed_retries: letter.delayed_retries,
        died: letter.died_at.as_nanos(),
    }
}

fn body(letter: &DeadLetter) -> Body {
    let message = &letter.message;
    Body {
        id: message.id().map(str::to_owned),
        subject: message.subject().to_owned(),
        event: message.event().map(str::to_owned),
        consumer: letter.consumer.clone(),
        service: letter.service.clone(),
        deliveries: letter.deliveries,
        confirmed: letter.confirmed,
        published: message.published_at().map(Timestamp::as_nanos),
        origin: letter.origin.clone(),
        attributes: letter.attributes.clone(),
        edited_from: letter.state.edited_from.clone(),
        // Known without the payload, since a list shows it and reads no payloads.
        size: message.payload().map(|payload| payload.len() as u64),
    }
}

fn key_of(key: &DedupKey) -> Key {
    let DedupKey { is_event, name, message_id, consumer } = key.clone();
    Key { is_event, name, id: message_id, consumer }
}

/// A letter as scripts return it.
#[derive(Debug)]
pub(super) struct StoredRow {
    pub(super) row: Row,
    pub(super) version: Bytes,
    /// The latest error, which a head has no history for.
    pub(super) error: String,
    size: Option<u64>,
    /// The record of its item, and the state of its operation.
    pub(super) item: Option<Bytes>,
    pub(super) operation: Option<Bytes>,
}

impl StoredRow {
    /// Reads id, item, state of the operation, then the fields of a hash in the order of the scripts.
    pub(super) fn read(values: Vec<Option<Bytes>>, is_whole: bool) -> Result<Self> {
        let mut values = values.into_iter();
        let mut next = || values.next().flatten();
        let id = next().and_then(|id| id.try_into().ok()).map(LetterId::from_bytes);
        let id = id.ok_or_else(|| Fault::corrupt("id of a letter", "it is no id"))?;
        let (item, operation) = (next(), next());
        let version = next().unwrap_or_default();
        let [state, run, body] = [next(), next(), next()];
        let [place, key] = [next(), next()];
        let state: State = parsed(id, "state", state)?;
        let run: Run = parsed(id, "run", run)?;
        let body: Body = parsed(id, "body", body)?;
        let (error, size) = (run.error.clone(), body.size);
        let mut row = Row::new(letter(id, &state, run, body)?);
        row.fence = state.fence;
        row.finished = state.finished;
        row.lapses = state.lapses;
        row.claim = state
            .claim
            .map(|claim| {
                Ok::<_, Fault>(Held {
                    former: word(id, "status", &claim.former)?,
                    until: Timestamp::from_nanos(claim.until),
                    owner: claim.owner,
                    sender: claim.sender,
                })
            })
            .transpose()?;
        row.item = place.map(|place| item_of(id, &place)).transpose()?;
        row.key = match key {
            Some(key) => {
                let Key { is_event, name, id: message_id, consumer } =
                    parsed(id, "key", Some(key))?;
                Some(DedupKey { is_event, name, message_id, consumer })
            }
            None => None,
        };
        // The scripts append these only where the whole letter was asked for.
        if is_whole {
            let (history, headers) = (next(), next());
            let letter = &mut row.letter;
            if history.is_some() {
                letter.history = parsed(id, "history", history)?;
            }
            let mut message = letter.message.clone();
            if headers.is_some() {
                message = message.with_headers(parsed::<Headers>(id, "headers", headers)?);
            }
            if let Some(key) = next() {
                message = message.with_key(key);
            }
            letter.message = message.with_payload(next().map(Into::into));
        }
        Ok(Self { row, version, error, size, item, operation })
    }

    /// Returns the summary that a list shows.
    pub(super) fn summary(&self) -> LetterSummary {
        let mut summary = self.row.letter.summary();
        summary.error.clone_from(&self.error);
        summary.payload_size = self.size;
        summary
    }
}

fn letter(id: LetterId, state: &State, run: Run, body: Body) -> Result<DeadLetter> {
    let mut message = Message::tombstone(body.subject);
    if let Some(id) = body.id {
        message = message.with_id(id);
    }
    if let Some(event) = body.event {
        message = message.with_event(event);
    }
    if let Some(at) = body.published {
        message = message.with_published_at(Timestamp::from_nanos(at));
    }
    let (reason, fingerprint) =
        (word(id, "reason", &state.reason)?, word(id, "fingerprint", &run.fingerprint)?);
    let mut letter =
        // Under the id and the fingerprint that are stored: another version may compute them in another way.
        DeadLetter::identified(id, fingerprint, message, body.origin, body.consumer, reason);
    letter.generation = run.generation;
    letter.service = body.service;
    letter.class = word(id, "class", &run.class)?;
    letter.cause = run.cause.map(|cause| word(id, "cause", &cause)).transpose()?;
    letter.attempts = run.attempts;
    letter.deliveries = body.deliveries;
    letter.crashes = run.crashes;
    letter.delayed_retries = run.delayed_retries;
    letter.died_at = Timestamp::from_nanos(run.died);
    letter.confirmed = body.confirmed;
    letter.attributes = body.attributes;
    let resolution = state.resolution.as_ref().map(|text| word(id, "resolution", text));
    letter.state.status = word(id, "status", &state.status)?;
    letter.state.resolution = resolution.transpose()?;
    letter.state.due = state.due.map(Timestamp::from_nanos);
    letter.state.retry_count = state.retries;
    letter.state.replays = state.replays;
    letter.state.operation = state.operation;
    letter.state.created_at = Timestamp::from_nanos(state.created);
    letter.state.updated_at = Timestamp::from_nanos(state.updated);
    letter.state.last_retry_at = state.last_retry.map(Timestamp::from_nanos);
    letter.state.seen = state.seen;
    letter.state.edited_from = body.edited_from;
    Ok(letter)
}

fn item_of(id: LetterId, text: &[u8]) -> Result<(OperationId, u64)> {
    let text = String::from_utf8_lossy(text);
    let item = text
        .split_once(':')
        .and_then(|(operation, index)| Some((operation.parse().ok()?, index.parse().ok()?)));
    item.ok_or_else(|| Fault::corrupt(&format!("item of letter {id}"), "it is none"))
}

fn word<T: std::str::FromStr<Err: std::fmt::Display>>(
    id: LetterId,
    what: &str,
    text: &str,
) -> Result<T> {
    text.parse().map_err(|error| Fault::corrupt(&format!("{what} of letter {id}"), error))
}

fn parsed<T: serde::de::DeserializeOwned>(
    id: LetterId,
    what: &str,
    text: Option<Bytes>,
) -> Result<T> {
    let what = || format!("{what} of letter {id}");
    let text = text.ok_or_else(|| Fault::corrupt(&what(), "it is missing"))?;
    serde_json::from_slice(&text).map_err(|error| Fault::corrupt(&what(), error))
}

pub(super) fn json<T: Serialize>(value: &T) -> Bytes {
    // Of types of ours, whose keys are texts.
    serde_json::to_vec(value).unwrap_or_default()
}
