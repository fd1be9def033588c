use std::future::Future;
use std::time::Duration;

use dlq_core::{
    Attempt, Cause, DelayedRetry, Delivery, Disposition, ErrorClass, Failure, History, Message,
    Ordering, RetryQueue, Settle, Source, Timestamp,
};
use tokio::time::{Instant, sleep, timeout};

use super::TransportFixture;
use crate::account::Entry;

/// The consumer that most checks are about.
pub(super) const CONSUMER: &str = "billing";

/// Pause between two questions to a source that fails.
const AGAIN: Duration = Duration::from_millis(10);

/// The settle handle of a fixture's source.
pub(super) type SettleOf<F> = <<F as TransportFixture>::Source as Source>::Settle;

/// Returns true if this check proves that nobody waits for the end of a lease: its work has to take less than half of
/// one. Choose a lease so long that a busy machine is not mistaken for a source that waits.
#[must_use]
pub fn is_quick(check: &str) -> bool {
    const QUICK: [&str; 3] =
        ["closing_gives_back", "dropping_next_loses_nothing", "deferring_without_delay_is_quick"];
    QUICK.contains(&check)
}

/// Context of a check: a place of its own, and shorthands that panic when the transport does not answer.
#[derive(Debug)]
pub struct Check<F: TransportFixture> {
    name: &'static str,
    /// The place.
    pub fixture: F,
}

/// Runs one check at a fresh place; does nothing where there is no broker to be had.
///
/// # Panics
///
/// When the transport breaks the promise that the check is about.
pub fn run<F: TransportFixture, R: Future<Output = ()>>(
    name: &'static str,
    check: impl FnOnce(Check<F>) -> R,
) {
    if !Entry::new::<F>("transport", name).begin(F::is_available()) {
        return;
    }
    let checked = async { check(Check { name, fixture: F::fresh(name).await }).await };
    // Paused time jumps over every wait, so that checks that outlast leases end at once.
    if F::PAUSED {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without threads can be built");
        runtime.block_on(checked);
    } else {
        crate::run(name, checked);
    }
}

impl<F: TransportFixture> Check<F> {
    /// Says that the check is left out.
    pub(super) fn left_out(&self, why: &str) {
        Entry::new::<F>("transport", self.name).left_out(why);
    }

    pub(super) async fn source(&self) -> F::Source {
        self.fixture.source(CONSUMER).await
    }

    /// Publishes messages 1 to `count`, whose payloads are their numbers.
    pub(super) async fn publish(&self, count: u32) {
        for number in 1..=count {
            assert!(self.fixture.publish(numbered(number)).await, "a plain message is accepted");
        }
    }

    /// Returns the time limit for something that the broker does by itself, the end of a lease included.
    pub(super) fn patience(&self) -> Duration {
        // Generous, since a busy machine is not what a check is about.
        self.fixture.lease() * 2 + Duration::from_secs(30)
    }

    /// The next delivery.
    pub(super) async fn next(&self, source: &mut F::Source) -> (Delivery, SettleOf<F>) {
        let patience = self.patience();
        let next = async {
            loop {
                match source.next().await {
                    Ok(Some(next)) => return next,
                    Ok(None) => panic!("the source has ended where a delivery was expected"),
                    // As a consumer does.
                    Err(error) if error.is_transient() => sleep(AGAIN).await,
                    Err(error) => panic!("the source failed where one was expected: {error}"),
                }
            }
        };
        let next = timeout(patience, next).await;
        next.unwrap_or_else(|_| panic!("no delivery within {patience:?}"))
    }

    /// Takes the next delivery and acknowledges it.
    pub(super) async fn handle(&self, source: &mut F::Source) -> Delivery {
        let (delivery, settle) = self.next(source).await;
        settle.settle(Disposition::Succeeded).await.expect("an acknowledgement is confirmed");
        delivery
    }

    /// Makes sure that nothing comes for so long.
    pub(super) async fn nothing(&self, source: &mut F::Source, time: Duration) {
        if let Ok(next) = timeout(time, source.next()).await {
            let next = next.map(|next| next.map(|(delivery, _)| delivery));
            panic!("nothing was expected, but there came {next:?}");
        }
    }

    /// Makes sure that nothing comes although every lease has ended.
    ///
    /// Where partitions are read in order there are no leases: what comes again comes before what is new.
    pub(super) async fn nothing_more(&self, source: &mut F::Source) {
        const NEW: u32 = 1_000_000;
        let moment = Duration::from_secs(2);
        if source.capabilities().ordering != Ordering::Partition {
            return self.nothing(source, self.fixture.lease() + moment).await;
        }
        assert!(self.fixture.publish(numbered(NEW)).await, "a plain message is accepted");
        // A message that comes again stands before the new one, and would be handled in its place.
        assert_eq!(number(&self.handle(source).await), NEW, "something came again");
        self.nothing(source, moment).await;
    }

    pub(super) async fn queue(&self) -> Option<F::DeliveredFrom> {
        let queue = self.fixture.retry_queue().await;
        if queue.is_none() {
            self.left_out("the transport has no retry queue");
        }
        queue
    }

    /// When something is due that shall wait for so long.
    pub(super) fn due_in(&self, time: Duration) -> Timestamp {
        self.fixture.clock().now().after(time)
    }

    /// Publishes message 1, takes it as [`CONSUMER`], enqueues it after one failed attempt, and acknowledges it.
    pub(super) async fn enqueue_one(
        &self,
        source: &mut F::Source,
        queue: &F::DeliveredFrom,
        wait: Duration,
    ) -> DelayedRetry {
        self.enqueue(1, source, queue, wait).await
    }

    /// The same of the message with this number.
    pub(super) async fn enqueue(
        &self,
        number: u32,
        source: &mut F::Source,
        queue: &F::DeliveredFrom,
        wait: Duration,
    ) -> DelayedRetry {
        assert!(self.fixture.publish(numbered(number)).await, "a plain message is accepted");
        let (delivery, settle) = self.next(source).await;
        let delayed_retry = delayed_retry(delivery, self.due_in(wait), 1);
        queue.enqueue(delayed_retry.clone()).await.expect("a retry record is taken");
        let settled = settle.settle(put_off(&delayed_retry)).await;
        settled.expect("an acknowledgement is confirmed");
        delayed_retry
    }
}

/// The `number`-th message: key, header and id go with it.
pub(super) fn numbered(number: u32) -> Message {
    Message::new("orders.created", number.to_string())
        .with_id(format!("evt-{number}"))
        .with_key("customer-7")
        .with_header("trace", format!("t-{number}"))
}

/// Returns the number of a [`numbered`] message.
pub(super) fn number(delivery: &Delivery) -> u32 {
    let payload = delivery.message().payload().expect("a numbered message has a payload");
    let text = std::str::from_utf8(payload).expect("a numbered message is text");
    text.parse().expect("a numbered message is a number")
}

/// `delivery` after `attempts` failed attempts in all.
pub(super) fn delayed_retry(delivery: Delivery, due: Timestamp, attempts: u32) -> DelayedRetry {
    let mut history: History = delivery.history().clone();
    let known = u32::try_from(history.len()).unwrap_or(u32::MAX);
    for number in known + 1..=attempts {
        let text = format!("attempt {number} failed");
        let failure = Failure::new(ErrorClass::Transient, Cause::Error, "tests::Refused", &text)
            .timed(Timestamp::from_millis(1_780_000_000_000), Duration::from_millis(3));
        history.push(Attempt { number, generation: delivery.generation(), failure });
    }
    DelayedRetry { delivery, consumer: CONSUMER.into(), due, history, attempts }
}

/// Returns the disposition of the original of a delayed message.
pub(super) fn put_off(delayed_retry: &DelayedRetry) -> Disposition {
    Disposition::DelayedRetry {
        due: delayed_retry.due,
        history: delayed_retry.history.clone(),
        attempts: delayed_retry.attempts,
    }
}

/// Runs a future and says how long it took, by tokio's time.
pub(super) async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    let output = future.await;
    (output, start.elapsed())
}
