//! Delivery reports of records, and their recipients.

use std::sync::{Arc, Mutex, Weak};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::producer::{DeliveryResult, ProducerContext};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use super::batches::{Batch, Batches, KEPT};
use super::{LOOK, Native};
use crate::client::lock;
use crate::client::log;

/// Recipient of the delivery report of a record.
pub(super) type Waiting = oneshot::Sender<Result<(), KafkaError>>;
pub(super) type Told = oneshot::Receiver<Result<(), KafkaError>>;

/// Data that travels with a record through the client.
pub(super) struct Opaque {
    pub(super) waiting: Waiting,
    /// Batch that the record belongs to.
    pub(super) batch: Option<Arc<Batch>>,
}

type Report = (Opaque, Result<(), KafkaError>);

/// Reports of the client's own thread. A task passes them on: to wake each waiter from another thread would cost more
/// than to write their records.
pub(super) struct Reports {
    /// `None` where there is no task any more.
    queue: Mutex<Option<Vec<Report>>>,
    arrived: Notify,
}

impl Reports {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { queue: Mutex::new(Some(Vec::new())), arrived: Notify::new() })
    }

    fn add(&self, report: Report) {
        // Where the task has ended with its runtime, the thread of the client tells by itself: nobody may wait for ever.
        let untold = match &mut *lock(&self.queue) {
            Some(queue) => {
                queue.push(report);
                None
            }
            None => Some(report),
        };
        if untold.is_none() {
            self.arrived.notify_one();
        }
        tell(untold, None);
    }

    /// Tells of them, and has the next batches go.
    pub(super) fn tell(
        self: Arc<Self>,
        batches: Option<Arc<Batches>>,
        client: Weak<Native>,
    ) -> impl Future<Output = ()> + Send {
        // It is made outside the future, so that those who wait are told also where the task never begins.
        let telling = Telling { reports: self, batches, client };
        async move {
            let Telling { reports, batches, client } = &telling;
            let after = |is_full| Instant::now() + if is_full { LOOK } else { KEPT / 2 };
            let mut look = after(false);
            loop {
                tokio::select! {
                    () = reports.arrived.notified() => {
                        let news = lock(&reports.queue).as_mut().map(std::mem::take);
                        let client = client.upgrade();
                        // News does not put the next look off, since it says nothing of a partition that is silent.
                        if tell(news.into_iter().flatten(), client.as_deref()) {
                            look = look.min(after(true));
                        }
                    }
                    () = sleep_until(look), if batches.is_some() => {
                        let client = client.upgrade();
                        let looked = batches.as_ref().zip(client);
                        look = after(looked.is_some_and(|(batches, client)| batches.look(&client)));
                    }
                }
            }
        }
    }
}

/// The task. It ends with its runtime, which may be before those who send from another one.
struct Telling {
    reports: Arc<Reports>,
    batches: Option<Arc<Batches>>,
    client: Weak<Native>,
}

impl Drop for Telling {
    fn drop(&mut self) {
        let (left, client) = (lock(&self.reports.queue).take(), self.client.upgrade());
        tell(left.into_iter().flatten(), None);
        if let Some(batches) = &self.batches {
            batches.close(client.as_deref());
        }
    }
}

/// Tells of them all, and then gives the client the next batches. Whether it has no room for them.
fn tell(reports: impl IntoIterator<Item = Report>, client: Option<&Native>) -> bool {
    let mut next: Vec<Arc<Batch>> = Vec::new();
    for (Opaque { waiting, batch }, outcome) in reports {
        // Who does not wait any more does not want to know.
        let _ = waiting.send(outcome);
        next.extend(batch.filter(|batch| batch.ended()));
    }
    let Some(client) = client else { return false };
    next.iter().fold(false, |is_full, batch| batch.go_on(client) | is_full)
}

pub(super) struct Context(pub(super) Arc<Reports>);

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Opaque>;

    fn delivery(&self, outcome: &DeliveryResult<'_>, opaque: Box<Opaque>) {
        let outcome = outcome.as_ref().map(|_| ()).map_err(|(error, _)| error.clone());
        self.0.add((*opaque, outcome));
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(%error, reason, "the client of Kafka reports an error");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::JoinSet;

    use super::*;
    use crate::client::brokers::Brokers;
    use crate::client::produce::batches::tests::{add, counted, sent};
    use crate::client::produce::client;

    #[tokio::test]
    async fn nothing_is_kept_for_long_however_much_there_is_to_tell() {
        let client = client(&Brokers::at("127.0.0.1:1"), true).unwrap();
        // Not of its own, so that only this task looks after them.
        let batches = Arc::new(Batches::new(Duration::from_millis(1)));
        let batch = batches.of("orders", Some(0)).unwrap();
        let _sent = sent(&client, &batch);
        let _kept = add(&client, &batch, 3);
        let (reports, mut telling) = (Reports::new(), JoinSet::new());
        let native = Arc::downgrade(&client.producer);
        telling.spawn(Arc::clone(&reports).tell(Some(Arc::clone(&batches)), native));
        let until = Instant::now() + Duration::from_secs(60);
        while counted(&batch).1 > 0 {
            assert!(Instant::now() < until, "it goes on");
            let (waiting, _) = oneshot::channel();
            reports.add((Opaque { waiting, batch: None }, Ok(())));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn who_waits_is_told_also_when_the_runtime_has_ended_that_told_it() {
        let reports = Reports::new();
        let ended = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut telling = JoinSet::new();
        telling.spawn_on(Arc::clone(&reports).tell(None, Weak::new()), ended.handle());
        let (before, told_before) = oneshot::channel();
        reports.add((Opaque { waiting: before, batch: None }, Ok(())));
        ended.shutdown_background();
        let (after, told_after) = oneshot::channel();
        reports.add((Opaque { waiting: after, batch: None }, Ok(())));
        for told in [told_before, told_after] {
            let told = tokio::time::timeout(Duration::from_secs(60), told);
            told.await.expect("it is told").unwrap().unwrap();
        }
    }
}
