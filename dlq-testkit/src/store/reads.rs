//! Reading single letters and finding them by the beginning of their id.

use dlq_core::search::{Search, SearchRequest};
use dlq_core::store::Mark;
use dlq_core::{Filter, LetterId, Order, Status};

use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::letter;

/// A letter that is not there is `None`, not an error.
pub async fn an_unknown_letter_is_none<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    assert_eq!(check.store.get(letter(2).id).await.expect("get answers"), None);
}

/// Many letters at once are the letters that one gets one by one, in the order of the question, without those that are
/// not there.
pub async fn many_letters_come_as_they_were_asked_for<F: StoreFixture>(check: Check<F>) {
    let mut ids: Vec<_> = check.bury_at_once(30).await.iter().map(|letter| letter.id).collect();
    ids.reverse();
    let mut one_by_one = Vec::new();
    for id in &ids {
        one_by_one.extend(check.store.get(*id).await.expect("get answers"));
    }
    // One that is not there stands among the others.
    ids.insert(7, letter(99).id);
    let found = check.store.get_all(ids).await.expect("get_all answers");
    assert_eq!(found.len(), 30);
    assert_eq!(found, one_by_one);
    assert_eq!(check.store.get_all(Vec::new()).await.expect("get_all answers"), []);
}

async fn found<F: StoreFixture>(check: &Check<F>, digits: &str, limit: u32) -> Vec<LetterId> {
    check.store.with_prefix(digits.to_owned(), limit).await.expect("with_prefix answers")
}

/// The beginning of an id finds every id that begins so, in order.
pub async fn a_prefix_finds_what_begins_with_it<F: StoreFixture>(check: Check<F>) {
    let mut ids: Vec<_> = check.bury_at_once(200).await.iter().map(|letter| letter.id).collect();
    ids.sort_unstable();
    for digits in ["", "0", "f", "a1", "00", "7"] {
        let begins = |id: &&LetterId| id.to_string().starts_with(digits);
        let expected: Vec<_> = ids.iter().filter(begins).copied().collect();
        assert_eq!(found(&check, digits, 1_000).await, expected, "`{digits}`");
    }
    let whole = ids[17].to_string();
    assert_eq!(found(&check, &whole, 2).await, [ids[17]]);
    assert_eq!(found(&check, &whole[..31].to_uppercase(), 2).await, [ids[17]]);
}

/// No more ids are given than asked for.
pub async fn a_prefix_is_answered_within_the_limit<F: StoreFixture>(check: Check<F>) {
    let mut ids: Vec<_> = check.bury_at_once(50).await.iter().map(|letter| letter.id).collect();
    ids.sort_unstable();
    assert_eq!(found(&check, "", 3).await, ids[..3]);
    assert_eq!(found(&check, "", 0).await, []);
}

/// Text that begins no id finds none, whatever it is.
pub async fn an_odd_prefix_finds_nothing<F: StoreFixture>(check: Check<F>) {
    let ids: Vec<_> = check.bury_at_once(20).await.iter().map(|letter| letter.id).collect();
    let longer = format!("{}0", ids[0]);
    for digits in ["%", "_", "g", "é", " ", "\0", "'", "0x", longer.as_str()] {
        assert_eq!(found(&check, digits, 10).await, [], "`{digits}`");
    }
}

/// A search reads every letter once, whatever the parts in which it goes on, and finds what the conditions say. The letters
/// that it found are a filter.
pub async fn a_search_finds_what_messages_hold<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury_at_once(40).await;
    check.mark(letters[2].id, Mark::Resolved).await;
    let searches = [
        Search::new().key("customer-3").key("customer-5"),
        Search::new().header("TRACE", "t-4"),
        Search::new().field("order", "17"),
        Search::new().payload("\"ORDER\":2"),
        Search::new().payload("\"order\":2").key("customer-2"),
        Search::new().payload("nowhere"),
    ];
    for search in searches {
        for order in [Order::NewestFirst, Order::OldestFirst] {
            let listed = check.ids(&Filter::new(), order).await;
            let meant = |id: &LetterId| letters.iter().any(|it| it.id == *id && search.matches(it));
            let expected: Vec<_> = listed.into_iter().filter(meant).collect();
            // A part may end by what it found, by what it read, or with the letters.
            for (limit, read_at_most) in [(1, 7), (3, 1_000), (1_000, 9), (1_000, 1_000)] {
                let parts = SearchRequest::new().order(order);
                let parts = parts.limit(limit).read_at_most(read_at_most);
                let (found, read) = searched(&check, &search, parts).await;
                assert_eq!(found, expected, "{search:?}, {parts:?}");
                assert_eq!(read, 40, "{search:?}, {parts:?}");
            }
            let only = Filter::new().only(expected.clone());
            assert_eq!(check.ids(&only, order).await, expected, "{search:?}");
            assert_eq!(check.count(only).await, expected.len() as u64, "{search:?}");
        }
    }
    let pending = Filter::new().with_status(Status::Resolved);
    let search = Search::new().payload("order");
    let page = search.page(&check.store, pending, SearchRequest::new()).await;
    let page = page.expect("search answers");
    assert_eq!((page.letters.len(), page.read, page.next), (1, 1, None), "the filter counts too");
}

/// The letters that a search finds in all of its parts, and the number of those that it read.
async fn searched<F: StoreFixture>(
    check: &Check<F>,
    search: &Search,
    mut part: SearchRequest,
) -> (Vec<LetterId>, u64) {
    let (mut found, mut read) = (Vec::new(), 0);
    loop {
        let page = search.page(&check.store, Filter::new(), part).await.expect("search answers");
        assert!(page.letters.len() <= part.limit as usize && page.read <= part.read_at_most);
        found.extend(page.letters.iter().map(|letter| letter.id));
        read += page.read;
        let Some(next) = page.next else { return (found, read) };
        part = part.after(next);
    }
}
