//! Ends of deliveries, and what happens without one.

use std::time::Duration;

use dlq_core::{Disposition, Settle, Source};

use super::check::{number, timed};
use super::{Check, TransportFixture};

/// A settled message does not come again, also not to a process that starts later.
pub async fn what_is_settled_does_not_come_again<F: TransportFixture>(check: Check<F>) {
    check.publish(5).await;
    let mut source = check.source().await;
    for _ in 0..5 {
        let _ = check.handle(&mut source).await;
    }
    check.nothing_more(&mut source).await;
    drop(source);
    let mut source = check.source().await;
    check.nothing_more(&mut source).await;
}

/// Every way of being done with a message ends it.
pub async fn every_end_is_an_end<F: TransportFixture>(check: Check<F>) {
    check.publish(3).await;
    let mut source = check.source().await;
    let letter = crate::fixtures::letter(1);
    let ends = [
        Disposition::Duplicate,
        Disposition::Dead(Box::new(letter)),
        Disposition::DelayedRetry {
            due: check.due_in(Duration::ZERO),
            history: dlq_core::History::new(),
            attempts: 1,
        },
    ];
    for end in ends {
        let (_, settle) = check.next(&mut source).await;
        settle.settle(end).await.expect("the end is confirmed");
    }
    check.nothing_more(&mut source).await;
}

/// A message that was in flight when a process died comes again, and is counted if the transport counts (G1).
pub async fn what_is_not_settled_comes_again<F: TransportFixture>(check: Check<F>) {
    check.publish(3).await;
    let mut source = check.source().await;
    let counts = source.capabilities().counts_deliveries;
    let first = check.handle(&mut source).await;
    let (second, settle) = check.next(&mut source).await;
    drop((settle, source));
    let mut source = check.source().await;
    let mut again = Vec::new();
    for _ in 0..2 {
        let delivery = check.handle(&mut source).await;
        assert_ne!(number(&delivery), number(&first), "what was settled does not come again");
        // The third may have been fetched and never yielded, so its count may be any.
        if counts && number(&delivery) == number(&second) {
            assert_eq!(delivery.deliveries(), 2, "the second delivery says so");
        }
        again.push(number(&delivery));
    }
    again.sort_unstable();
    assert_eq!(again, [2, 3]);
}

/// A delivery that is dropped comes again to the same process.
pub async fn a_dropped_delivery_comes_again<F: TransportFixture>(check: Check<F>) {
    check.publish(1).await;
    let mut source = check.source().await;
    if source.capabilities().ordering == dlq_core::Ordering::Partition {
        return check.left_out("a partition gives back what is unsettled when it changes hands");
    }
    drop(check.next(&mut source).await);
    assert_eq!(number(&check.handle(&mut source).await), 1);
}

/// A deferred message comes again, not before the time that was asked for (G10).
pub async fn a_deferred_message_comes_later<F: TransportFixture>(check: Check<F>) {
    let mut source = check.source().await;
    if !source.capabilities().delayed_release {
        return check.left_out("the transport cannot release with a delay");
    }
    check.publish(1).await;
    let wait = Duration::from_secs(3);
    let (_, settle) = check.next(&mut source).await;
    let (delivery, took) = timed(async {
        settle.settle(Disposition::Deferred { after: wait }).await.expect("a release is confirmed");
        check.handle(&mut source).await
    })
    .await;
    assert!(took >= wait, "asked for {wait:?}, came after {took:?}");
    assert_eq!(delivery.attempt(), 1, "being deferred is not an attempt");
    check.nothing_more(&mut source).await;
}

/// A message that is deferred without a delay comes again at once: nothing is waited for.
pub async fn deferring_without_delay_is_quick<F: TransportFixture>(check: Check<F>) {
    check.publish(1).await;
    let mut source = check.source().await;
    let (_, settle) = check.next(&mut source).await;
    let (_, took) = timed(async {
        let now = Disposition::Deferred { after: Duration::ZERO };
        settle.settle(now).await.expect("a release is confirmed");
        check.handle(&mut source).await
    })
    .await;
    // A message that was only dropped would come when its lease has ended.
    assert!(took < check.fixture.lease() / 2, "came after {took:?}");
}

/// A deferred message is with the broker: it survives the process that deferred it (G1).
pub async fn a_deferred_message_survives_a_crash<F: TransportFixture>(check: Check<F>) {
    check.publish(1).await;
    let mut source = check.source().await;
    let (_, settle) = check.next(&mut source).await;
    let soon = Disposition::Deferred { after: Duration::from_secs(2) };
    settle.settle(soon).await.expect("a release is confirmed");
    drop(source);
    let mut source = check.source().await;
    assert_eq!(number(&check.handle(&mut source).await), 1);
}

/// Extending keeps the lease for longer than it would last.
pub async fn extending_keeps_the_lease<F: TransportFixture>(check: Check<F>) {
    check.publish(1).await;
    let mut source = check.source().await;
    let (_, mut settle) = check.next(&mut source).await;
    let Some(lease) = settle.lease() else {
        return check.left_out("the transport has no leases");
    };
    let mut other = check.source().await;
    // Nine sixths of a lease pass: without the extensions the other source would get the message.
    for _ in 0..9 {
        check.nothing(&mut other, lease / 6).await;
        settle.extend().await.expect("a lease that has not ended can be extended");
    }
    settle.settle(Disposition::Succeeded).await.expect("an acknowledgement is confirmed");
    check.nothing_more(&mut other).await;
}

/// A late settlement by a former owner is refused or does no harm.
pub async fn a_late_word_does_no_harm<F: TransportFixture>(check: Check<F>) {
    check.publish(1).await;
    let mut source = check.source().await;
    let (_, mut settle) = check.next(&mut source).await;
    if settle.lease().is_none() {
        return check.left_out("the transport has no leases");
    }
    let mut other = check.source().await;
    let (again, new_settle) = check.next(&mut other).await;
    assert_eq!(number(&again), 1, "the lease ended and another has it");
    // Both answers are fine; what counts is what the broker does.
    let _ = settle.extend().await;
    let _ = settle.settle(Disposition::Succeeded).await;
    let _ = new_settle.settle(Disposition::Succeeded).await;
    check.nothing_more(&mut other).await;
    check.nothing_more(&mut source).await;
}

/// A late deferral does not take the message away from whoever has it now: nothing is lost.
pub async fn a_late_deferral_loses_nothing<F: TransportFixture>(check: Check<F>) {
    check.publish(1).await;
    let mut source = check.source().await;
    let (_, settle) = check.next(&mut source).await;
    if settle.lease().is_none() {
        return check.left_out("the transport has no leases");
    }
    let mut other = check.source().await;
    let (_, held) = check.next(&mut other).await;
    let _ = settle.settle(Disposition::Deferred { after: Duration::ZERO }).await;
    // Both processes die: whatever the late deferral did, the broker must still have the message.
    drop((held, other, source));
    let mut source = check.source().await;
    assert_eq!(number(&check.handle(&mut source).await), 1);
}

/// Published, settled and deferred messages stay so after a restart of the broker (G1).
pub async fn a_restart_of_the_broker_loses_nothing<F: TransportFixture>(check: Check<F>) {
    check.publish(4).await;
    let mut source = check.source().await;
    let settled = number(&check.handle(&mut source).await);
    let (_, settle) = check.next(&mut source).await;
    let soon = Disposition::Deferred { after: Duration::from_secs(1) };
    settle.settle(soon).await.expect("a release is confirmed");
    let held = check.next(&mut source).await;
    if !check.fixture.restart().await {
        return check.left_out("the broker cannot be restarted here");
    }
    drop((held, source));
    let mut source = check.source().await;
    let mut seen = vec![settled];
    for _ in 0..3 {
        seen.push(number(&check.handle(&mut source).await));
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4]);
    check.nothing_more(&mut source).await;
}
