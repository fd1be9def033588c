//! [`StreamDomain`]: the JetStream domain that a context leads to, where what is published has to arrive.
//!
//! A message is published to its subject, whoever keeps that: between domains that are connected, as those of a hub and its
//! leaf nodes, also a stream of another one, whose confirmation may come first, or alone. So a confirmation counts when it
//! is of the domain that answers for the context. A refusal does not say of which domain it is: there it counts when it is
//! of the stream that was meant.

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

use crate::error::answer;
use crate::no_leader::asked;

/// For how long what the server has said is not asked again: started again it may have another domain.
const FRESH: Duration = Duration::from_secs(1);

/// A context and its domain. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StreamDomain {
    pub(crate) context: Context,
    /// A stream of it.
    stream: Arc<str>,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Its domain as the server has said it, empty for the nameless one.
    ours: Option<String>,
    asked: Option<Instant>,
    /// Another one that has answered.
    other: Option<String>,
}

#[derive(Deserialize)]
struct StreamInfoReply {
    #[serde(default)]
    domain: String,
    error: Option<jetstream::Error>,
}

/// Answer about a message that a stream is to keep.
#[derive(Debug)]
pub(crate) enum Word {
    /// The stream keeps it.
    Kept { duplicate: bool },
    /// The stream does not keep it, and the reason; without a reason, nobody keeps it.
    Refused(Option<jetstream::Error>),
    /// Something, by somebody else.
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
    /// `None` when that is no word of JetStream's.
    fn read(answer: &Message) -> Option<Self> {
        match answer.status {
            // Nobody takes it.
            Some(_) => Some(Self::default()),
            None => {
                let said: Self = serde_json::from_slice(&answer.payload).ok()?;
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

    /// Returns true if the domain may have become ours since the server was asked.
    fn is_doubtful(&self, domain: &str) -> bool {
        !self.is(domain) && self.asked.is_none_or(|asked| asked.elapsed() >= FRESH)
    }
}

impl StreamDomain {
    /// Makes the home of `context`, in which this stream is.
    pub(crate) fn new(context: Context, stream: &str) -> Self {
        Self { context, stream: stream.into(), known: Arc::default() }
    }

    /// The same, asked for its domain before there is so much on its way that an answer would be late.
    pub(crate) async fn find(context: Context, stream: &str) -> Self {
        let home = Self::new(context, stream);
        home.ask().await;
        home
    }

    /// Returns true if a confirmation from this domain means that the message is kept here. False if nobody says so.
    pub(crate) async fn is(&self, domain: &str) -> bool {
        if self.known().is_doubtful(domain) {
            self.ask().await;
        }
        let mut known = self.known();
        let is_ours = known.is(domain);
        if !is_ours && known.ours.is_some() {
            known.other = Some(domain.to_owned());
        }
        is_ours
    }

    /// Returns true if there are no other domains that could answer: connected domains have names.
    async fn is_alone(&self) -> bool {
        if self.known().ours.is_none() {
            self.ask().await;
        }
        self.known().is("")
    }

    /// Reads an answer about a message that the stream of this name, or any stream, is to keep.
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
        known.ours = said.or(known.ours.take());
        known.asked = Some(Instant::now());
    }

    /// Publishes it, and returns once the stream that it is meant for has confirmed. It needs an id by which that knows it
    /// again.
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
            Err(error) if stream.is_none() || answer(&error).is_none() || self.is_alone().await => {
                return Err(error);
            }
            _ => {}
        }
        // The client has heard the first one only: they are asked once more.
        let client = self.context.client();
        let failed = |error| PublishError::with_source(PublishErrorKind::Other, error);
        let inbox = client.new_inbox();
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

    /// Returns advice about a missing answer, if another domain has answered.
    pub(crate) fn advice(&self) -> Option<String> {
        let known = self.known();
        let name = |domain: &str| match domain {
            "" => "the JetStream domain without a name".to_owned(),
            named => format!("JetStream domain `{named}`"),
        };
        let ours = known.ours.as_ref()?;
        let other = known.other.as_ref()?;
        Some(format!(
            "a stream of {} has taken it, and that of {}, which is meant, has not: give streams other subjects in domains \
             that are connected",
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
    // By its text: to the client a name that it knows is another than the same that it was given.
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
