//! From an advisory to a letter that is confirmed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, RetentionPolicy, Stream};
use dlq_core::store::Receipt;
use dlq_core::{Sink as _, StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep};

use super::advisory::Advisory;
use super::letter::{delivery_of, letter_of};
use super::metrics::Topics;
use super::recent::Recent;
use super::report::{Counts, Event};
use super::watch::Watch;
use crate::NatsSink;
use crate::source::Reading;
use crate::streams::find;

const OPERATION: &str = "route a message";
/// How many deaths are remembered, so that a second ear costs nothing.
const REMEMBERED: usize = 64 * 1024;
/// For how long a stream is taken to be as it was.
const FRESH: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What all ears share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) context: Context,
    pub(super) sink: NatsSink,
    pub(super) reading: Reading,
    pub(super) watch: Watch,
    pub(super) counts: Counts,
    topics: Topics,
    /// The `max_deliver` that consumers are expected to have.
    pub(super) expected: Option<u32>,
    recent: Mutex<Recent<(String, String, u64)>>,
    streams: Mutex<HashMap<String, (Instant, Stream)>>,
}

impl Shared {
    pub(super) fn new(
        context: Context,
        sink: NatsSink,
        reading: Reading,
        watch: Watch,
        expected: Option<u32>,
    ) -> Self {
        let recent = Mutex::new(Recent::new(REMEMBERED));
        let (counts, topics, streams) = (Counts::default(), Topics::default(), Mutex::default());
        Self { context, sink, reading, watch, counts, topics, expected, recent, streams }
    }

    /// Writes the letter that an advisory tells of, and returns once it is confirmed: whether it
    /// is new. Tries until `patience` is over.
    pub(super) async fn route(
        &self,
        advisory: &Advisory,
        patience: Duration,
    ) -> Result<bool, StoreError> {
        if !self.watch.includes(&advisory.stream, &advisory.consumer) {
            self.counts.count(Event::Ignored);
            return Ok(false);
        }
        let until = Instant::now() + patience;
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.try_route(advisory).await {
                Ok(is_new) => return Ok(is_new),
                Err(error) => error,
            };
            self.counts.count(Event::Failed);
            if Instant::now() + pause > until {
                self.counts.count(Event::GivenUp);
                return Err(error);
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn try_route(&self, advisory: &Advisory) -> Result<bool, StoreError> {
        let about = advisory.about();
        if lock(&self.recent).contains(&about) {
            self.counts.count(Event::Known);
            return Ok(false);
        }
        let (found, retention) = match self.fetch(advisory).await? {
            Some((message, retention)) => (Some(message), Some(retention)),
            None => (None, None),
        };
        let reading =
            Reading { consumer: Arc::from(advisory.consumer.as_str()), ..self.reading.clone() };
        let has_payload = found.is_some();
        let delivery = delivery_of(&reading, advisory, found);
        let letter = letter_of(&delivery, advisory, retention);
        let class = letter.class;
        let receipts = self.sink.put(vec![letter]).await?;
        let is_new = receipts.first() != Some(&Receipt::Unchanged);
        self.counts.count(if is_new { Event::Routed } else { Event::Known });
        if is_new {
            self.topics.letter_written(delivery.message().subject(), class);
        }
        if is_new && !has_payload {
            self.counts.count(Event::WithoutPayload);
            tracing::error!(
                stream = advisory.stream,
                consumer = advisory.consumer,
                sequence = advisory.sequence,
                kind = advisory.kind().as_str(),
                "a message has left its stream before it could be read: its letter has no payload"
            );
        }
        lock(&self.recent).insert(about);
        Ok(is_new)
    }

    /// The message, and how its stream keeps messages; `None` when it is there no more.
    async fn fetch(
        &self,
        advisory: &Advisory,
    ) -> Result<Option<(StreamMessage, RetentionPolicy)>, StoreError> {
        let Some(stream) = self.stream(&advisory.stream).await? else { return Ok(None) };
        let retention = stream.cached_info().config.retention;
        match stream.get_raw_message(advisory.sequence).await {
            Ok(message) => Ok(Some((message, retention))),
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok(None),
                LastRawMessageErrorKind::JetStream(answer) if answer.code() == 404 => Ok(None),
                _ => Err(StoreError::new(StoreErrorKind::Unavailable, OPERATION)
                    .with_detail(format!(
                        "message {} of stream `{}` could not be read: {error}",
                        advisory.sequence, advisory.stream
                    ))
                    .with_source(error)),
            },
        }
    }

    async fn stream(&self, name: &str) -> Result<Option<Stream>, StoreError> {
        if let Some((seen, stream)) = lock(&self.streams).get(name)
            && seen.elapsed() < FRESH
        {
            return Ok(Some(stream.clone()));
        }
        if find(&self.context, name).await.map_err(|error| error.for_store(OPERATION))?.is_none() {
            return Ok(None);
        }
        let stream = self.context.get_stream(name).await.map_err(|error| {
            StoreError::new(StoreErrorKind::Unavailable, OPERATION)
                .with_detail(format!("look for stream `{name}`: {error}"))
                .with_source(error)
        })?;
        lock(&self.streams).insert(name.to_owned(), (Instant::now(), stream.clone()));
        Ok(Some(stream))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
