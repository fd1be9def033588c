//! Orderly ends.

use dlq_core::{Disposition, Settle, Source};

use super::check::{number, timed};
use super::{Check, TransportFixture};

/// Fetched messages that were not yielded are given back, so that others need not wait for the lease to end.
pub async fn closing_gives_back<F: TransportFixture>(check: Check<F>) {
    // One of six is handled: a source that fetches ahead holds the others when it is closed.
    check.publish(6).await;
    let mut source = check.source().await;
    let first = number(&check.handle(&mut source).await);
    source.close().await;
    let mut other = check.source().await;
    let (mut seen, took) = timed(async {
        let mut seen = vec![first];
        for _ in 0..5 {
            seen.push(number(&check.handle(&mut other).await));
        }
        seen
    })
    .await;
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
    // A source that keeps what it has fetched passes the line above as well, once the leases have ended.
    assert!(took < check.fixture.lease() / 2, "had to wait {took:?} for what was given back");
}

/// A closed source yields nothing more, and says so; closing it again is fine.
pub async fn a_closed_source_has_ended<F: TransportFixture>(check: Check<F>) {
    check.publish(2).await;
    let mut source = check.source().await;
    let _ = check.handle(&mut source).await;
    source.close().await;
    source.close().await;
    let next = source.next().await;
    let next = next.map(|next| next.map(|(delivery, _)| delivery));
    assert!(matches!(next, Ok(None) | Err(_)), "a closed source yielded {next:?}");
}

/// A source may be closed before it was ever used.
pub async fn an_unused_source_can_be_closed<F: TransportFixture>(check: Check<F>) {
    check.publish(1).await;
    let mut source = check.source().await;
    source.close().await;
    let mut other = check.source().await;
    assert_eq!(number(&check.handle(&mut other).await), 1);
}

/// Yielded messages can still be settled after closing: that is how a consumer drains.
pub async fn what_was_yielded_can_be_settled_after_closing<F: TransportFixture>(check: Check<F>) {
    check.publish(1).await;
    let mut source = check.source().await;
    let (_, settle) = check.next(&mut source).await;
    source.close().await;
    settle.settle(Disposition::Succeeded).await.expect("an acknowledgement is confirmed");
    drop(source);
    let mut source = check.source().await;
    check.nothing_more(&mut source).await;
}
