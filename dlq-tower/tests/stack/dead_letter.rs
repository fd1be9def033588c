use std::sync::{Arc, Mutex};

use dlq_core::store::{Receipt, Sink};
use dlq_core::{
    DeadLetter, Death, DeliveredFrom, Delivery, Disposition, ErrorClass, LetterId, Reason,
    StoreError, StoreErrorKind,
};
use dlq_tower::classify::{Classify, ClassifyLayer};
use dlq_tower::dead_letter::DeadLetterLayer;
use dlq_tower::retry::{Retry, RetryLayer};
use dlq_tower::stage::{RouteError, Settlement};
use futures_util::future::join_all;
use proptest::prelude::*;
use tower::{Layer, Service};

use crate::support::*;

type Stack = dlq_tower::dead_letter::DeadLetter<
    Retry<Classify<Handler, fn(&Fail) -> dlq_core::Classification>>,
>;

/// A stack whose handler always fails, with so many attempts and this delay.
fn stack(layer: DeadLetterLayer, retry: RetryLayer, handler: Handler) -> Stack {
    let judge: fn(&Fail) -> dlq_core::Classification = judge;
    let layer = layer.clock(clock());
    layer.layer(retry.layer(ClassifyLayer::new(judge).layer(handler)))
}

fn dying(layer: DeadLetterLayer) -> Stack {
    stack(layer, RetryLayer::never(), Handler::always(bad()))
}

fn letter(settlement: Result<Settlement, RouteError>) -> DeadLetter {
    match settlement.unwrap().into_disposition() {
        Disposition::Dead(letter) => *letter,
        other => panic!("expected a death, got {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_death_is_written_with_all_that_is_known_and_only_then_settled() {
    let sink = TestSink::default();
    let layer = DeadLetterLayer::new(sink.clone())
        .service_name("billing")
        .attribute("tenant", |_| Some("acme".to_owned()))
        .attribute("absent", |_| None)
        .attribute("broken", |_| panic!("a bad attribute must not lose a message"));
    let service = stack(layer, RetryLayer::new(policy(2, secs(1))), Handler::always(down()));
    let message = delivery(7)
        .with_deliveries(4)
        .with_crashes(1)
        .with_delayed_retries(2)
        .with_replays(3)
        .with_previous("orders.retry.1h");
    let letter = letter(call(&service, message.clone()).await);

    assert_eq!(letter.death(), message.death(CONSUMER));
    assert_eq!((&letter.message, &letter.origin), (message.message(), message.origin()));
    assert_eq!((letter.consumer.as_str(), letter.service.as_deref()), (CONSUMER, Some("billing")));
    assert_eq!((letter.reason, letter.class), (Reason::Exhausted, ErrorClass::Transient));
    assert_eq!((letter.attempts, letter.deliveries, letter.crashes), (2, 4, 1));
    assert_eq!((letter.delayed_retries, letter.state.replays), (2, 3));
    assert_eq!(letter.history.len(), 2);
    assert_eq!(letter.died_at, start().after(secs(1)));
    assert!(letter.confirmed);
    let attributes: Vec<_> =
        letter.attributes.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(attributes, [("previous.topic", "orders.retry.1h"), ("tenant", "acme")]);
    assert_eq!(sink.letters.lock().unwrap().get(&letter.death()), Some(&letter));
}

#[tokio::test(start_paused = true)]
async fn success_writes_nothing() {
    let sink = TestSink::default();
    let service =
        stack(DeadLetterLayer::new(sink.clone()), RetryLayer::never(), Handler::default());
    let settlement = call(&service, delivery(1)).await.unwrap();
    assert!(matches!(settlement.into_disposition(), Disposition::Succeeded));
    assert_eq!(sink.calls(), [0_usize; 0]);
}

/// G1.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_is_not_settled_and_both_errors_surface() {
    let sink = TestSink::new([Put::Refuse(StoreErrorKind::Unavailable)]);
    let told = Arc::new(Mutex::new(0));
    let hook = Arc::clone(&told);
    let service = dying(
        DeadLetterLayer::new(sink.clone())
            .on_death(move |_: &DeadLetter| *hook.lock().unwrap() += 1),
    );
    let error = call(&service, delivery(1)).await.unwrap_err();
    assert!(error.cause().contains("bad amount"), "{}", error.cause());
    assert!(error.to_string().contains("bad amount"), "{error}");
    assert_eq!(error.store_error().kind(), StoreErrorKind::Unavailable);
    assert!(error.store_error().is_transient());
    assert_eq!((sink.held(), *told.lock().unwrap()), (0, 0));
    let _ = letter(call(&service, delivery(1)).await);
    assert_eq!((sink.held(), *told.lock().unwrap()), (1, 1));
}

/// G2.
#[tokio::test(start_paused = true)]
async fn a_write_that_failed_late_is_repeated_without_harm() {
    let sink = TestSink::new([Put::WriteThenFail]);
    let service = dying(DeadLetterLayer::new(sink.clone()));
    assert!(call(&service, delivery(1)).await.is_err());
    assert_eq!(sink.held(), 1, "it was durable all the same");
    let _ = letter(call(&service, delivery(1)).await);
    assert_eq!(*sink.receipts.lock().unwrap(), [Receipt::Stored, Receipt::Unchanged]);
    assert_eq!(sink.held(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_hangs_keeps_the_message_unsettled() {
    let sink = TestSink::new([Put::Hang]);
    let service = dying(DeadLetterLayer::new(sink.clone()));
    assert!(tokio::time::timeout(secs(60), call(&service, delivery(1))).await.is_err());
    assert_eq!(sink.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn feeds_get_a_copy_and_what_confirmed_is_not_repeated() {
    let (store, broker) = (TestSink::default(), TestSink::default());
    let moody =
        TestSink::new([Put::Refuse(StoreErrorKind::Refused), Put::Refuse(StoreErrorKind::Refused)]);
    let layer = DeadLetterLayer::new(store.clone())
        .feed("broker", broker.clone())
        .feed("moody", moody.clone());
    let service = dying(layer);
    for _ in 0..2 {
        let error = call(&service, delivery(1)).await.unwrap_err();
        assert_eq!(error.store_error().kind(), StoreErrorKind::Refused);
    }
    let letter = letter(call(&service, delivery(1)).await);
    assert_eq!((store.calls(), broker.calls(), moody.calls()), (vec![1], vec![1], vec![1, 1, 1]));
    assert!(moody.letters.lock().unwrap().contains_key(&letter.death()));
}

#[tokio::test(start_paused = true)]
async fn feeds_get_nothing_that_the_authoritative_sink_does_not_have() {
    let (store, broker) =
        (TestSink::new([Put::Refuse(StoreErrorKind::Unavailable)]), TestSink::default());
    let service = dying(DeadLetterLayer::new(store).feed("broker", broker.clone()));
    assert!(call(&service, delivery(1)).await.is_err());
    assert_eq!(broker.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_letter_from_the_store_is_recorded_by_settling_it() {
    let (store, broker, queue) =
        (TestSink::default(), TestSink::default(), TestRetryQueue::default());
    let layer = || {
        DeadLetterLayer::new(store.clone())
            .feed("broker", broker.clone())
            .retry_queue(queue.clone())
    };
    let death = Death { letter: LetterId::from_bytes([9; 16]), generation: 2 };
    let replayed = delivery(1).with_delivered_from(DeliveredFrom::Store).with_death(death);
    let letter = letter(call(&dying(layer()), replayed.clone()).await);
    assert_eq!(letter.death(), death, "its own letter, one death later");
    assert_eq!((store.held(), broker.held()), (0, 1));

    let slow = RetryLayer::new(policy(3, secs(60)));
    let service = stack(layer(), slow, Handler::always(down()));
    let settlement = call(&service, replayed).await.unwrap();
    let Disposition::DelayedRetry { due, history, attempts } = settlement.into_disposition() else {
        panic!("expected an delayed_retry")
    };
    assert_eq!((due, history.len(), attempts), (start().after(secs(60)), 1, 1));
    assert!(queue.delayed_retries.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_enqueued_and_only_then_settled() {
    let queue = TestRetryQueue::default();
    let layer = DeadLetterLayer::new(TestSink::default()).retry_queue(queue.clone());
    let service = stack(layer, RetryLayer::new(policy(3, secs(60))), Handler::always(down()));
    let settlement = call(&service, delivery(1)).await.unwrap();
    assert!(matches!(settlement.disposition(), Disposition::DelayedRetry { attempts: 1, .. }));
    let delayed_retries = queue.delayed_retries.lock().unwrap();
    let [delayed_retry] = delayed_retries.as_slice() else { panic!("one delayed_retry") };
    assert_eq!((&*delayed_retry.consumer, delayed_retry.attempts), (CONSUMER, 1));
    assert_eq!((delayed_retry.due, delayed_retry.history.len()), (start().after(secs(60)), 1));
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_cannot_be_written_is_not_settled() {
    let queue =
        TestRetryQueue { fails: Some(StoreErrorKind::Unavailable), ..TestRetryQueue::default() };
    let layer = DeadLetterLayer::new(TestSink::default()).retry_queue(queue);
    let service = stack(layer, RetryLayer::new(policy(3, secs(60))), Handler::always(down()));
    let error = call(&service, delivery(1)).await.unwrap_err();
    assert_eq!(error.cause(), "the provider is down");
}

#[tokio::test(start_paused = true)]
async fn g1_a_message_that_can_never_wait_dies() {
    let queue =
        TestRetryQueue { fails: Some(StoreErrorKind::Refused), ..TestRetryQueue::default() };
    let sink = TestSink::default();
    let layer = DeadLetterLayer::new(sink.clone()).retry_queue(queue);
    let service = stack(layer, RetryLayer::new(policy(3, secs(60))), Handler::always(down()));
    let letter = letter(call(&service, delivery(1)).await);
    assert_eq!((letter.reason, letter.class), (Reason::Exhausted, ErrorClass::Transient));
    assert_eq!((letter.attempts, letter.history.len(), sink.held()), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn without_a_retry_queue_the_broker_keeps_the_message() {
    let layer = DeadLetterLayer::new(TestSink::default());
    let service = stack(layer, RetryLayer::new(policy(3, secs(60))), Handler::always(down()));
    let settlement = call(&service, delivery(1)).await.unwrap();
    let Disposition::Deferred { after } = settlement.into_disposition() else { panic!("deferred") };
    assert_eq!(after, secs(60));
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_changes_nothing() {
    let sink = TestSink::default();
    let service =
        dying(DeadLetterLayer::new(sink.clone()).on_death(|_: &DeadLetter| panic!("hook")));
    let _ = letter(call(&service, delivery(1)).await);
    assert_eq!(sink.held(), 1);
}

async fn all_die(service: &Stack, messages: u64) -> Vec<Result<Settlement, RouteError>> {
    join_all((0..messages).map(|offset| call(service, delivery(offset)))).await
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_written_together() {
    let sink = TestSink { slow: Some(secs(1)), ..TestSink::default() };
    let service = dying(DeadLetterLayer::new(sink.clone()).batch(100, secs(0)).writers(1));
    for settlement in all_die(&service, 201).await {
        let _ = letter(settlement);
    }
    assert_eq!(sink.calls(), [1, 100, 100]);
    assert_eq!(sink.held(), 201);
}

/// Each call takes time, and three may be under way.
#[derive(Clone, Debug, Default)]
struct OfThreeWriters(TestSink);

impl Sink for OfThreeWriters {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        self.0.put(letters).await
    }

    fn writers(&self) -> usize {
        3
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_says_how_many_calls_write_at_once() {
    let sink = OfThreeWriters(TestSink { slow: Some(secs(1)), ..TestSink::default() });
    for settlement in all_die(&dying(DeadLetterLayer::new(sink.clone())), 10).await {
        let _ = letter(settlement);
    }
    assert_eq!(sink.0.calls(), [1, 1, 1, 7]);
}

#[tokio::test(start_paused = true)]
async fn of_large_letters_fewer_are_written_together() {
    const LARGE: usize = 300 * 1024;
    let sink = TestSink { slow: Some(secs(1)), ..TestSink::default() };
    let service = dying(DeadLetterLayer::new(sink.clone()).writers(1));
    let messages = (0..8).map(|offset| {
        let (small, origin) = (delivery(offset), delivery(offset).origin().clone());
        // The last one is more than goes together at all.
        let size = if offset == 7 { LARGE * 10 } else { LARGE };
        let large = small.message().clone().with_payload(Some(vec![0; size].into()));
        call(&service, Delivery::new(large, origin))
    });
    for settlement in join_all(messages).await {
        let _ = letter(settlement);
    }
    assert_eq!(sink.calls(), [1, 3, 3, 1]);
    assert_eq!(sink.held(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_batch_may_wait_for_more() {
    let sink = TestSink::default();
    let service = dying(DeadLetterLayer::new(sink.clone()).batch(3, secs(1)).writers(1));
    let begin = tokio::time::Instant::now();
    all_die(&service, 7).await;
    assert_eq!(sink.calls().iter().sum::<usize>(), 7);
    assert!(sink.calls().iter().all(|size| *size <= 3), "{:?}", sink.calls());
    assert_eq!(begin.elapsed(), secs(1), "only the last, incomplete batch has lingered");
}

#[tokio::test(start_paused = true)]
async fn one_refused_letter_does_not_stop_the_others() {
    let poison = delivery(5).origin().to_string();
    let sink = TestSink { poison: Some(poison), slow: Some(secs(1)), ..TestSink::default() };
    let service = dying(DeadLetterLayer::new(sink.clone()).writers(1));
    let settled = all_die(&service, 10).await;
    let failed: Vec<_> = settled.iter().map(Result::is_err).collect();
    assert_eq!(failed.iter().filter(|failed| **failed).count(), 1);
    assert!(failed[5]);
    assert_eq!(sink.held(), 9);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_meets_an_outage_fails_as_a_whole() {
    let sink = TestSink {
        slow: Some(secs(1)),
        ..TestSink::new([Put::Write, Put::Refuse(StoreErrorKind::Unavailable)])
    };
    let service = dying(DeadLetterLayer::new(sink.clone()).writers(1));
    let settled = all_die(&service, 10).await;
    let transient = |settled: &&Result<_, RouteError>| {
        settled.as_ref().is_err_and(|error| error.store_error().is_transient())
    };
    assert_eq!(settled.iter().filter(transient).count(), 9);
    assert_eq!(sink.calls(), [1, 9], "nobody hammers a store that is down");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_dropped_does_not_strand_its_followers() {
    let sink = TestSink::new([Put::Write, Put::Hang]);
    let sink = TestSink { slow: Some(secs(1)), ..sink };
    let service = dying(DeadLetterLayer::new(sink.clone()).writers(1));
    let mut first = Box::pin(call(&service, delivery(1)));
    assert!(futures_util::poll!(first.as_mut()).is_pending());
    let mut leader = Box::pin(call(&service, delivery(2)));
    assert!(futures_util::poll!(leader.as_mut()).is_pending());
    let mut follower = Box::pin(call(&service, delivery(3)));
    assert!(futures_util::poll!(follower.as_mut()).is_pending());
    let _ = letter(first.await);
    // The leader writes for both, and hangs.
    let hung = tokio::time::timeout(secs(10), &mut leader).await;
    assert!(hung.is_err());
    assert_eq!(sink.calls(), [1, 2]);
    drop(leader);
    let follower = tokio::time::timeout(secs(60), follower).await;
    let _ = letter(follower.expect("the follower writes for itself"));
    assert_eq!((sink.calls(), sink.held()), (vec![1, 2, 1], 2));
}

/// A sink that cannot write the letter of offset 4, and says so.
#[derive(Debug)]
struct Partly;

impl Sink for Partly {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        self.put_each(letters).await?.into_iter().collect()
    }

    async fn put_each(
        &self,
        letters: Vec<DeadLetter>,
    ) -> Result<Vec<Result<Receipt, StoreError>>, StoreError> {
        tokio::time::sleep(secs(1)).await;
        let down = || StoreError::new(StoreErrorKind::Unavailable, "put a letter");
        let is_away = |letter: &DeadLetter| letter.origin == *delivery(4).origin();
        let each = letters
            .iter()
            .map(|letter| if is_away(letter) { Err(down()) } else { Ok(Receipt::Stored) });
        Ok(each.collect())
    }
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_is_not_written_fails_alone_where_the_sink_says_which() {
    let service = dying(DeadLetterLayer::new(Partly).writers(1));
    let settled = all_die(&service, 10).await;
    let failed: Vec<_> = (0..10).filter(|offset| settled[*offset].is_err()).collect();
    assert_eq!(failed, [4]);
    assert!(settled[4].as_ref().is_err_and(|error| error.store_error().is_transient()));
}

/// A sink that confirms less than it was given.
#[derive(Debug)]
struct Miscounting;

impl Sink for Miscounting {
    async fn put(&self, _: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        Ok(Vec::new())
    }
}

#[tokio::test(start_paused = true)]
async fn a_letter_without_a_receipt_is_not_confirmed() {
    let service = dying(DeadLetterLayer::new(Miscounting));
    let error = call(&service, delivery(1)).await.unwrap_err();
    assert_eq!(error.store_error().kind(), StoreErrorKind::Unexpected);
}

#[tokio::test(start_paused = true)]
async fn a_stack_can_be_used_again_after_every_outcome() {
    let mut service = dying(DeadLetterLayer::new(TestSink::default()));
    for offset in 0..3 {
        std::future::poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
        let _ = letter(service.call(delivery(offset)).await);
    }
}

fn any_put() -> impl Strategy<Value = Put> {
    prop_oneof![
        Just(Put::Write),
        Just(Put::WriteThenFail),
        Just(Put::Refuse(StoreErrorKind::Unavailable)),
        Just(Put::Refuse(StoreErrorKind::Refused)),
        Just(Put::Hang),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// G1: whatever the sinks do, and whoever is dropped while it waits, nothing is settled as dead before it is
    /// durable in all of them, and every message is settled in the end.
    #[test]
    fn nothing_is_settled_before_it_is_durable(
        script in prop::collection::vec(any_put(), 0..30),
        feed_script in prop::collection::vec(any_put(), 0..10),
        max in 1_usize..6,
        writers in 1_usize..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let slow = |script| TestSink { slow: Some(secs(1)), ..TestSink::new(script) };
            let (sink, feed) = (slow(script), slow(feed_script));
            let layer = DeadLetterLayer::new(sink.clone())
                .feed("feed", feed.clone())
                .batch(max, secs(0))
                .writers(writers);
            let service = dying(layer);
            join_all((0..12).map(|offset| {
                let (service, sink, feed) = (&service, &sink, &feed);
                async move {
                    loop {
                        let routed = call(service, delivery(offset));
                        let Ok(Ok(settlement)) = tokio::time::timeout(secs(20 + offset), routed).await
                        else {
                            continue;
                        };
                        let death = letter(Ok(settlement)).death();
                        assert!(sink.letters.lock().unwrap().contains_key(&death));
                        assert!(feed.letters.lock().unwrap().contains_key(&death));
                        break;
                    }
                }
            }))
            .await;
            assert_eq!((sink.held(), feed.held()), (12, 12));
        });
    }
}
