use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream;
use dlq_core::{StoreError, StoreErrorKind, SystemClock};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::report::RouterReport;
use super::route::Shared;
use super::watch::Watch;
use super::{ears, sweep};
use crate::durable::{Durable, Of};
use crate::pull::Puller;
use crate::source::Reading;
use crate::streams::{AdvisoryStream, DlqStream};
use crate::{NatsSink, RetryStream};

const OPENING: &str = "open an event router";
/// The durable consumer of the stream of advisories, which all routers share.
const DURABLE: &str = "dlq-router";
const PREFETCH: usize = 128;
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Writes dead letters for consumers that are not ours. See the [module docs](super).
#[derive(Debug)]
#[must_use = "a router does nothing until it runs"]
pub struct EventRouter {
    client: Client,
    shared: Arc<Shared>,
    puller: Puller,
    every: Duration,
    lease: Duration,
}

/// Builds an [`EventRouter`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct EventRouterBuilder {
    client: Client,
    letters: DlqStream,
    advisories: AdvisoryStream,
    watch: Watch,
    every: Duration,
    lease: Duration,
    cluster: Arc<str>,
    event_header: Option<Arc<str>>,
}

impl EventRouter {
    /// A router of everything that the account's consumers give up.
    pub fn builder(client: Client) -> EventRouterBuilder {
        EventRouterBuilder {
            client,
            letters: DlqStream::new(),
            advisories: AdvisoryStream::new(),
            watch: Watch::default(),
            every: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            cluster: Arc::from("default"),
            event_header: None,
        }
    }

    /// Listens and writes until `stop` is ready, finishes what it has in hand, and reports.
    ///
    /// Dropped, it stops at once, and what it had in hand comes again.
    pub async fn run(self, stop: impl Future<Output = ()>) -> RouterReport {
        let Self { client, shared, puller, every, lease } = self;
        let stopped = CancellationToken::new();
        let mut parts = JoinSet::new();
        parts.spawn(ears::durable(
            Arc::clone(&shared),
            client.clone(),
            puller,
            lease,
            stopped.clone(),
        ));
        parts.spawn(ears::plain(Arc::clone(&shared), client.clone(), stopped.clone()));
        parts.spawn(sweep::sweep(Arc::clone(&shared), client, every, stopped.clone()));
        stop.await;
        stopped.cancel();
        parts.join_all().await;
        shared.counts.report()
    }
}

impl EventRouterBuilder {
    /// Sets the stream that the letters are written to.
    pub fn letters(mut self, stream: DlqStream) -> Self {
        self.letters = stream;
        self
    }

    /// Sets the stream that keeps advisories for a router that does not run.
    pub fn advisories(mut self, stream: AdvisoryStream) -> Self {
        self.advisories = stream;
        self
    }

    /// Watches the consumers of this stream. Defaults to all streams; may be called several times.
    pub fn stream(mut self, name: impl Into<String>) -> Self {
        self.watch.only.push((name.into(), None));
        self
    }

    /// Watches this consumer. Defaults to all consumers; may be called several times.
    pub fn consumer(mut self, stream: impl Into<String>, consumer: impl Into<String>) -> Self {
        self.watch.only.push((stream.into(), Some(consumer.into())));
        self
    }

    /// Sets how often consumers without workers are made to say what they gave up. Defaults to 5 s.
    pub fn sweep_every(mut self, interval: Duration) -> Self {
        self.every = interval;
        self
    }

    /// Sets for how long an advisory stays with a router without a word, which says how soon a dead router is noticed.
    /// Defaults to 30 s. Counts only when the durable consumer is created.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the alias of the cluster, which is part of the identity of letters. Defaults to `default`.
    pub fn cluster(mut self, alias: impl Into<Arc<str>>) -> Self {
        self.cluster = alias.into();
        self
    }

    /// Takes the type of the event from this header, e.g. `ce-type`; it stays a header. Defaults to none.
    pub fn event_header(mut self, name: impl Into<Arc<str>>) -> Self {
        self.event_header = Some(name.into());
        self
    }

    /// Makes sure of the streams.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when a stream exists with other settings or a setting contradicts itself; `Unavailable` when the
    /// server does not answer.
    pub async fn open(self) -> Result<EventRouter, StoreError> {
        if self.every.is_zero() {
            return Err(StoreError::new(StoreErrorKind::InvalidConfig, OPENING)
                .with_detail("`sweep_every = 0s` would never let the server rest; say e.g. 5 s"));
        }
        if self.lease < SHORTEST_LEASE {
            let text =
                format!("`lease = {:?}` is too short; say {SHORTEST_LEASE:?} or more", self.lease);
            return Err(StoreError::new(StoreErrorKind::InvalidConfig, OPENING).with_detail(text));
        }
        let mut watch = self.watch;
        watch.own =
            vec![self.letters.name.clone(), self.advisories.name.clone(), RetryStream::new().name];
        let context = jetstream::new(self.client.clone());
        let sink = NatsSink::open(&self.client, self.letters).await?;
        let of = Of::Own(Box::new(self.advisories.config()));
        let mut durable = Durable::new(of, DURABLE.to_owned(), self.lease);
        durable.ensure(&context).await.map_err(|error| error.for_store(OPENING))?;
        let puller = Puller::new(self.client.clone(), context.clone(), durable, PREFETCH);
        let reading = Reading {
            consumer: Arc::from(""),
            cluster: self.cluster,
            key_header: None,
            event_header: self.event_header,
            clock: SystemClock::shared(),
        };
        let shared = Arc::new(Shared::new(context, sink, reading, watch));
        Ok(EventRouter {
            client: self.client,
            shared,
            puller,
            every: self.every,
            lease: self.lease,
        })
    }
}
