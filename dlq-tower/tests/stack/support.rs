use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use dlq_core::policy::{Backoff, RetryPolicy};
use dlq_core::store::Receipt;
use dlq_core::{
    Attempt, Classification, DeadLetter, Death, DelayedRetry, Delivery, Message, Origin, Position,
    RetryQueue, SharedClock, Sink, StoreError, StoreErrorKind, Timestamp, TokioClock,
};
use dlq_tower::retry::RunLoop;
use dlq_tower::stage::{Setback, Verdict};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt};

/// The error of the handlers here.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Fail {
    text: &'static str,
    judged: Classification,
    source: Option<std::num::ParseIntError>,
}

impl dlq_core::Classify for Fail {
    fn classify(&self) -> Classification {
        self.judged
    }
}

pub(crate) fn judge(error: &Fail) -> Classification {
    error.judged
}

pub(crate) fn down() -> Fail {
    Fail { text: "the provider is down", judged: Classification::transient(), source: None }
}

pub(crate) fn ask_again(after: Duration) -> Fail {
    Fail { judged: Classification::transient().after(after), ..down() }
}

pub(crate) fn bad() -> Fail {
    let source = "x".parse::<u8>().unwrap_err();
    Fail { text: "bad amount", judged: Classification::permanent(), source: Some(source) }
}

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) fn start() -> Timestamp {
    "2026-11-21T03:00:00Z".parse().unwrap()
}

pub(crate) fn clock() -> SharedClock {
    Arc::new(TokioClock::starting_at(start()))
}

pub(crate) const CONSUMER: &str = "billing.charge";

pub(crate) fn delivery(offset: u64) -> Delivery {
    let message = Message::new("payments.created", "{}").with_key(format!("payment-{offset}"));
    Delivery::new(message, Origin::new("memory", "payments", Position::Offset(offset)))
        .with_consumer(CONSUMER)
}

/// A delivery that a run loop with this stop has handed out.
pub(crate) fn of_loop(stop: &CancellationToken) -> Delivery {
    delivery(1).with_extension(Arc::new(RunLoop::new(stop.clone())))
}

/// So many attempts, with a constant delay.
pub(crate) fn policy(attempts: u32, delay: Duration) -> RetryPolicy {
    RetryPolicy::new().with_max_attempts(attempts).with_backoff(Backoff::constant(delay))
}

/// What a scripted handler does in one run.
pub(crate) enum Act {
    Succeed,
    Fail(Fail),
    /// Waits, then succeeds.
    Take(Duration),
    Panic(&'static str),
}

/// A handler that follows a script, then succeeds; and what it has seen.
#[derive(Clone, Default)]
pub(crate) struct Handler {
    script: Arc<Mutex<VecDeque<Act>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) crashes: u32,
}

impl Handler {
    pub(crate) fn new(script: impl IntoIterator<Item = Act>) -> Self {
        Self { script: Arc::new(Mutex::new(script.into_iter().collect())), seen: Arc::default() }
    }

    pub(crate) fn always(fail: Fail) -> Self {
        Self::new((0..300).map(|_| Act::Fail(fail.clone())))
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn runs(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// The times between its runs.
    pub(crate) fn pauses(&self) -> Vec<Duration> {
        self.seen().windows(2).map(|pair| pair[1].at - pair[0].at).collect()
    }
}

impl Service<Delivery> for Handler {
    type Response = ();
    type Error = Fail;
    type Future = Pin<Box<dyn Future<Output = Result<(), Fail>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fail>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let act = self.script.lock().unwrap().pop_front().unwrap_or(Act::Succeed);
        self.seen.lock().unwrap().push(Seen {
            at: Instant::now(),
            attempt: delivery.attempt(),
            max_attempts: delivery.max_attempts(),
            crashes: delivery.crashes(),
        });
        Box::pin(async move {
            match act {
                Act::Succeed => Ok(()),
                Act::Fail(fail) => Err(fail),
                Act::Take(time) => {
                    tokio::time::sleep(time).await;
                    Ok(())
                }
                Act::Panic(text) => panic!("{text}"),
            }
        })
    }
}

/// Readies a clone of `service` and calls it.
pub(crate) async fn call<S>(service: &S, delivery: Delivery) -> Result<S::Response, S::Error>
where
    S: Service<Delivery> + Clone,
{
    service.clone().oneshot(delivery).await
}

/// The verdict of a service that cannot fail.
pub(crate) async fn verdict<S>(service: &S, delivery: Delivery) -> Verdict
where
    S: Service<Delivery, Response = Verdict, Error = Infallible> + Clone,
{
    let Ok(verdict) = call(service, delivery).await;
    verdict
}

pub(crate) fn failed(setback: Setback) -> Attempt {
    match setback {
        Setback::Failed(attempt) => *attempt,
        other => panic!("expected a failed attempt, got {other}"),
    }
}

/// What a sink does with one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Put {
    Write,
    /// Fails and writes nothing.
    Refuse(StoreErrorKind),
    /// Writes, and fails to say so.
    WriteThenFail,
    /// Neither writes nor answers.
    Hang,
}

/// A sink that follows a script, then writes; and what it holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestSink {
    pub(crate) script: Arc<Mutex<VecDeque<Put>>>,
    pub(crate) letters: Arc<Mutex<HashMap<Death, DeadLetter>>>,
    pub(crate) receipts: Arc<Mutex<Vec<Receipt>>>,
    /// How many letters each call brought.
    pub(crate) calls: Arc<Mutex<Vec<usize>>>,
    pub(crate) called: Arc<Notify>,
    /// Each call takes one permit and as long as this.
    pub(crate) slow: Option<Duration>,
    /// Refuses every batch with a letter of this origin's text.
    pub(crate) poison: Option<String>,
}

impl TestSink {
    pub(crate) fn new(script: impl IntoIterator<Item = Put>) -> Self {
        Self { script: Arc::new(Mutex::new(script.into_iter().collect())), ..Self::default() }
    }

    pub(crate) fn held(&self) -> usize {
        self.letters.lock().unwrap().len()
    }

    pub(crate) fn calls(&self) -> Vec<usize> {
        self.calls.lock().unwrap().clone()
    }

    fn write(&self, letters: Vec<DeadLetter>) -> Vec<Receipt> {
        let mut held = self.letters.lock().unwrap();
        let receipts: Vec<_> = letters
            .into_iter()
            .map(|letter| match held.insert(letter.death(), letter) {
                None => Receipt::Stored,
                Some(_) => Receipt::Unchanged,
            })
            .collect();
        self.receipts.lock().unwrap().extend(&receipts);
        receipts
    }
}

impl Sink for TestSink {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        self.calls.lock().unwrap().push(letters.len());
        self.called.notify_one();
        if let Some(slow) = self.slow {
            tokio::time::sleep(slow).await;
        }
        let poisoned = |poison: &String| letters.iter().any(|l| l.origin.to_string() == *poison);
        if self.poison.as_ref().is_some_and(poisoned) {
            return Err(StoreError::new(StoreErrorKind::Refused, "put letters"));
        }
        let act = self.script.lock().unwrap().pop_front().unwrap_or(Put::Write);
        match act {
            Put::Write => Ok(self.write(letters)),
            Put::Refuse(kind) => Err(StoreError::new(kind, "put letters")),
            Put::WriteThenFail => {
                self.write(letters);
                Err(StoreError::new(StoreErrorKind::Unavailable, "put letters"))
            }
            Put::Hang => std::future::pending().await,
        }
    }
}

/// A retry queue that keeps what it is given, or refuses it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestRetryQueue {
    pub(crate) fails: Option<StoreErrorKind>,
    pub(crate) delayed_retries: Arc<Mutex<Vec<DelayedRetry>>>,
}

impl RetryQueue for TestRetryQueue {
    async fn enqueue(&self, delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        if let Some(kind) = self.fails {
            return Err(StoreError::new(kind, "enqueue"));
        }
        self.delayed_retries.lock().unwrap().push(delayed_retry);
        Ok(())
    }
}
