//! A whole consumer on the transport.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::memory::MemorySink;
use dlq_core::policy::{Backoff, RetryPolicy};
use dlq_core::{Delivery, ErrorClass, Reason};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::handler;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::check::{CONSUMER, number};
use super::{Check, TransportFixture};

const MESSAGES: u32 = 30;

/// Account of the messages, across processes.
#[derive(Debug, Default)]
struct Account {
    handled: Mutex<BTreeSet<u32>>,
    tried: Mutex<BTreeSet<u32>>,
    letters: MemorySink,
    changed: Notify,
}

#[derive(Debug)]
struct Refused(ErrorClass);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: {}", self.0)
    }
}

impl std::error::Error for Refused {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Account {
    /// Every fifth message can never be handled; the one after it fails the first time.
    fn handle(&self, delivery: &Delivery) -> Result<(), Refused> {
        let number = number(delivery);
        let first = lock(&self.tried).insert(number);
        let outcome = match number % 5 {
            0 => Err(Refused(ErrorClass::Permanent)),
            1 if first => Err(Refused(ErrorClass::Transient)),
            _ => Ok(()),
        };
        if outcome.is_ok() {
            lock(&self.handled).insert(number);
        }
        self.changed.notify_one();
        outcome
    }

    fn done(&self) -> usize {
        lock(&self.handled).len() + self.letters.letters().len()
    }

    /// Waits until so many messages are handled or dead.
    async fn wait(&self, done: usize) {
        while self.done() < done {
            // A letter is written after its handler has said so: look again soon.
            let _ = timeout(Duration::from_millis(50), self.changed.notified()).await;
        }
    }

    fn is_complete(&self) {
        let dead: BTreeSet<u32> = self
            .letters
            .letters()
            .iter()
            .inspect(|letter| assert_eq!(letter.reason, Reason::Permanent))
            .filter_map(|letter| letter.message.id()?.strip_prefix("evt-")?.parse().ok())
            .collect();
        let (lost, saved): (Vec<_>, Vec<_>) = (1..=MESSAGES).partition(|number| number % 5 == 0);
        assert_eq!(dead.into_iter().collect::<Vec<_>>(), lost, "the dead");
        assert_eq!(lock(&self.handled).iter().copied().collect::<Vec<_>>(), saved, "the handled");
        assert_eq!(self.letters.letters().len(), lost.len(), "one letter per death (G2)");
    }
}

async fn consumer<F: TransportFixture>(check: &Check<F>, account: &Arc<Account>) -> Consumer {
    let told = Arc::clone(account);
    let backoff = Backoff::constant(Duration::from_millis(20));
    let stack = handler(CONSUMER, move |delivery: Delivery| {
        let told = Arc::clone(&told);
        async move { told.handle(&delivery) }
    })
    .classify(|refused: &Refused| refused.0)
    .policy(RetryPolicy::new().with_backoff(backoff))
    .clock(check.fixture.clock())
    .build()
    .expect("the settings do not contradict each other");
    let mut builder = Consumer::builder(check.source().await)
        .handler(stack)
        .sink(account.letters.clone())
        .clock(check.fixture.clock());
    if let Some(queue) = check.fixture.retry_queue().await {
        builder = builder.retry_queue(queue);
    }
    builder.build().expect("the settings do not contradict each other")
}

/// Every message is handled, or there is a letter of it (G1).
pub async fn each_message_is_handled_or_dead<F: TransportFixture>(check: Check<F>) {
    check.publish(MESSAGES).await;
    let account = Arc::new(Account::default());
    let consumer = consumer(&check, &account).await;
    let stop = consumer.handle();
    let all = async {
        let done = timeout(check.patience() * 2, account.wait(MESSAGES as usize)).await;
        stop.stop();
        done
    };
    let (_, done) = tokio::join!(consumer.run(std::future::pending()), all);
    assert!(done.is_ok(), "only {} of {MESSAGES} messages are done", account.done());
    account.is_complete();
    // A message that was handled and not settled would come again now.
    check.nothing_more(&mut check.source().await).await;
}

/// A consumer that dies in the middle of its work, twice, loses nothing (G1).
pub async fn a_crash_in_the_middle_loses_nothing<F: TransportFixture>(check: Check<F>) {
    check.publish(MESSAGES).await;
    let account = Arc::new(Account::default());
    for done in [5, 15, MESSAGES as usize] {
        let consumer = consumer(&check, &account).await;
        // Dropped as soon as enough is done, with everything that it holds.
        tokio::select! {
            _ = consumer.run(std::future::pending()) => panic!("the consumer has ended by itself"),
            done = timeout(check.patience() * 2, account.wait(done)) => {
                assert!(done.is_ok(), "only {} messages are done", account.done());
            }
        }
    }
    account.is_complete();
    let consumer = consumer(&check, &account).await;
    let stop = consumer.handle();
    let rest = async {
        // What was in flight at the last death comes again.
        tokio::time::sleep(check.fixture.lease() + Duration::from_secs(5)).await;
        stop.stop();
    };
    let _ = tokio::join!(consumer.run(std::future::pending()), rest);
    account.is_complete();
    check.nothing_more(&mut check.source().await).await;
}
