use std::sync::LazyLock;

use async_nats::HeaderMap;
use async_nats::jetstream::{Context, Message};
use bytes::Bytes;
use dlq_core::store::rules::born;
use dlq_core::{Binding, DeadLetter, Reason, StoreError};

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
    pub(super) async fn read(
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

/// What was written, as a letter that has just been stored: what its writer knew of other stores says nothing here, but
/// how often it was sent back does.
fn letter_of(whole: Whole, place: &Place) -> Option<DeadLetter> {
    let wire::Unpacked { message, decoded, rest } = whole.read;
    let facts = rest.facts?;
    let id = rest.death.letter;
    if decoded.letter != Some(id) || decoded.binding != Some(Binding::of(&id, &message)) {
        return None;
    }
    let mut state = born(place.published);
    state.replays = decoded.replays.unwrap_or(facts.state.replays);
    state.retry_count = facts.state.retry_count.max(state.replays);
    Some(DeadLetter {
        id,
        generation: rest.death.generation,
        message,
        origin: rest.origin,
        consumer: decoded.consumer?,
        service: decoded.service,
        reason: decoded.reason.unwrap_or(Reason::Manual),
        class: decoded.class?,
        cause: decoded.cause,
        attempts: decoded.attempts.unwrap_or(0),
        deliveries: facts.deliveries,
        crashes: facts.crashes,
        escalations: decoded.escalations.unwrap_or(0),
        fingerprint: decoded.fingerprint?,
        history: decoded.history.unwrap_or_default(),
        died_at: facts.died_at,
        confirmed: facts.confirmed,
        attributes: facts.attributes,
        state,
    })
}
