//! What is read of the topic is what a store says of the same letters.

use std::time::Duration;

use dlq_core::store::{Group, Letters, Stats};
use dlq_core::{
    Cause, DeadLetter, ErrorClass, Filter, LetterId, LetterSummary, Order, PageRequest, Reason,
    Sink, Status, Timestamp,
};
use dlq_kafka::KafkaLetters;
use dlq_letters::memory::MemoryStore;
use dlq_testkit::fixtures::{ManualClock, died_again, letter, varied};

use crate::fixture_letters::{Dead, available};

const MANY: u64 = 40;

/// The same letters, in the same order, in a topic of three partitions and in a store in memory.
async fn both() -> (KafkaLetters, MemoryStore) {
    let dead = Dead::fresh(3).await;
    let clock = ManualClock::new();
    let store = MemoryStore::new().with_clock(clock.shared());
    let mut letters: Vec<DeadLetter> = (0..MANY).map(varied).collect();
    letters.extend([died_again(&varied(3)), died_again(&varied(7)), varied(5)]);
    let mut other = varied(9);
    other.message = other.message.with_payload(Some("other".into()));
    letters.extend([other, died_again(&varied(3))]);
    for (partition, letter) in (0..3).cycle().zip(letters) {
        dead.put(partition, &letter).await;
        store.put(vec![letter]).await.unwrap();
        clock.advance(Duration::from_secs(1));
    }
    (dead.letters(), store)
}

/// Without the times, which are those of two clocks.
fn timeless(mut summary: LetterSummary) -> LetterSummary {
    summary.state.created_at = Timestamp::EPOCH;
    summary.state.updated_at = Timestamp::EPOCH;
    summary
}

pub(super) async fn listed(
    letters: &impl Letters,
    filter: &Filter,
    order: Order,
) -> Vec<LetterSummary> {
    let mut page = PageRequest::new().with_order(order).with_limit(7);
    let mut all = Vec::new();
    loop {
        let found = letters.list(filter.clone(), page).await.unwrap();
        assert!(found.letters.len() <= 7);
        all.extend(found.letters);
        if found.next.is_none() {
            return all;
        }
        page = page.with_after(found.next);
    }
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

fn filters() -> Vec<Filter> {
    let some = varied(4);
    let (mut at_least, mut at_most) = (Filter::new(), Filter::new());
    at_least.min_attempts = Some(2);
    at_most.max_attempts = Some(1);
    vec![
        Filter::new(),
        Filter::new().with_id(some.id).with_id(varied(6).id),
        Filter::new().with_message_id("evt-3".to_owned()),
        Filter::new().with_subject("orders.*".parse().unwrap()),
        Filter::new().with_consumer(some.consumer.clone()),
        Filter::new().with_status(Status::Pending),
        Filter::new().with_status(Status::Sent),
        Filter::new().with_reason(Reason::Permanent),
        Filter::new().with_cause(Cause::Timeout).with_cause(Cause::Panic),
        Filter::new().with_class(ErrorClass::Transient),
        Filter::new().with_fingerprint(some.fingerprint),
        Filter::new().with_error("TIME"),
        Filter::new().with_attribute("tenant", "t0"),
        at_least,
        at_most,
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_answers_as_a_store_does() {
    if !available() {
        return;
    }
    let (letters, store) = both().await;
    let mut matched = 0;
    for filter in filters() {
        let count = store.count(filter.clone()).await.unwrap();
        matched += u32::from(count > 0);
        assert_eq!(letters.count(filter.clone()).await.unwrap(), count, "{filter:?}");
        for order in [Order::NewestFirst, Order::OldestFirst] {
            let wanted = listed(&store, &filter, order).await;
            let found = listed(&letters, &filter, order).await;
            assert_eq!(wanted.len() as u64, count);
            let timeless =
                |all: Vec<LetterSummary>| all.into_iter().map(timeless).collect::<Vec<_>>();
            assert_eq!(timeless(found), timeless(wanted), "{filter:?}");
        }
        for limit in [2, 100] {
            let wanted = store.groups(filter.clone(), limit).await.unwrap();
            let found = letters.groups(filter.clone(), limit).await.unwrap();
            assert_eq!(groups_timeless(found), groups_timeless(wanted), "{filter:?}");
        }
        let wanted = store.stats(filter.clone()).await.unwrap();
        let found = letters.stats(filter.clone()).await.unwrap();
        assert_eq!(stats_timeless(found), stats_timeless(wanted), "{filter:?}");
    }
    assert!(matched > 10, "the filters mean something");
    // By time: the one that is listed n-th bounds the same letters.
    let theirs = listed(&store, &Filter::new(), Order::OldestFirst).await;
    let ours = listed(&letters, &Filter::new(), Order::OldestFirst).await;
    for n in [0, 1, 17, theirs.len() - 1] {
        let since = Filter::new().with_since(ours[n].state.created_at);
        let until = Filter::new().with_until(ours[n].state.created_at);
        assert_eq!(letters.count(since).await.unwrap(), (ours.len() - n) as u64);
        assert_eq!(letters.count(until).await.unwrap(), n as u64);
    }
    for summary in &theirs {
        let wanted = store.get(summary.id).await.unwrap().unwrap();
        let found = letters.get(summary.id).await.unwrap().unwrap();
        assert_eq!(DeadLetter { state: wanted.state.clone(), ..found }, wanted, "byte for byte");
        let digits = summary.id.to_string();
        for digits in [&digits[..1], &digits[..4], &digits.to_uppercase(), &digits] {
            let wanted = store.with_prefix(digits.to_owned(), 5).await.unwrap();
            assert!(!wanted.is_empty());
            assert_eq!(letters.with_prefix(digits.to_owned(), 5).await.unwrap(), wanted);
        }
    }
    assert_eq!(letters.get(LetterId::from_bytes([7; 16])).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_copies_are_one_letter_and_no_bytes_are_lost() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(4).await;
    let first = letter(1);
    let mut other = first.clone();
    other.message = other.message.with_payload(Some("other".into()));
    // The other one stands in a partition before that of the first, which was written before it.
    let last = died_again(&first);
    for (partition, letter) in [(3, &first), (2, &other), (3, &first), (3, &last), (1, &letter(2))]
    {
        dead.put(partition, letter).await;
    }
    let conflict = first.id.conflicting(&other.message);
    let wanted =
        [format!("{conflict}.0"), format!("{}.1", first.id), format!("{}.0", letter(2).id)];
    for _ in 0..5 {
        let read = dead.letters().read(&Filter::new()).await.unwrap();
        let deaths: Vec<_> = read.iter().map(|read| read.letter.death().to_string()).collect();
        assert_eq!(deaths, wanted, "whichever partition comes first");
        assert_eq!((read[2].partition, read[2].offset), (1, 0));
        assert_eq!(read[0].letter.message, other.message);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_payloads_are_fetched_again() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(3).await;
    let large = |n: u64| {
        let mut letter = letter(n);
        let size = if n.is_multiple_of(2) { 5_000 } else { 10 };
        let payload = vec![u8::try_from(n).unwrap(); size];
        letter.message = letter.message.with_payload(Some(payload.into()));
        letter
    };
    for n in 0..30 {
        dead.put(i32::try_from(n % 3).unwrap(), &large(n)).await;
    }
    let letters = dead.letters();
    let read = letters.read(&Filter::new()).await.unwrap();
    let messages: Vec<_> = read.into_iter().map(|read| read.letter.message).collect();
    assert_eq!(messages, (0..30).map(|n| large(n).message).collect::<Vec<_>>());
    let stored = letters.stored(letter(16).id).await.unwrap().unwrap();
    assert_eq!((stored.partition, stored.offset), (1, 5));
    assert_eq!(stored.letter.message, large(16).message);
    let listed = listed(&letters, &Filter::new(), Order::OldestFirst).await;
    assert_eq!(listed[16].payload_size, Some(5_000));
}
