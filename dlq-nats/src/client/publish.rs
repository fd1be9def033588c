//! Writing to a stream of ours, and reading from it, whatever the size of what is written.
//!
//! A server takes 64 KiB of headers and `max_payload` of everything in one message. A message that was within these
//! bounds when it was published need not be so with our headers on it. What does not fit is written aside first, to
//! subjects that nobody consumes: the payload as it is, and what the producer's headers and [`REST`](wire::REST) would
//! say as JSON. The message itself then has our headers only, and says where the rest stands.
//!
//! No message of ours has more than three quarters of `max_payload`. Whoever asks for one gets it as Base64, and a
//! connection between a leaf node and its hub ends at what is larger than `max_payload`.

use std::collections::HashSet;

use async_nats::Client;
use async_nats::header;
use async_nats::header::HeaderMap;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use async_nats::jetstream::{self, Context, ErrorCode, stream};
use bytes::{Bytes, BytesMut};
use dlq_core::protocol::Ours;
use dlq_core::{BoxError, Headers, Message, StoreError, StoreErrorKind};

use crate::client::domain::StreamDomain;
use crate::client::error::answer;
use crate::client::leader::Kept;
use crate::client::permissions::{ENDED, has_ended, read_from, unanswered};
use crate::client::streams;
use crate::client::wire::{self, REST, Rest, Unpacked};

/// Names the operation of the sink: a full subject refuses letters for good, and other records for a while.
pub(crate) const WRITE: &str = "write a dead letter";

/// Headers that a server refuses, and a message that a stream does.
const TOO_LARGE: [ErrorCode; 2] = [ErrorCode(10097), ErrorCode(10054)];

/// A stream that is full.
const STORE_FAILED: ErrorCode = ErrorCode(10077);
/// An account, and a server.
const NO_ROOM: [ErrorCode; 2] = [ErrorCode(10002), ErrorCode(10023)];

/// Part of `max_payload` that is left for the headers of a part, and for the rest of an answer.
const SPARE: usize = 4096;

/// The most that a server takes of headers.
pub(crate) const HEADERS: usize = 64 * 1024;

/// In how many parts something may stand aside.
const PARTS: usize = 1024;

/// A message on its way to a stream of ours.
pub(crate) struct Outgoing<'a> {
    pub(crate) operation: &'static str,
    pub(crate) subject: String,
    /// The subject to which that is written which does not fit.
    pub(crate) aside: &'a (dyn Fn() -> String + Sync),
    /// Id that makes it the same message when it is written again.
    pub(crate) id: String,
    pub(crate) message: &'a Message,
    /// Our headers.
    pub(crate) ours: Ours,
    pub(crate) rest: Rest,
    /// Headers for the server.
    pub(crate) orders: Vec<(&'static str, String)>,
}

/// Writes it, and returns once the server has confirmed: whether it was there already.
pub(crate) async fn send(
    home: &StreamDomain,
    stream: &stream::Config,
    outgoing: Outgoing<'_>,
) -> Result<bool, StoreError> {
    let Outgoing { operation, subject, aside, id, message, ours, mut rest, orders } = outgoing;
    let payload = message.payload().cloned().unwrap_or_default();
    let order = |mut headers: HeaderMap| {
        for (name, value) in &orders {
            headers.insert(*name, value.as_str());
        }
        headers
    };
    let to = To { home, stream, operation };
    let packed = || {
        let packed = wire::pack(message.headers(), &ours, &rest);
        packed.map_err(|error| unwritable(operation, error))
    };
    let most = most(&home.context.client());
    // The headers are packed here only where the payload leaves doubt: no server takes more than `HEADERS` of them.
    if payload.len() + HEADERS <= most || payload.len() + packed()?.len() <= most {
        let whole = || Ok(order(packed()?.into_map()));
        match to.publish(&subject, &id, whole, payload.clone()).await {
            Ok((_, duplicate)) => return Ok(duplicate),
            Err(Failed::Other(error)) => return Err(error),
            // Its headers are more than the server takes, or the stream has a bound for messages: it is written in parts.
            Err(Failed::TooLarge(_)) => {}
        }
    }
    let failed = |failed: Failed| failed.told(operation, message);
    let aside = aside();
    // Parts are written before their message: a process that dies in between leaves parts that nobody names, and no
    // message without its parts.
    rest.body = to.aside(&aside, &format!("body.{id}"), payload).await.map_err(failed)?;
    let rest = rest.exactly(message);
    let json = serde_json::to_vec(&rest).map_err(|error| unwritable(operation, error))?;
    let parts = to.aside(&aside, &format!("rest.{id}"), json.into()).await.map_err(failed)?;
    let parts: Vec<String> = parts.iter().map(u64::to_string).collect();
    let without = || {
        let mut lines = wire::pack_ours(&Headers::new(), &ours);
        lines.push(REST, &parts.join(","));
        Ok(order(lines.into_map()))
    };
    let sent = to.publish(&subject, &id, without, Bytes::new()).await;
    sent.map(|(_, duplicate)| duplicate).map_err(failed)
}

/// Error that nobody has said in time whether the stream keeps what was published to `subject`.
pub(crate) fn unheard(
    home: &StreamDomain,
    stream: &stream::Config,
    operation: &'static str,
    subject: &str,
) -> StoreError {
    let to = To { home, stream, operation };
    to.told(subject, PublishError::new(PublishErrorKind::TimedOut))
}

/// Writes anew, as it is, what stands alone under its subject: its new sequence, or `None` when it stands there no more.
pub(crate) async fn rewrite(
    home: &StreamDomain,
    stream: &stream::Config,
    operation: &'static str,
    found: &Kept,
) -> Result<Option<u64>, StoreError> {
    /// Headers that are not copied: by its id the record would be the same message and be refused, and the server
    /// itself says what a schedule replaces.
    const LEFT: [&str; 3] = ["Nats-Msg-Id", "Nats-Rollup", "Nats-Expected-Last-Subject-Sequence"];
    const MOVED: [ErrorCode; 2] =
        [ErrorCode::STREAM_WRONG_LAST_SEQUENCE, ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT];
    let mut headers = HeaderMap::new();
    for (name, values) in found.map().iter() {
        let name: &str = name.as_ref();
        for value in values.iter().filter(|_| !LEFT.contains(&name)) {
            headers.append(name, value.clone());
        }
    }
    let last = found.sequence.to_string();
    // The record takes the place of that message only: one that was handed out meanwhile no longer stands there.
    headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, last);
    let to = To { home, stream, operation };
    match home.publish(&found.subject, headers, found.payload.clone()).await {
        Ok(ack) => Ok(Some(ack.sequence)),
        Err(error) if answer(&error).is_some_and(|said| MOVED.contains(&said.error_code())) => {
            Ok(None)
        }
        Err(error) => Err(to.told(&found.subject, error)),
    }
}

/// Returns the maximum size of a message of ours, with its headers. As Base64 it is a third larger.
pub(crate) fn most(client: &Client) -> usize {
    let most = client.max_payload().saturating_sub(SPARE) / 4 * 3;
    // Below this a server with a small `max_payload` would leave parts without a byte.
    most.max(SPARE)
}

struct To<'a> {
    home: &'a StreamDomain,
    stream: &'a stream::Config,
    operation: &'static str,
}

impl To<'_> {
    /// Publishes to this stream and no other: its sequence there, and whether it was there already.
    async fn publish(
        &self,
        subject: &str,
        id: &str,
        headers: impl Fn() -> Result<HeaderMap, StoreError>,
        payload: Bytes,
    ) -> Result<(u64, bool), Failed> {
        let whole = || {
            let mut headers = headers().map_err(Failed::Other)?;
            headers.insert(header::NATS_MESSAGE_ID, id);
            // Another stream that takes the subject refuses it, and does not confirm what nobody looks for there.
            headers.insert(header::NATS_EXPECTED_STREAM, self.stream.name.as_str());
            Ok::<_, Failed>(headers)
        };
        let mut written = self.home.publish(subject, whole()?, payload.clone()).await;
        if written.as_ref().is_err_and(|e| e.kind() == PublishErrorKind::StreamNotFound) {
            // Nobody takes the subject: the stream was deleted, and is made again, or it has no leader now. One more try
            // tells.
            streams::anew(&self.home.context, self.stream)
                .await
                .map_err(|error| Failed::Other(error.for_store(self.operation)))?;
            written = self.home.publish(subject, whole()?, payload).await;
        }
        let written = written.map(|ack| (ack.sequence, ack.duplicate));
        written.map_err(|error| {
            if is_too_large(&error) {
                Failed::TooLarge(error)
            } else {
                Failed::Other(self.told(subject, error))
            }
        })
    }

    /// Makes the error, with advice if there is any.
    fn told(&self, subject: &str, error: PublishError) -> StoreError {
        let (name, client) = (&self.stream.name, self.home.context.client());
        let code = answer(&error).map(jetstream::Error::error_code);
        let is_full = is_subject_full(&error);
        // Other subjects take more. A retry record that is refused dies, and a subject is not full for ever: it waits.
        let kind = match is_full && self.operation == WRITE {
            true => StoreErrorKind::Refused,
            false => StoreErrorKind::Unavailable,
        };
        let advice = if is_full {
            format!(
                "; stream `{name}` takes no more of this subject: raise its `max_msgs_per_subject`, or remove what is settled"
            )
        } else if code == Some(STORE_FAILED) {
            format!(
                "; stream `{name}` takes no more: raise its `max_bytes` or `max_msgs`, or that of \
                 each subject, or remove what is settled"
            )
        } else if code.is_some_and(|code| NO_ROOM.contains(&code)) {
            "; the account or the server has no room for more: raise its limit (`max_file`, `max_mem`), or remove what \
             nobody needs"
                .to_owned()
        } else if error.kind() == PublishErrorKind::TimedOut {
            let why = self.home.advice().unwrap_or_else(|| unanswered(&client, subject));
            format!("; {why}")
        } else if has_ended(&client) {
            format!("; {ENDED}")
        } else {
            String::new()
        };
        let text = format!("publish to `{subject}` of stream `{name}`: {error}{advice}");
        StoreError::new(kind, self.operation).with_detail(text).with_source(error)
    }

    /// Writes these bytes in as many messages as they need, and returns under which sequences they stand.
    async fn aside(&self, subject: &str, id: &str, mut bytes: Bytes) -> Result<Vec<u64>, Failed> {
        let most = most(&self.home.context.client());
        // A reader takes more parts than that for forged.
        if bytes.len().div_ceil(most) > PARTS {
            return Err(Failed::TooLarge(PublishErrorKind::MaxPayloadExceeded.into()));
        }
        let mut parts = Vec::new();
        while !bytes.is_empty() {
            let part = bytes.split_to(bytes.len().min(most));
            // A part that the stream has already is answered with its sequence there, so that a second try names the same
            // parts.
            let id = format!("{}.{id}", parts.len());
            parts.push(self.publish(subject, &id, || Ok(HeaderMap::new()), part).await?.0);
        }
        Ok(parts)
    }
}

/// Returns true if a single message is not enough.
pub(crate) fn is_too_large(error: &PublishError) -> bool {
    error.kind() == PublishErrorKind::MaxPayloadExceeded
        || answer(error).is_some_and(|answer| TOO_LARGE.contains(&answer.error_code()))
}

/// Returns true if the stream is full for this subject only (`discard_new_per_subject`). The server has one code for all that
/// its storage refuses.
fn is_subject_full(error: &PublishError) -> bool {
    answer(error).is_some_and(|answer| {
        answer.error_code() == STORE_FAILED && answer.to_string().contains("per subject")
    })
}

enum Failed {
    TooLarge(PublishError),
    Other(StoreError),
}

impl Failed {
    fn told(self, operation: &'static str, message: &Message) -> StoreError {
        let error = match self {
            Self::Other(error) => return error,
            Self::TooLarge(error) => error,
        };
        let payload = message.payload().map_or(0, Bytes::len);
        let text = format!(
            "the message on `{}` ({payload} bytes of payload) is more than the server takes in one message; nothing is \
             acknowledged; raise `max_payload`, see that the stream has no `max_msg_size`, or use a store",
            message.subject().chars().take(80).collect::<String>()
        );
        StoreError::new(StoreErrorKind::Refused, operation).with_detail(text).with_source(error)
    }
}

/// The server did not take it, or did not say so.
pub(crate) fn unwritable(operation: &'static str, error: impl Into<BoxError>) -> StoreError {
    let error = error.into();
    StoreError::new(StoreErrorKind::Unavailable, operation)
        .with_detail(error.to_string())
        .with_source(error)
}

/// A message of a stream of ours, and under which sequences parts of it stand aside.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) read: Unpacked,
    pub(crate) aside: Vec<u64>,
}

/// Reads what [`send`] wrote; `None` when somebody else has written it. `Corrupt` when it names parts that are not there,
/// or that [`send`] would not name.
pub(crate) async fn receive(
    context: &Context,
    stream: &str,
    headers: &HeaderMap,
    payload: Bytes,
) -> Result<Option<Whole>, StoreError> {
    let parts = headers.get_last(REST).and_then(|rest| {
        rest.as_str().split(',').map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>()
    });
    // A value that is no list of sequences is the rest itself, as JSON.
    let Some(mut aside) = parts else {
        let read = wire::unpack(headers, payload);
        return Ok(read.map(|read| Whole { read, aside: Vec::new() }));
    };
    let json = gather(context, stream, &aside).await?;
    // The messages that it names are no rest: somebody else has written the header.
    let Ok(rest) = serde_json::from_slice::<Rest>(&json) else { return Ok(None) };
    let payload = gather(context, stream, &rest.body).await?;
    aside.extend(&rest.body);
    Ok(Some(Whole { read: wire::unpack_with(headers, rest, payload), aside }))
}

async fn gather(context: &Context, stream: &str, parts: &[u64]) -> Result<Bytes, StoreError> {
    const OPERATION: &str = "read what stands aside of a message";
    if parts.is_empty() {
        return Ok(Bytes::new());
    }
    let corrupt =
        |text: String| StoreError::new(StoreErrorKind::Corrupt, OPERATION).with_detail(text);
    credible(parts).map_err(corrupt)?;
    let subject = read_from("$JS.API", stream);
    let stream = context.get_stream_no_info(stream).await;
    let stream = stream.map_err(|error| unwritable(OPERATION, error))?;
    let gone = |part: u64| corrupt(format!("its part {part} has gone from the stream"));
    let mut whole = BytesMut::new();
    for part in parts {
        // The leader is asked: a copy on another server may not have the part yet.
        let message = stream.get_raw_message(*part).await.map_err(|error| match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => gone(*part),
            LastRawMessageErrorKind::JetStream(answer) if answer.code() == 404 => gone(*part),
            LastRawMessageErrorKind::Other => {
                let why = unanswered(&context.client(), &subject);
                let unread = StoreError::new(StoreErrorKind::Unavailable, OPERATION);
                unread.with_detail(why).with_source(error)
            }
            _ => unwritable(OPERATION, error),
        })?;
        whole.extend_from_slice(&message.payload);
    }
    Ok(whole.freeze())
}

/// Checks that [`send`] may have named these parts: the header may be anybody's.
fn credible(parts: &[u64]) -> Result<(), String> {
    let count = parts.len();
    if count > PARTS {
        return Err(format!("it names {count} parts; there are {PARTS} at most"));
    }
    let mut seen = HashSet::new();
    match parts.iter().find(|part| **part == 0 || !seen.insert(**part)) {
        Some(part) => Err(format!("it names part {part}, which is no sequence or named twice")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_once_and_are_not_endless() {
        let most: Vec<u64> = (1..=PARTS as u64).collect();
        assert_eq!(credible(&most), Ok(()));
        for parts in [vec![0], vec![7, 8, 7], [&most[..], &[PARTS as u64 + 1]].concat()] {
            assert!(credible(&parts).is_err(), "{parts:?}");
        }
    }
}
