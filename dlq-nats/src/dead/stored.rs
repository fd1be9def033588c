use std::mem::take;
use std::sync::LazyLock;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::{HeaderMap, Message};
use bytes::Bytes;
use dlq_core::log::Outline;
use dlq_core::{Binding, DeadLetter, StoreError, Timestamp};
use tokio::time::Instant;

use crate::client::leader::Kept;
use crate::client::message_meta::MessageMeta;
use crate::client::publish::{Whole, receive};
use crate::client::wire::{self, REST};

/// Time between two lines of a reader that goes on.
const TELLING: Duration = Duration::from_secs(60);

/// The header by which a server says how many bytes it leaves out.
const SIZE: &str = "Nats-Msg-Size";

/// Headers of a message without any.
pub(super) static NONE: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);

/// A letter and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct StoredLetter {
    /// The letter.
    pub letter: DeadLetter,
    /// Its sequence in the stream.
    pub sequence: u64,
}

impl StoredLetter {
    /// The letter in a message of the stream. `None` for what a sink has not written, or what was changed since: its bytes
    /// do not fit its identity.
    pub(crate) async fn read(
        context: &Context,
        message: &Message,
        place: &MessageMeta,
    ) -> Result<Option<Self>, StoreError> {
        let headers = message.headers.as_ref().unwrap_or(&NONE);
        let read = receive(context, &place.stream, headers, message.payload.clone()).await?;
        let read = read.and_then(|whole| letter_of(whole, place.published));
        Ok(read.map(|letter| Self { letter, sequence: place.sequence }))
    }

    /// The letter in a message of the stream that comes without its payload, as its headers claim it. What stands aside of a
    /// letter is read, since no header says how large it is.
    pub(super) async fn outline(
        context: &Context,
        message: &Message,
        place: &MessageMeta,
    ) -> Result<Option<Outline>, StoreError> {
        let headers = message.headers.as_ref().unwrap_or(&NONE);
        if !stands_aside(headers) {
            let read = wire::unpack(headers, Bytes::new());
            return Ok(read.and_then(|read| outline_of(read, headers, place.published)));
        }
        let stored = Self::read(context, message, place).await?;
        Ok(stored.map(|Self { mut letter, .. }| {
            let binding = Binding::of(&letter.id, &letter.message);
            let payload_size = letter.message.payload().map(|payload| payload.len() as u64);
            letter.message = letter.message.with_payload(None);
            Outline { letter, payload_size, binding }
        }))
    }

    /// Returns the letter in a message as its leader keeps it.
    pub(super) async fn of_kept(
        context: &Context,
        stream: &str,
        kept: Kept,
    ) -> Result<Option<Self>, StoreError> {
        let (headers, sequence, published) = (kept.map(), kept.sequence, kept.time);
        let read = receive(context, stream, &headers, kept.payload).await?;
        let read = read.and_then(|whole| letter_of(whole, published));
        Ok(read.map(|letter| Self { letter, sequence }))
    }
}

/// Counts what a reader has passed over, and tells of it in one line: somebody may have written thousands of them.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    foreign: u64,
    damaged: u64,
    /// The sequence of the first of each kind, and why that one is damaged.
    first_foreign: u64,
    first_damaged: Option<(u64, StoreError)>,
    told: Option<Instant>,
}

impl Passed {
    /// Notes a message that is no letter.
    pub(crate) fn foreign(&mut self, sequence: u64) {
        if self.foreign == 0 {
            self.first_foreign = sequence;
        }
        self.foreign += 1;
    }

    /// Returns what was read of the message with this sequence; `None` for what will never be readable, which is noted: one
    /// damaged letter keeps nobody from the others.
    pub(super) fn unless_damaged<T>(
        &mut self,
        read: Result<Option<T>, StoreError>,
        sequence: u64,
    ) -> Result<Option<T>, StoreError> {
        match read {
            Err(error) if !error.is_transient() => {
                self.damaged(sequence, error);
                Ok(None)
            }
            read => read,
        }
    }

    /// Notes a letter that will never be readable.
    pub(super) fn damaged(&mut self, sequence: u64, error: StoreError) {
        self.damaged += 1;
        self.first_damaged.get_or_insert((sequence, error));
    }

    /// Tells of what was passed over since the last time, if that is long ago.
    pub(super) fn tell_now_and_then(&mut self) {
        if self.told.is_none_or(|told| told.elapsed() >= TELLING) {
            self.tell();
        }
    }

    pub(crate) fn tell(&mut self) {
        let (foreign, damaged) = (take(&mut self.foreign), take(&mut self.damaged));
        if foreign > 0 {
            tracing::warn!(
                messages = foreign,
                first_sequence = self.first_foreign,
                "something else than a letter is among the dead letters; it is passed over"
            );
        }
        if let Some((first_sequence, error)) = self.first_damaged.take() {
            tracing::warn!(
                letters = damaged,
                first_sequence,
                %error,
                "dead letters cannot be read whole; they are passed over"
            );
        }
        if foreign + damaged > 0 {
            self.told = Some(Instant::now());
        }
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        self.tell();
    }
}

/// The payload of a letter in the stream of this name, whose message has these headers and, unless it stands aside,
/// the payload `inline`.
pub(super) async fn payload(
    context: &Context,
    stream: &str,
    headers: &HeaderMap,
    inline: Bytes,
) -> Result<Option<Bytes>, StoreError> {
    if !stands_aside(headers) {
        return Ok(Some(inline));
    }
    let read = receive(context, stream, headers, inline).await?;
    Ok(read.map(|whole| whole.read.message.payload().cloned().unwrap_or_default()))
}

/// True of a message of which parts stand aside.
fn stands_aside(headers: &HeaderMap) -> bool {
    // JSON begins with a brace, a list of sequences does not.
    headers.get_last(REST).is_some_and(|rest| !rest.as_str().starts_with('{'))
}

fn outline_of(read: wire::Unpacked, headers: &HeaderMap, published: Timestamp) -> Option<Outline> {
    let wire::Unpacked { message, decoded, rest } = read;
    // Headers and rest name the same letter where a sink wrote them; somebody has changed one of them here.
    if decoded.letter != Some(rest.death.letter) {
        return None;
    }
    // The server's own stands last.
    let size = || headers.get_last(SIZE).and_then(|size| size.as_str().parse().ok()).unwrap_or(0);
    // The message has no payload where the letter has none, which differs from an empty one.
    let payload_size = message.payload().map(|_| size());
    let (binding, message) = (decoded.binding?, message.with_payload(None));
    let letter = rest.facts?.into_claimed(decoded, message, rest.origin, published)?;
    Some(Outline { letter, payload_size, binding })
}

/// Returns a written message as a letter that has just been stored.
fn letter_of(whole: Whole, published: Timestamp) -> Option<DeadLetter> {
    let wire::Unpacked { message, decoded, rest } = whole.read;
    if decoded.letter != Some(rest.death.letter) {
        return None;
    }
    rest.facts?.into_letter(decoded, message, rest.origin, published)
}
