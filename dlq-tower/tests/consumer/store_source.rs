//! The store source by itself.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::{ClaimRequest, Claims, Sink};
use dlq_core::{
    DeliveredFrom, Delivery, Disposition, Message, Origin, Position, RetryQueue, Settle, Source,
    Status, StoreErrorKind, TokioClock, TransportErrorKind,
};
use dlq_tower::store_source::StoreSource;
use futures_util::future::join_all;
use futures_util::{FutureExt, poll};
use tokio::time::{Instant, sleep};

use crate::faulty::Store;
use crate::support::{SECOND, soon};

/// A store in which so many retry records are due.
pub(crate) async fn due(count: u64) -> Store {
    due_in(Duration::ZERO, count).await
}

/// One in which they will be.
async fn due_in(after: Duration, count: u64) -> Store {
    let store = Store::new();
    for position in 0..count {
        let origin = Origin::new("script", "orders", Position::Offset(position));
        let delivery = Delivery::new(Message::new("orders", "{}"), origin);
        let delayed_retry = dlq_core::DelayedRetry {
            delivery,
            consumer: "orders.handle".into(),
            due: store.clock.now().after(after),
            history: dlq_core::History::new(),
            attempts: 1,
        };
        store.inner.enqueue(delayed_retry).await.unwrap();
    }
    store
}

fn source(store: &Store) -> StoreSource<Store> {
    StoreSource::new(store.clone(), ["orders.handle"]).clock(store.clock.clone())
}

async fn taken(source: &mut StoreSource<Store>) -> (Delivery, impl Settle) {
    soon(source.next()).await.unwrap().expect("it has not ended")
}

/// How many can be claimed now.
async fn claimable(store: &Store) -> usize {
    let request = ClaimRequest::due(["orders.handle"], 1000, SECOND);
    store.inner.claim(request).await.unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn claims_are_made_in_batches_and_outcomes_recorded_in_batches() {
    let store = due(100).await;
    let mut source = source(&store).batch(50);
    let mut settles = Vec::new();
    for _ in 0..100 {
        let (delivery, settle) = taken(&mut source).await;
        assert_eq!((delivery.delivered_from(), delivery.attempt()), (DeliveredFrom::Store, 2));
        settles.push(settle);
    }
    assert_eq!(store.calls("claim"), 2);
    store.slow(Duration::from_millis(5));
    let settled = join_all(settles.into_iter().map(|settle| settle.settle(Disposition::Succeeded)));
    assert!(soon(settled).await.iter().all(Result::is_ok));
    assert!(store.calls("finish") <= 3, "{} calls", store.calls("finish"));
    assert!(store.statuses().await.iter().all(|status| *status == Status::Resolved));
}

#[tokio::test(start_paused = true)]
async fn what_was_claimed_and_not_yielded_is_given_back() {
    let store = due(10).await;
    let mut source = source(&store);
    let (_, settle) = taken(&mut source).await;
    source.close().await;
    source.close().await;
    assert!(soon(source.next()).await.unwrap().is_none());
    assert_eq!(claimable(&store).await, 9);
    settle.settle(Disposition::Deferred { after: Duration::ZERO }).await.unwrap();
    assert_eq!(claimable(&store).await, 1);
    assert!(store.letters().await.iter().all(|letter| letter.crashes == 0), "nobody crashed");
}

/// A claim that is under way when nobody waits any more is not lost: its lease would count as a crash.
#[tokio::test(start_paused = true)]
async fn a_dropped_next_loses_no_claim() {
    let store = due(3).await;
    store.slow(SECOND);
    let mut source = source(&store);
    assert!(poll!(Box::pin(source.next())).is_pending());
    sleep(2 * SECOND).await;
    let (first, _) = taken(&mut source).await;
    assert_eq!(first.crashes(), 0);
    assert_eq!(store.calls("claim"), 1, "the call went on");
    assert!(poll!(Box::pin(source.next())).is_ready());

    let store = due(3).await;
    store.slow(SECOND);
    let mut source = self::source(&store);
    assert!(poll!(Box::pin(source.next())).is_pending());
    soon(source.close()).await;
    assert_eq!(claimable(&store).await, 3);
}

#[tokio::test(start_paused = true)]
async fn it_waits_until_something_is_due_and_can_be_woken() {
    let store = Store::new();
    let mut source = source(&store).poll(100 * SECOND);
    let waker = source.waker();
    let mut next = Box::pin(source.next());
    assert!(poll!(&mut next).is_pending());
    sleep(30 * SECOND).await;
    assert!(poll!(&mut next).is_pending());
    let other = due(1).await;
    let letter = other.letters().await.remove(0);
    store.inner.put(vec![letter]).await.unwrap();
    store.replay().await;
    assert!(poll!(&mut next).is_pending(), "it has not looked yet");
    waker.notify_one();
    let begun = Instant::now();
    assert!(soon(next).await.unwrap().is_some());
    assert!(begun.elapsed() < SECOND);
}

/// What is due is due by the store's clock, whatever the machine's says.
#[tokio::test(start_paused = true)]
async fn a_source_whose_clock_is_ahead_does_not_ask_without_end() {
    let store = due_in(3600 * SECOND, 1).await;
    let ahead = Arc::new(TokioClock::starting_at(store.clock.now().after(7200 * SECOND)));
    let mut source = source(&store).clock(ahead);
    let mut next = Box::pin(source.next());
    let until = Instant::now() + 3500 * SECOND;
    assert!(tokio::time::timeout_at(until, &mut next).await.is_err());
    let asked = store.calls("claim");
    assert!((3000..4000).contains(&asked), "once per poll: {asked}");
    assert!(soon(next).await.unwrap().is_some());
    assert!(until.elapsed() < 102 * SECOND, "no later than a poll");
}

/// Somebody else claimed it meanwhile: their outcome counts, ours changes nothing and is no error.
#[tokio::test(start_paused = true)]
async fn an_outcome_that_comes_too_late_changes_nothing() {
    let store = due(1).await;
    let mut slow = source(&store).lease(SECOND);
    let (_, mut late) = taken(&mut slow).await;
    sleep(2 * SECOND).await;
    let mut other = source(&store);
    let (delivery, settle) = taken(&mut other).await;
    assert_eq!(delivery.crashes(), 1, "a lease that ended");
    assert_eq!(late.extend().await.unwrap_err().kind(), TransportErrorKind::Lost);
    late.settle(Disposition::Succeeded).await.unwrap();
    assert_eq!(store.statuses().await, [Status::Replaying]);
    settle.settle(Disposition::Duplicate).await.unwrap();
    assert_eq!(store.statuses().await, [Status::Resolved]);
}

/// G6: what waited in the source for so long that somebody else has claimed it is theirs to run.
#[tokio::test(start_paused = true)]
async fn g6_a_claim_that_was_lost_in_the_queue_is_not_yielded() {
    let store = due(3).await;
    let mut source = source(&store).lease(SECOND);
    let (_, settle) = taken(&mut source).await;
    settle.settle(Disposition::Succeeded).await.unwrap();
    sleep(2 * SECOND).await;
    let request = ClaimRequest::due(["orders.handle"], 1, 3600 * SECOND);
    let theirs = store.inner.claim(request).await.unwrap().remove(0);
    let (ours, _) = taken(&mut source).await;
    assert_ne!(ours.origin(), &theirs.letter.origin);
    assert!(poll!(Box::pin(source.next())).is_pending(), "the other is in the hands of another");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_is_given_up_when_the_lease_would_have_ended() {
    let store = due(1).await;
    store.fail("finish", u32::MAX, StoreErrorKind::Unavailable);
    let mut source = source(&store).lease(10 * SECOND);
    let (_, settle) = taken(&mut source).await;
    let begun = Instant::now();
    let error = soon(settle.settle(Disposition::Succeeded)).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    assert!(begun.elapsed() > 5 * SECOND && begun.elapsed() <= 10 * SECOND);
}

/// A refused outcome is no crash of the message (G3): the claim is given back, for longer each time.
#[tokio::test(start_paused = true)]
async fn g3_an_outcome_that_is_refused_gives_the_claim_back_and_counts_no_crash() {
    for kind in [StoreErrorKind::Refused, StoreErrorKind::Unexpected] {
        let store = due(1).await;
        let mut source = source(&store).lease(10 * SECOND);
        let mut waits = Vec::new();
        for _ in 0..12 {
            let begun = Instant::now();
            let (delivery, settle) = taken(&mut source).await;
            assert_eq!((delivery.crashes(), delivery.attempt()), (0, 2), "nothing has crashed");
            waits.push(begun.elapsed());
            store.refuse_outcomes(Some(kind));
            let error = soon(settle.settle(Disposition::Succeeded)).await.unwrap_err();
            assert_eq!(error.kind(), TransportErrorKind::Unexpected);
            assert!(store.statuses().await != [Status::Replaying], "it is in nobody's hands");
        }
        let (second, last) = (waits[1], waits[11]);
        assert!(second >= SECOND && last > 10 * second, "{waits:?}");
        store.refuse_outcomes(None);
        let (_, settle) = taken(&mut source).await;
        settle.settle(Disposition::Succeeded).await.unwrap();
        assert_eq!(store.statuses().await, [Status::Resolved]);
    }
}

/// One that the store refuses does not take the others with it.
#[tokio::test(start_paused = true)]
async fn a_refused_batch_is_recorded_one_by_one() {
    let store = due(5).await;
    let mut source = source(&store);
    let mut settles = Vec::new();
    for _ in 0..5 {
        settles.push(taken(&mut source).await.1);
    }
    store.slow(Duration::from_millis(5));
    // The first call, with one outcome, is refused; so is the second, with four.
    store.fail("finish", 2, StoreErrorKind::Unexpected);
    let settled = join_all(settles.into_iter().map(|settle| settle.settle(Disposition::Succeeded)));
    let refused = soon(settled).await.iter().filter(|settled| settled.is_err()).count();
    let resolved = store.statuses().await;
    let resolved = resolved.iter().filter(|status| **status == Status::Resolved).count();
    assert_eq!(refused + resolved, 5);
    assert!(resolved >= 4, "{resolved}");
}

#[tokio::test]
async fn without_names_nothing_is_claimed() {
    let store = due(1).await;
    let mut source = StoreSource::new(store.clone(), [""; 0]);
    assert!(source.next().now_or_never().is_none());
    source.close().await;
    assert_eq!(claimable(&store).await, 1);
}
