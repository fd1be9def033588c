//! Counts, statistics and groups: exact, also after letters have changed.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::store::{Hours, Mark, Stats};
use dlq_core::{Filter, Fingerprint, Order, Status};

use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::{died_again, failed, letter, varied};

async fn recount<F: StoreFixture>(check: &Check<F>) -> Stats {
    // The letters are counted anew from the list, which shows whether counts that a store keeps have drifted.
    let mut stats = Stats::default();
    let listed = check.list(&Filter::new(), Order::OldestFirst, 100).await;
    listed.iter().for_each(|letter| stats.add(letter));
    let found = check.store.stats(Filter::new()).await.expect("stats answers");
    assert_eq!(found, stats);
    found
}

/// An empty store has empty statistics.
pub async fn nothing_is_counted_in_an_empty_store<F: StoreFixture>(check: Check<F>) {
    assert_eq!(recount(&check).await, Stats::default());
    let groups = check.store.groups(Filter::new(), 10).await.expect("groups answers");
    assert!(groups.is_empty());
}

/// Statistics count by every dimension, and leave resolved letters out where they say so.
pub async fn statistics_count_by_every_dimension<F: StoreFixture>(check: Check<F>) {
    check.put((0..30).map(varied).collect()).await;
    check.mark(varied(0).id, Mark::Resolved).await;
    let stats = recount(&check).await;
    assert_eq!((stats.total, stats.with_status(Status::Resolved)), (30, 1));
    assert_eq!(stats.by_subject.values().sum::<u64>(), 29);
    assert_eq!(stats.by_consumer.len(), 3);
}

/// Counts follow every change of a letter.
pub async fn counts_follow_every_change<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(6).await;
    recount(&check).await;
    check.replay().await;
    let claims = check.claim(4).await;
    let stats = recount(&check).await;
    assert_eq!(stats.with_status(Status::Replaying), 4);
    check.succeed(&claims[0]).await;
    check.die(&claims[1]).await;
    recount(&check).await;
    check.outlast_leases().await;
    recount(&check).await;
    check.put_one(&died_again(&died_again(&letters[5]))).await;
    recount(&check).await;
    check.mark(letters[4].id, Mark::Quarantined).await;
    let stats = recount(&check).await;
    assert_eq!(stats.with_status(Status::Quarantined), 1);
    check.mark(letters[4].id, Mark::Pending).await;
    check.delete(letters[5].id).await;
    assert_eq!(recount(&check).await.total, 5);
}

/// Oldest and newest follow when the oldest goes.
pub async fn the_oldest_is_the_oldest_that_is_left<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    let before = recount(&check).await;
    check.mark(letters[0].id, Mark::Resolved).await;
    let after = recount(&check).await;
    assert_eq!(after.oldest, before.oldest);
    assert!(after.oldest_unresolved > before.oldest_unresolved);
    check.delete(letters[0].id).await;
    assert!(recount(&check).await.oldest > before.oldest);
}

/// Letters are counted by the hour in which they were stored, and by that in which they were resolved.
pub async fn letters_are_counted_by_hour<F: StoreFixture>(check: Check<F>) {
    const HOURS: u32 = 5;
    for n in 0..12 {
        check.put_one(&varied(n)).await;
        if check.controls_time() {
            check.pass(Duration::from_secs(25 * 60)).await;
        }
    }
    for n in [0, 7] {
        check.mark(varied(n).id, Mark::Resolved).await;
        check.pass(Duration::from_millis(2)).await;
    }
    let since = Hours::ending_at(check.now(), HOURS);
    let listed = check.list(&Filter::new(), Order::OldestFirst, 100).await;
    assert_eq!(listed.len(), 12);
    let consumer = listed[7].consumer.clone();
    let filters = [
        Filter::new(),
        Filter::new().with_status(Status::Resolved),
        Filter::new().with_status(Status::Pending),
        Filter::new().with_consumer(consumer.clone()),
        Filter::new().since(listed[3].state.created_at),
    ];
    for filter in filters {
        let mut expected = Hours::new(since, HOURS);
        let listed = check.list(&filter, Order::OldestFirst, 100).await;
        listed.iter().for_each(|letter| expected.add(&letter.state));
        let found = check.store.hours(filter.clone(), since, HOURS).await.expect("hours answers");
        assert_eq!(found, expected, "{filter:?}");
    }
    let all = check.store.hours(Filter::new(), since, HOURS).await.expect("hours answers");
    let (stored, resolved): (u64, u64) = (all.stored.iter().sum(), all.resolved.iter().sum());
    let is_known = check.controls_time();
    assert!(resolved == 2 && (stored == 12 || is_known && stored < 12), "{all:?}");
}

/// A count is never capped by a page.
pub async fn a_count_is_never_capped<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(2_500).await;
    assert_eq!(check.count(Filter::new()).await, 2_500);
    let filter = Filter::new().with_subject("orders.*".parse().expect("it is a pattern"));
    assert_eq!(check.count(filter).await, 2_500);
}

/// Letters that failed alike in one consumer are a group; the largest comes first.
pub async fn groups_gather_what_failed_alike<F: StoreFixture>(check: Check<F>) {
    let errors = ["disk full", "no route", "disk full", "time out", "disk full", "time out"];
    let mut sizes: BTreeMap<Fingerprint, u64> = BTreeMap::new();
    for (n, error) in errors.into_iter().enumerate() {
        let letter = failed(letter(n as u64), error);
        *sizes.entry(letter.fingerprint).or_default() += 1;
        check.put_one(&letter).await;
        check.tick().await;
    }
    let groups = check.store.groups(Filter::new(), 10).await.expect("groups answers");
    assert_eq!(groups.iter().map(|group| group.count).collect::<Vec<_>>(), [3, 2, 1]);
    for group in &groups {
        assert_eq!(sizes[&group.fingerprint], group.count);
    }
    let largest = &groups[0];
    assert_eq!(largest.sample.id, letter(4).id, "the latest letter is the sample");
    assert_eq!(largest.sample, check.get(letter(4).id).await.summary());
    assert_eq!(largest.first_seen, check.state(letter(0).id).await.created_at);
    assert_eq!(largest.last_seen, check.state(letter(4).id).await.created_at);
}

/// Groups of one size are ordered by fingerprint, then consumer, and cut at the limit.
pub async fn groups_have_a_total_order<F: StoreFixture>(check: Check<F>) {
    check.put((0..24).map(varied).collect()).await;
    let groups = check.store.groups(Filter::new(), 100).await.expect("groups answers");
    let places: Vec<_> = groups
        .iter()
        .map(|group| (std::cmp::Reverse(group.count), group.fingerprint, group.consumer.clone()))
        .collect();
    assert!(places.is_sorted() && places.len() > 3);
    for limit in [0, 1, 3] {
        let cut = check.store.groups(Filter::new(), limit).await.expect("groups answers");
        assert_eq!(cut, groups[..limit as usize]);
    }
}
