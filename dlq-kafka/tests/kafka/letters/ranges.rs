//! What is read can be limited by place and time, and what is shown by where letters stand.

use dlq_core::log::Range;
use dlq_core::store::Letters as _;
use dlq_core::{Filter, Timestamp};
use dlq_kafka::ScanRange;
use dlq_letters::log::Reading;
use dlq_testkit::fixtures::{died_again, letter};

use crate::fixture_letters::{BEGIN, Dead, available};
use crate::fixture_reading::{at, entries, place, selected};

/// The time of the `n`-th record.
fn time(n: i64) -> Timestamp {
    Timestamp::from_millis(BEGIN + 1_000 * n)
}

async fn read(dead: &Dead, range: Range) -> Vec<(u32, u64)> {
    let mut found: Vec<_> =
        entries(&dead.letters(), range).await.iter().map(|found| at(&found.place)).collect();
    found.sort_unstable();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_mean_what_they_say() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(2).await;
    for n in 0..10 {
        dead.put(i32::try_from(n % 2).unwrap(), &letter(n)).await;
    }
    let from = Range::all().from(place(0, 4)).from(place(1, 3));
    assert_eq!(read(&dead, from).await, [(0, 4), (1, 3), (1, 4)]);
    assert_eq!(read(&dead, Range::all().from(place(0, 99)).last(1)).await, [(1, 4)]);
    let late = Range::all().since(time(7));
    assert_eq!(read(&dead, late).await, [(0, 4), (1, 3), (1, 4)]);
    // Between two milliseconds: from the next one on.
    let later = Range::all().since(Timestamp::from_nanos(time(7).as_nanos() + 1));
    assert_eq!(read(&dead, later).await, [(0, 4), (1, 4)]);
    assert_eq!(read(&dead, Range::all().since(time(99))).await, []);
    let by_time = entries(&dead.letters(), Range::all()).await;
    let places: Vec<_> = by_time.iter().map(|found| at(&found.place)).collect();
    let wanted: Vec<_> = (0..5).flat_map(|n| [(0, n), (1, n)]).collect();
    assert_eq!(places, wanted, "as they were written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_of_letters_has_their_last_deaths() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(2).await;
    for n in 0..6 {
        dead.put(i32::try_from(n % 2).unwrap(), &letter(n)).await;
    }
    dead.put(1, &died_again(&letter(0))).await;
    let letters = dead.letters();
    let first = selected(&letters, &ScanRange::new().partition(0)).await;
    assert_eq!(first.count(Filter::new()).await.unwrap(), 2);
    assert_eq!(first.get(letter(0).id).await.unwrap(), None, "its last death is in the other");
    assert!(first.get(letter(2).id).await.unwrap().is_some());
    let late = Reading::of(letters.clone(), Range::all().since(time(4))).await.unwrap();
    let rows = late.rows(&Filter::new()).await.unwrap();
    let deaths: Vec<_> = rows.into_iter().map(|row| row.letter.death()).collect();
    let wanted = [letter(4).death(), letter(5).death(), died_again(&letter(0)).death()];
    assert_eq!(deaths, wanted, "what is older is not read");
}
