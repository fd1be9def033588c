//! The retry queue. Every check is left out where the transport has none.

use std::time::Duration;

use dlq_core::{DeliveredFrom, RetryQueue, Settle};

use super::check::{CONSUMER, delayed_retry, number, numbered, put_off};
use super::{Check, TransportFixture};

const WAIT: Duration = Duration::from_secs(3);

/// A record comes when it is due, not before, and long before it would be missed.
pub async fn a_record_comes_when_it_is_due<F: TransportFixture>(check: Check<F>) {
    let Some(queue) = check.queue().await else { return };
    let mut source = check.source().await;
    let due = check.enqueue_one(&mut source, &queue, WAIT).await.due;
    let delivery = check.handle(&mut source).await;
    // Only a record that came too early has time left by now.
    let early = due.since(check.fixture.clock().now());
    assert!(early.is_zero(), "due in {WAIT:?}, came {early:?} before");
    assert_eq!(number(&delivery), 1);
    check.nothing_more(&mut source).await;
}

/// A record that waits does not hold up what comes after it (G4).
pub async fn a_record_does_not_block_others<F: TransportFixture>(check: Check<F>) {
    let Some(queue) = check.queue().await else { return };
    let mut source = check.source().await;
    // A machine so busy that publishing takes half of the wait is given more of it.
    for (record, wait) in [(1, WAIT), (3, WAIT * 5), (5, WAIT * 25)] {
        let due = check.enqueue(record, &mut source, &queue, wait).await.due;
        let healthy = record + 1;
        assert!(check.fixture.publish(numbered(healthy)).await);
        let left = due.since(check.fixture.clock().now());
        let first = number(&check.handle(&mut source).await);
        let second = number(&check.handle(&mut source).await);
        if first == healthy {
            assert_eq!(second, record);
            return;
        }
        assert_eq!((first, second), (record, healthy));
        assert!(left < wait / 2, "a healthy message waited for {left:?}");
    }
    panic!("publishing takes longer than a record waits");
}

/// Attempts, history, hops, origin and identity go on where they stood (G2, G3).
pub async fn a_record_continues_the_count<F: TransportFixture>(check: Check<F>) {
    let Some(queue) = check.queue().await else { return };
    let mut source = check.source().await;
    let delayed_retry = check.enqueue_one(&mut source, &queue, WAIT).await;
    let record = check.handle(&mut source).await;
    let original = &delayed_retry.delivery;
    assert_eq!(record.delivered_from(), DeliveredFrom::Retry);
    assert_eq!(record.attempt(), 2, "one attempt was made before");
    assert_eq!(record.history(), &delayed_retry.history);
    assert_eq!(record.delayed_retries(), 1);
    assert_eq!(record.origin(), original.origin(), "where it was born does not change");
    assert_eq!(record.message().published_at(), original.message().published_at());
    assert_eq!(record.death(CONSUMER), original.death(CONSUMER));
    assert_eq!(record.generation(), 0);
}

/// The producer's part of a record is untouched (G8).
pub async fn a_record_keeps_the_message<F: TransportFixture>(check: Check<F>) {
    let Some(queue) = check.queue().await else { return };
    let mut source = check.source().await;
    for (what, hostile) in crate::fixtures::hostile_messages() {
        let mut sent = dlq_core::Message::tombstone("orders.created")
            .with_payload(hostile.payload().cloned())
            .with_headers(hostile.headers().clone());
        if let Some(key) = hostile.key() {
            sent = sent.with_key(key.clone());
        }
        // The check of exact bytes says what the broker cannot carry.
        if !check.fixture.publish(sent).await {
            continue;
        }
        let (delivery, settle) = check.next(&mut source).await;
        let message = delivery.message().clone();
        let hop = delayed_retry(delivery, check.due_in(Duration::ZERO), 1);
        queue.enqueue(hop.clone()).await.expect("a retry record is taken");
        settle.settle(put_off(&hop)).await.expect("an acknowledgement is confirmed");
        let record = check.handle(&mut source).await;
        assert_eq!(record.message().payload(), message.payload(), "payload of {what}");
        assert_eq!(record.message().key(), message.key(), "key of {what}");
        assert_eq!(record.message().headers(), message.headers(), "headers of {what}");
    }
}

/// A second hop counts one more, and remembers everything of the first.
pub async fn a_second_hop_counts_on<F: TransportFixture>(check: Check<F>) {
    let Some(queue) = check.queue().await else { return };
    let mut source = check.source().await;
    let _ = check.enqueue_one(&mut source, &queue, WAIT).await;
    let (record, settle) = check.next(&mut source).await;
    let origin = record.origin().clone();
    let hop = delayed_retry(record, check.due_in(WAIT), 2);
    queue.enqueue(hop.clone()).await.expect("a retry record is taken");
    settle.settle(put_off(&hop)).await.expect("an acknowledgement is confirmed");
    let record = check.handle(&mut source).await;
    assert_eq!((record.delayed_retries(), record.attempt()), (2, 3));
    assert_eq!(record.history(), &hop.history);
    assert_eq!(record.origin(), &origin);
    check.nothing_more(&mut source).await;
}

/// Only the consumer that failed receives a record.
pub async fn a_record_is_heard_by_its_consumer_only<F: TransportFixture>(check: Check<F>) {
    let Some(queue) = check.queue().await else { return };
    let mut source = check.source().await;
    let mut other = check.fixture.source("shipping").await;
    let _ = check.enqueue_one(&mut source, &queue, WAIT).await;
    assert_eq!(
        check.handle(&mut other).await.delivered_from(),
        DeliveredFrom::Main,
        "the message itself"
    );
    // By the end of this the record is due, and a queue that tells everybody has told this consumer.
    check.nothing(&mut other, WAIT * 2).await;
    assert_eq!(check.handle(&mut source).await.delivered_from(), DeliveredFrom::Retry);
}

/// A record is durable when `enqueue` returns: it survives the process that wrote it (G1).
pub async fn a_record_survives_a_crash<F: TransportFixture>(check: Check<F>) {
    let Some(queue) = check.queue().await else { return };
    let mut source = check.source().await;
    let _ = check.enqueue_one(&mut source, &queue, WAIT).await;
    drop((source, queue));
    let mut source = check.source().await;
    let record = check.handle(&mut source).await;
    assert_eq!((record.delivered_from(), number(&record)), (DeliveredFrom::Retry, 1));
}

/// A record in flight when a process dies comes again.
pub async fn an_unsettled_record_comes_again<F: TransportFixture>(check: Check<F>) {
    let Some(queue) = check.queue().await else { return };
    let mut source = check.source().await;
    let _ = check.enqueue_one(&mut source, &queue, Duration::ZERO).await;
    let (record, settle) = check.next(&mut source).await;
    drop((settle, source));
    let mut source = check.source().await;
    let again = check.handle(&mut source).await;
    assert_eq!((again.delivered_from(), again.attempt()), (DeliveredFrom::Retry, record.attempt()));
    check.nothing_more(&mut source).await;
}

/// Writing the same hop twice makes one record: a process may die between writing and settling.
pub async fn a_hop_written_twice_is_one_record<F: TransportFixture>(check: Check<F>) {
    let Some(queue) = check.queue().await else { return };
    let mut source = check.source().await;
    let hop = check.enqueue_one(&mut source, &queue, WAIT).await;
    queue.enqueue(hop).await.expect("writing it again is fine");
    let _ = check.handle(&mut source).await;
    // By the end of this a second record would be due.
    check.nothing(&mut source, WAIT).await;
    check.nothing_more(&mut source).await;
}

/// A hop that another process writes again after another attempt leaves a single record (G3).
pub async fn a_hop_tried_again_is_one_record<F: TransportFixture>(check: Check<F>) {
    let Some(queue) = check.queue().await else { return };
    check.publish(1).await;
    let mut source = check.source().await;
    let (delivery, settle) = check.next(&mut source).await;
    let hop = delayed_retry(delivery, check.due_in(WAIT), 1);
    queue.enqueue(hop).await.expect("a retry record is taken");
    // The process dies before it settles, so that the original comes again.
    drop((settle, source));
    let mut source = check.source().await;
    let mut queues = Vec::new();
    for _ in 0..2 {
        let (delivery, settle) = check.next(&mut source).await;
        queues.push(delivery.delivered_from());
        if delivery.delivered_from() == DeliveredFrom::Main {
            let hop = delayed_retry(delivery, check.due_in(WAIT), 1);
            queue.enqueue(hop.clone()).await.expect("a retry record is taken");
            settle.settle(put_off(&hop)).await.expect("an acknowledgement is confirmed");
        } else {
            let done = settle.settle(dlq_core::Disposition::Succeeded).await;
            done.expect("an acknowledgement is confirmed");
        }
    }
    assert!(
        queues.contains(&DeliveredFrom::Main) && queues.contains(&DeliveredFrom::Retry),
        "{queues:?}"
    );
    check.nothing(&mut source, WAIT).await;
    check.nothing_more(&mut source).await;
}

/// A record that waits is still there after the broker was restarted (G1).
pub async fn a_record_survives_a_restart_of_the_broker<F: TransportFixture>(check: Check<F>) {
    let Some(queue) = check.queue().await else { return };
    let mut source = check.source().await;
    let hop = check.enqueue_one(&mut source, &queue, WAIT).await;
    if !check.fixture.restart().await {
        return check.left_out("the broker cannot be restarted here");
    }
    drop((source, queue));
    let mut source = check.source().await;
    let record = check.handle(&mut source).await;
    assert_eq!((record.delivered_from(), record.history()), (DeliveredFrom::Retry, &hop.history));
    check.nothing_more(&mut source).await;
}
