//! What is read can be limited by partition, offset and time.

use dlq_core::store::Letters;
use dlq_core::{Filter, Timestamp};
use dlq_kafka::ScanRange;
use dlq_testkit::fixtures::{died_again, letter};
use futures_util::TryStreamExt;

use crate::fixture_letters::{BEGIN, Dead, Told, available};

/// The time of the `n`-th record.
fn at(n: i64) -> Timestamp {
    Timestamp::from_millis(BEGIN + 1_000 * n)
}

async fn scanned(dead: &Dead, range: &ScanRange) -> Vec<(u32, u64)> {
    let scan = dead.letters().scan(range).await.unwrap().into_stream();
    let found: Vec<_> = scan.try_collect().await.unwrap();
    let mut found: Vec<_> = found.iter().map(|found| (found.partition, found.offset)).collect();
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
    let one = ScanRange::new().with_partition(1);
    assert_eq!(scanned(&dead, &one).await, (0..5).map(|n| (1, n)).collect::<Vec<_>>());
    let few = one.clone().with_offsets(1..=2);
    assert_eq!(scanned(&dead, &few).await, [(1, 1), (1, 2)]);
    assert_eq!(scanned(&dead, &one.clone().with_offsets(..2)).await, [(1, 0), (1, 1)]);
    assert_eq!(scanned(&dead, &one.with_offsets(99..)).await, []);
    let late = ScanRange::new().with_since(at(7));
    assert_eq!(scanned(&dead, &late).await, [(0, 4), (1, 3), (1, 4)]);
    // Between two milliseconds: from the next one on.
    let later = ScanRange::new().with_since(Timestamp::from_nanos(at(7).as_nanos() + 1));
    assert_eq!(scanned(&dead, &later).await, [(0, 4), (1, 4)]);
    let early = ScanRange::new().with_until(at(3));
    assert_eq!(scanned(&dead, &early).await, [(0, 0), (0, 1), (1, 0)]);
    let between = ScanRange::new().with_since(at(3)).with_until(at(5));
    assert_eq!(scanned(&dead, &between).await, [(0, 2), (1, 1)]);
    assert_eq!(scanned(&dead, &ScanRange::new().with_since(at(99))).await, []);
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
    let told = Told::default();
    let limited = |range: ScanRange| told.hear(dead.letters().with_range(range));
    let first = limited(ScanRange::new().with_partition(0));
    assert_eq!(first.count(Filter::new()).await.unwrap(), 2);
    assert_eq!(first.get(letter(0).id).await.unwrap(), None, "its last death is in the other");
    assert!(first.get(letter(2).id).await.unwrap().is_some());
    assert_eq!(told.totals(), [7]);
    let late = limited(ScanRange::new().with_since(at(4)));
    let read = late.read(&Filter::new()).await.unwrap();
    let deaths: Vec<_> = read.into_iter().map(|read| read.letter.death()).collect();
    let wanted = [letter(4).death(), letter(5).death(), died_again(&letter(0)).death()];
    assert_eq!(deaths, wanted);
    assert_eq!(told.totals(), [3], "what is older is not read");
    let until = limited(ScanRange::new().with_until(at(4)));
    assert_eq!(until.count(Filter::new()).await.unwrap(), 3);
    dead.put(0, &letter(9)).await;
    assert_eq!(late.count(Filter::new()).await.unwrap(), 4);
    assert_eq!(until.count(Filter::new()).await.unwrap(), 3);
}
