//! A message whose key is in flight waits for its end: in the same process, in another one, and behind one that died.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim, IdempotencyToken};
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::concurrency::ConcurrencyLayer;
use dlq_tower::idempotency::IdempotencyLayer;
use dlq_tower::retry::{InProcessDelays, RetryLayer, RunLoop};
use dlq_tower::stage::{Done, Verdict};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceBuilder};

use crate::idempotency::{both, claim};
use crate::support::*;

fn stack(
    layer: &IdempotencyLayer,
    handler: &Handler,
    slots: &InProcessDelays,
) -> impl Service<dlq_core::Delivery, Response = Verdict, Error = std::convert::Infallible, Future: Send>
+ Clone
+ use<> {
    ServiceBuilder::new()
        .layer(RetryLayer::new(policy(3, secs(1))).clock(clock()).in_process_delays(slots.clone()))
        .layer(ConcurrencyLayer::new(2))
        .layer(layer.clone())
        .layer(ClassifyLayer::new(judge))
        .service(handler.clone())
}

fn token(claim: IdempotencyClaim) -> IdempotencyToken {
    match claim {
        IdempotencyClaim::New { token, .. } => token,
        other => panic!("{other:?}"),
    }
}

/// The verdict, and when it was given.
async fn timed<S>(service: &S, offset: u64) -> (Verdict, Duration)
where
    S: Service<dlq_core::Delivery, Response = Verdict, Error = std::convert::Infallible> + Clone,
{
    let began = Instant::now();
    (verdict(service, delivery(offset)).await, began.elapsed())
}

const DONE: Verdict = Verdict::Done(Done::Succeeded);
const DUPLICATE: Verdict = Verdict::Done(Done::Duplicate);

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_message_of_this_process_is_woken_when_it_is_done() {
    for (_, layer) in both() {
        let handler = Handler::new([Act::Take(Duration::from_millis(12_345))]);
        let slots = InProcessDelays::new(8);
        let service = stack(&layer, &handler, &slots);
        // Waiting takes no permit: the last message is run at once.
        let runs = [1, 1, 1, 2].map(|offset| timed(&service, offset));
        let took = Duration::from_millis(12_345);
        let expected = [(DONE, took), (DUPLICATE, took), (DUPLICATE, took), (DONE, secs(0))];
        let found = join_all(runs).await;
        for ((found, at), (expected, when)) in found.into_iter().zip(expected) {
            assert_eq!(found, expected);
            assert!(at >= when && at < when + Duration::from_millis(5), "{at:?}, not {when:?}");
        }
        assert_eq!((handler.runs(), slots.free()), (2, 8));
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_runs_when_the_other_is_dropped_or_dies() {
    for (_, layer) in both() {
        let handler = Handler::new([Act::Take(secs(60)), Act::Fail(bad())]);
        let service = stack(&layer, &handler, &InProcessDelays::new(8));
        let mut first = Box::pin(timed(&service, 1));
        let mut second = Box::pin(timed(&service, 1));
        let third = timed(&service, 1);
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        while handler.runs() == 0 {
            assert!(futures_util::poll!(first.as_mut()).is_pending());
        }
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        tokio::time::advance(Duration::from_millis(50)).await;
        drop(first);
        let (second, third) = tokio::join!(second, third);
        // Whichever of them is first dies, and leaves the key to the other.
        let dead = [&second, &third].map(|(verdict, _)| matches!(verdict, Verdict::Dead(_)));
        let done = [&second, &third].map(|(verdict, _)| *verdict == DONE);
        assert_eq!((dead[0], dead[1]), (done[1], done[0]));
        let soon = Duration::from_millis(90);
        assert!(second.1 < soon && third.1 < soon, "{second:?}, {third:?}");
        assert_eq!(handler.runs(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_is_in_flight_elsewhere_is_asked_for_less_and_less_often() {
    for (store, layer) in both() {
        let handler = Handler::default();
        let slots = InProcessDelays::new(8);
        let service = stack(&layer, &handler, &slots);
        // Done after so many milliseconds, found after so many: 100, 200, 400 ... in between, at last 5 s.
        for (offset, done, found) in [(1, 20, 100), (2, 250, 300), (3, 10_000, 11_300)] {
            let key = Bytes::from(format!("payment-{offset}"));
            let held = store.claim(Arc::from(CONSUMER), key, secs(60)).await.unwrap();
            let elsewhere = async {
                tokio::time::sleep(Duration::from_millis(done)).await;
                assert_eq!(slots.free(), 8, "it takes no slot of retries");
                assert!(store.complete(token(held), secs(600)).await.unwrap());
            };
            let ((verdict, at), ()) = tokio::join!(timed(&service, offset), elsewhere);
            assert_eq!(verdict, DUPLICATE);
            let expected = Duration::from_millis(found);
            assert!(at >= expected && at < expected + Duration::from_millis(20), "{at:?}");
        }
        assert_eq!(handler.runs(), 0);
    }
}

/// Not a moment after the lease: whoever had it is dead.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_process_that_died_is_waited_for() {
    for (store, layer) in both() {
        let handler = Handler::default();
        let service = stack(&layer, &handler, &InProcessDelays::new(8));
        let _died = claim(&store).await;
        let (verdict, at) = timed(&service, 1).await;
        assert_eq!(verdict, DONE);
        assert!(at >= secs(30) && at < secs(30) + Duration::from_millis(300), "{at:?}");
        assert_eq!((handler.seen()[0].crashes, handler.seen()[0].attempt), (1, 1));
    }
}

/// After a crash as many messages wait as the process had in flight: some of them here, beside the retries, which have all
/// their slots.
#[tokio::test(start_paused = true)]
async fn who_waits_leaves_the_slots_to_retries() {
    for (store, layer) in both() {
        for of_loop in [false, true] {
            let slots = InProcessDelays::new(3);
            let own = if of_loop { InProcessDelays::new(64) } else { slots.clone() };
            let handler = Handler::new([Act::Fail(down()), Act::Fail(down()), Act::Fail(down())]);
            let service = stack(&layer, &handler, &own);
            let all = if of_loop { slots.clone() } else { InProcessDelays::new(64) };
            let run_loop = Arc::new(RunLoop::new(CancellationToken::new()).in_process_delays(all));
            let handed = |offset| {
                let delivery = delivery(offset).with_extension(Arc::clone(&run_loop));
                verdict(&service, delivery)
            };
            let mut held = Vec::new();
            let first = if of_loop { 20 } else { 10 };
            for offset in first..first + 2 {
                let key = Bytes::from(format!("payment-{offset}"));
                held.push(store.claim(Arc::from(CONSUMER), key, secs(30)).await.unwrap());
            }
            let mut waiting: Vec<_> =
                (first..first + 2).map(|offset| handed(offset).boxed_local()).collect();
            let mut deferred = 0;
            for waiting in &mut waiting {
                // Claiming takes a few polls where the store takes its time.
                for _ in 0..10 {
                    if let Some(verdict) = waiting.as_mut().now_or_never() {
                        let Verdict::Defer { after, why } = verdict else { panic!("{verdict:?}") };
                        assert_eq!((after, why), (secs(30), "in flight elsewhere"));
                        deferred += 1;
                        break;
                    }
                }
            }
            assert_eq!((deferred, slots.free()), (1, 3));
            // Three that fail are retried here, while the other waits.
            let retried = [5, 6, 7].map(|n| handed(first + n));
            for verdict in join_all(retried).await {
                assert_eq!(verdict, DONE);
            }
            drop(waiting);
            assert_eq!(slots.free(), 3);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_does_not_hold_up_a_stop() {
    for (store, layer) in both() {
        let service = stack(&layer, &Handler::default(), &InProcessDelays::new(8));
        let _theirs = claim(&store).await;
        let stop = CancellationToken::new();
        let mut waits = Box::pin(verdict(&service, of_loop(&stop)));
        for _ in 0..10 {
            assert!(futures_util::poll!(waits.as_mut()).is_pending());
        }
        stop.cancel();
        let stopped = Verdict::Defer { after: secs(0), why: "the consumer stops" };
        assert_eq!(waits.now_or_never(), Some(stopped));
    }
}
