//! Distribution of messages over consumers.

use std::time::Duration;

use dlq_core::{Disposition, Settle};

use super::check::number;
use super::{Check, TransportFixture};

/// Every consumer gets every message.
pub async fn each_consumer_gets_every_message<F: TransportFixture>(check: Check<F>) {
    check.publish(10).await;
    for consumer in ["billing", "shipping"] {
        let mut source = check.fixture.source(consumer).await;
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.push(number(&check.handle(&mut source).await));
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=10).collect::<Vec<_>>(), "{consumer}");
    }
}

/// A message that one consumer has settled is still there for the other.
pub async fn consumers_do_not_settle_for_each_other<F: TransportFixture>(check: Check<F>) {
    check.publish(1).await;
    let mut billing = check.fixture.source("billing").await;
    let mut shipping = check.fixture.source("shipping").await;
    let (left, settle) = check.next(&mut shipping).await;
    assert_eq!(number(&check.handle(&mut billing).await), 1);
    // It is given back only now: a broker that has one settlement for all consumers has forgotten it.
    settle.settle(Disposition::Deferred { after: Duration::ZERO }).await.expect("it is confirmed");
    assert_eq!(number(&left), number(&check.handle(&mut shipping).await));
    check.nothing_more(&mut billing).await;
}

/// Two processes of one consumer share its messages: each message goes to one of them.
pub async fn processes_of_one_consumer_share<F: TransportFixture>(check: Check<F>) {
    check.publish(20).await;
    let (mut one, mut two) = (check.source().await, check.source().await);
    let mut seen = Vec::new();
    while seen.len() < 20 {
        // The one that comes second is dropped, which must lose nothing.
        let (delivery, settle) = tokio::select! {
            next = check.next(&mut one) => next,
            next = check.next(&mut two) => next,
        };
        settle.settle(Disposition::Succeeded).await.expect("it is confirmed");
        seen.push(number(&delivery));
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=20).collect::<Vec<_>>());
    let moment = Duration::from_secs(2);
    tokio::join!(check.nothing(&mut one, moment), check.nothing(&mut two, moment));
}

/// When one process of a consumer dies, another gets what it had.
pub async fn a_process_inherits_from_a_dead_one<F: TransportFixture>(check: Check<F>) {
    check.publish(4).await;
    let mut dying = check.source().await;
    let first = check.next(&mut dying).await;
    let mut heir = check.source().await;
    drop((first, dying));
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(number(&check.handle(&mut heir).await));
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4]);
}
