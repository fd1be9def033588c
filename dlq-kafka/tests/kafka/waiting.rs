//! Records that wait for their time: never early, and nobody waits for them.

use std::time::Duration;

use dlq_core::{
    Clock, DelayedRetry, DeliveredFrom, Delivery, Disposition, History, RetryQueue, Settle,
    SystemClock,
};
use dlq_kafka::{KafkaRetryQueue, KafkaSettle, KafkaSource, Ladder};

use crate::fixture::{TestTopic, available, handle, next, number};

/// Takes the next delivery and sends it to wait for so long.
async fn postpone(source: &mut KafkaSource, queue: &KafkaRetryQueue, wait: Duration) {
    let (delivery, settle) = next(source).await;
    send(queue, delivery, settle, wait).await;
}

/// Sends it to wait for so long.
pub(crate) async fn send(
    queue: &KafkaRetryQueue,
    delivery: Delivery,
    settle: KafkaSettle,
    wait: Duration,
) {
    let due = SystemClock.now().after(wait);
    let delayed_retry = DelayedRetry {
        delivery,
        consumer: "billing".into(),
        due,
        history: History::new(),
        attempts: 1,
    };
    queue.enqueue(delayed_retry).await.unwrap();
    let history = History::new();
    settle.settle(Disposition::DelayedRetry { due, history, attempts: 1 }).await.unwrap();
}

fn millis(nanos: i64) -> f64 {
    nanos as f64 / 1e6
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_records_of_several_stages_and_partitions_come_when_they_are_due() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("ladder", 3).await;
    let stages = [1_000, 1_500, 2_500].map(Duration::from_millis);
    let consumer = place.billing().ladder(Ladder::of(stages));
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let queue = consumer.retry_queue(&place.brokers).await.unwrap();
    let count = 60;
    place.publish(1..=count).await;
    let mut written = vec![None; count as usize + 1];
    let (mut sent, mut late) = (0, Vec::new());
    // Those of the first stage may be due before the last is sent.
    while late.len() < count as usize {
        let (delivery, settle) = next(&mut source).await;
        let (n, now) = (number(&delivery), SystemClock.now().as_nanos());
        if delivery.delivered_from() == DeliveredFrom::Main {
            let stage = stages[sent % 3];
            sent += 1;
            let due = now + i64::try_from(stage.as_nanos()).unwrap();
            assert_eq!(written[n as usize].replace(due), None, "{n} came twice");
            send(&queue, delivery, settle, stage).await;
            continue;
        }
        let due = written[n as usize].take().expect("it was sent to wait, and comes once");
        assert!(now >= due, "{n} came {} ms early", millis(due - now));
        late.push(now - due);
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    assert_eq!(sent, count as usize);
    late.sort_unstable();
    let at = |part: usize| millis(late[(late.len() - 1) * part / 100]);
    println!(
        "{count} records of 3 stages and 3 partitions: none early; late by {:.1} ms (half of them), {:.1} ms (99 %), {:.1} ms (all)",
        at(50),
        at(99),
        at(100)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_from_a_stage_says_from_which() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("stages", 1).await;
    let stages = [Duration::from_millis(100), Duration::from_millis(200)];
    let consumer = place.billing().ladder(Ladder::of(stages));
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let queue = consumer.retry_queue(&place.brokers).await.unwrap();
    place.publish([1]).await;
    let stage = |delay: &str| format!("{0}.{0}-billing.retry.{delay}", place.topic);
    let came_from = [place.topic.clone(), stage("100ms"), stage("200ms")];
    for (expected, wait) in came_from.iter().zip([stages[0], stages[1], stages[1]]) {
        let (delivery, settle) = next(&mut source).await;
        assert_eq!(delivery.previous(), expected);
        assert_eq!(delivery.message().subject(), place.topic);
        send(&queue, delivery, settle, wait).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_records_than_there_is_room_for_wait_at_the_broker() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("room", 2).await;
    let stage = Duration::from_secs(4);
    let consumer = place.billing().ladder(Ladder::of([stage])).max_waiting(20, 1 << 20).prefetch(4);
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let queue = consumer.retry_queue(&place.brokers).await.unwrap();
    place.publish(1..=200).await;
    let begun = SystemClock.now();
    let (mut sent, mut seen) = (0, Vec::new());
    while sent < 200 {
        let (delivery, settle) = next(&mut source).await;
        if delivery.delivered_from() == DeliveredFrom::Main {
            send(&queue, delivery, settle, stage).await;
            sent += 1;
        } else {
            seen.push(number(&delivery));
            settle.settle(Disposition::Succeeded).await.unwrap();
        }
    }
    place.publish([401]).await;
    let took = SystemClock.now().since(begun);
    let healthy = handle(&mut source).await;
    if healthy.delivered_from() == DeliveredFrom::Main {
        assert_eq!(number(&healthy), 401, "what waits holds nobody up");
    } else {
        assert!(took > stage / 2, "it waits for the others");
        seen.push(number(&healthy));
    }
    while seen.len() < 200 {
        let delivery = handle(&mut source).await;
        if delivery.delivered_from() == DeliveredFrom::Retry {
            seen.push(number(&delivery));
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=200).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_what_waits_longer_than_its_stage_holds_up_nothing_behind_it() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("head", 1).await;
    let stage = Duration::from_secs(2);
    let consumer = place.billing().ladder(Ladder::of([stage])).max_waiting(100, 1 << 20);
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let queue = consumer.retry_queue(&place.brokers).await.unwrap();
    // As many again as there is room for.
    let (long, count) = (Duration::from_secs(15 * 60), 200);
    place.publish(1..=count).await;
    for _ in 0..count {
        postpone(&mut source, &queue, long).await;
    }
    place.publish(1_001..=1_005).await;
    let mut due = Vec::new();
    while due.len() < 5 {
        let (delivery, settle) = next(&mut source).await;
        assert!(number(&delivery) > 1_000, "{} came early", number(&delivery));
        if delivery.delivered_from() == DeliveredFrom::Main {
            send(&queue, delivery, settle, stage).await;
        } else {
            due.push(number(&delivery));
            settle.settle(Disposition::Succeeded).await.unwrap();
        }
    }
    due.sort_unstable();
    assert_eq!(due, [1_001, 1_002, 1_003, 1_004, 1_005]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_into_its_stage_again_comes_once_and_counts_no_attempt() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("again", 1).await;
    let consumer = place.billing().ladder(Ladder::of([Duration::from_secs(1)]));
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let queue = consumer.retry_queue(&place.brokers).await.unwrap();
    place.publish_keyed(1, "key").await;
    let (born, settle) = next(&mut source).await;
    let wait = Duration::from_secs(12);
    let due = SystemClock.now().after(wait);
    let message = born.message().clone();
    let (origin, death) = (born.origin().clone(), born.death("billing"));
    send(&queue, born, settle, wait).await;
    let (delivery, settle) = next(&mut source).await;
    assert!(SystemClock.now() >= due, "it came early");
    assert_eq!(delivery.message(), &message);
    assert_eq!((delivery.origin(), delivery.death("billing")), (&origin, death));
    assert_eq!((delivery.attempt(), delivery.delayed_retries()), (2, 1));
    settle.settle(Disposition::Succeeded).await.unwrap();
    // What comes after it in its stage is the next that comes.
    place.publish([2]).await;
    postpone(&mut source, &queue, Duration::from_secs(1)).await;
    assert_eq!(number(&handle(&mut source).await), 2);
    let topic = format!("{}.{0}-billing.retry.1s", place.topic);
    assert!(place.end_of(&topic) >= 4, "it was written again twice at least");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_that_groups_share_hold_the_records_of_each() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("shared", 1).await;
    let ladder = Ladder::of([Duration::from_secs(1)]).names("{topic}.retry.{delay}");
    let of = |name: &str| place.consumer(name).ladder(ladder.clone());
    let mut billing = of("billing").source(&place.brokers).await.unwrap();
    let mut shipping = of("shipping").source(&place.brokers).await.unwrap();
    let queue = of("billing").retry_queue(&place.brokers).await.unwrap();
    place.publish([1]).await;
    postpone(&mut billing, &queue, Duration::from_secs(1)).await;
    assert_eq!(handle(&mut shipping).await.delivered_from(), DeliveredFrom::Main);
    assert_eq!(handle(&mut billing).await.delivered_from(), DeliveredFrom::Retry);
    place.publish([2]).await;
    assert_eq!(number(&handle(&mut shipping).await), 2, "it does not hear what is not its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_what_others_write_to_a_retry_topic_waits_and_runs() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("foreign", 1).await;
    let consumer = place.billing().ladder(Ladder::of([Duration::from_secs(2)]));
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let topic = format!("{}.{0}-billing.retry.2s", place.topic);
    let before = SystemClock.now();
    place.send(&topic, b"7", &[("retry.due", b"tomorrow"), ("retry.count", b"\xff\x00")]).await;
    place.send(&topic, b"8", &[("retry.due", b"2200-01-01T00:00:00Z")]).await;
    let delivery = handle(&mut source).await;
    assert_eq!(number(&delivery), 7);
    assert!(SystemClock.now().since(before) >= Duration::from_secs(2), "it has the stage's delay");
    assert_eq!(delivery.origin().stream(), topic);
    // The other waits for its day, and nobody waits for it.
    place.publish([9]).await;
    assert_eq!(number(&handle(&mut source).await), 9);
}
