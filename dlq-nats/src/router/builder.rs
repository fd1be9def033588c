use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::Context;
use dlq_core::{StoreError, SystemClock};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::report::RouterReport;
use super::route::Shared;
use super::{RouterConfig, Watched, ears, sweep};
use crate::NatsSink;
use crate::durable::{Durable, Of};
use crate::jetstream::JetStream;
use crate::pull::Puller;
use crate::source::Reading;
use crate::streams::{AdvisoryStream, DlqStream};

const OPENING: &str = "open an event router";
/// The durable consumer of the stream of advisories, which all routers share.
pub const DURABLE: &str = "dlq-router";
const PREFETCH: usize = 128;

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
    context: Context,
    config: RouterConfig,
}

impl EventRouter {
    /// A router of everything that the account's consumers give up.
    pub fn builder(jetstream: impl JetStream) -> EventRouterBuilder {
        EventRouterBuilder { context: jetstream.context(), config: RouterConfig::default() }
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
        parts.spawn(sweep::sweep(Arc::clone(&shared), every, stopped.clone()));
        stop.await;
        stopped.cancel();
        parts.join_all().await;
        shared.counts.report()
    }
}

impl EventRouterBuilder {
    /// Takes all settings from there.
    pub fn config(mut self, config: RouterConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the stream that the letters are written to.
    pub fn letters(mut self, stream: DlqStream) -> Self {
        self.config.letters = stream;
        self
    }

    /// Sets the stream that keeps advisories for a router that does not run.
    pub fn advisories(mut self, stream: AdvisoryStream) -> Self {
        self.config.advisories = stream;
        self
    }

    /// Sets the stream of retries, of which nothing is routed. Defaults to `DLQ_RETRY`.
    pub fn retries(mut self, name: impl Into<String>) -> Self {
        self.config.retries = name.into();
        self
    }

    /// Watches the consumers of this stream. Defaults to all streams; may be called several times.
    pub fn stream(mut self, name: impl Into<String>) -> Self {
        self.config.streams.push(name.into());
        self
    }

    /// Watches this consumer. Defaults to all consumers; may be called several times.
    pub fn consumer(mut self, stream: impl Into<String>, consumer: impl Into<String>) -> Self {
        let watched = Watched { stream: stream.into(), consumer: consumer.into() };
        self.config.consumers.push(watched);
        self
    }

    /// Expects watched consumers to have this `max_deliver`, and reports those that have another one. Defaults to no
    /// expectation.
    pub fn max_retries(mut self, deliveries: u32) -> Self {
        self.config.max_retries = Some(deliveries);
        self
    }

    /// Sets how often consumers without workers are made to say what they gave up. Defaults to 5 s.
    pub fn sweep_every(mut self, interval: Duration) -> Self {
        self.config.sweep_every = interval;
        self
    }

    /// Sets for how long an advisory stays with a router without a word, which says how soon a dead router is noticed.
    /// Defaults to 30 s. Counts only when the durable consumer is created.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// Sets the alias of the cluster, which is part of the identity of letters. Defaults to `default`.
    pub fn cluster(mut self, alias: impl Into<String>) -> Self {
        self.config.cluster = alias.into();
        self
    }

    /// Takes the type of the event from this header, e.g. `ce-type`; it stays a header. Defaults to none.
    pub fn event_header(mut self, name: impl Into<String>) -> Self {
        self.config.event_header = Some(name.into());
        self
    }

    /// Makes sure of the streams.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when a stream exists with other settings or a setting contradicts itself; `Unavailable` when the
    /// server does not answer.
    pub async fn open(self) -> Result<EventRouter, StoreError> {
        let Self { context, config } = self;
        config.check()?;
        let watch = config.watch();
        let sink = NatsSink::open(&context, config.letters).await?;
        let of = Of::Own(Box::new(config.advisories.config()));
        let mut durable = Durable::new(of, DURABLE.to_owned(), config.lease);
        durable.ensure(&context).await.map_err(|error| error.for_store(OPENING))?;
        let puller = Puller::new(context.clone(), durable, PREFETCH);
        let reading = Reading {
            consumer: Arc::from(""),
            cluster: config.cluster.into(),
            key_header: None,
            event_header: config.event_header.map(Arc::from),
            clock: SystemClock::shared(),
        };
        let client = context.client();
        let shared = Shared::new(context, sink, reading, watch, config.max_retries);
        let (every, lease) = (config.sweep_every, config.lease);
        Ok(EventRouter { client, shared: Arc::new(shared), puller, every, lease })
    }
}
