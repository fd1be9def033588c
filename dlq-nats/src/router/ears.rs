//! The two ears that listen; the third provokes, see [`sweep`](super::sweep).

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, Message, Subscriber, jetstream};
use bytes::Bytes;
use dlq_core::{Disposition, Settle as _, TransportErrorKind};
use futures_util::StreamExt as _;
use futures_util::stream::select;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;

use super::advisory::Advisory;
use super::report::{Counts, Event};
use super::route::{Routed, RouterState};
use crate::client::streams::{MAX_DELIVERIES, TERMINATED};
use crate::consumer::pull::Puller;
use crate::consumer::ready::Fetched;
use crate::consumer::settle::{NatsSettle, Server};

/// Number of advisories of one subscriber that are in flight at once.
const IN_FLIGHT: usize = 128;
/// Pause between two tries to listen.
const PAUSE: Duration = Duration::from_secs(1);
/// For how long an advisory that nobody hands out again is tried.
const PATIENCE: Duration = Duration::from_secs(120);

/// Hears what the stream of advisories keeps. What cannot be routed comes again.
pub(super) async fn durable(shared: Arc<RouterState>, client: Client, mut puller: Puller) {
    let server = Arc::new(Server::new(jetstream::new(client), puller.lease(), None));
    let room = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut tasks = JoinSet::new();
    loop {
        // Room comes first, so that what was fetched waits in the puller, which keeps its lease.
        let permit = tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            permit = Arc::clone(&room).acquire_owned() => permit,
            () = sleep(puller.keep_alive_interval()) => {
                puller.keep_alive().await;
                continue;
            }
        };
        let Ok(permit) = permit else { break };
        let fetched = tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            fetched = beside(&mut tasks, &shared.counts, puller.next()) => fetched,
        };
        // An operator may have set another one.
        let lease = puller.lease();
        let fetched = match fetched {
            Ok(Some(fetched)) => fetched,
            Ok(None) => break,
            // The client has ended: nothing that it does comes back, so that this part of the router ends, and with it
            // the router.
            Err(error) if error.kind() == TransportErrorKind::Closed => {
                tracing::error!(%error, "the stream of advisories is not read any more");
                break;
            }
            Err(error) => {
                tracing::warn!(%error, "the stream of advisories cannot be read");
                sleep(PAUSE).await;
                continue;
            }
        };
        let (shared, server) = (Arc::clone(&shared), Arc::clone(&server));
        tasks.spawn(async move {
            let Fetched { message, reply, unreadable, .. } = fetched;
            // Handed out to a client again, it would break the connection again.
            let held = unreadable.map(|unreadable| unreadable.held);
            let settle = NatsSettle::new(server, reply, Vec::new()).with_lease(lease);
            let settle = settle.with_held(held);
            // Half of the lease is left to give the advisory back, before it comes again by itself.
            let after = match heard(&shared, &message.payload, true, lease / 2).await {
                Ok(Routed::NotYet(after)) => Disposition::Deferred { after },
                Ok(_) => Disposition::Succeeded,
                Err(()) => Disposition::Deferred { after: PAUSE },
            };
            if let Err(error) = settle.settle(after).await {
                tracing::warn!(%error, "an advisory could not be settled: it comes again");
            }
            drop(permit);
        });
    }
    while let Some(ended) = tasks.join_next().await {
        tell(&shared.counts, ended);
    }
    // This follows what is in flight: an advisory that was only fetched goes back for another router.
    puller.close().await;
}

/// Hears what is said now, also while the stream of advisories has no leader.
pub(super) async fn plain(shared: Arc<RouterState>, client: Client) {
    let room = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut tasks = JoinSet::new();
    while !shared.stop.is_cancelled() {
        let mut advisories = match listen(&client).await {
            Ok((exhausted, terminated)) => select(exhausted, terminated),
            Err(error) => {
                tracing::warn!(%error, "advisories cannot be heard");
                sleep(PAUSE).await;
                continue;
            }
        };
        loop {
            let message = tokio::select! {
                biased;
                () = shared.stop.cancelled() => break,
                message = beside(&mut tasks, &shared.counts, advisories.next()) => message,
            };
            // The subscription has ended. The outer loop makes another one.
            let Some(Message { payload, .. }) = message else { break };
            // Without room advisories wait in the subscription. What is dropped there is still in the stream of
            // advisories.
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { break };
            let (shared, room) = (Arc::clone(&shared), Arc::clone(&room));
            tasks.spawn(async move {
                let mut permit = Some(permit);
                loop {
                    // At the end nothing waits: this may be the only ear that has heard of it.
                    let waits = !shared.stop.is_cancelled();
                    let heard = heard(&shared, &payload, waits, PATIENCE).await;
                    let Ok(Routed::NotYet(after)) = heard else { return };
                    // While it waits for a death to be old enough it takes no room from others.
                    drop(permit.take());
                    let _ = shared.stop.run_until_cancelled(sleep(after)).await;
                    permit = Arc::clone(&room).acquire_owned().await.ok();
                }
            });
        }
    }
    while let Some(ended) = tasks.join_next().await {
        tell(&shared.counts, ended);
    }
}

/// Returns the next event; reports tasks that end meanwhile.
async fn beside<T>(tasks: &mut JoinSet<()>, counts: &Counts, next: impl Future<Output = T>) -> T {
    let mut next = pin!(next);
    loop {
        tokio::select! {
            biased;
            Some(ended) = tasks.join_next() => tell(counts, ended),
            next = &mut next => return next,
        }
    }
}

/// Reports a task that panicked. Its advisories come again to the durable subscriber.
fn tell(counts: &Counts, ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        counts.count(Event::Failed);
        counts.count(Event::GivenUp);
        tracing::error!(%error, "the work on an advisory broke down");
    }
}

async fn listen(
    client: &Client,
) -> Result<(Subscriber, Subscriber), async_nats::client::SubscribeError> {
    let exhausted = client.subscribe(MAX_DELIVERIES).await?;
    Ok((exhausted, client.subscribe(TERMINATED).await?))
}

async fn heard(
    shared: &RouterState,
    payload: &Bytes,
    waits: bool,
    patience: Duration,
) -> Result<Routed, ()> {
    let Some(advisory) = Advisory::read(payload) else {
        tracing::error!(
            advisory = %String::from_utf8_lossy(payload.get(..500).unwrap_or(payload)),
            "an advisory is not understood; it is passed over"
        );
        // Whoever may publish to the subject can have written it; to hand it out again would not help.
        return Ok(Routed::Nothing);
    };
    shared.route(&advisory, waits, patience).await.map_err(|error| {
        tracing::error!(
            stream = advisory.stream,
            consumer = advisory.consumer,
            sequence = advisory.sequence,
            %error,
            "a message that was given up could not be routed"
        );
    })
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn work_that_breaks_down_is_told_and_counted_while_nothing_else_comes() {
        let (mut tasks, counts) = (JoinSet::new(), Counts::default());
        tasks.spawn(async { panic!("on purpose") });
        let counted = async {
            while counts.report().given_up == 0 {
                tokio::task::yield_now().await;
            }
        };
        let told = async {
            tokio::select! {
                () = beside(&mut tasks, &counts, pending::<()>()) => {}
                () = counted => {}
            }
        };
        timeout(PATIENCE, told).await.expect("it is counted");
        assert_eq!((counts.report().failures, counts.report().given_up), (1, 1));
        // What ended changes nothing for what comes.
        assert_eq!(beside(&mut tasks, &counts, async { 7 }).await, 7);
    }
}
