//! Listing: a total, stable order and pages that neither lose nor repeat a letter.

use std::collections::BTreeSet;

use dlq_core::{Cursor, Filter, LetterId, Order, PageRequest};

use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::{delayed_retry, letter};

fn ids(letters: &[dlq_core::DeadLetter]) -> Vec<LetterId> {
    letters.iter().map(|letter| letter.id).collect()
}

/// Letters are listed latest first unless asked otherwise.
pub async fn the_newest_comes_first<F: StoreFixture>(check: Check<F>) {
    let mut buried = ids(&check.bury(5).await);
    buried.reverse();
    let page = check.store.list(Filter::new(), PageRequest::new()).await.expect("list answers");
    let listed: Vec<_> = page.letters.iter().map(|letter| letter.id).collect();
    assert_eq!(listed, buried);
    assert_eq!(page.next, None);
}

/// Oldest first is the same list the other way round.
pub async fn both_orders_are_the_same_list<F: StoreFixture>(check: Check<F>) {
    let buried = ids(&check.bury(7).await);
    assert_eq!(check.ids(&Filter::new(), Order::OldestFirst).await, buried);
    let mut newest = check.ids(&Filter::new(), Order::NewestFirst).await;
    newest.reverse();
    assert_eq!(newest, buried);
}

/// Letters stored at the same time have an order too: by id.
pub async fn equal_times_are_ordered_by_id<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(100).await;
    let listed = check.list(&Filter::new(), Order::OldestFirst, 7).await;
    let places: Vec<_> = listed.iter().map(|letter| (letter.state.created_at, letter.id)).collect();
    assert!(places.is_sorted(), "by time, then by id");
    assert_eq!(places.iter().collect::<BTreeSet<_>>().len(), 100);
    if check.controls_time() {
        assert_eq!(places[0].0, places[99].0, "one batch, one time");
    }
}

/// Pages of every length show every letter once.
pub async fn pages_cover_every_letter_once<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(20).await;
    check.tick().await;
    check.put((20..41).map(letter).collect()).await;
    for order in [Order::NewestFirst, Order::OldestFirst] {
        let whole = check.list(&Filter::new(), order, 1_000).await;
        assert_eq!(whole.len(), 41);
        // Some of these end a page in the middle of one batch, some at its end, and some after all letters.
        for limit in [1, 2, 5, 20, 40, 41, 42] {
            assert_eq!(check.list(&Filter::new(), order, limit).await, whole, "{order:?} {limit}");
        }
    }
}

/// A page says that it is the last exactly when it is.
pub async fn the_last_page_says_so<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(4).await;
    for (limit, more) in [(3, true), (4, false), (5, false)] {
        let request = PageRequest::new().limit(limit);
        let page = check.store.list(Filter::new(), request).await.expect("list answers");
        assert_eq!(page.next.is_some(), more, "limit {limit}");
    }
}

/// A page of no letters is read as one of one letter, so that walking on ends.
pub async fn a_limit_of_zero_is_one<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(2).await;
    let request = PageRequest::new().limit(0);
    let page = check.store.list(Filter::new(), request).await.expect("list answers");
    assert_eq!(page.letters.len(), 1);
    assert!(page.next.is_some());
}

/// The largest limit is no problem.
pub async fn a_huge_limit_is_fine<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(3).await;
    let request = PageRequest::new().limit(u32::MAX);
    let page = check.store.list(Filter::new(), request).await.expect("list answers");
    assert_eq!((page.letters.len(), page.next), (3, None));
}

/// An empty store has one empty page.
pub async fn an_empty_store_lists_nothing<F: StoreFixture>(check: Check<F>) {
    assert!(check.ids(&Filter::new(), Order::NewestFirst).await.is_empty());
}

/// A filter thins the list, not the pages: each is full until the last.
pub async fn a_filtered_page_is_full<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury_at_once(60).await;
    let mut filter = Filter::new();
    filter.ids = letters.iter().step_by(6).map(|letter| letter.id).collect();
    assert_eq!(check.list(&filter, Order::NewestFirst, 3).await.len(), 10);
}

/// Letters that arrive while somebody walks the pages do not push others out or in twice.
pub async fn walking_is_not_disturbed_by_new_letters<F: StoreFixture>(check: Check<F>) {
    let buried: BTreeSet<_> = ids(&check.bury_at_once(30).await).into_iter().collect();
    for order in [Order::NewestFirst, Order::OldestFirst] {
        let mut seen = Vec::new();
        let mut request = PageRequest::new().limit(4).order(order);
        let mut n = 1_000 * (1 + order as u64);
        while let Some(next) = {
            let page = check.store.list(Filter::new(), request).await.expect("list answers");
            seen.extend(page.letters.iter().map(|letter| letter.id));
            page.next
        } {
            // Letters come in for some pages only, so that the walk ends.
            if n % 1_000 < 15 {
                check.tick().await;
                check.put_one(&letter(n)).await;
                n += 1;
            }
            request = request.after(Some(next));
        }
        let distinct: BTreeSet<_> = seen.iter().copied().collect();
        assert_eq!(distinct.len(), seen.len(), "{order:?}: no letter twice");
        assert!(distinct.is_superset(&buried), "{order:?}: no letter lost");
    }
}

/// A retry record that dies while somebody walks the pages moves to the newest letters. A walk comes by it all the same, in
/// either order and whatever the length of its pages.
pub async fn a_record_that_dies_is_not_missed<F: StoreFixture>(check: Check<F>) {
    let mut base = 0;
    for order in [Order::OldestFirst, Order::NewestFirst] {
        for limit in [1, 2, 5] {
            let numbers = base..base + 12;
            for n in numbers.clone() {
                check.enqueue(delayed_retry(&letter(n), 1, check.now())).await;
                check.tick().await;
            }
            let mut filter = Filter::new();
            filter.ids = numbers.clone().map(|n| letter(n).id).collect();
            let (mut seen, mut pages) = (BTreeSet::new(), 0);
            let mut request = PageRequest::new().limit(limit).order(order);
            loop {
                let page = check.store.list(filter.clone(), request).await.expect("list answers");
                assert!(page.letters.len() <= limit as usize, "a page is no longer than asked for");
                assert!(page.next.is_none() || page.letters.len() == limit as usize, "it is full");
                seen.extend(page.letters.iter().map(|letter| letter.id));
                let Some(next) = page.next else { break };
                // One that was passed and one that was not, while there are any.
                for n in [base + pages, (base + 11).saturating_sub(pages)] {
                    if numbers.contains(&n) {
                        check.tick().await;
                        check.put_one(&letter(n)).await;
                    }
                }
                pages += 1;
                assert!(pages < 100, "the walk does not end");
                // As a program does that goes on later.
                let next = next.to_string().parse().expect("a cursor can be read");
                request = request.after(Some(next));
            }
            let missed = filter.ids.iter().filter(|id| !seen.contains(id)).count();
            assert_eq!(missed, 0, "of 12 letters, {order:?} in pages of {limit}");
            base += 12;
        }
    }
}

/// A walk from the newest shows at its end what came meanwhile, once, and its first page is the newest there is.
pub async fn a_walk_from_the_newest_ends_with_what_came_meanwhile<F: StoreFixture>(
    check: Check<F>,
) {
    let mut buried = ids(&check.bury(4).await);
    let page = PageRequest::new().limit(2);
    let first = check.store.list(Filter::new(), page).await.expect("list answers");
    let later: Vec<_> = (4..9).map(letter).collect();
    for letter in &later {
        check.tick().await;
        check.put_one(letter).await;
    }
    let mut walked: Vec<_> = first.letters.iter().map(|letter| letter.id).collect();
    let mut next = first.next;
    while next.is_some() {
        let page = check.store.list(Filter::new(), page.after(next)).await;
        let page = page.expect("list answers");
        walked.extend(page.letters.iter().map(|letter| letter.id));
        next = page.next;
    }
    buried.reverse();
    buried.extend(ids(&later));
    assert_eq!(walked, buried);
}

/// A cursor stays good when the letter it points at is deleted.
pub async fn a_cursor_outlives_its_letter<F: StoreFixture>(check: Check<F>) {
    let buried = ids(&check.bury(10).await);
    for order in [Order::OldestFirst, Order::NewestFirst] {
        let request = PageRequest::new().limit(3).order(order);
        let page = check.store.list(Filter::new(), request).await.expect("list answers");
        let last = page.letters[2].id;
        assert_eq!(check.delete(last).await.changed, 1);
        let request = request.after(page.next).limit(100);
        let rest = check.store.list(Filter::new(), request).await.expect("list answers");
        let mut expected = check.ids(&Filter::new(), order).await;
        // The third of the first page is gone, so that two are left of it.
        expected.drain(..2);
        assert_eq!(rest.letters.iter().map(|letter| letter.id).collect::<Vec<_>>(), expected);
        assert!(buried.contains(&last));
    }
}

/// A cursor beyond every letter ends the list.
pub async fn a_cursor_past_the_end_lists_nothing<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(3).await;
    let id = LetterId::from_bytes([255; 16]);
    let end = Cursor::after(dlq_core::Timestamp::MAX, id);
    let request = PageRequest::new().order(Order::OldestFirst).after(Some(end));
    let page = check.store.list(Filter::new(), request).await.expect("list answers");
    assert_eq!((page.letters.len(), page.next), (0, None));
}

/// A list shows the summary of each letter.
pub async fn a_list_shows_summaries<F: StoreFixture>(check: Check<F>) {
    check.put((0..12).map(crate::fixtures::varied).collect()).await;
    for shown in check.list(&Filter::new(), Order::NewestFirst, 5).await {
        assert_eq!(shown, check.get(shown.id).await.summary());
    }
}
