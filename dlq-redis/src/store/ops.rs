//! Operations and their items as they are stored.

use std::collections::BTreeMap;

use dlq_core::store::{
    Actor, ItemOutcome, Operation, OperationItem, OperationSpec, OperationState, Progress,
};
use dlq_core::{LetterId, OperationId, Timestamp};
use redis::Value;
use serde::{Deserialize, Serialize};

use super::codec::json;
use super::fault::{Fault, Result};
use super::names::Bytes;
use super::scripts::{array, bytes, parts};

/// The field with the [`Fixed`] part of an operation.
pub(super) const FIXED: &[u8] = b"b";

/// The part of an operation that hardly ever changes.
#[derive(Serialize, Deserialize)]
struct Fixed {
    spec: OperationSpec,
    by: Actor,
    created: Timestamp,
}

/// An operation as it was read.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) operation: Operation,
    /// Changes with everything.
    pub(super) version: Bytes,
    /// Changes with what decides over what may be released: state, rate, number of letters.
    pub(super) steering: Bytes,
}

/// The value of the field [`FIXED`].
pub(super) fn fixed(operation: &Operation) -> Bytes {
    let Operation { spec, by, created_at, .. } = operation;
    json(&Fixed { spec: spec.clone(), by: by.clone(), created: *created_at })
}

/// The fields of an operation that is new, but its versions.
pub(super) fn fields(operation: &Operation) -> Vec<(Bytes, Bytes)> {
    let mut fields = vec![
        (FIXED.to_vec(), fixed(operation)),
        (b"s".to_vec(), operation.state.to_string().into_bytes()),
        (b"n".to_vec(), nanos(operation.next_release)),
        (b"u".to_vec(), nanos(operation.updated_at)),
        (b"t".to_vec(), operation.progress.total.to_string().into_bytes()),
    ];
    for (outcome, count) in &operation.progress.by_outcome {
        fields.push((count_field(*outcome), count.to_string().into_bytes()));
    }
    fields
}

/// The field with the number of items of this outcome.
pub(super) fn count_field(outcome: ItemOutcome) -> Bytes {
    format!("q:{outcome}").into_bytes()
}

/// A time as text.
pub(super) fn nanos(at: Timestamp) -> Bytes {
    at.as_nanos().to_string().into_bytes()
}

/// Reads the text of a time.
pub(super) fn time(text: &[u8]) -> Option<Timestamp> {
    std::str::from_utf8(text).ok()?.parse().ok().map(Timestamp::from_nanos)
}

/// Reads an id and the fields of its hash; `None` if there are none.
pub(super) fn read(value: Value) -> Result<(OperationId, Option<Stored>)> {
    let [id, fields] = parts(value)?;
    let id = bytes(id).and_then(|id| String::from_utf8(id).ok()?.parse().ok());
    let id: OperationId = id.ok_or_else(|| Fault::corrupt("id of an operation", "it is none"))?;
    let mut fields = array(fields).into_iter().filter_map(bytes);
    let mut all = BTreeMap::new();
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        all.insert(name, value);
    }
    // The server keeps no hash without fields.
    if all.is_empty() {
        return Ok((id, None));
    }
    let corrupt = |what: &str| Fault::corrupt(&format!("{what} of operation {id}"), "it is none");
    let text =
        |name: &str| all.get(name.as_bytes()).and_then(|value| std::str::from_utf8(value).ok());
    let number = |name: &str| text(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let at = |name: &str| all.get(name.as_bytes()).and_then(|text| time(text));
    let fixed: Fixed = text("b")
        .and_then(|text| serde_json::from_str(text).ok())
        .ok_or_else(|| corrupt("specification"))?;
    // A state that is not known is no guess: an operation that was taken for running would release letters.
    let state: OperationState =
        text("s").and_then(|text| text.parse().ok()).ok_or_else(|| corrupt("state"))?;
    let mut progress = Progress { total: number("t"), by_outcome: BTreeMap::new() };
    for outcome in OUTCOMES {
        // Counts are fields of their own, as scripts increment them without reading the operation.
        let count = number(&format!("q:{outcome}"));
        if count > 0 {
            progress.by_outcome.insert(outcome, count);
        }
    }
    let operation = Operation {
        id,
        spec: fixed.spec,
        state,
        by: fixed.by,
        created_at: fixed.created,
        updated_at: at("u").ok_or_else(|| corrupt("time"))?,
        next_release: at("n").ok_or_else(|| corrupt("next release"))?,
        progress,
    };
    let version = |name: &str| all.get(name.as_bytes()).cloned().unwrap_or_default();
    let (version, steering) = (version("v"), version("w"));
    Ok((id, Some(Stored { operation, version, steering })))
}

const OUTCOMES: [ItemOutcome; 7] = [
    ItemOutcome::Queued,
    ItemOutcome::Released,
    ItemOutcome::Sending,
    ItemOutcome::Sent,
    ItemOutcome::Succeeded,
    ItemOutcome::FailedAgain,
    ItemOutcome::Skipped,
];

/// An item as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) letter: LetterId,
    pub(super) generation: u32,
    pub(super) outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    pub(super) at: i64,
    pub(super) consumer: String,
}

impl Record {
    pub(super) fn new(item: &OperationItem, consumer: &str) -> Self {
        Self {
            letter: item.letter,
            generation: item.generation,
            outcome: item.outcome.to_string(),
            why: item.why.clone(),
            at: item.at.as_nanos(),
            consumer: consumer.to_owned(),
        }
    }

    pub(super) fn read(text: &[u8]) -> Result<Self> {
        serde_json::from_slice(text).map_err(|error| Fault::corrupt("item of an operation", error))
    }

    pub(super) fn outcome(&self) -> Result<ItemOutcome> {
        self.outcome.parse().map_err(|error| Fault::corrupt("outcome of an item", error))
    }

    pub(super) fn item(self, index: u64) -> Result<OperationItem> {
        Ok(OperationItem {
            index,
            letter: self.letter,
            generation: self.generation,
            outcome: self.outcome()?,
            why: self.why,
            at: Timestamp::from_nanos(self.at),
        })
    }
}
