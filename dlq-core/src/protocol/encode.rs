use super::text::escape;
use super::{KEPT, VERSION, is_ours, names};
use crate::{
    Binding, DeadLetter, Escalation, Failure, Fingerprint, Header, Headers, History, LetterId,
    Message, OperationId, Origin, Timestamp,
};

/// The longest `error.history` that is written, in bytes.
const MAX_HISTORY: usize = 16 * 1024;

/// The headers of a message on its way to a slower retry stage.
///
/// `fingerprint` is the group of its latest error.
#[must_use]
pub fn on_escalation(escalation: &Escalation, fingerprint: &Fingerprint) -> Headers {
    let delivery = &escalation.delivery;
    let mut headers = producers(delivery.message());
    let failure = escalation.history.last();
    if let Some(failure) = failure {
        set(&mut headers, names::ERROR_CLASS, failure.class);
        write_failure(&mut headers, failure);
    }
    set(&mut headers, names::ERROR_FINGERPRINT, fingerprint);
    write_history(&mut headers, &escalation.history);
    set(&mut headers, names::RETRY_COUNT, delivery.escalations().saturating_add(1));
    set(&mut headers, names::RETRY_ATTEMPTS, escalation.attempts);
    set(&mut headers, names::RETRY_DUE, escalation.due);
    write_origin(&mut headers, delivery.origin(), delivery.message());
    let death = delivery.death(&escalation.consumer);
    if death.generation > 0 {
        write_identity(&mut headers, death.letter, death.generation - 1, delivery.message());
        set(&mut headers, names::REPLAY_COUNT, delivery.replays());
    }
    set(&mut headers, names::DLQ_CONSUMER, escape(&escalation.consumer));
    headers
}

/// The headers of a dead letter in a broker.
#[must_use]
pub fn on_death(letter: &DeadLetter) -> Headers {
    let mut headers = producers(&letter.message);
    set(&mut headers, names::ERROR_CLASS, letter.class);
    set(&mut headers, names::ERROR_REASON, letter.reason);
    if let Some(failure) = letter.failure() {
        write_failure(&mut headers, failure);
    }
    set(&mut headers, names::ERROR_FINGERPRINT, letter.fingerprint);
    write_history(&mut headers, &letter.history);
    set(&mut headers, names::RETRY_COUNT, letter.escalations);
    set(&mut headers, names::RETRY_ATTEMPTS, letter.attempts);
    write_origin(&mut headers, &letter.origin, &letter.message);
    write_identity(&mut headers, letter.id, letter.generation, &letter.message);
    set(&mut headers, names::DLQ_CONSUMER, escape(&letter.consumer));
    if let Some(service) = &letter.service {
        set(&mut headers, names::DLQ_SERVICE, escape(service));
    }
    if letter.state.replays > 0 {
        set(&mut headers, names::REPLAY_COUNT, letter.state.replays);
    }
    headers
}

/// The circumstances of a replay.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The operation that sends it back.
    pub operation: OperationId,
    /// How often it has been sent back, this time included.
    pub count: u32,
    /// Its coordinates in the dead letters.
    pub from: String,
    /// When it is sent back.
    pub at: Timestamp,
}

/// The headers of a letter that is sent back: the producer's, where it was born, whose letter it is, and the replay.
/// `retry.count` starts over at 0.
#[must_use]
pub fn on_replay(letter: &DeadLetter, replay: &Replay) -> Headers {
    let mut headers = producers(&letter.message);
    set(&mut headers, names::RETRY_COUNT, 0);
    write_origin(&mut headers, &letter.origin, &letter.message);
    write_identity(&mut headers, letter.id, letter.generation, &letter.message);
    set(&mut headers, names::DLQ_CONSUMER, escape(&letter.consumer));
    set(&mut headers, names::REPLAY_ID, replay.operation);
    set(&mut headers, names::REPLAY_COUNT, replay.count);
    set(&mut headers, names::REPLAY_FROM_DLQ, escape(&replay.from));
    set(&mut headers, names::REPLAY_TIMESTAMP, replay.at);
    set(&mut headers, names::REPLAY_ORIGINAL_ERROR, escape(&letter.error()));
    headers
}

/// The same for a letter that is sent to the handler that failed, by its retry stage: every attempt so far goes with it,
/// and none of them counts.
#[must_use]
pub fn on_replay_to_handler(letter: &DeadLetter, replay: &Replay) -> Headers {
    let mut headers = on_replay(letter, replay);
    write_history(&mut headers, &letter.history);
    set(&mut headers, names::RETRY_ATTEMPTS, 0);
    headers
}

/// The producer's headers; those with a name of ours under [`KEPT`].
fn producers(message: &Message) -> Headers {
    let mut headers: Headers = message
        .headers()
        .iter()
        .map(|header| {
            if !is_ours(&header.name) {
                return header.clone();
            }
            let name = [KEPT.as_bytes(), &header.name].concat().into();
            Header { name, value: header.value.clone() }
        })
        .collect();
    headers.append(names::VERSION, VERSION);
    headers
}

fn set(headers: &mut Headers, name: &'static str, value: impl ToString) {
    headers.append(name, value.to_string());
}

fn write_failure(headers: &mut Headers, failure: &Failure) {
    set(headers, names::ERROR_CAUSE, failure.cause);
    set(headers, names::ERROR_TYPE, escape(&failure.error_type));
    set(headers, names::ERROR_MESSAGE, escape(&failure.report()));
    set(headers, names::ERROR_TIMESTAMP, failure.at);
}

fn write_origin(headers: &mut Headers, origin: &Origin, message: &Message) {
    set(headers, names::PREVIOUS_TOPIC, escape(message.subject()));
    set(headers, names::ORIGINAL_TOPIC, escape(origin.stream()));
    if let Some(partition) = origin.partition() {
        set(headers, names::ORIGINAL_PARTITION, partition);
    }
    set(headers, names::ORIGINAL_OFFSET, origin.position());
    if let Some(at) = message.published_at() {
        set(headers, names::ORIGINAL_TIMESTAMP, at);
    }
}

fn write_identity(headers: &mut Headers, letter: LetterId, generation: u32, message: &Message) {
    set(headers, names::DLQ_ID, letter);
    set(headers, names::DLQ_GENERATION, generation);
    set(headers, names::DLQ_BINDING, Binding::of(&letter, message));
}

/// Writes as much of the history as fits: backtraces go first, then long texts, then attempts from the middle.
fn write_history(headers: &mut Headers, history: &History) {
    let mut history = history.clone();
    for limit in [1024, 256, 64] {
        history.shorten(limit);
        while let Ok(json) = serde_json::to_string(&history) {
            if json.len() <= MAX_HISTORY {
                set(headers, names::ERROR_HISTORY, json.replace('\u{7f}', "\\u007f"));
                return;
            }
            // Cutting texts further keeps more than dropping the last few attempts; at the shortest, drop.
            if (limit > 64 && history.attempts().len() <= 20) || !history.drop_middle() {
                break;
            }
        }
    }
}
