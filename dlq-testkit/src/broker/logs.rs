//! A log that is read, apart from what is made of it.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::log::{Content, Entries, Entry, Log, Range};
use dlq_core::{DeadLetter, LetterId, Origin, StoreError};
use futures_util::FutureExt;
use tokio::time::timeout;

use super::{BrokerFixture, Check};

/// A place whose dead letters are a [`Log`].
pub trait LogFixture: BrokerFixture {
    /// The log.
    type Log: Log;

    /// Describes the log, as another process would.
    fn log(&self) -> Self::Log;
}

/// The next entries of a reading; a broker that is away is asked again.
async fn next<F: BrokerFixture>(entries: &mut impl Entries, limit: usize) -> Vec<Entry> {
    let next = async {
        loop {
            match entries.next(limit).await {
                Ok(some) => return some,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    let some = timeout(F::PATIENCE, next).await.expect("entries come");
    entries.confirm().await.expect("a reading confirms nothing");
    some
}

/// Every entry of a range, by few at a time.
async fn read<F: LogFixture>(check: &Check<F>, range: Range) -> Vec<Entry> {
    let mut entries = check.fixture.log().read(range).await.expect("a log is read");
    let mut all = Vec::new();
    loop {
        let some = next::<F>(&mut entries, 4).await;
        assert!(some.len() <= 4, "no more than were asked for");
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

fn letters(entries: &[Entry]) -> Vec<LetterId> {
    entries.iter().filter_map(Entry::letter).map(|letter| letter.id).collect()
}

/// The places of entries, by partition.
fn places(entries: &[Entry]) -> BTreeMap<Option<u32>, Vec<Origin>> {
    let mut places: BTreeMap<_, Vec<Origin>> = BTreeMap::new();
    for entry in entries {
        places.entry(entry.place.partition()).or_default().push(entry.place.clone());
    }
    places
}

/// A reading shows every entry at its place, also copies and what nobody wrote as a letter, the same for every reader.
pub async fn every_entry_is_read_at_its_place<F: LogFixture>(check: Check<F>) {
    let mut dead = check.dead(0..9);
    dead.push(crate::fixtures::died_again(&dead[3]));
    check.bury_in_order(dead.clone()).await;
    let also = check.fixture.bury_unreadable().await;
    let all = read(&check, Range::all()).await;
    let mut found = letters(&all);
    let mut wanted: Vec<LetterId> = dead.iter().map(|letter| letter.id).collect();
    assert_eq!(found.len() as u64, wanted.len() as u64 + also);
    assert!(all.len() > wanted.len(), "what is no letter is an entry, too");
    found.retain(|id| wanted.contains(id));
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
    assert!(all.iter().all(|entry| !entry.again), "nothing was yielded before");
    for of_one in places(&all).values() {
        assert!(of_one.is_sorted_by_key(Origin::position), "in the order of the broker");
    }
    assert_eq!(places(&read(&check, Range::all()).await), places(&all));
}

/// A reading leaves no trace: no mark, and whoever follows afterwards gets everything as new.
pub async fn a_reading_leaves_no_trace<F: LogFixture>(check: Check<F>) {
    check.bury(0..9).await;
    read(&check, Range::all()).await;
    let mut given_up = check.fixture.log().read(Range::all()).await.expect("a log is read");
    next::<F>(&mut given_up, 3).await;
    drop(given_up);
    assert_eq!(check.fixture.log().marks().await.expect("marks are read"), []);
    let mut feed = check.fixture.feed("memory", true).await.expect("a log is followed");
    let mut all = Vec::new();
    loop {
        let some = timeout(F::PATIENCE, feed.next(100)).await.expect("letters come");
        let some = some.expect("letters come");
        if some.is_empty() {
            break;
        }
        all.extend(some);
        feed.confirm().await.expect("letters are confirmed");
    }
    assert_eq!(letters(&all).len(), 9);
    assert!(all.iter().all(|entry| !entry.again), "nobody was given them before");
    let marks = check.fixture.log().marks().await.expect("marks are read");
    let stores: Vec<&str> = marks.iter().map(|mark| mark.store.as_str()).collect();
    assert_eq!(stores, ["memory"]);
    assert_eq!(read(&check, Range::all()).await.len(), 9, "it is read beside those who follow");
}

/// A range begins at a place, at a time, or so many entries before the end.
pub async fn a_range_is_read_and_nothing_else<F: LogFixture>(check: Check<F>) {
    check.bury_in_order(check.dead(0..9)).await;
    let all = read(&check, Range::all()).await;
    let range = places(&all)
        .into_values()
        .fold(Range::all(), |range, of_one| range.from(of_one[of_one.len() / 2].clone()));
    for (partition, rest) in places(&read(&check, range).await) {
        let of_one = &places(&all)[&partition];
        assert_eq!(rest, of_one[of_one.len() / 2..], "from a place");
    }
    for (partition, rest) in places(&read(&check, Range::all().last(2)).await) {
        let of_one = &places(&all)[&partition];
        assert_eq!(rest, of_one[of_one.len().saturating_sub(2)..], "the latest");
    }
    let many = read(&check, Range::all().last(1_000)).await;
    assert_eq!(places(&many), places(&all), "more than there are");
    let mut times: Vec<_> =
        all.iter().filter_map(Entry::letter).map(|letter| letter.state.created_at).collect();
    times.sort_unstable();
    let since = read(&check, Range::all().since(times[4])).await;
    let found = since.iter().filter_map(Entry::letter);
    assert_eq!(found.filter(|letter| letter.state.created_at >= times[4]).count(), 5);
    assert_eq!(letters(&since).len(), 5, "nothing before that time");
}

/// A reading that does not end goes on with what is written; a call that is given up loses nothing.
pub async fn a_reading_for_ever_goes_on<F: LogFixture>(check: Check<F>) {
    check.bury(0..3).await;
    let log = check.fixture.log();
    let mut entries = log.read(Range::all().for_ever()).await.expect("a log is read");
    let (mut seen, mut buried) = (Vec::new(), 3);
    while seen.len() < 9 {
        // Asked once and dropped.
        if let Some(some) = entries.next(2).now_or_never() {
            seen.extend(letters(&some.expect("entries come")));
        } else if seen.len() == buried as usize {
            check.bury(buried..buried + 3).await;
            buried += 3;
        }
        if seen.len() < buried as usize {
            // Awaited once in a while: over a network one poll may never be enough.
            seen.extend(letters(&next::<F>(&mut entries, 2).await));
        }
    }
    let mut wanted: Vec<_> = check.dead(0..9).iter().map(|letter| letter.id).collect();
    wanted.sort_unstable();
    seen.sort_unstable();
    assert_eq!(seen, wanted);
    let waits = timeout(Duration::from_millis(50), entries.next(1)).await;
    assert!(waits.is_err(), "it waits for more: {waits:?}");
}

/// A letter is whole at its place, whatever its size; where none stands is none.
pub async fn g8_letters_are_whole_at_their_places<F: LogFixture>(check: Check<F>) {
    let mut dead = check.dead(0..5);
    for (letter, size) in dead.iter_mut().zip([0, 1_024, 1_025, 300_000, 10]) {
        letter.message = letter.message.clone().with_payload(Some(vec![b'x'; size].into()));
    }
    check.bury_in_order(dead.clone()).await;
    check.fixture.bury_unreadable().await;
    let all = read(&check, Range::all()).await;
    let of = |wanted: &DeadLetter| {
        let found = all.iter().find(|entry| entry.letter().map(|it| it.id) == Some(wanted.id));
        found.map(|entry| entry.place.clone()).expect("it was read")
    };
    let places: Vec<Origin> = dead.iter().rev().map(of).collect();
    let found = at(&check, places.clone()).await.expect("letters are fetched");
    let found: Vec<DeadLetter> = found.into_iter().map(|it| it.expect("it is there")).collect();
    for (found, wanted) in found.into_iter().zip(dead.iter().rev()) {
        assert_eq!(found.with_state(wanted.state.clone()), *wanted);
    }
    let last = all.last().expect("there are entries").place.clone();
    let nowhere = last.with_position(beyond(places[0].position()));
    let found = at(&check, vec![nowhere, places[0].clone()]).await.expect("letters are fetched");
    assert!(found[0].is_none() && found[1].is_some(), "{found:?}");
    for foreign in all.iter().filter(|entry| matches!(entry.content, Content::Foreign)) {
        let found = at(&check, vec![foreign.place.clone()]).await.expect("it is looked for");
        assert!(found[0].is_none(), "{found:?}");
    }
}

async fn at<F: LogFixture>(
    check: &Check<F>,
    places: Vec<Origin>,
) -> Result<Vec<Option<DeadLetter>>, StoreError> {
    let log = check.fixture.log();
    timeout(F::PATIENCE, log.at(places)).await.expect("the broker answers")
}

/// A position that nothing stands at.
fn beyond(position: &dlq_core::Position) -> dlq_core::Position {
    use dlq_core::Position::{Offset, Pair};
    match position {
        Offset(at) => Offset(at + 1_000_000),
        Pair(at, n) => Pair(at + 1_000_000, *n),
        _ => Offset(u64::MAX),
    }
}
