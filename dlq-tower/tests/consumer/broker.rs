//! A scripted broker of one stream, which survives its consumers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dlq_core::{
    Capabilities, Delivery, Disposition, Message, Ordering, Origin, Position, Settle, Source,
    TransportError, TransportErrorKind,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::support::soon;

/// What became of a message at the broker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settled {
    pub(crate) position: u64,
    pub(crate) how: &'static str,
    /// Since the broker began.
    pub(crate) at: Duration,
}

#[derive(Debug)]
struct Entry {
    delivery: Delivery,
    /// When it can be handed out; none once it is gone, or held without a lease.
    at: Option<Instant>,
    held: bool,
    /// Grows with each hand-out.
    epoch: u32,
}

#[derive(Debug, Default)]
pub(crate) struct World {
    entries: Vec<Entry>,
    pub(crate) settled: Vec<Settled>,
    pub(crate) extended: u32,
    pub(crate) closed: u32,
    /// The most that was ever held at once.
    pub(crate) peak: usize,
    pub(crate) fetched: u64,
    // What goes wrong.
    pub(crate) lease: Option<Duration>,
    pub(crate) refuse_settles: u32,
    pub(crate) lose_leases: bool,
    /// The same of one message.
    pub(crate) lose_lease_of: Option<usize>,
    /// What is given back comes again as the same delivery, as it does from a log.
    pub(crate) keeps_deliveries: bool,
    /// What is given back comes again as a first delivery.
    pub(crate) forgets_deliveries: bool,
    /// Says that deliveries which an orderly stop ended are not counted.
    pub(crate) counts_no_stops: bool,
    pub(crate) errors: VecDeque<TransportErrorKind>,
    pub(crate) panics: bool,
    pub(crate) ends: bool,
    pub(crate) ordering: Option<Ordering>,
}

/// Clones are the same broker.
#[derive(Clone, Debug)]
pub(crate) struct Broker {
    world: Arc<Mutex<World>>,
    changed: Arc<Notify>,
    start: Instant,
}

impl Broker {
    pub(crate) fn new() -> Self {
        Self { world: Arc::default(), changed: Arc::default(), start: Instant::now() }
    }

    /// A broker with messages 0 to `count`.
    pub(crate) fn with(count: u64) -> Self {
        let broker = Self::new();
        (0..count).for_each(|_| broker.publish(""));
        broker
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut World)) -> &Self {
        change(&mut self.world());
        self.changed.notify_waiters();
        self
    }

    pub(crate) fn publish(&self, key: &str) {
        self.set(|world| {
            let position = world.entries.len() as u64;
            let message = Message::new("orders", position.to_string()).with_key(key.to_owned());
            let origin = Origin::new("script", "orders", Position::Offset(position));
            let delivery = Delivery::new(message, origin).with_deliveries(0);
            let at = Some(Instant::now());
            world.entries.push(Entry { delivery, at, held: false, epoch: 0 });
        });
    }

    /// As if the message had been handed out so often before.
    pub(crate) fn handed_out(&self, position: usize, times: u32) {
        self.set(|world| {
            let entry = &mut world.entries[position];
            entry.delivery = entry.delivery.clone().with_deliveries(times);
        });
    }

    /// The message is not here any more, and nobody said so.
    pub(crate) fn gone(&self, position: usize) {
        self.set(|world| {
            let entry = &mut world.entries[position];
            (entry.at, entry.held) = (None, false);
        });
    }

    /// The process that held messages is gone: they can be handed out again.
    pub(crate) fn crash(&self) {
        self.set(|world| {
            for entry in world.entries.iter_mut().filter(|entry| entry.held) {
                (entry.held, entry.at) = (false, Some(Instant::now()));
            }
        });
    }

    pub(crate) fn source(&self) -> ScriptSource {
        ScriptSource(self.clone())
    }

    /// How the messages were settled, in the order of settling.
    pub(crate) fn settled(&self) -> Vec<(u64, &'static str)> {
        self.world().settled.iter().map(|settled| (settled.position, settled.how)).collect()
    }

    /// The messages that were settled so.
    pub(crate) fn settled_as(&self, how: &str) -> Vec<u64> {
        let world = self.world();
        let these = world.settled.iter().filter(|settled| settled.how == how);
        these.map(|settled| settled.position).collect()
    }

    pub(crate) fn held(&self) -> usize {
        self.world().entries.iter().filter(|entry| entry.held).count()
    }

    /// Waits until the condition holds.
    pub(crate) async fn until(&self, condition: impl Fn(&World) -> bool) {
        soon(async {
            loop {
                let changed = self.changed.notified();
                if condition(&self.world()) {
                    return;
                }
                changed.await;
            }
        })
        .await;
    }

    /// Waits until every message is gone.
    pub(crate) async fn until_empty(&self) {
        self.until(|world| world.entries.iter().all(|entry| entry.at.is_none() && !entry.held))
            .await;
    }
}

#[derive(Debug)]
pub(crate) struct ScriptSource(Broker);

impl ScriptSource {
    /// What is ready, or when something will be.
    fn take(&self) -> Result<Option<(Delivery, ScriptSettle)>, Option<Instant>> {
        let now = Instant::now();
        let mut world = self.0.world();
        let lease = world.lease;
        let ready = |entry: &Entry| entry.at.is_some_and(|at| at <= now);
        let Some(position) = world.entries.iter().position(ready) else {
            let next = world.entries.iter().filter_map(|entry| entry.at).min();
            return if world.ends && next.is_none() { Ok(None) } else { Err(next) };
        };
        let entry = &mut world.entries[position];
        entry.epoch += 1;
        entry.held = true;
        entry.at = lease.map(|lease| now + lease);
        entry.delivery = entry.delivery.clone().with_deliveries(entry.delivery.deliveries() + 1);
        let settle = ScriptSettle { broker: self.0.clone(), position, epoch: entry.epoch, lease };
        let delivery = entry.delivery.clone();
        world.fetched += 1;
        world.peak = world.peak.max(world.entries.iter().filter(|entry| entry.held).count());
        Ok(Some((delivery, settle)))
    }
}

impl Source for ScriptSource {
    type Settle = ScriptSettle;

    fn capabilities(&self) -> Capabilities {
        let world = self.0.world();
        Capabilities::none()
            .with_ordering(world.ordering.unwrap_or(Ordering::Process))
            .with_counts_deliveries(true)
            .with_counts_stops(!world.counts_no_stops)
    }

    async fn next(&mut self) -> Result<Option<(Delivery, ScriptSettle)>, TransportError> {
        loop {
            let changed = self.0.changed.notified();
            let (panics, error) = {
                let mut world = self.0.world();
                (world.panics, world.errors.pop_front())
            };
            assert!(!panics, "the source panics");
            if let Some(kind) = error {
                return Err(TransportError::new(kind, "fetch"));
            }
            match self.take() {
                Ok(taken) => {
                    self.0.changed.notify_waiters();
                    return Ok(taken);
                }
                Err(Some(next)) => {
                    tokio::select! { () = sleep_until(next) => {} () = changed => {} }
                }
                Err(None) => changed.await,
            }
        }
    }

    async fn close(&mut self) {
        self.0.set(|world| world.closed += 1);
    }
}

#[derive(Debug)]
pub(crate) struct ScriptSettle {
    broker: Broker,
    position: usize,
    epoch: u32,
    lease: Option<Duration>,
}

fn lost() -> TransportError {
    TransportError::new(TransportErrorKind::Lost, "settle")
}

impl ScriptSettle {
    fn settle_now(&self, disposition: &Disposition) -> Result<(), TransportError> {
        let how = match disposition {
            Disposition::Succeeded => "succeeded",
            Disposition::Duplicate => "duplicate",
            Disposition::Dead(_) => "dead",
            Disposition::DelayedRetry { .. } => "escalated",
            Disposition::Deferred { .. } => "deferred",
            unknown => return Err(unknown.unsupported()),
        };
        let mut world = self.broker.world();
        let world = &mut *world;
        let refused = world.refuse_settles > 0;
        world.refuse_settles = world.refuse_settles.saturating_sub(1);
        let entry = &mut world.entries[self.position];
        if entry.epoch != self.epoch {
            return Err(lost());
        }
        entry.held = false;
        if refused {
            entry.at = Some(Instant::now());
            return Err(TransportError::new(TransportErrorKind::Unavailable, "settle"));
        }
        if world.keeps_deliveries && how == "deferred" {
            let before = entry.delivery.deliveries() - 1;
            entry.delivery = entry.delivery.clone().with_deliveries(before);
        }
        if world.forgets_deliveries && how == "deferred" {
            entry.delivery = entry.delivery.clone().with_deliveries(0);
        }
        entry.at = match disposition {
            // A time that cannot be said is never.
            Disposition::Deferred { after } => Instant::now().checked_add(*after),
            _ => None,
        };
        let at = self.broker.start.elapsed();
        world.settled.push(Settled { position: self.position as u64, how, at });
        Ok(())
    }
}

impl Settle for ScriptSettle {
    async fn settle(self, disposition: Disposition) -> Result<(), TransportError> {
        let settled = self.settle_now(&disposition);
        self.broker.changed.notify_waiters();
        settled
    }

    async fn extend(&mut self) -> Result<(), TransportError> {
        let mut world = self.broker.world();
        world.extended += 1;
        let lose = world.lose_leases || world.lose_lease_of == Some(self.position);
        let entry = &mut world.entries[self.position];
        if lose || entry.epoch != self.epoch {
            return Err(lost());
        }
        entry.at = self.lease.map(|lease| Instant::now() + lease);
        Ok(())
    }

    fn lease(&self) -> Option<Duration> {
        self.lease
    }
}
