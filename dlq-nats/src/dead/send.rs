use std::borrow::Cow;
use std::sync::Arc;

use async_nats::header::{self, HeaderMap, HeaderValue};
use dlq_core::outbox::Once;
use dlq_core::protocol::Replay;
use dlq_core::protocol::names::{REPLAY_FROM_DLQ, REPLAY_ID};
use dlq_core::replay::Skipped;
use dlq_core::{DeadLetter, Death, OperationId, StoreError, SystemClock};

use crate::client::inboxes::Publication;
use crate::client::names::is_subject;
use crate::client::streams::RetryStream;
use crate::dead::dispatch::{Dispatch, Parcel, Unsent, consumer_of, once_of, refused};

/// Destination of letters.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NatsTarget {
    /// To the subjects where they were born, where every consumer of the stream hears them.
    Origin,
    /// To this subject, whichever stream keeps it.
    Subject(String),
    /// To the handler that failed and to nobody else, by the retry stream that its consumer reads.
    ///
    /// A letter is addressed to a [consumer](crate::NatsTransport): the one that is [set](crate::NatsReplay::consumer), or the
    /// one that its sink [was told](crate::NatsSink::consumer), or the one called like the handler. A header says which of the
    /// handlers of that consumer runs it. A letter whose consumer does not read the retry stream is not sent, and the plan
    /// says so. Which handlers a consumer has no server knows: a consumer without that handler runs no other one in its place,
    /// and the letter dies once more, rejected.
    Handler(RetryStream),
}

/// Sends the letters of a run: which of them goes where, and under which id.
#[derive(Clone, Debug)]
pub(super) struct Shipment {
    pub(super) dispatch: Dispatch,
    /// The stream that the letters are from.
    pub(super) from: String,
    pub(super) target: NatsTarget,
    /// The stream that keeps the subject that was asked for.
    pub(super) keeper: Option<String>,
    pub(super) operation: OperationId,
    pub(super) again: bool,
    /// The consumer that all letters go to, with [`NatsTarget::Handler`].
    pub(super) consumer: Option<Arc<str>>,
}

impl Shipment {
    /// The stream that a letter goes to, if it can go anywhere.
    pub(super) fn stream_for<'a>(&'a self, letter: &'a DeadLetter) -> Option<&'a str> {
        match &self.target {
            NatsTarget::Origin => {
                let here = letter.origin.transport() == "nats";
                (here && is_subject(letter.message.subject())).then(|| letter.origin.stream())
            }
            NatsTarget::Subject(_) => self.keeper.as_deref(),
            NatsTarget::Handler(stream) => Some(&stream.name),
        }
    }

    /// Returns why a letter is skipped, if it was not born at NATS and is to go back to where it was.
    pub(super) fn barred(&self, letter: &DeadLetter) -> Option<Skipped> {
        let is_origin = matches!(self.target, NatsTarget::Origin);
        (is_origin && letter.origin.transport() != "nats").then_some(Skipped::NoOrigin)
    }

    /// The consumer that a letter goes to on its way to its handler.
    pub(super) fn consumer_for<'a>(&'a self, letter: &'a DeadLetter) -> &'a str {
        self.consumer.as_deref().unwrap_or_else(|| consumer_of(letter))
    }

    /// The subject that a letter goes to.
    pub(super) fn subject_for<'a>(&'a self, letter: &'a DeadLetter) -> Cow<'a, str> {
        let subject = letter.message.subject();
        match &self.target {
            NatsTarget::Origin => subject.into(),
            NatsTarget::Subject(subject) => subject.into(),
            NatsTarget::Handler(stream) => {
                stream.subject_for(self.consumer_for(letter), subject).into()
            }
        }
    }

    /// Sends it, and returns once the server has confirmed. Within the duplicate window of the stream that it goes to,
    /// the same death is sent once, whoever sends it; where it is sent again on purpose, once by each operation.
    pub(super) async fn send(&self, letter: &DeadLetter, sequence: u64) -> Result<(), Unsent> {
        let parcel = self.parcel(letter, sequence)?;
        match &self.target {
            // Boxed, since it is large: what is sent to its origin is on its way by the thousand.
            NatsTarget::Handler(stream) => {
                let consumer = self.consumer_for(letter);
                Box::pin(self.dispatch.give_back(&parcel, stream, consumer)).await
            }
            _ => self.dispatch.send(&parcel).await,
        }
    }

    /// The message by which it is sent together with others; `None` where it has to be [sent](Self::send) by itself.
    pub(super) fn at_once(&self, letter: &DeadLetter, sequence: u64) -> Option<Publication> {
        match &self.target {
            NatsTarget::Handler(_) => None,
            _ => self.dispatch.publication(&self.parcel(letter, sequence).ok()?, false).ok(),
        }
    }

    /// The server has said nothing in time of what was sent of this letter.
    pub(super) fn unheard(&self, letter: &DeadLetter) -> StoreError {
        self.dispatch.unheard(&self.subject_for(letter))
    }

    fn parcel<'a>(&'a self, letter: &'a DeadLetter, sequence: u64) -> Result<Parcel<'a>, Unsent> {
        let Some(stream) = self.stream_for(letter) else {
            let (origin, subject) = (&letter.origin, letter.message.subject());
            return Err(refused(format!(
                "it was born at {origin}, on `{subject}`, which is not here; name a subject"
            )));
        };
        let (death, operation) = (letter.death(), self.operation);
        let once =
            if self.again { Once::in_operation(death, operation) } else { Once::per_death(death) };
        let replay = Replay {
            operation,
            count: letter.state.replays.saturating_add(1),
            from: format!("{}@{sequence}", self.from),
            at: dlq_core::Clock::now(&SystemClock),
        };
        Ok(Parcel {
            letter,
            stream,
            subject: self.subject_for(letter),
            once,
            replay: Cow::Owned(replay),
        })
    }

    /// Returns true if no header carries the letter's key.
    pub(super) fn loses_key(&self, letter: &DeadLetter) -> bool {
        let is_message = !matches!(self.target, NatsTarget::Handler(_));
        is_message && self.dispatch.loses_key(letter)
    }
}

/// Headers by which a sent message identifies its letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentBack<'a> {
    pub(super) death: Death,
    pub(super) operation: OperationId,
    /// The stream of dead letters that it is from, and its sequence there.
    pub(super) from: (&'a str, u64),
}

impl<'a> SentBack<'a> {
    /// `None` for any other message.
    pub(super) fn read(headers: &'a HeaderMap) -> Option<Self> {
        let text = |name: &str| headers.get(name).map(HeaderValue::as_str);
        let once = once_of(text(header::NATS_MESSAGE_ID.as_ref())?)?;
        let (stream, sequence) = text(REPLAY_FROM_DLQ)?.rsplit_once('@')?;
        Some(Self {
            death: once.death,
            operation: text(REPLAY_ID)?.parse().ok()?,
            from: (stream, sequence.parse().ok()?),
        })
    }
}
