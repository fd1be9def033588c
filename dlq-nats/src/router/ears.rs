//! The two ears that listen; the third provokes, see [`sweep`](super::sweep).

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, Message, Subscriber, jetstream};
use bytes::Bytes;
use dlq_core::{Disposition, Settle as _};
use futures_util::StreamExt as _;
use futures_util::stream::select;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::advisory::{Advisory, MAX_DELIVERIES, TERMINATED};
use super::route::Shared;
use crate::pull::{Fetched, Puller};
use crate::settle::{NatsSettle, Server};

/// How many advisories of one ear are in hand at once.
const IN_HAND: usize = 128;
/// Between two tries to listen.
const PAUSE: Duration = Duration::from_secs(1);
/// For how long an advisory that nobody hands out again is tried.
const PATIENCE: Duration = Duration::from_secs(120);

/// Hears what the stream of advisories keeps. What cannot be routed comes again.
pub(super) async fn durable(
    shared: Arc<Shared>,
    client: Client,
    mut puller: Puller,
    lease: Duration,
    stop: CancellationToken,
) {
    let server = Arc::new(Server::new(jetstream::new(client), lease, None));
    let room = Arc::new(Semaphore::new(IN_HAND));
    let mut tasks = JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let fetched = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            fetched = puller.next() => fetched,
        };
        let fetched = match fetched {
            Ok(Some(fetched)) => fetched,
            Ok(None) => break,
            Err(error) => {
                tracing::warn!(%error, "the stream of advisories cannot be read");
                sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { break };
        let (shared, server) = (Arc::clone(&shared), Arc::clone(&server));
        tasks.spawn(async move {
            let Fetched { message, reply, .. } = fetched;
            let settle = NatsSettle::new(server, reply, Vec::new());
            let after = match heard(&shared, &message.payload, lease / 2).await {
                Ok(()) => Disposition::Succeeded,
                Err(()) => Disposition::Deferred { after: PAUSE },
            };
            if let Err(error) = settle.settle(after).await {
                tracing::warn!(%error, "an advisory could not be settled: it comes again");
            }
            drop(permit);
        });
    }
    tasks.join_all().await;
    puller.close().await;
}

/// Hears what is said now, also while the stream of advisories has no leader.
pub(super) async fn plain(shared: Arc<Shared>, client: Client, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(IN_HAND));
    let mut tasks = JoinSet::new();
    while !stop.is_cancelled() {
        let mut advisories = match listen(&client).await {
            Ok((exhausted, terminated)) => select(exhausted, terminated),
            Err(error) => {
                tracing::warn!(%error, "advisories cannot be heard");
                sleep(PAUSE).await;
                continue;
            }
        };
        loop {
            while tasks.try_join_next().is_some() {}
            let message = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                message = advisories.next() => message,
            };
            let Some(Message { payload, .. }) = message else { break };
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { break };
            let shared = Arc::clone(&shared);
            tasks.spawn(async move {
                // The durable ear has it as well.
                let _ = heard(&shared, &payload, PATIENCE).await;
                drop(permit);
            });
        }
    }
    tasks.join_all().await;
}

async fn listen(
    client: &Client,
) -> Result<(Subscriber, Subscriber), async_nats::client::SubscribeError> {
    let exhausted = client.subscribe(MAX_DELIVERIES).await?;
    Ok((exhausted, client.subscribe(TERMINATED).await?))
}

async fn heard(shared: &Shared, payload: &Bytes, patience: Duration) -> Result<(), ()> {
    let Some(advisory) = Advisory::read(payload) else {
        tracing::error!(
            advisory = %String::from_utf8_lossy(payload.get(..500).unwrap_or(payload)),
            "an advisory is not understood; it is passed over"
        );
        return Ok(());
    };
    shared.route(&advisory, patience).await.map(drop).map_err(|error| {
        tracing::error!(
            stream = advisory.stream,
            consumer = advisory.consumer,
            sequence = advisory.sequence,
            %error,
            "a message that was given up could not be routed"
        );
    })
}
