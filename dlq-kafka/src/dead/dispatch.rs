//! The record by which one letter is sent back. Replays of a topic of dead letters and the outbox of stores both send by it.

use std::sync::Arc;

use bytes::Bytes;
use dlq_core::protocol::{Replay, names, of_replay, on_replay_to_handler};
use dlq_core::{BindingKey, DeadLetter, StoreError, StoreErrorKind};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::message::{Headers as _, OwnedHeaders};

use crate::client::ladder::Ladder;
use crate::client::wire::{Rest, pack};
use crate::dead::GROUP;

pub(crate) const REPLAYING: &str = "send a dead letter back";

/// A record on its way.
#[derive(Clone, Debug)]
pub(crate) struct OutgoingRecord {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<Bytes>,
    pub(crate) value: Option<Bytes>,
    pub(crate) headers: OwnedHeaders,
}

/// The recipient of a letter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Recipient<'g> {
    /// Everybody who reads the topic.
    Everybody,
    /// The handler whose retry topic it is; of this group, where groups share the topic. By its group it is taken, whatever
    /// the handler is called there now.
    Handler { group: Option<&'g str> },
}

/// The record of a letter for this topic. One for its handler is due at once.
pub(crate) fn pack_letter(
    letter: &DeadLetter,
    replay: &Replay,
    topic: Arc<str>,
    partition: Option<i32>,
    recipient: Recipient<'_>,
    key: Option<&BindingKey>,
) -> Result<OutgoingRecord, StoreError> {
    let (headers, rest) = match recipient {
        Recipient::Handler { group } => {
            let mut headers = on_replay_to_handler(letter, replay);
            // Due at once: the delay of the stage is for failures, and an operator waits for this one.
            headers.append(names::RETRY_DUE, replay.at.to_string());
            let mut rest = Rest::of(&letter.message, &letter.origin);
            rest.group = group.map(Into::into);
            (headers, rest)
        }
        Recipient::Everybody => {
            let ours = of_replay(letter, replay).bound_by(key, letter);
            (ours.onto(letter.message.headers()), Rest::default())
        }
    };
    let is_bare = rest == Rest::default();
    let packed = pack(&headers, &rest).map_err(|error| refused(error.to_string()))?;
    // `REST` would carry such a header, and only our own topics have it: anywhere else it would be lost (G8).
    if is_bare && packed.count() != headers.len() {
        let text = "a header has a name that is not UTF-8 or has a NUL, which the client cannot write; it can only be \
                    sent to its handler";
        return Err(refused(text.to_owned()));
    }
    Ok(OutgoingRecord {
        partition,
        topic,
        key: letter.message.key().cloned(),
        value: letter.message.payload().cloned(),
        headers: packed,
    })
}

/// The partition where a letter was born, in a topic that has so many.
pub(crate) fn born_in(
    letter: &DeadLetter,
    topic: &str,
    partitions: usize,
) -> Result<i32, StoreError> {
    let born = letter.origin.partition();
    let fits = born.filter(|born| usize::try_from(*born).is_ok_and(|born| born < partitions));
    match (fits.and_then(|born| i32::try_from(born).ok()), born) {
        (Some(partition), _) => Ok(partition),
        // Another partition would break the order that was asked for, so the operator decides.
        (None, Some(born)) => Err(refused(format!(
            "it was born in partition {born} of topic `{topic}`, which has {partitions} now; let its key decide"
        ))),
        (None, None) => Err(refused(
            "the partition where it was born is not known; let its key decide".to_owned(),
        )),
    }
}

/// The retry topic by which a letter reaches its handler in this group, if there is one.
pub(crate) fn first_stage(letter: &DeadLetter, group: &str, ladder: &Ladder) -> Option<String> {
    let stages = ladder.stages(letter.origin.stream(), group).ok()?;
    Some(stages.into_iter().next()?.topic)
}

pub(crate) fn refused(text: String) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(text)
}

/// The error for a letter that a topic does not take.
pub(crate) fn not_taken(topic: &str, code: Code) -> StoreError {
    let setting = match code {
        Code::MessageSizeTooLarge => "; see the topic's `max.message.bytes`",
        Code::MessageBatchTooLarge => "; see the topic's `segment.bytes`",
        _ => "",
    };
    refused(format!("topic `{topic}` does not take it: {code}{setting}"))
}

/// The error for letters to a topic that takes none.
pub(crate) fn closed(topic: &str, code: Code) -> StoreError {
    refused(format!("topic `{topic}` cannot be written to: {code}"))
}

/// The group whose handler a letter is of: the one that wrote it, where it says so, or else its consumer. `None` where it is not
/// known whose letter it is.
pub(crate) fn group_of(letter: &DeadLetter) -> Option<&str> {
    // Where a letter names no group its consumer stands for it, as a group is named after its consumer unless it was told
    // otherwise.
    let group = letter.attributes.get(GROUP).unwrap_or(&letter.consumer);
    (!group.is_empty()).then_some(group)
}
