//! [`Home`]: the JetStream domain that a context leads to, where what is published has to arrive.
//!
//! A message is published to its subject, whoever keeps that: between domains that are connected, as those of a hub and its
//! leaf nodes, also a stream of another one, whose confirmation may come first, or alone. So a confirmation counts when it
//! is of the domain that answers for the context.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::traits::TimeoutProvider as _;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::patience::asked;

/// For how long what the server has said is not asked again: started again it may have another domain.
const FRESH: Duration = Duration::from_secs(1);

/// A context and its domain. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Home {
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
struct Answer {
    #[serde(default)]
    domain: String,
    error: Option<async_nats::jetstream::Error>,
}

impl Known {
    fn is(&self, domain: &str) -> bool {
        self.ours.as_deref() == Some(domain)
    }

    /// Whether it may have become ours since the server was asked.
    fn is_doubtful(&self, domain: &str) -> bool {
        !self.is(domain) && self.asked.is_none_or(|asked| asked.elapsed() >= FRESH)
    }
}

impl Home {
    /// That of `context`, in which there is this stream.
    pub(crate) fn new(context: Context, stream: &str) -> Self {
        Self { context, stream: stream.into(), known: Arc::default() }
    }

    /// The same, asked for its domain before there is so much on its way that an answer would be late.
    pub(crate) async fn find(context: Context, stream: &str) -> Self {
        let home = Self::new(context, stream);
        home.ask().await;
        home
    }

    /// Whether what is confirmed in this domain is kept here. Where nobody says it is not.
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

    async fn ask(&self) {
        let subject = format!("STREAM.INFO.{}", self.stream);
        let question = json!({});
        let answer =
            asked(|| self.context.request::<_, _, Answer>(subject.clone(), &question)).await;
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
        let message = PublishMessage::build().headers(headers.clone()).payload(payload.clone());
        let ack = self.context.send_publish(subject.to_owned(), message).await?.await?;
        if self.is(&ack.domain).await {
            return Ok(ack);
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
                if let Ok(ack) = serde_json::from_slice::<PublishAck>(&answer.payload)
                    && ack.sequence > 0
                    && self.is(&ack.domain).await
                {
                    return Some(ack);
                }
            }
            None
        };
        let heard = timeout(self.context.timeout(), heard).await.ok().flatten();
        heard.ok_or_else(|| PublishError::new(PublishErrorKind::TimedOut))
    }

    /// What to do about an answer that did not come, where one of another domain did.
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
