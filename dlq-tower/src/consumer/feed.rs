//! Fetching: one task per source. A panic in a source ends its task and nothing else.

use std::fmt;
use std::future::{Future, pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dlq_core::store::Claims;
use dlq_core::{
    Delivery, Recipients, Settle, SettleOnce, Source, TransportError, TransportErrorKind,
};
use futures_util::poll;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::gate::Gate;
use super::health::{Part, Reporter, report};
use super::outage::Ticket;
use super::room::Room;
use crate::backoff::Growing;
use crate::store_source::StoreSource;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
type Handed = (Delivery, SettleOnce);
type Fetched = Result<Option<Handed>, TransportError>;

/// Number of messages that are fetched until others have a turn.
pub(super) const AT_ONCE: usize = 64;

/// Pause between two requests to a source that fails.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A source, erased.
pub(super) trait Feed: fmt::Debug + Send {
    /// Sets the handlers that the messages are for.
    fn bind(&mut self, _recipients: Arc<dyn Recipients>) {}

    fn next(&mut self) -> BoxFuture<'_, Fetched>;

    /// Another message, if one is at hand.
    fn at_hand(&mut self) -> Option<Handed> {
        None
    }

    fn close(&mut self) -> BoxFuture<'_, ()>;

    /// Returns the time for which it may go without a request until it has to [`keep_alive`](Self::keep_alive) what it holds.
    fn keep_alive_interval(&self) -> Option<Duration> {
        None
    }

    /// Sees that what it has fetched and not yielded is not lost while nobody asks: it is given back or stays.
    fn keep_alive(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

/// The source of a consumer.
#[derive(Debug)]
pub(super) struct Main<S> {
    source: S,
    /// End of asking for more, other than by a message: reported to the next caller.
    ended: Option<std::thread::Result<Result<(), TransportError>>>,
}

impl<S> Main<S> {
    pub(super) const fn new(source: S) -> Self {
        Self { source, ended: None }
    }
}

impl<S: Source> Feed for Main<S> {
    fn bind(&mut self, recipients: Arc<dyn Recipients>) {
        self.source.bind(recipients);
    }

    fn next(&mut self) -> BoxFuture<'_, Fetched> {
        Box::pin(async {
            match self.ended.take() {
                None => Ok(self.source.next().await?.map(once)),
                Some(Ok(ended)) => ended.map(|()| None),
                Some(Err(panic)) => resume_unwind(panic),
            }
        })
    }

    fn at_hand(&mut self) -> Option<Handed> {
        // The source has ended, and must not be asked again. `next` tells how.
        if self.ended.is_some() {
            return None;
        }
        // What is pending is dropped, which loses nothing, and is asked again by `next`.
        let mut context = Context::from_waker(Waker::noop());
        let poll = || pin!(self.source.next()).poll(&mut context);
        self.ended = match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(Ok(Some(next)))) => return Some(once(next)),
            Ok(Poll::Ready(Ok(None))) => Some(Ok(Ok(()))),
            Ok(Poll::Ready(Err(error))) => Some(Ok(Err(error))),
            Err(panic) => Some(Err(panic)),
        };
        None
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.source.close())
    }

    fn keep_alive_interval(&self) -> Option<Duration> {
        self.source.keep_alive_interval()
    }

    fn keep_alive(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.source.keep_alive())
    }
}

fn once((delivery, settle): (Delivery, impl Settle)) -> Handed {
    let settle = SettleOnce::new(settle, &delivery);
    (delivery, settle)
}

/// Letters that are due in the store.
#[derive(Debug)]
pub(super) struct DeliveredFrom<C>(pub(super) StoreSource<C>);

impl<C: Claims + Clone> Feed for DeliveredFrom<C> {
    fn next(&mut self) -> BoxFuture<'_, Fetched> {
        Box::pin(async { Ok(self.0.next().await?.map(once)) })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.close())
    }

    fn keep_alive_interval(&self) -> Option<Duration> {
        // A lease that ended in our hands would count as a crash.
        Some(self.0.keep_alive_interval())
    }

    fn keep_alive(&mut self) -> BoxFuture<'_, ()> {
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

/// Messages of one source: one that was fetched, and as many more as are at hand and there is room for.
///
/// Each is asked for when the one before it has begun, and what that has given back of its memory is near still. So the
/// source is lent to whoever begins them.
pub(super) struct Batch {
    first: Option<(Handed, OwnedSemaphorePermit)>,
    /// Room for the others.
    rest: Option<OwnedSemaphorePermit>,
    since: Instant,
    gate: Arc<Gate>,
    feed: Option<Box<dyn Feed>>,
    lender: Option<oneshot::Sender<Box<dyn Feed>>>,
}

impl Batch {
    /// Nothing more is asked for.
    pub(super) fn end(&mut self) {
        if let (Some(feed), Some(lender)) = (self.feed.take(), self.lender.take()) {
            // It is gone when the whole run is.
            let _ = lender.send(feed);
        }
    }
}

impl Iterator for Batch {
    type Item = Received;

    fn next(&mut self) -> Option<Received> {
        let ((delivery, settle), room) = match self.first.take() {
            Some(first) => first,
            // What was begun may have shown that nothing works.
            None if !self.gate.is_well() => return None,
            None => {
                // The room is taken before the message, since what a source has yielded is in flight and counts.
                let room = self.rest.as_mut()?.split(1)?;
                (self.feed.as_mut()?.at_hand()?, room)
            }
        };
        Some(Received { delivery, settle, since: self.since, ticket: self.gate.ticket(), room })
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.end();
    }
}

/// Fetches from `feed` while there is room and the gate is open, until told to stop.
pub(super) struct Fetching {
    pub(super) feed: Box<dyn Feed>,
    pub(super) gate: Arc<Gate>,
    pub(super) room: Arc<Room>,
    pub(super) received: mpsc::UnboundedSender<Batch>,
    pub(super) stop: CancellationToken,
    /// Reporter of errors, and the part that they belong to.
    pub(super) health: Reporter,
    pub(super) part: Part,
}

/// End of fetching.
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
    pub(super) async fn run(self) -> Fetch {
        let Self { mut feed, gate, room, received, stop, health, part } = self;
        let mut pause = Growing::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut failing = false;
        let mut stopped = pin!(stop.cancelled());
        let end = 'fetching: loop {
            // The gate comes last: the wait for room may be long, and an outage may begin meanwhile.
            let mut admitted = pin!(async {
                let permit = room.take().await;
                gate.admit().await;
                permit
            });
            let permit = loop {
                let patience = feed.keep_alive_interval();
                tokio::select! {
                    biased;
                    () = &mut stopped => break 'fetching End::Stopped,
                    permit = &mut admitted => break permit,
                    () = maybe(patience) => feed.keep_alive().await,
                }
            };
            // It is never closed.
            let Some(permit) = permit else { break End::Stopped };
            // The stop may have come since the select looked. Nothing is fetched after it.
            if stop.is_cancelled() {
                break End::Stopped;
            }
            let mut asked = feed.next();
            // What is at hand is taken before anything is waited for: that it may be was looked at just now.
            let next = match poll!(asked.as_mut()) {
                Poll::Ready(next) => next,
                Poll::Pending => tokio::select! {
                    biased;
                    () = &mut stopped => break End::Stopped,
                    // Nothing is lost: `next` is cancel safe by contract, and the permit goes back.
                    () = gate.closed() => continue,
                    next = &mut asked => next,
                    // The permit goes back, and the next one is asked for behind the source that waits (G4).
                    () = room.is_wanted() => continue,
                    // A source that waits for messages as long as this works again.
                    () = sleep(LONGEST_PAUSE), if failing => {
                        failing = false;
                        pause.reset();
                        health.failing(part, None);
                        continue;
                    }
                },
            };
            drop(asked);
            match next {
                Ok(Some(first)) => {
                    pause.reset();
                    if std::mem::take(&mut failing) {
                        health.failing(part, None);
                    }
                    let (lender, lent) = oneshot::channel();
                    let batch = Batch {
                        first: Some((first, permit)),
                        // While something fails, messages are fetched one by one, and each passes the gate.
                        rest: if gate.is_well() { room.more(AT_ONCE - 1) } else { None },
                        since: Instant::now(),
                        gate: Arc::clone(&gate),
                        feed: Some(feed),
                        lender: Some(lender),
                    };
                    let was_sent = received.send(batch).is_ok();
                    feed = match lent.await {
                        Ok(feed) => feed,
                        // Whoever had it is gone, and this with it.
                        Err(_) => pending().await,
                    };
                    // The run is gone. The batch was dropped with its message, which stays unsettled and comes again (G1).
                    if !was_sent {
                        break End::Stopped;
                    }
                }
                Ok(None) => break End::Exhausted,
                // Whatever a store says may be set right while this process lives: a table that is gone, a right that is missing.
                Err(error) if error.is_transient() || part == Part::StoreSource => {
                    failing = true;
                    health.failing(part, Some(report(&error)));
                    // By the contract of the kind nothing else is concerned, so that there is no pause.
                    if error.kind() == TransportErrorKind::Corrupt {
                        tracing::error!(
                            error = report(&error),
                            "a source holds what cannot be read"
                        );
                        continue;
                    }
                    let wait = pause.next();
                    tracing::error!(error = report(&error), retry_in = ?wait, "a source cannot be asked");
                    // Another source has the room during the pause (G4).
                    drop(permit);
                    tokio::select! {
                        () = &mut stopped => break End::Stopped,
                        () = sleep(wait) => {}
                    }
                }
                Err(error) => break End::Failed(error),
            }
        };
        feed.close().await;
        Fetch { feed, end }
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
    use std::sync::atomic::{AtomicU64, Ordering};

    use dlq_core::memory::{MemoryBroker, MemorySettle, MemorySource};
    use dlq_core::{Capabilities, Message};
    use futures_util::FutureExt as _;
    use tokio::time::timeout;

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
        let broker = MemoryBroker::new().stream("work");
        for _ in 0..5 {
            broker.publish(Message::new("work", "x"));
        }
        let mut feed = Main::new(Some3(broker.source("group"), 0, then));
        let mut messages: Vec<_> = std::iter::from_fn(|| feed.at_hand()).collect();
        // An end is an end, also to who asks again.
        messages.extend(feed.at_hand());
        let after = AssertUnwindSafe(feed.next()).catch_unwind().now_or_never();
        for (_, settle) in &messages {
            assert!(settle.lease().is_some());
        }
        (messages.len(), after)
    }

    /// The first message of five, room for so many, and where the source comes back to.
    async fn lent(room: usize) -> (Batch, oneshot::Receiver<Box<dyn Feed>>) {
        let broker = MemoryBroker::new().stream("work");
        for _ in 0..5 {
            broker.publish(Message::new("work", "x"));
        }
        let room = Room::new(room);
        let gate = Gate::new(None, Reporter::new(), metrics::Gauge::noop());
        let mut feed = Main::new(broker.source("group"));
        let first = feed.next().await.unwrap().unwrap();
        let (lender, lent) = oneshot::channel();
        let batch = Batch {
            first: Some((first, room.take().await.unwrap())),
            rest: room.more(AT_ONCE),
            since: Instant::now(),
            gate: Arc::new(gate),
            feed: Some(Box::new(feed)),
            lender: Some(lender),
        };
        (batch, lent)
    }

    /// Counts how often it was to keep what it holds.
    #[derive(Debug)]
    struct Holding(MemorySource, Arc<AtomicU64>);

    impl Source for Holding {
        type Settle = MemorySettle;

        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }

        async fn next(&mut self) -> Result<Option<(Delivery, MemorySettle)>, TransportError> {
            self.0.next().await
        }

        fn keep_alive_interval(&self) -> Option<Duration> {
            Some(Duration::from_secs(1))
        }

        async fn keep_alive(&mut self) {
            self.1.fetch_add(1, Ordering::AcqRel);
        }

        async fn close(&mut self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_keeps_what_it_holds_while_there_is_no_room_for_more() {
        let broker = MemoryBroker::new().stream("work");
        broker.publish(Message::new("work", "x"));
        let (kept, room) = (Arc::new(AtomicU64::new(0)), Arc::new(Room::new(1)));
        let (received, mut batches) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let fetching = Fetching {
            feed: Box::new(Main::new(Holding(broker.source("group"), Arc::clone(&kept)))),
            gate: Arc::new(Gate::new(None, Reporter::new(), metrics::Gauge::noop())),
            room: Arc::clone(&room),
            received,
            stop: stop.clone(),
            health: Reporter::new(),
            part: Part::Source,
        };
        let mut fetching = pin!(fetching.run());
        let full = room.take().await;
        assert!(timeout(Duration::from_millis(3_500), &mut fetching).await.is_err());
        assert_eq!(kept.load(Ordering::Acquire), 3);
        drop(full);
        let one = async {
            let batch = batches.recv().await.expect("it fetches");
            assert_eq!(batch.count(), 1);
            stop.cancel();
        };
        let (fetched, ()) = tokio::join!(fetching, one);
        assert!(matches!(fetched.end, End::Stopped));
        assert_eq!(kept.load(Ordering::Acquire), 3);
    }

    #[tokio::test]
    async fn a_batch_asks_for_what_there_is_room_for_and_gives_the_source_back() {
        let (mut batch, mut lent) = lent(3).await;
        assert_eq!(batch.by_ref().count(), 3);
        assert!(lent.try_recv().is_err());
        drop(batch);
        let mut feed = lent.try_recv().expect("it was lent");
        assert_eq!(std::iter::from_fn(|| feed.at_hand()).count(), 2, "nothing is lost");
    }

    #[tokio::test]
    async fn nothing_more_is_asked_for_once_routing_cannot_write() {
        let (mut batch, _lent) = lent(3).await;
        assert!(batch.next().is_some());
        batch.gate.routing_failed("no".to_owned());
        assert!(batch.next().is_none());
    }

    #[tokio::test]
    async fn g1_what_came_before_an_end_is_handed_on_and_the_end_is_told_next() {
        assert!(matches!(asked(Then::Waits), (3, None)));
        assert!(matches!(asked(Then::Ends), (3, Some(Ok(Ok(None))))));
        assert!(matches!(asked(Then::Fails), (3, Some(Ok(Err(_))))));
        assert!(matches!(asked(Then::Panics), (3, Some(Err(_)))));
    }
}
