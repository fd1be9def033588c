//! Reads from the leader of a stream. Other servers that keep the stream may lag for a while, and so do the consumers
//! on them.

use async_nats::HeaderMap;
use async_nats::jetstream::context::RequestErrorKind;
use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{self, Context};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use dlq_core::{BoxError, Headers, StoreError, StoreErrorKind, Timestamp};
use serde::Deserialize;
use serde_json::json;

use crate::client::lines;
use crate::client::no_leader::asked;
use crate::client::permissions::unanswered;
use crate::client::wire;

/// A message of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which<'a> {
    /// The message with this sequence.
    At(u64),
    /// The first with such a subject, from this sequence on.
    From(&'a str, u64),
    /// The last with such a subject.
    Last(&'a str),
}

impl Which<'_> {
    fn asked(self) -> serde_json::Value {
        match self {
            Self::At(sequence) => json!({ "seq": sequence }),
            Self::From(subject, sequence) => json!({ "seq": sequence, "next_by_subj": subject }),
            Self::Last(subject) => json!({ "last_by_subj": subject }),
        }
    }
}

/// A message as it stands in its stream. The client would drop all but the last of several headers of one name, and
/// read none where one of them is not as it should be: servers keep whatever a producer writes.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) subject: String,
    pub(crate) sequence: u64,
    /// In the order of their names.
    pub(crate) headers: Headers,
    pub(crate) payload: Bytes,
    pub(crate) time: Timestamp,
}

impl Kept {
    /// Returns the headers that the client can represent.
    pub(crate) fn map(&self) -> HeaderMap {
        wire::map(&self.headers)
    }

    /// Returns true if the client can represent the message.
    pub(crate) fn is_readable(&self) -> bool {
        wire::is_readable(&self.headers)
    }
}

#[derive(Deserialize)]
struct MessageReply {
    message: Option<Raw>,
    error: Option<jetstream::Error>,
}

#[derive(Deserialize)]
struct Raw {
    subject: String,
    #[serde(rename = "seq")]
    sequence: u64,
    #[serde(default, rename = "hdrs")]
    headers: String,
    #[serde(default, rename = "data")]
    payload: String,
    time: Timestamp,
}

impl Raw {
    fn kept(self) -> Result<Kept, base64::DecodeError> {
        let Self { subject, sequence, time, .. } = self;
        let headers = lines::read(&STANDARD.decode(self.headers)?);
        Ok(Kept {
            subject,
            sequence,
            headers,
            payload: STANDARD.decode(self.payload)?.into(),
            time,
        })
    }
}

/// Reads a message as the leader has it; `None` if the leader has none, or the stream does not exist.
pub(crate) async fn get(
    context: &Context,
    operation: &'static str,
    name: &str,
    which: Which<'_>,
) -> Result<Option<Kept>, StoreError> {
    let unavailable = |why: String, source: BoxError| {
        let text = format!("stream `{name}` could not be read: {why}");
        let failed = StoreError::new(StoreErrorKind::Unavailable, operation).with_detail(text);
        failed.with_source(source)
    };
    // The client refuses what cannot be the name of a stream; in the subject below it would ask for something else.
    let named: Result<Stream<()>, _> = context.get_stream_no_info(name).await;
    named.map_err(|error| unavailable(error.to_string(), error.into()))?;
    let subject = format!("STREAM.MSG.GET.{name}");
    let question = which.asked();
    // A question that reaches no leader is lost. To ask it again does no harm, since reading changes nothing.
    let answer = asked(|| context.request::<_, _, MessageReply>(subject.clone(), &question)).await;
    let answer = answer.map_err(|error| {
        let why = match error.kind() {
            RequestErrorKind::TimedOut | RequestErrorKind::NoResponders => {
                format!("{error}; {}", unanswered(&context.client(), &format!("$JS.API.{subject}")))
            }
            _ => error.to_string(),
        };
        unavailable(why, error.into())
    })?;
    match answer {
        MessageReply { error: None, message: Some(raw) } => {
            let kept = raw.kept();
            kept.map(Some).map_err(|error| unavailable(error.to_string(), error.into()))
        }
        // So says a server of a stream that is there no more, too.
        MessageReply { error: Some(error), .. } if error.code() == 404 => Ok(None),
        MessageReply { error: Some(error), .. } => {
            Err(unavailable(error.to_string(), error.into()))
        }
        MessageReply { error: None, message: None } => {
            let text = "the server has answered something else";
            Err(unavailable(text.to_owned(), text.into()))
        }
    }
}
