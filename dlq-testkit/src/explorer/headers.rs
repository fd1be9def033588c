//! The header protocol between the explorer's broker and its programs, and senders who write its headers themselves.

use dlq_core::protocol::{Claimed, Facts, Replay, of_death, of_delayed_retry, on_replay, split};
use dlq_core::{
    DeadLetter, Death, DelayedRetry, DeliveredFrom, Delivery, LetterId, Message, OperationId,
    Origin, Position, Reason, StoreError, StoreErrorKind, Timestamp,
};

use super::world::CONSUMER;

/// The headers of the protocol that a sender writes onto a message which has not died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forgery {
    /// Headers of a replay of the message with this number, as a handler copies them onto a message of its own.
    Copied(u32),
    /// The same, and tied to the bytes of the forger: it claims to be the other message.
    Claimed {
        /// Number of the other message.
        number: u32,
        /// Number of deaths that the headers claim.
        generation: u32,
    },
    /// A birth in a stream that is none of the broker's, under an identity that fits it.
    Elsewhere,
}

/// The message with the headers of a replay of `letter`, which need not be of it.
pub(super) fn sent_back(message: Message, letter: &DeadLetter, at: Timestamp) -> Message {
    let replay = Replay {
        operation: OperationId::of("ana", at, 0),
        count: letter.state.replays.saturating_add(1),
        from: "letters/1".to_owned(),
        at,
    };
    message.with_headers(on_replay(letter, &replay))
}

/// The letter that `message` would have had of this birth.
fn letter(message: Message, origin: Origin, generation: u32, at: Timestamp) -> DeadLetter {
    let message = message.with_published_at(at);
    let mut letter = DeadLetter::new(message, origin, CONSUMER, Reason::Permanent);
    letter.generation = generation;
    letter.attempts = 1;
    letter.deliveries = 1;
    letter.died_at = at;
    letter
}

/// Returns the origin of the message with this number.
pub(super) fn birth(number: u32) -> Origin {
    Origin::new("memory", "stories", Position::Offset(number.into()))
}

/// A birth that no broker here knows of.
pub(super) fn nowhere() -> Origin {
    Origin::new("memory", "nosuch", Position::Offset(1))
}

impl Forgery {
    /// The message as the sender publishes it at `now`. `other` finds the message with a number, and when that was published.
    pub(super) fn forge(
        self,
        message: Message,
        other: impl Fn(u32) -> (Message, Timestamp),
        now: Timestamp,
    ) -> Message {
        let letter = match self {
            Self::Copied(number) => {
                let (other, at) = other(number);
                letter(other, birth(number), 0, at)
            }
            Self::Claimed { number, generation } => {
                letter(message.clone(), birth(number), generation, other(number).1)
            }
            Self::Elsewhere => letter(message.clone(), nowhere(), 0, now),
        };
        sent_back(message, &letter, now)
    }

    /// The identity that it claims for the message that was published at `now`. `published` tells when the one with a number
    /// was.
    pub(super) fn claims(
        self,
        published: impl Fn(u32) -> Timestamp,
        now: Timestamp,
    ) -> Option<LetterId> {
        let (birth, at) = match self {
            Self::Copied(_) => return None,
            Self::Claimed { number, .. } => (birth(number), published(number)),
            Self::Elsewhere => (nowhere(), now),
        };
        Some(LetterId::of(&birth, Some(at), CONSUMER))
    }
}

/// A message of the main stream as a transport yields it that believes what fits.
pub(super) fn received(read: Delivery) -> Delivery {
    if read.delivered_from() != DeliveredFrom::Main {
        return read;
    }
    let (producers, decoded) = split(read.message().headers());
    let Some(Claimed { death, origin }) =
        decoded.claimed(read.message(), CONSUMER, read.origin(), None)
    else {
        return read;
    };
    let mut message = read.message().clone().with_headers(producers);
    if let Some(at) = decoded.original.timestamp {
        message = message.with_published_at(at);
    }
    let next = Death { generation: death.generation.saturating_add(1), ..death };
    Delivery::to(CONSUMER, message, origin)
        .with_death(next)
        .with_deliveries(read.deliveries())
        .with_replays(decoded.replays.unwrap_or(0))
}

/// A retry record after it was written with headers and read again.
pub(super) fn over_the_queue(delayed_retry: DelayedRetry) -> Result<DelayedRetry, StoreError> {
    let DelayedRetry { delivery, consumer, due, history, attempts } = delayed_retry;
    let written = DelayedRetry {
        delivery: delivery.clone(),
        consumer: consumer.clone(),
        due,
        history,
        attempts,
    };
    let headers = of_delayed_retry(&written).onto(delivery.message().headers());
    let (producers, decoded) = split(&headers);
    let unread = || StoreError::new(StoreErrorKind::Corrupt, "read a retry record");
    let (stream, position) =
        decoded.original.topic.as_deref().zip(decoded.original.offset).ok_or_else(unread)?;
    let mut message = delivery.message().clone().with_headers(producers);
    if let Some(at) = decoded.original.timestamp {
        message = message.with_published_at(at);
    }
    let origin = Origin::new(delivery.origin().transport(), stream, position);
    // The broker knows queue, deliveries and crashes itself. Everything else has to come out of the headers.
    let mut read = Delivery::to(decoded.consumer.clone().ok_or_else(unread)?, message, origin)
        .with_delivered_from(delivery.delivered_from())
        .with_deliveries(delivery.deliveries())
        .with_crashes(delivery.crashes())
        // The headers count the hop that is being made, and the delivery counts those before it.
        .with_delayed_retries(decoded.delayed_retries.ok_or_else(unread)?.saturating_sub(1))
        .with_replays(decoded.replays.unwrap_or(0));
    if let Some(letter) = decoded.letter {
        let generation = decoded.generation.ok_or_else(unread)?.saturating_add(1);
        read = read.with_death(Death { letter, generation });
    }
    Ok(DelayedRetry {
        delivery: read,
        consumer: decoded.consumer.ok_or_else(unread)?.into(),
        due: decoded.due.ok_or_else(unread)?,
        history: decoded.history.ok_or_else(unread)?,
        attempts: decoded.attempts.ok_or_else(unread)?,
    })
}

/// A letter after it was written to a stream of dead letters and read again.
pub(super) fn over_the_stream(letter: DeadLetter) -> Result<DeadLetter, StoreError> {
    let headers = of_death(&letter).onto(letter.message.headers());
    let (producers, decoded) = split(&headers);
    let facts = Facts::of(&letter);
    let origin = letter.origin.clone();
    let written = letter.died_at;
    let message = letter.message.with_headers(producers);
    let read = facts.into_letter(decoded, message, origin, written);
    read.ok_or_else(|| StoreError::new(StoreErrorKind::Corrupt, "read a letter"))
}
