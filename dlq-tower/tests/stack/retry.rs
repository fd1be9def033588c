use std::task::{Context, Poll};

use dlq_core::policy::{Backoff, Jitter, RetryPolicy};
use dlq_core::{Attempt, Cause, Death, Delivery, ErrorClass, Failure, History, Reason};
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::concurrency::ConcurrencyLayer;
use dlq_tower::retry::{InProcessDelays, Retry, RetryLayer};
use dlq_tower::stage::{Done, GivenUp, Postponed, Setback, Verdict};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::{Layer, Service, ServiceBuilder, service_fn};

use crate::support::*;

type Retried = Retry<dlq_tower::classify::Classify<Handler, fn(&Fail) -> dlq_core::Classification>>;

fn retried(layer: RetryLayer, handler: &Handler) -> Retried {
    let judge: fn(&Fail) -> dlq_core::Classification = judge;
    layer.layer(ClassifyLayer::new(judge).layer(handler.clone()))
}

fn dead(verdict: Verdict) -> GivenUp {
    match verdict {
        Verdict::Dead(given_up) => *given_up,
        other => panic!("expected a death, got {other:?}"),
    }
}

fn postponed(verdict: Verdict) -> Postponed {
    match verdict {
        Verdict::Retry(postponed) => *postponed,
        other => panic!("expected a retry, got {other:?}"),
    }
}

fn numbers(history: &History) -> Vec<u32> {
    history.attempts().iter().map(|attempt| attempt.number).collect()
}

#[tokio::test(start_paused = true)]
async fn retries_after_the_delay_of_the_policy_until_it_succeeds() {
    let handler = Handler::new([Act::Fail(down()), Act::Fail(down())]);
    let service = retried(RetryLayer::new(policy(3, secs(2))), &handler);
    assert_eq!(verdict(&service, delivery(1)).await, Verdict::Done(Done::Succeeded));
    assert_eq!(handler.pauses(), [secs(2), secs(2)]);
    let attempts: Vec<_> = handler.seen().iter().map(|seen| seen.attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
}

/// [`Attempt::is_last`](dlq_tower::extract::Attempt::is_last) is asked of the delivery.
#[tokio::test(start_paused = true)]
async fn each_attempt_knows_how_many_there_are_at_most() {
    let handler = Handler::new([Act::Fail(down()), Act::Fail(down())]);
    let service = retried(RetryLayer::new(policy(3, secs(2))), &handler);
    assert_eq!(verdict(&service, delivery(1)).await, Verdict::Done(Done::Succeeded));
    let most: Vec<_> = handler.seen().iter().map(|seen| seen.max_attempts).collect();
    assert_eq!(most, [Some(3); 3]);
}

#[tokio::test(start_paused = true)]
async fn gives_up_when_every_attempt_was_made() {
    let handler = Handler::always(down());
    let service = retried(RetryLayer::new(policy(3, secs(1))), &handler);
    let dead = dead(verdict(&service, delivery(1)).await);
    assert_eq!(
        (dead.reason, dead.class, dead.cause),
        (Reason::Exhausted, ErrorClass::Transient, Some(Cause::Error))
    );
    assert_eq!((dead.attempts, &*dead.consumer), (3, CONSUMER));
    assert_eq!(numbers(&dead.history), [1, 2, 3]);
    assert_eq!(handler.runs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_not_retried() {
    let handler = Handler::new([Act::Fail(down()), Act::Fail(bad())]);
    let service = retried(RetryLayer::new(policy(5, secs(1))), &handler);
    let dead = dead(verdict(&service, delivery(1)).await);
    assert_eq!(
        (dead.reason, dead.class, dead.attempts),
        (Reason::Permanent, ErrorClass::Permanent, 2)
    );
    assert_eq!(dead.history.last().unwrap().message(), "bad amount");
}

#[tokio::test(start_paused = true)]
async fn never_gives_up_after_one_attempt() {
    let handler = Handler::always(down());
    let service = retried(RetryLayer::never().consumer("other.name"), &handler);
    let dead = dead(verdict(&service, delivery(1)).await);
    assert_eq!((dead.reason, dead.attempts, &*dead.consumer), (Reason::Exhausted, 1, "other.name"));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_is_permanent_whatever_its_class() {
    for cause in [Cause::Decode, Cause::Malformed, Cause::Oversize] {
        let service = RetryLayer::new(policy(5, secs(1))).layer(service_fn(
            move |delivery: Delivery| async move {
                let failure = Failure::new(ErrorClass::Transient, cause, "Rejection", "not JSON");
                let attempt = Attempt { number: delivery.attempt(), generation: 0, failure };
                Err::<Done, _>(Setback::Failed(Box::new(attempt)))
            },
        ));
        let dead = dead(verdict(&service, delivery(1)).await);
        assert_eq!((dead.reason, dead.cause), (Reason::Permanent, Some(cause)));
        assert_eq!(dead.class, ErrorClass::Permanent);
        assert_eq!(dead.history.last().unwrap().class, ErrorClass::Permanent);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_kills_the_process_is_not_run_again() {
    let handler = Handler::default();
    let service = retried(RetryLayer::new(policy(3, secs(1)).with_max_crashes(2)), &handler);
    let dead = dead(verdict(&service, delivery(1).with_crashes(2)).await);
    assert_eq!((dead.reason, dead.crashes, dead.attempts), (Reason::MaxCrashes, 2, 0));
    assert_eq!(dead.class, ErrorClass::Permanent);
    assert_eq!(handler.runs(), 0);
    assert_eq!(
        verdict(&service, delivery(1).with_crashes(1)).await,
        Verdict::Done(Done::Succeeded)
    );
    let unlimited = retried(RetryLayer::new(policy(3, secs(1)).with_max_crashes(0)), &handler);
    assert_eq!(
        verdict(&unlimited, delivery(1).with_crashes(9)).await,
        Verdict::Done(Done::Succeeded)
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_its_source_refuses_is_not_run() {
    let handler = Handler::default();
    let service = retried(RetryLayer::new(policy(3, secs(1))), &handler);
    let failure = Failure::new(ErrorClass::Permanent, Cause::Malformed, "header", "unreadable");
    let refused = delivery(1).with_refusal(failure);
    let dead = dead(verdict(&service, refused).await);
    assert_eq!((dead.reason, dead.cause), (Reason::Permanent, Some(Cause::Malformed)));
    assert_eq!((dead.attempts, dead.crashes, dead.class), (0, 0, ErrorClass::Permanent));
    assert_eq!(dead.history.last().unwrap().message(), "unreadable");
    assert_eq!(handler.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn attempts_of_earlier_deliveries_count_and_stay_in_the_history() {
    let mut history = History::new();
    for number in [1, 2] {
        let failure = Failure::new(ErrorClass::Transient, Cause::Error, "E", "earlier");
        history.push(Attempt { number, generation: 0, failure });
    }
    let handler = Handler::always(down());
    let service = retried(RetryLayer::new(policy(3, secs(1))), &handler);
    let again = delivery(1).with_attempt(3).with_history(history);
    let dead = dead(verdict(&service, again).await);
    assert_eq!((dead.attempts, handler.runs()), (3, 1));
    assert_eq!(numbers(&dead.history), [1, 2, 3]);
    assert_eq!(dead.history.first().unwrap().message(), "earlier");
}

#[tokio::test(start_paused = true)]
async fn the_delay_is_decided_by_policy_attempt_and_message_alone() {
    let backoff = Backoff::exponential(secs(1)).max(secs(4)).jitter(Jitter::Full);
    let policy = RetryPolicy::new().with_max_attempts(6).with_backoff(backoff);
    let mut pauses = Vec::new();
    let again = delivery(1).death(CONSUMER);
    let again = delivery(1).with_death(Death { generation: 1, ..again });
    for message in [delivery(1), delivery(1), delivery(2), again] {
        let handler = Handler::always(down());
        let service = retried(RetryLayer::new(policy.clone()), &handler);
        let _ = dead(verdict(&service, message).await);
        assert_eq!(handler.pauses().len(), 5);
        assert!(handler.pauses().iter().all(|pause| *pause <= secs(5)));
        pauses.push(handler.pauses());
    }
    assert_eq!(pauses[0], pauses[1], "the same message waits the same in whichever process");
    assert_ne!(pauses[0], pauses[2], "messages do not wait in step");
    assert_ne!(pauses[0], pauses[3], "nor do its lives");
}

#[tokio::test(start_paused = true)]
async fn what_the_failing_side_asks_for_wins() {
    let handler = Handler::new([Act::Fail(ask_again(secs(4)))]);
    let service = retried(RetryLayer::new(policy(3, secs(1))), &handler);
    assert_eq!(verdict(&service, delivery(1)).await, Verdict::Done(Done::Succeeded));
    assert_eq!(handler.pauses(), [secs(4)]);
}

#[tokio::test(start_paused = true)]
async fn a_delay_beyond_the_max_in_process_delay_is_handed_on() {
    let handler = Handler::always(down());
    let service = retried(RetryLayer::new(policy(3, secs(6))), &handler);
    let begin = Instant::now();
    let postponed = postponed(verdict(&service, delivery(1)).await);
    assert_eq!((postponed.after, postponed.attempts), (secs(6), 1));
    assert_eq!((&*postponed.consumer, numbers(&postponed.history)), (CONSUMER, vec![1]));
    assert_eq!(begin.elapsed(), secs(0));
}

#[tokio::test(start_paused = true)]
async fn no_more_messages_wait_in_the_process_than_there_are_slots() {
    let handler = Handler::always(down());
    let slots = InProcessDelays::new(1);
    let service =
        retried(RetryLayer::new(policy(2, secs(2))).in_process_delays(slots.clone()), &handler);
    let mut first = Box::pin(verdict(&service, delivery(1)));
    assert!(futures_util::poll!(first.as_mut()).is_pending());
    assert_eq!(slots.free(), 0);
    assert_eq!(postponed(verdict(&service, delivery(2)).await).after, secs(2));
    let _ = dead(first.await);
    assert_eq!(slots.free(), 1);
}

/// G4.
#[tokio::test(start_paused = true)]
async fn retrying_never_blocks_the_healthy() {
    let handler = Handler::new([Act::Fail(down())]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(policy(2, secs(3))))
        .layer(ConcurrencyLayer::new(1))
        .layer(ClassifyLayer::new(judge))
        .service(handler.clone());
    let begin = Instant::now();
    let mut sleeper = Box::pin(verdict(&service, delivery(1)));
    assert!(futures_util::poll!(sleeper.as_mut()).is_pending());
    assert_eq!(verdict(&service, delivery(2)).await, Verdict::Done(Done::Succeeded));
    assert_eq!(begin.elapsed(), secs(0), "the one permit is free while the other message waits");
    assert_eq!(sleeper.await, Verdict::Done(Done::Succeeded));
    assert_eq!(begin.elapsed(), secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_not_run_keeps_no_permit() {
    let mut service = ServiceBuilder::new()
        .layer(RetryLayer::new(policy(2, secs(3)).with_max_crashes(1)))
        .layer(ConcurrencyLayer::new(1))
        .layer(ClassifyLayer::new(judge))
        .service(Handler::default());
    let other = service.clone();
    let Ok(()) = std::future::poll_fn(|cx| service.poll_ready(cx)).await;
    let Ok(refused) = service.call(delivery(1).with_crashes(1)).await;
    assert_eq!(dead(refused).reason, Reason::MaxCrashes);
    assert_eq!(verdict(&other, delivery(2)).await, Verdict::Done(Done::Succeeded));
}

#[tokio::test(start_paused = true)]
async fn the_next_attempt_waits_for_a_permit_again() {
    let handler = Handler::new([Act::Fail(down()), Act::Take(secs(10))]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(policy(2, secs(3))))
        .layer(ConcurrencyLayer::new(1))
        .layer(ClassifyLayer::new(judge))
        .service(handler.clone());
    let begin = Instant::now();
    let both = tokio::join!(verdict(&service, delivery(1)), verdict(&service, delivery(2)));
    assert_eq!(both, (Verdict::Done(Done::Succeeded), Verdict::Done(Done::Succeeded)));
    let starts: Vec<_> =
        handler.seen().iter().map(|seen| (seen.at - begin, seen.attempt)).collect();
    assert_eq!(starts, [(secs(0), 1), (secs(0), 1), (secs(10), 2)]);
}

/// A service that defers its second message, and is never ready after the third.
#[derive(Clone)]
struct Deferring {
    calls: u32,
}

impl Service<Delivery> for Deferring {
    type Response = Done;
    type Error = Setback;
    type Future = std::future::Ready<Result<Done, Setback>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Setback>> {
        match self.calls {
            2.. => Poll::Ready(Err(Setback::Deferred { after: secs(7), why: "closed" })),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        self.calls += 1;
        std::future::ready(Err(match self.calls {
            1 => {
                let failure = Failure::new(ErrorClass::Transient, Cause::Error, "E", "down");
                let attempt = Attempt { number: delivery.attempt(), generation: 0, failure };
                Setback::Failed(Box::new(attempt))
            }
            _ => Setback::Deferred { after: secs(30), why: "in flight elsewhere" },
        }))
    }
}

/// G10.
#[tokio::test(start_paused = true)]
async fn not_now_is_not_a_failure() {
    let service = RetryLayer::new(policy(1, secs(1))).layer(Deferring { calls: 1 });
    let deferred = Verdict::Defer { after: secs(30), why: "in flight elsewhere" };
    assert_eq!(verdict(&service, delivery(1)).await, deferred);
    let service = RetryLayer::new(policy(1, secs(1))).layer(Deferring { calls: 2 });
    let unready = Verdict::Defer { after: secs(7), why: "closed" };
    assert_eq!(verdict(&service, delivery(1)).await, unready, "the handler has not run");
}

/// G3.
#[tokio::test(start_paused = true)]
async fn a_deferral_does_not_forget_the_attempts_made_before_it() {
    let service = RetryLayer::new(policy(3, secs(1))).layer(Deferring { calls: 0 });
    let postponed = postponed(verdict(&service, delivery(1)).await);
    assert_eq!((postponed.after, postponed.attempts), (secs(30), 1));
    assert_eq!(numbers(&postponed.history), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_does_not_hold_up_a_stop() {
    let handler = Handler::always(down());
    let slots = InProcessDelays::new(1);
    let service =
        retried(RetryLayer::new(policy(3, secs(5))).in_process_delays(slots.clone()), &handler);
    let stop = CancellationToken::new();
    let mut waiting = Box::pin(verdict(&service, of_loop(&stop)));
    assert!(futures_util::poll!(waiting.as_mut()).is_pending());
    tokio::time::advance(secs(2)).await;
    stop.cancel();
    let postponed = postponed(waiting.await);
    assert_eq!((postponed.after, postponed.attempts), (secs(3), 1));
    assert_eq!(slots.free(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_runs_is_not_touched_by_a_stop() {
    let handler = Handler::new([Act::Take(secs(5))]);
    let service = retried(RetryLayer::new(policy(3, secs(5))), &handler);
    let stop = CancellationToken::new();
    stop.cancel();
    let outcome = verdict(&service, of_loop(&stop)).await;
    assert_eq!(outcome, Verdict::Done(Done::Succeeded));
}
