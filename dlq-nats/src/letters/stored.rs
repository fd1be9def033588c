use std::sync::LazyLock;

use async_nats::jetstream::Context;
use async_nats::{HeaderMap, Message};
use bytes::Bytes;
use dlq_core::{DeadLetter, StoreError};

use crate::place::Place;
use crate::publish::{Whole, receive};
use crate::wire::{self, REST};

/// Of a message without headers.
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
    /// The letter in a message of the stream. `None`, and a warning, for what a sink has not written, or what was
    /// changed since: its bytes do not fit its identity.
    pub(crate) async fn read(
        context: &Context,
        message: &Message,
        place: &Place,
    ) -> Result<Option<Self>, StoreError> {
        let headers = message.headers.as_ref().unwrap_or(&NONE);
        let read = receive(context, &place.stream, headers, message.payload.clone()).await?;
        let read = read.and_then(|whole| letter_of(whole, place));
        if read.is_none() {
            tracing::warn!(
                sequence = place.sequence,
                subject = %message.subject,
                "something else than a letter is among the dead letters; it is passed over"
            );
        }
        Ok(read.map(|letter| Self { letter, sequence: place.sequence }))
    }
}

/// What was read of the message with this sequence; `None`, and a warning, for what will never be readable: one damaged
/// letter keeps nobody from the others.
pub(super) fn unless_damaged<T>(
    read: Result<Option<T>, StoreError>,
    sequence: u64,
) -> Result<Option<T>, StoreError> {
    match read {
        Err(error) if !error.is_transient() => {
            tracing::warn!(
                sequence,
                %error,
                "a dead letter cannot be read whole; it is passed over"
            );
            Ok(None)
        }
        read => read,
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
    if headers.get_last(REST).is_none_or(|rest| rest.as_str().starts_with('{')) {
        return Ok(Some(inline));
    }
    let read = receive(context, stream, headers, inline).await?;
    Ok(read.map(|whole| whole.read.message.payload().cloned().unwrap_or_default()))
}

/// What was written, as a letter that has just been stored.
fn letter_of(whole: Whole, place: &Place) -> Option<DeadLetter> {
    let wire::Unpacked { message, decoded, rest } = whole.read;
    if decoded.letter != Some(rest.death.letter) {
        return None;
    }
    rest.facts?.into_letter(decoded, message, rest.origin, place.published)
}
