use std::borrow::Cow;
use std::fmt::Display;
use std::io::Write as _;

use bytes::Bytes;

use super::text::escape;
use super::{KEPT, VERSION, is_ours, names};
use crate::{
    Binding, BindingKey, DeadLetter, Death, DelayedRetry, Failure, Fingerprint, Header, Headers,
    History, LetterId, Message, OperationId, Origin, Reason, Timestamp,
};

/// The longest `error.history` that is written, in bytes.
// Brokers bound the size of a message including its headers, so the history must not crowd out the payload.
const MAX_HISTORY: usize = 16 * 1024;

/// The headers of a message on its way to a slower retry stage.
#[must_use]
pub fn on_delayed_retry(delayed_retry: &DelayedRetry) -> Headers {
    of_delayed_retry(delayed_retry).onto(delayed_retry.delivery.message().headers())
}

/// Our own of these.
pub fn of_delayed_retry(delayed_retry: &DelayedRetry) -> Ours {
    let delivery = &delayed_retry.delivery;
    let mut ours = Ours::new();
    let failure = delayed_retry.history.last();
    if let Some(failure) = failure {
        ours.set(names::ERROR_CLASS, failure.class);
        ours.failure(failure);
    }
    // Until it dies, a message is in the group that it would be in if no attempt were left.
    let fingerprint = Fingerprint::of(&delayed_retry.consumer, Reason::Exhausted, failure);
    ours.set(names::ERROR_FINGERPRINT, fingerprint);
    ours.history(&delayed_retry.history);
    ours.set(names::RETRY_COUNT, delivery.delayed_retries().saturating_add(1));
    ours.set(names::RETRY_ATTEMPTS, delayed_retry.attempts);
    ours.set(names::RETRY_DUE, delayed_retry.due);
    ours.text(names::PREVIOUS_TOPIC, [delivery.previous()]);
    ours.origin(delivery.origin(), delivery.message());
    let death = delivery.death(&delayed_retry.consumer);
    // A record names the last death, as a message that is sent back does. A message that has not died yet has none.
    if death.generation > 0 {
        ours.identity(death.letter, death.generation - 1, delivery.message());
        ours.set(names::REPLAY_COUNT, delivery.replays());
    }
    ours.text(names::DLQ_CONSUMER, [&*delayed_retry.consumer]);
    ours
}

/// The headers of a dead letter in a broker.
#[must_use]
pub fn on_death(letter: &DeadLetter) -> Headers {
    of_death(letter).onto(letter.message.headers())
}

/// Our own of these.
pub fn of_death(letter: &DeadLetter) -> Ours {
    let mut ours = Ours::new();
    ours.set(names::ERROR_CLASS, letter.class);
    ours.set(names::ERROR_REASON, letter.reason);
    if let Some(failure) = letter.failure() {
        ours.failure(failure);
    }
    ours.set(names::ERROR_FINGERPRINT, letter.fingerprint);
    ours.history(&letter.history);
    ours.set(names::RETRY_COUNT, letter.delayed_retries);
    ours.set(names::RETRY_ATTEMPTS, letter.attempts);
    let previous = letter.attributes.get(names::PREVIOUS_TOPIC);
    ours.text(names::PREVIOUS_TOPIC, [previous.map_or(letter.message.subject(), String::as_str)]);
    ours.origin(&letter.origin, &letter.message);
    ours.identity(letter.id, letter.generation, &letter.message);
    ours.text(names::DLQ_CONSUMER, [&*letter.consumer]);
    if let Some(service) = &letter.service {
        ours.text(names::DLQ_SERVICE, [service.as_str()]);
    }
    if letter.state.replays > 0 {
        ours.set(names::REPLAY_COUNT, letter.state.replays);
    }
    ours
}

/// The circumstances of a replay.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The operation that sends it back.
    pub operation: OperationId,
    /// Number of times that the letter has been sent back, including this one.
    pub count: u32,
    /// Its coordinates in the dead letters.
    pub from: String,
    /// When it is sent back.
    pub at: Timestamp,
}

/// The headers of a letter that is sent back: the producer's, where it was born, whose letter it is, and the replay.
/// `retry.count` starts over at 0.
///
/// A producer's header with the name of one of ours that tells of an error or a retry stands there twice: as it was, in
/// front, for consumers that do not know this protocol, and under [`KEPT`]. Ours are the last of their names, which count.
#[must_use]
pub fn on_replay(letter: &DeadLetter, replay: &Replay) -> Headers {
    let producers = letter.message.headers();
    // Not those that tell whose letter it is and where it was born: an absent one of ours must stay absent.
    let is_given_back = |header: &&Header| {
        let tells: [&[u8]; 3] = [b"error.", b"retry.", b"previous."];
        is_ours(&header.name) && tells.iter().any(|prefix| header.name.starts_with(prefix))
    };
    let as_they_were = producers.iter().filter(is_given_back).cloned().collect::<Headers>();
    let all = of_replay(letter, replay).onto(producers);
    as_they_were.iter().chain(all.iter()).cloned().collect()
}

/// Our own of these.
///
/// Consumers believe an identity that follows from the birth beside it. A letter that others were merged into, or that
/// took over the name of another consumer, has one that does not, and is sent under the one that its latest death had.
pub fn of_replay(letter: &DeadLetter, replay: &Replay) -> Ours {
    replayed(letter, sent_as(letter), replay)
}

/// The id under which a letter is sent to the main stream.
fn sent_as(letter: &DeadLetter) -> LetterId {
    let DeadLetter { id, message, origin, consumer, .. } = letter;
    let at = message.published_at();
    if id.follows_from(origin, at, consumer, message) {
        return *id;
    }
    LetterId::of(origin, at, consumer)
}

fn replayed(letter: &DeadLetter, id: LetterId, replay: &Replay) -> Ours {
    let mut ours = Ours::new();
    // A replay begins a new life: it goes through the retry stages from the first one again.
    ours.set(names::RETRY_COUNT, 0);
    ours.origin(&letter.origin, &letter.message);
    ours.identity(id, letter.generation, &letter.message);
    ours.text(names::DLQ_CONSUMER, [&*letter.consumer]);
    ours.set(names::REPLAY_ID, replay.operation);
    ours.set(names::REPLAY_COUNT, replay.count);
    ours.text(names::REPLAY_FROM_DLQ, [replay.from.as_str()]);
    ours.set(names::REPLAY_TIMESTAMP, replay.at);
    ours.text(names::REPLAY_ORIGINAL_ERROR, [&*letter.error()]);
    ours
}

/// The same for a letter that is sent to the handler that failed, by its retry stage: every attempt so far goes with it,
/// and none of them counts.
#[must_use]
pub fn on_replay_to_handler(letter: &DeadLetter, replay: &Replay) -> Headers {
    of_replay_to_handler(letter, replay).onto(letter.message.headers())
}

/// Our own of these.
pub fn of_replay_to_handler(letter: &DeadLetter, replay: &Replay) -> Ours {
    // A retry stage believes any identity, so that the letter goes under its own.
    let mut ours = replayed(letter, letter.id, replay);
    ours.history(&letter.history);
    ours.set(names::RETRY_ATTEMPTS, 0);
    ours
}

/// The producer's headers as they are carried beside ours: those with a name of ours under [`KEPT`].
pub fn producers(headers: &Headers) -> impl Iterator<Item = Cow<'_, Header>> {
    headers.iter().map(|header| {
        if !is_ours(&header.name) {
            return Cow::Borrowed(header);
        }
        // A producer's header with one of our names would be taken for ours, or be lost. Under the prefix both survive,
        // and the bytes come back as they were (G8).
        let name = [KEPT.as_bytes(), &header.name].concat().into();
        Cow::Owned(Header { name, value: header.value.clone() })
    })
}

/// Our headers on a message, without the producer's: each with its value, which has no control characters.
#[derive(Clone, Debug)]
#[must_use]
pub struct Ours {
    /// The values, one behind the other.
    text: Vec<u8>,
    /// The names, each with where its value ends.
    fields: Vec<(&'static str, usize)>,
}

impl Ours {
    fn new() -> Self {
        let mut ours = Self { text: Vec::with_capacity(1024), fields: Vec::with_capacity(24) };
        ours.set(names::VERSION, VERSION);
        ours
    }

    fn set(&mut self, name: &'static str, value: impl Display) {
        // Memory takes whatever is written.
        let _ = write!(self.text, "{value}");
        self.end(name);
    }

    fn text<'a>(&mut self, name: &'static str, texts: impl IntoIterator<Item = &'a str>) {
        escape(&mut self.text, texts);
        self.end(name);
    }

    /// Ends the value of the field `name`: everything that was written since the last field.
    fn end(&mut self, name: &'static str) {
        self.fields.push((name, self.text.len()));
    }

    fn failure(&mut self, failure: &Failure) {
        self.set(names::ERROR_CAUSE, failure.cause);
        self.text(names::ERROR_TYPE, [&*failure.error_type]);
        let messages = failure.messages.iter().enumerate();
        let report = messages.flat_map(|(at, text)| [if at == 0 { "" } else { ": " }, &**text]);
        self.text(names::ERROR_MESSAGE, report);
        self.set(names::ERROR_TIMESTAMP, failure.at);
    }

    fn origin(&mut self, origin: &Origin, message: &Message) {
        self.text(names::ORIGINAL_TOPIC, [origin.stream()]);
        if let Some(partition) = origin.partition() {
            self.set(names::ORIGINAL_PARTITION, partition);
        }
        self.set(names::ORIGINAL_OFFSET, origin.position());
        if let Some(at) = message.published_at() {
            self.set(names::ORIGINAL_TIMESTAMP, at);
        }
    }

    fn identity(&mut self, letter: LetterId, generation: u32, message: &Message) {
        self.set(names::DLQ_ID, letter);
        self.set(names::DLQ_GENERATION, generation);
        self.set(names::DLQ_BINDING, Binding::of(&letter, message));
    }

    /// Writes as much of the history as fits: backtraces go first, then long texts, then attempts from the middle.
    fn history(&mut self, history: &History) {
        let start = self.text.len();
        // The copy shares the attempts until it has to cut them.
        let mut short = history.clone();
        for limit in [1024, 256, 64] {
            short.shorten(limit);
            while serde_json::to_writer(&mut self.text, &short).is_ok() {
                if self.text.len() - start <= MAX_HISTORY {
                    self.escape_del(start);
                    return self.end(names::ERROR_HISTORY);
                }
                // The text did not fit and is taken back, so that the next one does not stand behind it.
                self.text.truncate(start);
                // Cutting texts further keeps more than dropping the last few attempts; at the shortest, drop.
                if (limit > 64 && short.attempts().len() <= 20) || !short.drop_middle() {
                    break;
                }
            }
            self.text.truncate(start);
        }
    }

    /// The one control character that JSON lets stand.
    fn escape_del(&mut self, start: usize) {
        if self.text[start..].contains(&0x7f) {
            let json = self.text.split_off(start);
            for part in json.split_inclusive(|byte| *byte == 0x7f) {
                match part.strip_suffix(&[0x7f]) {
                    Some(before) => self.text.extend([before, b"\\u007f"].concat()),
                    None => self.text.extend(part),
                }
            }
        }
    }

    /// The same [of a replay](of_replay) of this letter, bound by a secret where there is one.
    pub fn bound_by(mut self, key: Option<&BindingKey>, letter: &DeadLetter) -> Self {
        if let Some(key) = key {
            // The binding has to be of the identity that is sent, which may be another than the letter's own.
            let death = Death { letter: sent_as(letter), generation: letter.generation };
            self.set(names::DLQ_KEYED_BINDING, key.bind(&death, &letter.message));
        }
        self
    }

    /// The same without the one of this name.
    pub fn without(self, name: &str) -> Self {
        let (text, fields) = (Vec::with_capacity(self.text.len()), Vec::with_capacity(self.len()));
        let mut others = Self { text, fields };
        for (name, value) in self.iter().filter(|(other, _)| *other != name) {
            others.text.extend_from_slice(value.as_bytes());
            others.end(name);
        }
        others
    }

    /// Returns the number of headers.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always the version")]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Names and values in their order. No name occurs twice.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let text = std::str::from_utf8(&self.text).expect("only text was written");
        let mut start = 0;
        self.fields
            .iter()
            .map(move |(name, end)| (*name, &text[std::mem::replace(&mut start, *end)..*end]))
    }

    /// All headers: first the [producer's](producers), then these.
    #[must_use]
    pub fn onto(self, headers: &Headers) -> Headers {
        let (text, mut start) = (Bytes::from(self.text), 0);
        let ours = self.fields.into_iter().map(|(name, end)| {
            let value = text.slice(std::mem::replace(&mut start, end)..end);
            Header { name: Bytes::from_static(name.as_bytes()), value: Some(value) }
        });
        // Ours stand behind those of the producer, since readers take the last header of a name.
        producers(headers).map(Cow::into_owned).chain(ours).collect()
    }
}
