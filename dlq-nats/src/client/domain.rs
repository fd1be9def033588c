//! [`StreamDomain`]: the JetStream domain that a context leads to, where what is published has to arrive.
//!
//! Subjects cross the borders of connected JetStream domains, e.g. between a hub and its leaf nodes. A message may thus be
//! stored by a stream of another domain too, and that stream's confirmation may come first, or alone.
//!
//! A confirmation therefore counts only if it names the domain that the context addresses. A refusal names no domain, so
//! it counts if it names the stream that the message was meant for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::Message;
use async_nats::header::{self, HeaderMap};
use async_nats::jetstream::context::traits::TimeoutProvider as _;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::client::error::answer;
use crate::client::no_leader::asked;

/// Minimum time between two questions for the domain. It is asked again at all because a restarted server may have another
/// one.
const FRESH: Duration = Duration::from_secs(1);

/// JetStream context together with the domain that it addresses. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StreamDomain {
    pub(crate) context: Context,
    /// Stream of this domain by whose info the domain is found.
    stream: Arc<str>,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Domain that the context addresses, as the server said; empty for the domain without a name. `None` until it answers.
    ours: Option<String>,
    /// Time of the last question.
    asked: Option<Instant>,
    /// Another domain that has confirmed a message, for [`advice`](StreamDomain::advice).
    other: Option<String>,
}

#[derive(Deserialize)]
struct StreamInfoReply {
    #[serde(default)]
    domain: String,
    error: Option<jetstream::Error>,
}

/// Meaning of one answer to a published message.
#[derive(Debug)]
pub(crate) enum Word {
    /// The stream has stored the message. `duplicate` if it had it before.
    Kept { duplicate: bool },
    /// The stream has not stored the message, with its reason; `None` if no stream takes the subject.
    Refused(Option<jetstream::Error>),
    /// The answer is of another domain or stream, or not of JetStream at all. The one that counts may still come.
    Elsewhere,
}

#[derive(Debug, Default, Deserialize)]
struct Confirmation {
    error: Option<jetstream::Error>,
    #[serde(default)]
    stream: String,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    #[serde(default)]
    domain: String,
}

impl Confirmation {
    /// Parses an answer. Returns `None` if it is not one of JetStream.
    fn read(answer: &Message) -> Option<Self> {
        match answer.status {
            // A status instead of a body: no stream takes the subject ("no responders").
            Some(_) => Some(Self::default()),
            None => {
                let said: Self = serde_json::from_slice(&answer.payload).ok()?;
                // All fields are optional, so that any JSON can be read as this. Only an error or the name of a
                // stream makes it JetStream's.
                (said.error.is_some() || !said.stream.is_empty()).then_some(said)
            }
        }
    }

    fn keeps(&self) -> bool {
        self.error.is_none() && self.seq > 0
    }
}

impl Known {
    fn is(&self, domain: &str) -> bool {
        self.ours.as_deref() == Some(domain)
    }

    /// Returns true if the server should be asked whether `domain` is the own one: it does not look so, and the last answer
    /// is old.
    fn is_doubtful(&self, domain: &str) -> bool {
        !self.is(domain) && self.asked.is_none_or(|asked| asked.elapsed() >= FRESH)
    }
}

impl StreamDomain {
    /// Creates the domain of `context`, which has this stream. The server is asked when the first answer has to be judged.
    pub(crate) fn new(context: Context, stream: &str) -> Self {
        Self { context, stream: stream.into(), known: Arc::default() }
    }

    /// Like [`new`](Self::new), but asks the server at once. Use it before a burst of messages, behind which the
    /// answer would be late.
    pub(crate) async fn find(context: Context, stream: &str) -> Self {
        let home = Self::new(context, stream);
        home.ask().await;
        home
    }

    /// Returns true if `domain` is the one that the context addresses. Asks the server if that is not known, or if the last
    /// answer is older than a second and says otherwise. False if the server does not answer.
    pub(crate) async fn is(&self, domain: &str) -> bool {
        if self.known().is_doubtful(domain) {
            self.ask().await;
        }
        let mut known = self.known();
        let is_ours = known.is(domain);
        // While the own domain is not known, no other one is said to be foreign.
        if !is_ours && known.ours.is_some() {
            known.other = Some(domain.to_owned());
        }
        is_ours
    }

    /// Returns true if no other domain can answer: the own one has no name, and only domains with names can be connected.
    async fn is_alone(&self) -> bool {
        if self.known().ours.is_none() {
            self.ask().await;
        }
        self.known().is("")
    }

    /// Interprets an answer to a message that was meant for `stream`, or for any stream if `None`.
    pub(crate) async fn hears(&self, answer: &Message, stream: Option<&str>) -> Word {
        let Some(said) = Confirmation::read(answer) else { return Word::Elsewhere };
        if said.keeps() {
            let is_ours = self.is(&said.domain).await;
            return if is_ours {
                Word::Kept { duplicate: said.duplicate }
            } else {
                Word::Elsewhere
            };
        }
        let is_other = stream.is_some_and(|stream| stream != said.stream);
        if is_other && !said.stream.is_empty() && !self.is_alone().await {
            return Word::Elsewhere;
        }
        Word::Refused(said.error)
    }

    async fn ask(&self) {
        let subject = format!("STREAM.INFO.{}", self.stream);
        let question = json!({});
        let answer =
            asked(|| self.context.request::<_, _, StreamInfoReply>(subject.clone(), &question))
                .await;
        let said = answer.ok().filter(|answer| answer.error.is_none()).map(|answer| answer.domain);
        let mut known = self.known();
        // A server that does not answer takes nothing back of what it said before.
        known.ours = said.or(known.ours.take());
        // The time is noted after a failure, too, so that each answer that is judged does not cost another question.
        known.asked = Some(Instant::now());
    }

    /// Publishes a message, and returns once a stream of this domain has confirmed it.
    ///
    /// May publish twice: the client hands over only the first answer, and if that comes from another domain the message is
    /// sent again with an inbox that receives all answers. So the headers have to make a second copy harmless, by
    /// `Nats-Msg-Id` or `Nats-Expected-Last-Subject-Sequence`.
    pub(crate) async fn publish(
        &self,
        subject: &str,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<PublishAck, PublishError> {
        let meant = expected(&headers);
        let stream = meant.as_deref();
        let message = PublishMessage::build().headers(headers.clone()).payload(payload.clone());
        match self.context.send_publish(subject.to_owned(), message).await?.await {
            Ok(ack) if self.is(&ack.domain).await => return Ok(ack),
            // The message names no stream, the error is no answer of one, or no other domain can answer: this is final.
            Err(error) if stream.is_none() || answer(&error).is_none() || self.is_alone().await => {
                return Err(error);
            }
            _ => {}
        }
        // The first answer came from elsewhere. Publish again and wait for the answer that counts.
        let client = self.context.client();
        let failed = |error| PublishError::with_source(PublishErrorKind::Other, error);
        let inbox = client.new_inbox();
        // With an inbox of its own every answer is heard; the client's way hands over the first one only.
        let mut answers =
            client.subscribe(inbox.clone()).await.map_err(|error| failed(error.to_string()))?;
        let sent =
            client.publish_with_reply_and_headers(subject.to_owned(), inbox, headers, payload);
        sent.await.map_err(|error| failed(error.to_string()))?;
        let heard = async {
            while let Some(answer) = answers.next().await {
                return Some(match self.hears(&answer, stream).await {
                    Word::Elsewhere => continue,
                    Word::Kept { .. } => {
                        let ack = serde_json::from_slice(&answer.payload);
                        ack.map_err(|error| failed(error.to_string()))
                    }
                    Word::Refused(Some(why)) => {
                        Err(PublishError::with_source(PublishErrorKind::Other, why))
                    }
                    Word::Refused(None) => Err(PublishError::new(PublishErrorKind::StreamNotFound)),
                });
            }
            None
        };
        let heard = timeout(self.context.timeout(), heard).await.ok().flatten();
        heard.unwrap_or_else(|| Err(PublishError::new(PublishErrorKind::TimedOut)))
    }

    /// Returns advice for a publish that timed out, if another domain has confirmed it.
    pub(crate) fn advice(&self) -> Option<String> {
        let known = self.known();
        let name = |domain: &str| match domain {
            "" => "the JetStream domain without a name".to_owned(),
            named => format!("JetStream domain `{named}`"),
        };
        let ours = known.ours.as_ref()?;
        let other = known.other.as_ref()?;
        Some(format!(
            "a stream of {} stored the message, and the stream of {}, for which it was meant, did not confirm: give the \
             streams of connected domains different subjects",
            name(other),
            name(ours)
        ))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stream that a message is for, as it says.
fn expected(headers: &HeaderMap) -> Option<String> {
    let meant: &str = header::NATS_EXPECTED_STREAM.as_ref();
    // Compared as text: the client's `HeaderName` constants do not equal the same name made from a string.
    let mut named = headers.iter().filter(|(name, _)| AsRef::<str>::as_ref(name) == meant);
    named.find_map(|(_, values)| Some(values.first()?.as_str().to_owned()))
}

#[cfg(test)]
mod tests {
    use async_nats::{StatusCode, Subject};

    use super::*;

    fn answer(payload: &'static str, status: Option<StatusCode>) -> Message {
        Message {
            subject: Subject::from_static("_INBOX.x.0"),
            reply: None,
            payload: payload.into(),
            headers: None,
            status,
            description: None,
            length: 0,
        }
    }

    #[test]
    fn only_a_sequence_without_an_error_is_a_confirmation() {
        let read = |payload| Confirmation::read(&answer(payload, None));
        let kept = |payload| {
            read(payload).filter(Confirmation::keeps).map(|said| (said.duplicate, said.domain))
        };
        let hub = r#"{"stream":"DLQ","domain":"hub","seq":7}"#;
        assert_eq!(kept(hub), Some((false, "hub".to_owned())));
        let known = r#"{"stream":"DLQ","seq":7,"duplicate": true}"#;
        assert_eq!(kept(known), Some((true, String::new())));
        let full = r#"{"error":{"code":503,"err_code":10077},"stream":"DLQ","seq":0}"#;
        let with_both = r#"{"error":{"code":503,"err_code":10077},"seq":7}"#;
        for none in [full, with_both, r#"{"stream":"DLQ","seq":0}"#] {
            assert!(read(none).is_some() && kept(none).is_none(), "{none}");
        }
        for foreign in ["{}", "", "+OK"] {
            assert!(read(foreign).is_none(), "{foreign}");
        }
        let nobody = answer(r#"{"seq":7}"#, Some(StatusCode::NO_RESPONDERS));
        assert!(Confirmation::read(&nobody).is_some_and(|said| !said.keeps()));
    }
}
