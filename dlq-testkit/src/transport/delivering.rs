//! Messages come out as they went in.

use std::time::Duration;

use dlq_core::{DeliveredFrom, Ordering, Source};
use tokio::time::{Instant, timeout};

use super::check::{CONSUMER, number};
use super::{Check, TransportFixture};
use crate::fixtures::hostile_messages;

/// Every message is handed out, once while nobody dies.
pub async fn every_message_is_delivered<F: TransportFixture>(check: Check<F>) {
    check.publish(50).await;
    let mut source = check.source().await;
    let mut seen = Vec::new();
    for _ in 0..50 {
        seen.push(number(&check.handle(&mut source).await));
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=50).collect::<Vec<_>>());
    check.nothing(&mut source, Duration::from_secs(1)).await;
}

/// A message that is published while somebody waits for one is handed out.
pub async fn a_waiting_source_hears_of_a_message<F: TransportFixture>(check: Check<F>) {
    let mut source = check.source().await;
    check.nothing(&mut source, Duration::from_millis(200)).await;
    let (delivery, ()) = tokio::join!(check.handle(&mut source), check.publish(1));
    assert_eq!(number(&delivery), 1);
}

/// Payload, key and headers come back byte for byte, whatever they are (G8).
pub async fn bytes_are_exact<F: TransportFixture>(check: Check<F>) {
    let mut source = check.source().await;
    for (what, hostile) in hostile_messages() {
        let mut sent = dlq_core::Message::tombstone("orders.created")
            .with_payload(hostile.payload().cloned())
            .with_headers(hostile.headers().clone());
        if let Some(key) = hostile.key() {
            sent = sent.with_key(key.clone());
        }
        if !check.fixture.publish(sent.clone()).await {
            check.left_out(&format!("the broker cannot carry {what}"));
            continue;
        }
        let delivery = check.handle(&mut source).await;
        let got = delivery.message();
        assert_eq!(got.payload(), sent.payload(), "payload of {what}");
        assert_eq!(got.key(), sent.key(), "key of {what}");
        assert_eq!(got.headers(), sent.headers(), "headers of {what}");
    }
}

/// A first delivery says that it is one, and where the message stood.
pub async fn a_first_delivery_is_plain<F: TransportFixture>(check: Check<F>) {
    check.publish(2).await;
    let mut source = check.source().await;
    let first = check.handle(&mut source).await;
    let second = check.handle(&mut source).await;
    assert_eq!(
        (first.delivered_from(), first.attempt(), first.deliveries()),
        (DeliveredFrom::Main, 1, 1)
    );
    assert_eq!((first.delayed_retries(), first.generation(), first.replays()), (0, 0, 0));
    assert!(first.history().is_empty());
    assert_ne!(first.origin(), second.origin(), "each message stands at a place of its own");
    assert_ne!(first.death(CONSUMER), second.death(CONSUMER));
}

/// A message that comes again has the same identity, so that its death is written once (G2).
pub async fn identity_survives_redelivery<F: TransportFixture>(check: Check<F>) {
    check.publish(1).await;
    let mut source = check.source().await;
    let (first, settle) = check.next(&mut source).await;
    // For a broker this is the death of a process.
    drop((settle, source));
    let mut source = check.source().await;
    let again = check.handle(&mut source).await;
    assert_eq!(again.death(CONSUMER), first.death(CONSUMER));
    assert_eq!(again.message(), first.message());
}

/// Dropping the future of `next` in the middle loses nothing.
pub async fn dropping_next_loses_nothing<F: TransportFixture>(check: Check<F>) {
    let mut source = check.source().await;
    let start = Instant::now();
    let mut seen = Vec::new();
    for round in 1..=30_u32 {
        let message = super::check::numbered(round);
        assert!(check.fixture.publish(message).await, "a plain message is accepted");
        // Polled a few times and dropped, at moments that differ from round to round.
        let moment = Duration::from_micros(u64::from(round % 5) * 300);
        if let Ok(next) = timeout(moment, source.next()).await {
            let (delivery, settle) = next.expect("the source answers").expect("it has not ended");
            seen.push(number(&delivery));
            let settled = dlq_core::Settle::settle(settle, dlq_core::Disposition::Succeeded).await;
            settled.expect("an acknowledgement is confirmed");
        }
    }
    while seen.len() < 30 {
        seen.push(number(&check.handle(&mut source).await));
    }
    // A source that loses what it took when it was dropped is late: the message comes when its lease has ended.
    let took = start.elapsed();
    assert!(
        took < check.fixture.lease() / 2,
        "a message was out of reach until its lease ended: {took:?}"
    );
    seen.sort_unstable();
    assert_eq!(seen, (1..=30).collect::<Vec<_>>());
}

/// Messages of one key come in the order in which they were published, where the transport declares an order (G5).
pub async fn order_is_as_declared<F: TransportFixture>(check: Check<F>) {
    let mut source = check.source().await;
    if source.capabilities().ordering == Ordering::None {
        return check.left_out("the transport declares no order");
    }
    check.publish(40).await;
    for expected in 1..=40 {
        assert_eq!(number(&check.handle(&mut source).await), expected);
    }
}

/// Messages come again after a crash in the order in which they were published (G5).
pub async fn order_survives_a_crash<F: TransportFixture>(check: Check<F>) {
    let mut source = check.source().await;
    if source.capabilities().ordering == Ordering::None {
        return check.left_out("the transport declares no order");
    }
    check.publish(5).await;
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(check.next(&mut source).await);
    }
    drop((held, source));
    let mut source = check.source().await;
    for expected in 1..=5 {
        assert_eq!(number(&check.handle(&mut source).await), expected);
    }
}
