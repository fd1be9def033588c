//! Letters of a broker read as those of a store.

use std::time::Duration;

use dlq_core::store::{Group, Letters, Sink, Stats};
use dlq_core::{
    Cause, DeadLetter, ErrorClass, Filter, LetterId, LetterSummary, Order, PageRequest, Reason,
    Status, Timestamp,
};
use dlq_letters::memory::MemoryStore;

use super::check::listed;
use super::{BrokerFixture, Check, ReplaySpec};
use crate::fixtures::{ManualClock, died_again, letter, varied};

const MANY: u64 = 40;

/// The same letters, in the same order, at the broker and in a store in memory.
async fn both<F: BrokerFixture>(check: &Check<F>) -> (F::Letters, MemoryStore) {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.shared());
    let mut letters: Vec<DeadLetter> = (0..MANY).map(varied).collect();
    // These are later deaths, a copy of a death, and other bytes under an identity that is known.
    letters.extend([died_again(&varied(3)), died_again(&varied(7)), varied(5)]);
    let mut other = varied(9);
    other.message = other.message.with_payload(Some("other".into()));
    letters.extend([other, died_again(&varied(3))]);
    for letter in &letters {
        store.put(vec![letter.clone()]).await.expect("a store in memory takes it");
        // Letters of one time would stand in the order of their ids in a store, and in that of their places at a
        // broker.
        clock.advance(Duration::from_secs(1));
    }
    check.bury_in_order(letters).await;
    (check.fixture.letters(), store)
}

/// Without the times, which are those of two clocks.
fn timeless(mut summary: LetterSummary) -> LetterSummary {
    summary.state.created_at = Timestamp::EPOCH;
    summary.state.updated_at = Timestamp::EPOCH;
    summary
}

fn all_timeless(all: Vec<LetterSummary>) -> Vec<LetterSummary> {
    all.into_iter().map(timeless).collect()
}

fn filters() -> Vec<Filter> {
    let some = varied(4);
    let (mut at_least, mut at_most, mut never) = (Filter::new(), Filter::new(), Filter::new());
    at_least.min_attempts = Some(2);
    at_most.max_attempts = Some(1);
    never.max_retries = Some(0);
    vec![
        Filter::new(),
        Filter::new().with_id(some.id).with_id(varied(6).id),
        Filter::new().with_message_id("evt-3".to_owned()),
        Filter::new().with_subject("orders.*".parse().expect("a pattern")),
        Filter::new().with_subject(some.message.subject().parse().expect("a pattern")),
        Filter::new().with_event("charge".to_owned()),
        Filter::new().with_consumer(some.consumer.clone()),
        Filter::new().with_service("till".to_owned()),
        Filter::new().with_status(Status::Pending),
        Filter::new().with_status(Status::Sent),
        Filter::new().with_reason(Reason::Permanent),
        Filter::new().with_cause(Cause::Timeout).with_cause(Cause::Panic),
        Filter::new().with_class(ErrorClass::Transient),
        Filter::new().with_fingerprint(some.fingerprint),
        Filter::new().error("TIME"),
        Filter::new().attribute("tenant", "t0"),
        Filter::new().with_class(ErrorClass::Permanent).error("e"),
        at_least,
        at_most,
        never,
    ]
}

/// Letters are listed in the order in which they died first, from either end, page by page.
pub async fn letters_are_listed_in_order<F: BrokerFixture>(check: Check<F>) {
    let (letters, store) = both(&check).await;
    for order in [Order::NewestFirst, Order::OldestFirst] {
        let wanted = listed(&store, &Filter::new(), order).await;
        let found = listed(&letters, &Filter::new(), order).await;
        assert_eq!(all_timeless(found), all_timeless(wanted), "{order:?}");
    }
}

/// Every filter lists and counts the letters that a store would.
pub async fn filters_mean_what_they_mean_in_a_store<F: BrokerFixture>(check: Check<F>) {
    let (letters, store) = both(&check).await;
    let mut matched = 0;
    for filter in filters() {
        let count = store.count(filter.clone()).await.expect("a store counts");
        matched += u32::from(count > 0);
        assert_eq!(
            letters.count(filter.clone()).await.expect("letters are counted"),
            count,
            "{filter:?}"
        );
        let wanted = listed(&store, &filter, Order::OldestFirst).await;
        let found = listed(&letters, &filter, Order::OldestFirst).await;
        assert_eq!(all_timeless(found), all_timeless(wanted), "{filter:?}");
    }
    // Two answers of nothing agree whatever the filter means.
    assert!(matched > 15, "the filters mean something");
}

fn groups_timeless(groups: Vec<Group>) -> Vec<Group> {
    let timeless = |group: Group| Group {
        first_seen: Timestamp::EPOCH,
        last_seen: Timestamp::EPOCH,
        sample: timeless(group.sample),
        ..group
    };
    groups.into_iter().map(timeless).collect()
}

fn stats_timeless(stats: Stats) -> Stats {
    assert_eq!(stats.oldest.is_some(), stats.total > 0);
    Stats { oldest: None, newest: None, oldest_unresolved: None, ..stats }
}

/// Groups and statistics are those of a store with the same letters.
pub async fn groups_and_statistics_are_those_of_a_store<F: BrokerFixture>(check: Check<F>) {
    let (letters, store) = both(&check).await;
    for filter in filters() {
        for limit in [2, 100] {
            let wanted = store.groups(filter.clone(), limit).await.expect("a store has groups");
            let found = letters.groups(filter.clone(), limit).await.expect("letters have groups");
            assert_eq!(groups_timeless(found), groups_timeless(wanted), "{filter:?}");
        }
        let wanted = store.stats(filter.clone()).await.expect("a store has statistics");
        let found = letters.stats(filter.clone()).await.expect("letters have statistics");
        assert_eq!(stats_timeless(found), stats_timeless(wanted), "{filter:?}");
    }
}

/// The time of the letter that is listed n-th bounds those before it and those from it on.
pub async fn bounds_of_time_mean_what_they_say<F: BrokerFixture>(check: Check<F>) {
    let (letters, _) = both(&check).await;
    let all = listed(&letters, &Filter::new(), Order::OldestFirst).await;
    for n in [0, 1, 17, all.len() - 1] {
        let at = all[n].state.created_at;
        let since = letters.count(Filter::new().since(at)).await.expect("letters are counted");
        let until = letters.count(Filter::new().until(at)).await.expect("letters are counted");
        assert_eq!((until, since), (n as u64, (all.len() - n) as u64), "bounded by the {n}th");
    }
}

/// A letter that is asked for by its id is what was written, byte for byte (G8); one that is not there is none.
pub async fn g8_each_letter_is_shown_byte_for_byte<F: BrokerFixture>(check: Check<F>) {
    let (letters, store) = both(&check).await;
    let mut ids = Vec::new();
    for summary in listed(&store, &Filter::new(), Order::OldestFirst).await {
        let wanted = store.get(summary.id).await.expect("a store shows it").expect("it is there");
        let found = letters.get(summary.id).await.expect("a letter is shown");
        let found = found.unwrap_or_else(|| panic!("{} is there", summary.id));
        assert_eq!(found.with_state(wanted.state.clone()), wanted);
        ids.push(summary.id);
    }
    let nobody = LetterId::from_bytes([7; 16]);
    assert_eq!(letters.get(nobody).await.expect("it is looked for"), None);
    let asked = ids.iter().rev().copied().chain([nobody]).collect();
    let found = letters.get_all(asked).await.expect("letters are shown");
    ids.reverse();
    assert_eq!(found.iter().map(|found| found.id).collect::<Vec<_>>(), ids, "as asked for");
}

/// Part of an id finds the letters whose ids begin with it; what is no part of an id finds none.
pub async fn a_prefix_finds_what_begins_with_it<F: BrokerFixture>(check: Check<F>) {
    let (letters, store) = both(&check).await;
    for summary in listed(&store, &Filter::new(), Order::OldestFirst).await {
        let digits = summary.id.to_string();
        for digits in [&digits[..1], &digits[..4], &digits.to_uppercase(), &digits] {
            let wanted = store.with_prefix(digits.to_owned(), 5).await.expect("a store looks");
            assert!(!wanted.is_empty());
            let found = letters.with_prefix(digits.to_owned(), 5).await.expect("it is looked for");
            assert_eq!(found, wanted, "{digits}");
        }
    }
    for odd in ["g", "0x", &"0".repeat(33)] {
        let found = letters.with_prefix(odd.to_owned(), 5).await.expect("it is looked for");
        assert!(found.is_empty(), "{odd} finds {found:?}");
    }
}

/// Copies of a death are one letter, of several deaths the latest counts, and the same death with other bytes is a second
/// letter (G2).
pub async fn g2_copies_are_one_letter_and_no_bytes_are_lost<F: BrokerFixture>(check: Check<F>) {
    let first = letter(1);
    let mut other = first.clone();
    other.message = other.message.with_payload(Some("other".into()));
    let last = died_again(&first);
    let all = [&first, &other, &first, &last, &letter(2), &first].map(Clone::clone);
    check.bury_in_order(all.to_vec()).await;
    let letters = check.fixture.letters();
    let conflict = first.id.conflicting(&other.message);
    let mut wanted = vec![(last.id, 1), (conflict, 0), (letter(2).id, 0)];
    let listed = listed(&letters, &Filter::new(), Order::OldestFirst).await;
    let found: Vec<_> = listed.iter().map(|found| (found.id, found.generation)).collect();
    assert_eq!(found, wanted);
    for (id, message) in [(last.id, &last.message), (conflict, &other.message)] {
        let found = letters.get(id).await.expect("a letter is shown").expect("it is there");
        assert_eq!(&found.message, message, "{id}");
    }
    // Whoever reads it a second time finds no other letters.
    let again = check.fixture.letters();
    let again: Vec<_> = self::listed(&again, &Filter::new(), Order::NewestFirst).await;
    wanted.reverse();
    assert_eq!(again.iter().map(|found| (found.id, found.generation)).collect::<Vec<_>>(), wanted);
}

/// Letters whose payloads are not kept in memory are shown with them, too.
pub async fn large_payloads_are_shown_whole<F: BrokerFixture>(check: Check<F>) {
    let sizes = [10, 1_024, 1_025, 20_000];
    let large = |n: u64| {
        let mut letter = letter(n);
        let size = sizes[usize::try_from(n % 4).unwrap_or(0)];
        let payload = vec![u8::try_from(n).unwrap_or(0); size];
        letter.message = letter.message.with_payload(Some(payload.into()));
        letter
    };
    check.bury_in_order((0..30).map(large).collect()).await;
    let letters = check.fixture.letters();
    let listed = listed(&letters, &Filter::new(), Order::OldestFirst).await;
    let size = |n: usize| listed[n].payload_size;
    assert_eq!([0, 1, 2, 3].map(size), sizes.map(|size| Some(size as u64)));
    let found = letters.get_all(listed.iter().map(|letter| letter.id).collect()).await;
    let found = found.expect("letters are shown").into_iter().map(|letter| letter.message);
    assert!(found.eq((0..30).map(|n| large(n).message)), "byte for byte, in their order");
}

/// A reader that has read before sees what was written since.
pub async fn what_comes_later_is_seen<F: BrokerFixture>(check: Check<F>) {
    let letters = check.fixture.letters();
    for n in 1..=3 {
        check.bury_in_order(vec![letter(n)]).await;
        assert_eq!(letters.count(Filter::new()).await.expect("letters are counted"), n);
    }
    check.bury_in_order(vec![died_again(&letter(2))]).await;
    assert_eq!(letters.count(Filter::new()).await.expect("letters are counted"), 3);
    let found = letters.get(letter(2).id).await.expect("a letter is shown").expect("it is there");
    assert_eq!((found.generation, found.error()), (1, died_again(&letter(2)).error()));
}

/// The latest few and the counts by reason are there at a glance, of all letters and of those that match.
pub async fn the_latest_are_peeked_at<F: BrokerFixture>(check: Check<F>) {
    let (letters, store) = both(&check).await;
    for filter in [Filter::new(), Filter::new().with_class(ErrorClass::Transient)] {
        let page = PageRequest::new().limit(3);
        let wanted = store.list(filter.clone(), page).await.expect("a store lists").letters;
        let found = letters.list(filter.clone(), page).await.expect("letters are listed").letters;
        assert_eq!((found.len(), all_timeless(found)), (3, all_timeless(wanted)));
        let wanted = store.stats(filter.clone()).await.expect("a store counts").by_reason;
        assert_eq!(letters.stats(filter).await.expect("letters are counted").by_reason, wanted);
    }
}

/// An entry that nobody wrote as a letter, or that somebody has tampered with, hides no letter before or after it, nor keeps
/// one from being sent.
pub async fn unreadable_entries_hide_no_letter<F: BrokerFixture>(check: Check<F>) {
    let dead = check.dead(0..4);
    check.bury_in_order(dead[..2].to_vec()).await;
    let also = check.fixture.bury_unreadable().await;
    check.bury_in_order(dead[2..].to_vec()).await;
    let letters = check.fixture.letters();
    let ours: Vec<LetterId> = dead.iter().map(|letter| letter.id).collect();
    let mut found: Vec<LetterId> = listed(&letters, &Filter::new(), Order::OldestFirst)
        .await
        .iter()
        .map(|found| found.id)
        .collect();
    assert_eq!(found.len() as u64, 4 + also);
    found.retain(|id| ours.contains(id));
    assert_eq!(found, ours);
    for letter in dead {
        let found = letters.get(letter.id).await.expect("a letter is shown").expect("it is there");
        assert_eq!(found.with_state(letter.state.clone()), letter);
    }
    let ours = ours.into_iter().fold(Filter::new(), Filter::with_id);
    assert_eq!(check.run(ReplaySpec::to_origin(1).of(ours)).await.sent, 4);
    check.assert_once(super::ReplayTarget::Origin, 0..4).await;
}

/// A letter that only says where its message stands is shown with that message; one whose message has gone is shown without
/// it, is not mistaken for another letter, and keeps nobody from the others.
pub async fn a_pointer_is_shown_with_its_message<F: BrokerFixture>(check: Check<F>) {
    check.bury(0..2).await;
    let Some((wanted, gone)) = check.fixture.bury_pointers().await else {
        return check.left_out("its letters have their messages with them");
    };
    let letters = check.fixture.letters();
    assert_eq!(letters.count(Filter::new()).await.expect("letters are counted"), 4);
    let found = letters.get(wanted.id).await.expect("a letter is shown").expect("it is there");
    assert_eq!(found.message.payload(), wanted.message.payload());
    assert_eq!(found.message.key(), wanted.message.key());
    assert_eq!(found.message.headers(), wanted.message.headers());
    let bare = letters.get(gone).await.expect("a letter is shown").expect("it is there");
    assert_eq!(bare.message.payload(), None);
    for letter in check.dead(0..2) {
        let found = letters.get(letter.id).await.expect("a letter is shown").expect("it is there");
        assert_eq!(found.message, letter.message);
    }
}
