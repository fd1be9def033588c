use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::Context;
use dlq_core::store::BoxStore;
use dlq_core::{Addressee, BindingKey, StoreError, SystemClock};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::domain::Domain;
use super::report::{Event, RouterReport};
use super::route::RouterState;
use super::{DURABLE, RouterConfig, Watched, bucket, ears, sweep, written};
use crate::NatsSink;
use crate::client::error::SetupError;
use crate::client::jetstream::JetStream;
use crate::client::permissions;
use crate::client::streams::{AdvisoryStream, DlqStream, find};
use crate::consumer::durable::{Durable, Of};
use crate::consumer::pull::Puller;
use crate::consumer::source::{Reading, incoming};
use crate::consumer::transport::Start;

const OPENING: &str = "open an event router";
const PREFETCH: usize = 128;

/// Writes dead letters for consumers that are not ours. See the [module docs](super).
#[derive(Debug)]
#[must_use = "a router does nothing until it runs"]
pub struct EventRouter {
    client: Client,
    ears: Vec<Client>,
    shared: Arc<RouterState>,
    puller: Puller,
    every: Duration,
}

/// Builds an [`EventRouter`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct EventRouterBuilder {
    context: Context,
    api: Option<&'static str>,
    config: RouterConfig,
    key: Option<BindingKey>,
    ears: Vec<Client>,
    store: Option<BoxStore>,
}

impl EventRouter {
    /// A router of everything that the account's consumers give up.
    pub fn builder(jetstream: impl JetStream) -> EventRouterBuilder {
        let (context, api) = (jetstream.context(), jetstream.api());
        let (config, key, ears) = (RouterConfig::default(), None, Vec::new());
        EventRouterBuilder { context, api, config, key, ears, store: None }
    }

    /// Listens and writes until `stop` is ready, finishes what it has in flight, and reports. What cannot be written then is
    /// given up, and comes again.
    ///
    /// It ends by itself when a part of it breaks down, which is a defect: the report and the metrics say so.
    ///
    /// Dropped, it stops at once, and what it had in flight comes again.
    pub async fn run(self, stop: impl Future<Output = ()>) -> RouterReport {
        let Self { client, ears, shared, puller, every } = self;
        let mut parts = JoinSet::new();
        parts.spawn(ears::durable(Arc::clone(&shared), client.clone(), puller));
        // The router's own connection listens as well, beside those to other servers.
        for client in ears.into_iter().chain([client]) {
            parts.spawn(ears::plain(Arc::clone(&shared), client));
        }
        parts.spawn(sweep::sweep(Arc::clone(&shared), every));
        watch_over(parts, &shared.stop, stop, || shared.counts.count(Event::Broken)).await;
        shared.counts.report()
    }
}

/// Waits for `stop`, ends the parts, and tells of each that ended before or panicked. One that did ends the others.
async fn watch_over(
    mut parts: JoinSet<()>,
    ending: &CancellationToken,
    stop: impl Future<Output = ()>,
    broke: impl Fn(),
) {
    let early = tokio::select! {
        biased;
        // A stop that is asked for is no breakdown, also when a part ends at the same moment.
        () = stop => None,
        ended = parts.join_next() => ended,
    };
    ending.cancel();
    let tell = |part: Result<(), JoinError>, is_early: bool| {
        let why = match part {
            Err(error) => error.to_string(),
            Ok(()) if is_early => "it ended before it was asked to".to_owned(),
            Ok(()) => return,
        };
        broke();
        tracing::error!(why, "a part of the router broke down, and the router ends");
    };
    if let Some(part) = early {
        tell(part, true);
    }
    while let Some(part) = parts.join_next().await {
        tell(part, false);
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

    /// Sets a store that each letter is written to before the stream, with a row of its processing audit. An advisory is
    /// acknowledged once both have the letter. Defaults to none.
    pub fn store(mut self, store: BoxStore) -> Self {
        self.store = Some(store);
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

    /// Expects watched consumers to have this `max_deliver`, and reports durable ones that have another one. Those that
    /// have no limit, as ours, give nothing up and are reported only where they are [named](Self::consumer). Defaults to
    /// no expectation.
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
    /// Defaults to 30 s. Counts only when the durable consumer is created: a router that finds one takes its lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// Sets the alias of the cluster, which is part of the identity of letters. Defaults to `default`.
    pub fn cluster(mut self, alias: impl Into<String>) -> Self {
        self.config.cluster = alias.into();
        self
    }

    /// Sets the secret by which letters are bound that are sent back to a stream, as
    /// [`NatsLetters::binding_key`](crate::NatsLetters::binding_key) has it. Defaults to none.
    pub fn binding_key(mut self, key: BindingKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Takes the type of the event from this header, e.g. `ce-type`; it stays a header. Defaults to none.
    pub fn event_header(mut self, name: impl Into<String>) -> Self {
        self.config.event_header = Some(name.into());
        self
    }

    /// Listens by this connection as well; may be called several times. In a cluster the one server that dies may be that
    /// which keeps the advisories and that to which the router is connected: what is said then is heard by a connection to
    /// another server only. Best is one to each server, to that one alone
    /// ([`ignore_discovered_servers`](async_nats::ConnectOptions::ignore_discovered_servers)), since connections that go
    /// elsewhere may all come to the same. Defaults to none.
    pub fn also_heard_by(mut self, client: Client) -> Self {
        self.ears.push(client);
        self
    }

    /// Makes sure of the streams.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when a stream or the bucket exists with other settings, a setting contradicts itself, or the server
    /// says that the user may not fetch what is watched, fetch and acknowledge advisories, or read the letters;
    /// `Unavailable` when the server does not answer.
    pub async fn open(self) -> Result<EventRouter, StoreError> {
        let Self { context, api, config, key, ears, store } = self;
        config.check()?;
        let watch = config.watch();
        // The sink comes first: without a place for letters no advisory may be taken.
        let sink = NatsSink::open(&context, config.letters).await?;
        let of = Of::Own(Box::new(config.advisories.config()));
        let mut durable = Durable::new(of, watch.durable(), config.lease);
        let ready = async {
            if durable.name != DURABLE {
                // The start counts only where the consumer is created; one that is there goes on where it stood.
                durable.start = start(&context, &durable).await?;
            }
            durable.ensure(&context).await?;
            let mut needs = durable.needs(api);
            let own = |api| watch.needs(api).into_iter().chain(written::needs(api, sink.stream()));
            needs.extend(api.into_iter().flat_map(own).map(|need| vec![need]));
            permissions::require_each(&context.client(), needs).await?;
            for (stream, _) in &watch.only {
                if find(&context, stream).await?.is_none() {
                    tracing::warn!(
                        stream,
                        "there is no such stream to watch; it is watched once it is there"
                    );
                }
            }
            bucket::check(&context, sink.stream().replicas).await
        };
        ready.await.map_err(|error| error.for_store(OPENING))?;
        let domain = Domain::find(&context).await;
        let every = config.sweep_every;
        let puller = Puller::new(context.clone(), durable, PREFETCH);
        let reading = Reading {
            incoming: incoming(
                // A router writes for many consumers: `try_route` sets the name for each letter.
                Addressee::new(Arc::from("")),
                key,
                config.event_header.map(Arc::from),
            ),
            cluster: config.cluster.into(),
            key_header: None,
            clock: SystemClock::shared(),
        };
        let client = context.client();
        let shared =
            RouterState::new(context, (sink, store), reading, watch, domain, config.max_retries);
        Ok(EventRouter { client, ears, shared: Arc::new(shared), puller, every })
    }
}

/// Returns the position at which a router of some streams begins if it has no durable consumer yet: everything that the
/// consumer of all streams has acknowledged is done, or was not for anybody.
async fn start(context: &Context, durable: &Durable) -> Result<Start, SetupError> {
    if find(context, durable.of.name()).await?.is_none() {
        return Ok(Start::Earliest);
    }
    let everything = Durable::new(durable.of.clone(), DURABLE.to_owned(), durable.lease);
    let found = everything.find(context).await?;
    Ok(found.map_or(Start::Earliest, |found| Start::At(found.ack_floor.stream_sequence + 1)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn a_part_that_breaks_down_is_told_at_once() {
        for (panics, broken) in [(true, 1), (false, 1)] {
            let (ending, count) = (CancellationToken::new(), Cell::new(0));
            let mut parts = JoinSet::new();
            let stopped = ending.clone();
            parts.spawn(async move { stopped.cancelled().await });
            parts.spawn(async move { assert!(!panics, "on purpose") });
            // Nobody asks it to end.
            watch_over(parts, &ending, pending(), || count.set(count.get() + 1)).await;
            assert_eq!(count.get(), broken);
        }
    }

    #[tokio::test]
    async fn parts_that_end_when_they_are_asked_to_are_not_broken() {
        let ending = CancellationToken::new();
        let mut parts = JoinSet::new();
        let stopped = ending.clone();
        parts.spawn(async move { stopped.cancelled().await });
        watch_over(parts, &ending, ready(()), || panic!("nothing broke")).await;
    }
}
