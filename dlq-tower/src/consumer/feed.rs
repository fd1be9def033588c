//! Fetching: one task per source. A panic in a source ends its task and nothing else.

use std::fmt;
use std::future::{Future, pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dlq_core::store::Claims;
use dlq_core::{Delivery, Settle, SettleOnce, Source, TransportError};
use futures_util::poll;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::backoff::Growing;
use super::gate::Gate;
use super::health::{Reporter, report};
use super::outage::Ticket;
use super::room::Room;
use crate::store_lane::StoreLane;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
type Handed = (Delivery, SettleOnce);
type Fetched = Result<Option<Handed>, TransportError>;

/// How many messages are fetched until others have a turn.
pub(super) const AT_ONCE: usize = 64;

/// Between two questions to a source that fails.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A source, erased.
pub(super) trait Feed: fmt::Debug + Send {
    fn next(&mut self) -> BoxFuture<'_, Fetched>;

    /// Adds up to so many messages that are at hand.
    fn more(&mut self, _most: usize, _messages: &mut Vec<Handed>) {}

    fn close(&mut self) -> BoxFuture<'_, ()>;

    /// How long it may go without being asked before it had better give back what it holds.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Gives back what it has fetched and not yielded.
    fn give_back(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

/// The source of a consumer.
#[derive(Debug)]
pub(super) struct Main<S> {
    source: S,
    /// How asking for more has ended, other than by a message: said to who asks next.
    ended: Option<std::thread::Result<Result<(), TransportError>>>,
}

impl<S> Main<S> {
    pub(super) const fn new(source: S) -> Self {
        Self { source, ended: None }
    }
}

impl<S: Source> Feed for Main<S> {
    fn next(&mut self) -> BoxFuture<'_, Fetched> {
        Box::pin(async {
            match self.ended.take() {
                None => Ok(self.source.next().await?.map(once)),
                Some(Ok(ended)) => ended.map(|()| None),
                Some(Err(panic)) => resume_unwind(panic),
            }
        })
    }

    fn more(&mut self, most: usize, messages: &mut Vec<Handed>) {
        // What is pending is dropped, which loses nothing, and is asked again by `next`.
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..most {
            let poll = || pin!(self.source.next()).poll(&mut context);
            self.ended = match catch_unwind(AssertUnwindSafe(poll)) {
                Ok(Poll::Pending) => return,
                Ok(Poll::Ready(Ok(Some(next)))) => {
                    messages.push(once(next));
                    continue;
                }
                Ok(Poll::Ready(Ok(None))) => Some(Ok(Ok(()))),
                Ok(Poll::Ready(Err(error))) => Some(Ok(Err(error))),
                Err(panic) => Some(Err(panic)),
            };
            return;
        }
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.source.close())
    }
}

fn once((delivery, settle): (Delivery, impl Settle)) -> Handed {
    let settle = SettleOnce::new(settle, &delivery);
    (delivery, settle)
}

/// What is due in the store.
#[derive(Debug)]
pub(super) struct Lane<C>(pub(super) StoreLane<C>);

impl<C: Claims + Clone> Feed for Lane<C> {
    fn next(&mut self) -> BoxFuture<'_, Fetched> {
        Box::pin(async { Ok(self.0.next().await?.map(once)) })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.close())
    }

    fn patience(&self) -> Option<Duration> {
        // A lease that ended in our hands would count as a crash.
        Some(self.0.patience())
    }

    fn give_back(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.give_back())
    }
}

/// A message that was fetched.
pub(super) struct Received {
    pub(super) delivery: Delivery,
    pub(super) settle: SettleOnce,
    /// When it was received, or earlier.
    pub(super) since: Instant,
    pub(super) ticket: Ticket,
    pub(super) room: OwnedSemaphorePermit,
}

/// Fetches from `feed` while there is room and the gate is open, until told to stop.
pub(super) struct Fetching {
    pub(super) feed: Box<dyn Feed>,
    pub(super) gate: Arc<Gate>,
    pub(super) room: Arc<Room>,
    pub(super) received: mpsc::UnboundedSender<Vec<Received>>,
    pub(super) stop: CancellationToken,
    /// Where errors are reported, for the main source.
    pub(super) health: Option<Reporter>,
}

/// How fetching ended.
pub(super) struct Fetch {
    /// Kept until everything it handed out is settled.
    pub(super) feed: Box<dyn Feed>,
    pub(super) end: End,
}

#[derive(Debug)]
pub(super) enum End {
    Stopped,
    Exhausted,
    Failed(TransportError),
}

impl Fetching {
    pub(super) async fn run(mut self) -> Fetch {
        let end = self.fetch().await;
        self.feed.close().await;
        Fetch { feed: self.feed, end }
    }

    async fn fetch(&mut self) -> End {
        let Self { feed, gate, room, received, stop, health } = self;
        let mut pause = Growing::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut failing = false;
        let mut stopped = pin!(stop.cancelled());
        loop {
            let admitted = async {
                let permit = room.take().await;
                gate.admit().await;
                permit
            };
            let patience = feed.patience();
            let permit = tokio::select! {
                biased;
                () = &mut stopped => return End::Stopped,
                permit = admitted => permit,
                () = maybe(patience) => {
                    feed.give_back().await;
                    continue;
                }
            };
            // It is never closed.
            let Some(permit) = permit else { return End::Stopped };
            if stop.is_cancelled() {
                return End::Stopped;
            }
            let mut asked = feed.next();
            // What is at hand is taken before anything is waited for: that it may be was looked at just now.
            let next = match poll!(asked.as_mut()) {
                Poll::Ready(next) => next,
                Poll::Pending => tokio::select! {
                    biased;
                    () = &mut stopped => return End::Stopped,
                    () = gate.closed() => continue,
                    next = &mut asked => next,
                    () = room.is_wanted() => continue,
                    // A source that waits for messages as long as this works again.
                    () = sleep(LONGEST_PAUSE), if failing => {
                        failing = false;
                        works(health.as_ref());
                        continue;
                    }
                },
            };
            drop(asked);
            match next {
                Ok(Some(first)) => {
                    pause.reset();
                    if std::mem::take(&mut failing) {
                        works(health.as_ref());
                    }
                    let (since, mut messages) = (Instant::now(), vec![first]);
                    let mut rest = room.more(gate.at_once(AT_ONCE) - 1);
                    if let Some(rest) = &rest {
                        feed.more(rest.num_permits(), &mut messages);
                    }
                    let mut permit = Some(permit);
                    // As many were fetched as there is room for.
                    let mut room = || permit.take().or_else(|| rest.as_mut()?.split(1));
                    let begun = messages.into_iter().filter_map(|(delivery, settle)| {
                        let ticket = gate.ticket();
                        Some(Received { delivery, settle, since, ticket, room: room()? })
                    });
                    if received.send(begun.collect()).is_err() {
                        return End::Stopped;
                    }
                }
                Ok(None) => return End::Exhausted,
                Err(error) if error.is_transient() => {
                    failing = true;
                    let wait = pause.next();
                    tracing::error!(error = report(&error), retry_in = ?wait, "a source cannot be asked");
                    if let Some(health) = health {
                        health.source_failed(report(&error));
                    }
                    drop(permit);
                    tokio::select! {
                        () = &mut stopped => return End::Stopped,
                        () = sleep(wait) => {}
                    }
                }
                Err(error) => return End::Failed(error),
            }
        }
    }
}

fn works(health: Option<&Reporter>) {
    if let Some(health) = health {
        health.source_works();
    }
}

async fn maybe(wait: Option<Duration>) {
    match wait {
        Some(wait) => sleep(wait).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::memory::{MemoryBroker, MemorySettle, MemorySource};
    use dlq_core::{Capabilities, Message, TransportErrorKind};
    use futures_util::FutureExt as _;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Then {
        Waits,
        Ends,
        Fails,
        Panics,
    }

    /// Yields some messages, and then does something else.
    #[derive(Debug)]
    struct Some3(MemorySource, u32, Then);

    impl Source for Some3 {
        type Settle = MemorySettle;

        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }

        async fn next(&mut self) -> Result<Option<(Delivery, MemorySettle)>, TransportError> {
            if self.1 < 3 {
                self.1 += 1;
                return self.0.next().await;
            }
            // Once.
            match std::mem::replace(&mut self.2, Then::Waits) {
                Then::Waits => pending().await,
                Then::Ends => Ok(None),
                Then::Fails => Err(TransportError::new(TransportErrorKind::Unexpected, "fetch")),
                Then::Panics => panic!("a source of users'"),
            }
        }

        async fn close(&mut self) {
            self.0.close().await;
        }
    }

    fn asked(then: Then) -> (usize, Option<std::thread::Result<Fetched>>) {
        let broker = MemoryBroker::new().with_stream("work");
        for _ in 0..5 {
            broker.publish(Message::new("work", "x"));
        }
        let mut feed = Main::new(Some3(broker.source("group"), 0, then));
        let mut messages = Vec::new();
        feed.more(2, &mut messages);
        assert_eq!(messages.len(), 2, "no more than there is room for");
        feed.more(5, &mut messages);
        let after = AssertUnwindSafe(feed.next()).catch_unwind().now_or_never();
        for (_, settle) in &messages {
            assert!(settle.lease().is_some());
        }
        (messages.len(), after)
    }

    #[tokio::test]
    async fn g1_what_came_before_an_end_is_handed_on_and_the_end_is_told_next() {
        assert!(matches!(asked(Then::Waits), (3, None)));
        assert!(matches!(asked(Then::Ends), (3, Some(Ok(Ok(None))))));
        assert!(matches!(asked(Then::Fails), (3, Some(Ok(Err(_))))));
        assert!(matches!(asked(Then::Panics), (3, Some(Err(_)))));
    }
}
