//! [`Dispatch`]: sends one letter back to a stream. Replays of a stream of dead letters and the outbox of stores both send
//! by it.

use std::borrow::Cow;
use std::sync::Arc;

use async_nats::header;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{Context, ErrorCode};
use dlq_core::outbox::Once;
use dlq_core::protocol::names::REPLAY_ORIGINAL_ERROR;
use dlq_core::protocol::{Replay, of_replay, of_replay_to_handler};
use dlq_core::{BindingKey, DeadLetter, StoreError, StoreErrorKind, SystemClock};

use crate::client::domain::StreamDomain;
use crate::client::error::answer;
use crate::client::inboxes::{Inboxes, Publication};
use crate::client::permissions::unanswered;
use crate::client::publish::{is_too_large, unwritable};
use crate::client::streams::{RetryStream, find};
use crate::client::subjects::covers;
use crate::client::wire;
use crate::consumer::retry_queue::NatsRetryQueue;

pub(crate) const REPLAYING: &str = "send a dead letter back";
/// Reason why a letter with a key is not sent.
pub(crate) const NO_HEADER: &str =
    "no header is known that carries it; say which (`--key-header`, `NatsLetters::key_header`)";

/// Attribute of a letter with the name of the consumer that reads the retry records of its handler.
pub(crate) const CONSUMER: &str = "nats.consumer";

/// Returns the name of the consumer that a letter goes to on its way to its handler.
pub(crate) fn consumer_of(letter: &DeadLetter) -> &str {
    letter.attributes.get(CONSUMER).unwrap_or(&letter.consumer)
}

/// Prefix of the ids of messages that were sent back.
const ID: &str = "replay.";

/// The id of the message in which a letter is sent.
pub(crate) fn id_of(once: &Once) -> String {
    format!("{ID}{once}")
}

/// The identity of what was sent back under this id; `None` for any other message.
pub(crate) fn once_of(id: &str) -> Option<Once> {
    id.strip_prefix(ID)?.parse().ok()
}

/// A letter that was not sent, or is not known to have been.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// It cannot be sent; others can.
    Letter(StoreError),
    /// The stream has no room for it until something of it is removed.
    Full(StoreError),
    /// The server takes nothing of this kind now, and has not taken it.
    Later(StoreError),
    /// The server does not answer, and may have taken it.
    Server(StoreError),
}

/// A letter, and how it is sent.
#[derive(Debug)]
pub(crate) struct Parcel<'a> {
    pub(crate) letter: &'a DeadLetter,
    /// The stream that is to keep it.
    pub(crate) stream: &'a str,
    pub(crate) subject: Cow<'a, str>,
    pub(crate) once: Once,
    pub(crate) replay: Cow<'a, Replay>,
}

/// Sends letters to the streams of one JetStream domain.
#[derive(Clone, Debug)]
pub(crate) struct Dispatch {
    pub(crate) context: Context,
    /// The JetStream domain in which letters have to arrive.
    pub(crate) home: StreamDomain,
    pub(crate) inboxes: Arc<Inboxes>,
    /// The secret by which consumers of the streams believe whose letter it is.
    pub(crate) key: Option<BindingKey>,
    pub(crate) key_header: Option<String>,
}

impl Dispatch {
    /// Sends a letter, and returns once the server has confirmed. Within the duplicate window of the stream, the same
    /// identity is kept once, whoever sends it.
    pub(crate) async fn send(&self, parcel: &Parcel<'_>) -> Result<(), Unsent> {
        let publish = async |is_short| {
            let Publication { subject, headers, payload, .. } =
                self.publication(parcel, is_short)?;
            Ok(self.home.publish(&subject, headers, payload).await)
        };
        let mut sent = publish(false).await?;
        if sent.as_ref().is_err_and(is_too_large) {
            // Without ours it had fitted: what nobody but a reader needs stays here.
            sent = publish(true).await?;
        }
        let Err(error) = sent else { return Ok(()) };
        Err(self.unsent(error, parcel).await)
    }

    /// Sends a letter to this consumer by the retry stream that it reads. A header says which of its handlers has failed.
    pub(crate) async fn give_back(
        &self,
        parcel: &Parcel<'_>,
        stream: &RetryStream,
        consumer: &str,
    ) -> Result<(), Unsent> {
        let (letter, clock) = (parcel.letter, SystemClock::shared());
        let (home, stream) = (self.home.clone(), stream.clone());
        // The queue needs no schedules, since what is sent back is due at once.
        let queue = NatsRetryQueue::new(home, stream, consumer, false, clock);
        let ours = of_replay_to_handler(letter, &parcel.replay);
        let sent = queue.give_back(letter, id_of(&parcel.once), ours).await;
        sent.map_err(|error| match error.kind() {
            // An error of this kind may hide that the record was written, so that a successor has to look for it.
            StoreErrorKind::Unavailable => Unsent::Server(error),
            _ => Unsent::Letter(error),
        })
    }

    /// The error for a message to this subject that the server has not answered in time.
    pub(crate) fn unheard(&self, subject: &str) -> StoreError {
        self.silence(PublishErrorKind::TimedOut.into(), subject)
    }

    /// Returns true if no header carries the key of a letter.
    pub(crate) fn loses_key(&self, letter: &DeadLetter) -> bool {
        let is_lost = |key: &[u8]| self.key_header.is_none() || !wire::is_text(key);
        letter.message.key().is_some_and(|key| is_lost(key))
    }

    /// A letter as one message for its stream; a short one does not say why it died.
    pub(crate) fn publication(
        &self,
        parcel: &Parcel<'_>,
        is_short: bool,
    ) -> Result<Publication, Unsent> {
        let Parcel { letter, stream, subject, once, replay } = parcel;
        let mut ours = of_replay(letter, replay).bound_by(self.key.as_ref(), letter);
        if is_short {
            ours = ours.without(REPLAY_ORIGINAL_ERROR);
        }
        let mut headers = Cow::Borrowed(letter.message.headers());
        if let Some(key) = letter.message.key() {
            let name = self.key_header.as_ref().filter(|_| wire::is_text(key));
            let name = name.ok_or_else(|| refused(format!("it has a key, and {NO_HEADER}")))?;
            headers.to_mut().append(name.clone(), key.clone());
        }
        // Without these headers it would be another message than the one that died (G8).
        if let Some(names) = wire::uncarried(&headers) {
            return Err(refused(format!(
                "NATS cannot carry {names}: a name has white space, a colon or bytes that are not ASCII, or a value is \
                 absent, has a line break, begins or ends with white space, or is not UTF-8; edit the headers \
                 of the letter, or send it to its handler"
            )));
        }
        let mut lines = wire::pack_ours(&headers, &ours);
        // What has arrived is looked for in this stream, so that no other one may take it.
        lines.push(header::NATS_EXPECTED_STREAM.as_ref(), stream);
        lines.push(header::NATS_MESSAGE_ID.as_ref(), &id_of(once));
        Ok(Publication {
            subject: subject.clone().into_owned(),
            stream: (*stream).to_owned(),
            headers: lines.into_map(),
            payload: letter.message.payload().cloned().unwrap_or_default(),
        })
    }

    /// Decides whether an error concerns this letter alone, or others too.
    async fn unsent(&self, error: PublishError, parcel: &Parcel<'_>) -> Unsent {
        let (stream, subject) = (parcel.stream, &*parcel.subject);
        match error.kind() {
            PublishErrorKind::TimedOut => Unsent::Server(self.silence(error, subject)),
            PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending => {
                Unsent::Server(unwritable(REPLAYING, error))
            }
            // Nobody answers for a stream without a leader either; only its configuration tells whether it takes the
            // subject.
            PublishErrorKind::StreamNotFound if self.may_keep(stream, subject).await => {
                let text = format!("nobody takes `{subject}` now: stream `{stream}` has no leader");
                Unsent::Later(unavailable(text, error))
            }
            // This comes before `passes`: a full stream answers with 503, too, and does not take the same soon.
            _ if is_full(&error) => Unsent::Full(refusal(error)),
            _ if passes(&error) => Unsent::Later(unavailable(told(&error), error)),
            _ => Unsent::Letter(refusal(error)),
        }
    }

    fn silence(&self, error: PublishError, subject: &str) -> StoreError {
        let why = self.home.advice();
        let why = why.unwrap_or_else(|| unanswered(&self.context.client(), subject));
        unavailable(format!("{error}; {why}"), error)
    }

    /// Returns true if the stream keeps this subject, or if nobody says whether it does.
    async fn may_keep(&self, stream: &str, subject: &str) -> bool {
        match find(&self.context, stream).await {
            Ok(None) => false,
            Ok(Some(info)) => info.config.subjects.iter().any(|kept| covers(kept, subject)),
            // Where nobody says, the letter is tried again later rather than failed for good.
            Err(_) => true,
        }
    }
}

fn unavailable(text: String, error: PublishError) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, REPLAYING).with_detail(text).with_source(error)
}

pub(crate) fn refused(text: String) -> Unsent {
    Unsent::Letter(StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(text))
}

/// Returns true if the server may take the same soon: it is busy with it, or not well.
fn passes(error: &PublishError) -> bool {
    answer(error).is_some_and(|answer| {
        answer.error_code() == ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT || answer.code() >= 500
    })
}

/// Returns true if the stream has no room, for this subject at least. The server has one code for all that its storage
/// refuses.
fn is_full(error: &PublishError) -> bool {
    answer(error).is_some_and(|answer| answer.error_code() == ErrorCode::STREAM_STORE_FAILED)
}

fn told(error: &PublishError) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |why| format!("{error}: {why}"))
}

/// The error for a letter that the server will never take.
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
