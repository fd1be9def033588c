use std::borrow::Cow;
use std::sync::Arc;

use async_nats::header::{self, HeaderMap, HeaderValue};
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{Context, ErrorCode};
use dlq_core::protocol::names::{REPLAY_FROM_DLQ, REPLAY_ID, REPLAY_ORIGINAL_ERROR};
use dlq_core::protocol::{Replay, of_replay, of_replay_to_handler};
use dlq_core::{
    BindingKey, DeadLetter, Death, OperationId, StoreError, StoreErrorKind, SystemClock,
};

use super::ledger::death_of;
use crate::error::answer;
use crate::home::Home;
use crate::inboxes::{Inboxes, Publication};
use crate::lane::NatsRetryLane;
use crate::names::is_subject;
use crate::permissions::unanswered;
use crate::publish::{is_too_large, unwritable};
use crate::streams::{RetryStream, find};
use crate::subjects::covers;
use crate::wire;

pub(super) const REPLAYING: &str = "send a dead letter back";
/// Why a letter with a key is not sent.
pub(super) const NO_HEADER: &str = "no header is known that carries it; say which (`--key-header`, `NatsLetters::with_key_header`)";

/// Where letters are sent.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NatsTarget {
    /// To the subjects where they were born, where every consumer of the stream hears them.
    Origin,
    /// To this subject, whichever stream keeps it.
    Subject(String),
    /// To the consumer that failed and to nobody else, by the retry stream that it reads.
    Handler(RetryStream),
}

/// A letter that was not sent, or is not known to have been.
#[derive(Debug)]
pub(super) enum Unsent {
    /// It cannot be sent; others can.
    Letter(StoreError),
    /// The server takes nothing of this kind now, and has not taken it.
    Later(StoreError),
    /// The server does not answer.
    Server(StoreError),
}

/// Sends letters back.
#[derive(Clone, Debug)]
pub(super) struct Shipment {
    pub(super) context: Context,
    /// Where what is sent has to arrive.
    pub(super) home: Home,
    pub(super) inboxes: Arc<Inboxes>,
    /// The stream that the letters are from.
    pub(super) from: String,
    /// The secret by which consumers of the streams believe whose letter it is.
    pub(super) key: Option<BindingKey>,
    pub(super) key_header: Option<String>,
    pub(super) target: NatsTarget,
    /// The stream that keeps the subject that was asked for.
    pub(super) keeper: Option<String>,
    pub(super) operation: OperationId,
    pub(super) again: bool,
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

    /// The subject that a letter goes to.
    pub(super) fn subject_for<'a>(&'a self, letter: &'a DeadLetter) -> Cow<'a, str> {
        let subject = letter.message.subject();
        match &self.target {
            NatsTarget::Origin => subject.into(),
            NatsTarget::Subject(subject) => subject.into(),
            NatsTarget::Handler(stream) => stream.subject_for(&letter.consumer, subject).into(),
        }
    }

    /// Sends it, and returns once the server has confirmed. Within the duplicate window of the stream that it goes to,
    /// the same death is sent once, whoever sends it; where it is sent again on purpose, once by each operation.
    pub(super) async fn send(&self, letter: &DeadLetter, sequence: u64) -> Result<(), Unsent> {
        let NatsTarget::Handler(stream) = &self.target else {
            let publish = async |is_short| {
                let Publication { subject, headers, payload, .. } =
                    self.publication(letter, sequence, is_short)?;
                Ok((self.home.publish(&subject, headers, payload).await, subject))
            };
            let (mut sent, subject) = publish(false).await?;
            if sent.as_ref().is_err_and(is_too_large) {
                // Without ours it had fitted: what nobody but a reader needs stays here.
                (sent, _) = publish(true).await?;
            }
            let Err(error) = sent else { return Ok(()) };
            return Err(self.unsent(error, letter, &subject).await);
        };
        let (id, replay) = self.marks(letter, sequence);
        let clock = SystemClock::shared();
        let home = self.home.clone();
        let lane = NatsRetryLane::new(home, stream.clone(), &letter.consumer, false, clock);
        let ours = of_replay_to_handler(letter, &replay);
        // Apart, since it is large: what is sent to its origin is on its way by the thousand.
        let sent = Box::pin(lane.give_back(letter, id, ours)).await;
        sent.map_err(|error| match error.kind() {
            StoreErrorKind::Unavailable => Unsent::Server(error),
            _ => Unsent::Letter(error),
        })
    }

    /// The message by which it is sent together with others; `None` where it has to be [sent](Self::send) by itself.
    pub(super) fn at_once(&self, letter: &DeadLetter, sequence: u64) -> Option<Publication> {
        match &self.target {
            NatsTarget::Handler(_) => None,
            _ => self.publication(letter, sequence, false).ok(),
        }
    }

    /// The server has said nothing in time of what was sent of this letter.
    pub(super) fn unheard(&self, letter: &DeadLetter) -> StoreError {
        self.silence(PublishErrorKind::TimedOut.into(), &self.subject_for(letter))
    }

    /// The id of the message that it is sent in, and what that says of the replay.
    fn marks(&self, letter: &DeadLetter, sequence: u64) -> (String, Replay) {
        let (death, operation) = (letter.death(), self.operation);
        let id =
            if self.again { format!("{ID}{death}.{operation}") } else { format!("{ID}{death}") };
        let replay = Replay {
            operation,
            count: letter.state.replays.saturating_add(1),
            from: format!("{}@{sequence}", self.from),
            at: dlq_core::Clock::now(&SystemClock),
        };
        (id, replay)
    }

    /// Whether no header carries its key.
    pub(super) fn loses_key(&self, letter: &DeadLetter) -> bool {
        let is_lost = |key: &[u8]| self.key_header.is_none() || !wire::is_text(key);
        let is_message = !matches!(self.target, NatsTarget::Handler(_));
        is_message && letter.message.key().is_some_and(|key| is_lost(key))
    }

    /// As one message for the stream that it goes to; a short one does not say why it died.
    fn publication(
        &self,
        letter: &DeadLetter,
        sequence: u64,
        is_short: bool,
    ) -> Result<Publication, Unsent> {
        let Some(stream) = self.stream_for(letter) else {
            let (origin, subject) = (&letter.origin, letter.message.subject());
            return Err(refused(format!(
                "it was born at {origin}, on `{subject}`, which is not here; name a subject"
            )));
        };
        let (id, replay) = self.marks(letter, sequence);
        let mut ours = of_replay(letter, &replay).bound_by(self.key.as_ref(), letter);
        if is_short {
            ours = ours.without(REPLAY_ORIGINAL_ERROR);
        }
        let mut headers = Cow::Borrowed(letter.message.headers());
        if let Some(key) = letter.message.key() {
            let name = self.key_header.as_ref().filter(|_| wire::is_text(key));
            let name = name.ok_or_else(|| refused(format!("it has a key, and {NO_HEADER}")))?;
            headers.to_mut().append(name.clone(), key.clone());
        }
        let mut lines = wire::pack_ours(&headers, &ours);
        lines.push(header::NATS_EXPECTED_STREAM.as_ref(), stream);
        lines.push(header::NATS_MESSAGE_ID.as_ref(), &id);
        Ok(Publication {
            subject: self.subject_for(letter).into_owned(),
            stream: stream.to_owned(),
            headers: lines.into_map(),
            payload: letter.message.payload().cloned().unwrap_or_default(),
        })
    }

    /// Whom it concerns: this letter, or others too.
    async fn unsent(&self, error: PublishError, letter: &DeadLetter, subject: &str) -> Unsent {
        let stream = self.stream_for(letter).unwrap_or_default();
        match error.kind() {
            PublishErrorKind::TimedOut => Unsent::Server(self.silence(error, subject)),
            PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending => {
                Unsent::Server(unwritable(REPLAYING, error))
            }
            PublishErrorKind::StreamNotFound if self.may_keep(stream, subject).await => {
                let text = format!("nobody takes `{subject}` now: stream `{stream}` has no leader");
                Unsent::Later(unavailable(text, error))
            }
            _ if passes(&error) => Unsent::Later(unavailable(told(&error), error)),
            _ => Unsent::Letter(refusal(error)),
        }
    }

    fn silence(&self, error: PublishError, subject: &str) -> StoreError {
        let why = self.home.advice();
        let why = why.unwrap_or_else(|| unanswered(&self.context.client(), subject));
        unavailable(format!("{error}; {why}"), error)
    }

    /// Whether the stream keeps this subject. One of which nobody says anything may.
    async fn may_keep(&self, stream: &str, subject: &str) -> bool {
        match find(&self.context, stream).await {
            Ok(None) => false,
            Ok(Some(info)) => info.config.subjects.iter().any(|kept| covers(kept, subject)),
            Err(_) => true,
        }
    }
}

/// What the id of a message begins with that was sent back.
const ID: &str = "replay.";

/// What a message says of itself that was sent back.
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
        let death = text(header::NATS_MESSAGE_ID.as_ref())?.strip_prefix(ID)?;
        let death = match death.match_indices('.').nth(1) {
            Some((end, _)) => &death[..end],
            None => death,
        };
        let (stream, sequence) = text(REPLAY_FROM_DLQ)?.rsplit_once('@')?;
        Some(Self {
            death: death_of(death)?,
            operation: text(REPLAY_ID)?.parse().ok()?,
            from: (stream, sequence.parse().ok()?),
        })
    }
}

fn unavailable(text: String, error: PublishError) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, REPLAYING).with_detail(text).with_source(error)
}

fn refused(text: String) -> Unsent {
    Unsent::Letter(StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(text))
}

/// Whether the server may take the same later: it is busy with it, or not well. A stream that is full stays so.
fn passes(error: &PublishError) -> bool {
    answer(error).is_some_and(|answer| match answer.error_code() {
        ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT => true,
        ErrorCode::STREAM_STORE_FAILED => false,
        _ => answer.code() >= 500,
    })
}

fn told(error: &PublishError) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |why| format!("{error}: {why}"))
}

/// What the server will not take of this letter.
fn refusal(error: PublishError) -> StoreError {
    let mut text = told(&error);
    if is_too_large(&error) {
        text.push_str(
            "; with the headers of a replay it is more than the server takes in one message: send it to its handler \
             (`NatsTarget::Handler`, `--to handler`), or raise `max_payload`",
        );
    }
    StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(text).with_source(error)
}
