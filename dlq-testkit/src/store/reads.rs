//! Reading single letters and finding them by the beginning of their id.

use dlq_core::LetterId;

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
