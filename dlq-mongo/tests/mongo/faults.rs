//! A server that is gone, says nothing, or is started again.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim, Release};
use dlq_core::store::{Letters as _, Receipt, Sink as _};
use dlq_core::{CrashMarks as _, DeadLetter, Filter, StoreErrorKind};
use dlq_mongo::{MongoIdempotency, MongoStore};
use dlq_services::Service;
use dlq_testkit::fixtures::{died_again, letter};
use tokio::sync::Barrier;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep};

use crate::fixture::{PATIENCE, TestDatabase, available, url};
use crate::proxy::{Proxy, Trouble};

/// Puts letters until that succeeds. Returns the receipts and the errors before.
async fn until_put(store: &MongoStore, n: u64) -> (Vec<Receipt>, Vec<StoreErrorKind>) {
    let (began, mut errors) = (Instant::now(), Vec::new());
    loop {
        match store.put(vec![letter(n), letter(n + 1)]).await {
            Ok(receipts) => return (receipts, errors),
            Err(error) => errors.push(error.kind()),
        }
        assert!(began.elapsed() < PATIENCE, "it is never put: {errors:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_started_again_has_lost_nothing() {
    if !available() {
        return;
    }
    let mut server = Service::Mongo.builder().ours().start().unwrap();
    let url = format!("{}/?serverSelectionTimeoutMS=300", server.url().trim_end_matches('/'));
    let place = TestDatabase::at(&url);
    let store = place.store().await;
    for round in 0..3 {
        let n = round * 10;
        store.put(vec![letter(n)]).await.unwrap();
        block_in_place(|| server.kill()).unwrap();
        let error = store.put(vec![letter(n + 1)]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        block_in_place(|| server.restart()).unwrap();
        let (receipts, errors) = until_put(&store, n).await;
        assert_eq!(receipts, [Receipt::Unchanged, Receipt::Stored], "{errors:?}");
        assert!(errors.iter().all(|kind| *kind == StoreErrorKind::Unavailable), "{errors:?}");
        assert_eq!(store.count(Filter::new()).await.unwrap(), (round + 1) * 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_on_a_silent_network_ends_and_the_next_one_goes_on() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let proxy = Proxy::before(url()).await;
    let store = MongoStore::builder(&proxy.url).database(&place.name).max_connections(2);
    let store = store.answer_timeout(Duration::from_millis(500)).open();
    let began = Instant::now();
    let store = store.await.unwrap();
    store.put(vec![letter(1)]).await.unwrap();
    proxy.trouble_after(1, Trouble::Silence);
    let error = store.put(vec![letter(2)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(began.elapsed() < PATIENCE, "it ends");
    proxy.heal();
    let (receipts, _) = until_put(&store, 1).await;
    assert_eq!(receipts[0], Receipt::Unchanged);
    assert_eq!(store.count(Filter::new()).await.unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_a_run_whose_mark_was_written_twice_counts_once() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let direct = place.store().await;
    let proxy = Proxy::before(url()).await;
    let through = MongoStore::builder(&proxy.url).database(&place.name);
    let through = through.migrate(false).open().await.unwrap();
    let id = letter(1).id;
    for (trouble, before) in
        [(Trouble::Unanswered, 0), (Trouble::Lost, 1), (Trouble::Unanswered, 2)]
    {
        proxy.trouble_after(0, trouble);
        assert_eq!(through.begin(id).await.unwrap(), before, "{trouble:?}");
        assert!(!proxy.is_troubling(), "{trouble:?} came");
    }
    proxy.trouble_after(0, Trouble::Unanswered);
    through.end(id, 2).await.unwrap();
    assert_eq!(direct.begin(id).await.unwrap(), 2, "its own mark is gone, and no other");
    through.end(id, 0).await.unwrap();
    assert_eq!(direct.begin(id).await.unwrap(), 0);
}

/// Handles that put the same letters at the same moment: every key is taken once, and the others learn of it.
async fn put_at_once(place: &TestDatabase, letters: &[DeadLetter], is_dedup: bool) -> Vec<Receipt> {
    let mut puts = JoinSet::new();
    let start = Arc::new(Barrier::new(8));
    for n in 0..8 {
        let (place, start, mut letters) = (place.clone(), Arc::clone(&start), letters.to_vec());
        // In another order each, so that each is the first somewhere.
        let by = n * letters.len() / 8;
        letters.rotate_left(by);
        puts.spawn(async move {
            let store = place.builder().dedup(is_dedup).open().await.unwrap();
            start.wait().await;
            store.put(letters).await.unwrap()
        });
    }
    puts.join_all().await.concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g2_a_race_for_a_key_stores_each_letter_once() {
    if !available() {
        return;
    }
    let letters: Vec<_> = (0..40).map(letter).collect();
    let place = TestDatabase::fresh();
    place.store().await;
    let receipts = put_at_once(&place, &letters, false).await;
    let count = |wanted: Receipt| receipts.iter().filter(|receipt| **receipt == wanted).count();
    assert_eq!((count(Receipt::Stored), count(Receipt::Unchanged)), (40, 280), "{receipts:?}");
    assert_eq!(place.store().await.count(Filter::new()).await.unwrap(), 40);
    assert_eq!(place.count("letters").await, 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g2_a_race_for_an_original_keeps_one_letter_of_it() {
    if !available() {
        return;
    }
    // Four deaths of each of ten messages, which are letters of their own.
    let deaths = (0..40).map(|n: u64| {
        let mut death = letter(n);
        death.message = letter(n % 10).message;
        death
    });
    let deaths: Vec<_> = deaths.collect();
    let place = TestDatabase::fresh();
    place.builder().dedup(true).open().await.unwrap();
    let receipts = put_at_once(&place, &deaths, true).await;
    let stored = receipts.iter().filter(|receipt| **receipt == Receipt::Stored).count();
    assert_eq!(stored, 10, "{receipts:?}");
    assert_eq!(place.store().await.count(Filter::new()).await.unwrap(), 10);
    assert_eq!(place.count("letters").await, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_a_step_of_a_key_whose_answer_was_lost_is_taken_once() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let direct = place.store().await.idempotency();
    let proxy = Proxy::before(url()).await;
    let through = MongoStore::builder(&proxy.url).database(&place.name);
    let through = through.migrate(false).open().await.unwrap().idempotency();
    let (consumer, lease) = (Arc::<str>::from("payments"), Duration::from_secs(600));
    let claim = async |keys: &MongoIdempotency, key: &'static str| {
        keys.claim(Arc::clone(&consumer), key.into(), lease).await.unwrap()
    };
    for trouble in [Trouble::Lost, Trouble::Unanswered] {
        // A claim reads the key and writes it; a release reads it before it writes.
        for at in [0, 1] {
            let key = if trouble == Trouble::Lost { ["a", "b"] } else { ["c", "d"] }[at];
            proxy.trouble_after(at, trouble);
            let IdempotencyClaim::New { token, attempts, crashes } = claim(&through, key).await
            else {
                panic!("{trouble:?} at {at}: it is not claimed");
            };
            assert!(!proxy.is_troubling(), "{trouble:?} came");
            assert_eq!((attempts, crashes), (0, 0), "{trouble:?} at {at}");
            proxy.trouble_after(at, trouble);
            assert!(through.release(token, Release::Failed).await.unwrap(), "{trouble:?} at {at}");
            assert!(!proxy.is_troubling(), "{trouble:?} came");
            let IdempotencyClaim::New { token, attempts, crashes } = claim(&direct, key).await
            else {
                panic!("{trouble:?} at {at}: it is not free");
            };
            assert_eq!((attempts, crashes), (1, 0), "{trouble:?} at {at}: it failed once");
            proxy.trouble_after(0, trouble);
            assert!(through.complete(token, lease).await.unwrap(), "{trouble:?} at {at}");
            assert!(!proxy.is_troubling(), "{trouble:?} came");
            let done = claim(&direct, key).await;
            assert!(matches!(done, IdempotencyClaim::Done { .. }), "{trouble:?} at {at}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_answer_was_lost_is_known_for_its_own() {
    if !available() {
        return;
    }
    let again = died_again(&letter(1));
    let mut wanted = None;
    for at in 0.. {
        let place = TestDatabase::fresh();
        place.store().await.put(vec![letter(1)]).await.unwrap();
        let proxy = Proxy::before(url()).await;
        let through = MongoStore::builder(&proxy.url).database(&place.name);
        let through = through.migrate(false).open().await.unwrap();
        // First without any trouble.
        if let Some(at) = usize::checked_sub(at, 1) {
            proxy.trouble_after(at, Trouble::Unanswered);
        }
        let receipts = through.put(vec![again.clone()]).await.unwrap();
        let wanted = wanted.get_or_insert_with(|| receipts.clone());
        assert_eq!(receipts, *wanted, "without the answer to command {at}");
        if proxy.is_troubling() {
            assert!(at > 2, "{at}");
            break;
        }
    }
}
