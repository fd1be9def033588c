//! What others see who open the file with plain SQL, and what is found when it was tampered with.

use std::time::Duration;

use dlq_core::store::{
    Actor, ClaimRequest, Claims, Finish, Finished, Letters, OperationSpec, OperationState,
    Operations, Receipt, Sink,
};
use dlq_core::{DeadLetter, Filter, PageRequest, Resolution, Timestamp};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::{CONSUMER, ManualClock, letter, varied};
use dlq_testkit::store::StoreFixture;
use dlq_testkit::store::model::{agrees_with_model, any_step};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};
use rusqlite::Connection;

use crate::fixture::SqliteFixture;

#[tokio::test]
async fn letters_can_be_read_with_plain_sql() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dlq.db");
    let now = Timestamp::from_nanos(1_790_000_000_123_456_789);
    let clock = ManualClock::starting_at(now);
    let store = SqliteStore::builder().path(&path).clock(clock.shared()).open().await.unwrap();
    store.put(vec![letter(7)]).await.unwrap();
    let conn = Connection::open(&path).unwrap();
    let row: (String, String, String, i64, i64, Vec<u8>) = conn
        .query_row(
            "SELECT event_id, subject, status, retry_count, created_at, data FROM dlq_events \
             WHERE retry_after IS NULL AND last_retry_at IS NULL AND event_type IS NULL \
             AND updated_at = created_at AND error <> ''",
            [],
            |row| row.try_into(),
        )
        .unwrap();
    let expected = ("evt-7".into(), "orders.created".into(), "pending".into(), 0, now.as_nanos());
    assert_eq!((row.0, row.1, row.2, row.3, row.4), expected);
    assert_eq!(row.5, b"{\"order\":7}");
    let row: (String, String, String, String, Option<String>) = conn
        .query_row(
            "SELECT letter_id, created_at, data_text, data_json, retry_after FROM dlq_events_readable",
            [],
            |row| row.try_into(),
        )
        .unwrap();
    assert_eq!(row.0, letter(7).id.to_string());
    assert_eq!(row.1, now.to_string());
    assert_eq!(row.1, "2026-09-21T14:13:20.123456789Z");
    assert_eq!((row.2.as_str(), row.3.as_str()), ("{\"order\":7}", "{\"order\":7}"));
    assert_eq!(row.4, None);
}

#[tokio::test]
async fn tampering_is_found() {
    let tampering = [
        "UPDATE dlq_counts SET n = n + 1",
        "DELETE FROM dlq_counts",
        "DELETE FROM dlq_events WHERE seq = 1",
        "UPDATE dlq_events SET available_at = 5 WHERE seq = 1",
        "UPDATE dlq_events SET status = 'replaying' WHERE claim_until IS NULL",
        "UPDATE dlq_operation_items SET outcome = 'succeeded' WHERE idx = 1",
    ];
    for sql in tampering {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dlq.db");
        let store = SqliteStore::open(&path).await.unwrap();
        store.put((0..5).map(letter).collect()).await.unwrap();
        let spec = OperationSpec::replay(Filter::new());
        store.start(spec, Actor::new("test")).await.unwrap();
        let request = ClaimRequest::due([CONSUMER], 2, Duration::from_secs(9));
        assert_eq!(store.claim(request).await.unwrap().len(), 2);
        assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        assert!(!store.verify().await.unwrap().is_empty(), "{sql}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_reported_as_corrupt() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dlq.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.put(vec![letter(1)]).await.unwrap();
    let conn = Connection::open(&path).unwrap();
    for sql in [
        "UPDATE dlq_events SET history = '[{]'",
        "UPDATE dlq_events SET reason = 'because'",
        "UPDATE dlq_events SET letter_id = x'00'",
    ] {
        conn.execute_batch(sql).unwrap();
        let answers = [
            store.get(letter(1).id).await.map(|_| ()),
            store.list(Filter::new(), PageRequest::new()).await.map(|_| ()),
        ];
        let errors: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
        assert!(!errors.is_empty(), "{sql}");
        for error in errors {
            assert_eq!(error.kind(), dlq_core::StoreErrorKind::Corrupt, "{sql}: {error}");
        }
    }
}

#[tokio::test]
async fn filters_take_any_number_of_values() {
    let store = SqliteStore::in_memory().await.unwrap();
    store.put((0..100).map(letter).collect()).await.unwrap();
    let mut filter = Filter::new();
    // More values than a statement of SQLite may have parameters, which are 32,766.
    filter.ids = (0..40_000).map(|n| letter(n).id).collect();
    filter.message_ids = (10..40_000).map(|n| format!("evt-{n}")).collect();
    assert_eq!(store.count(filter).await.unwrap(), 90);
}

/// Everything that a store answers about letters, by every kind of filter, is what the letters themselves say.
#[tokio::test]
async fn counts_agree_with_the_letters() {
    let store = SqliteStore::in_memory().await.unwrap();
    let letters: Vec<DeadLetter> = (0..60).map(varied).collect();
    let receipts = store.put(letters.clone()).await.unwrap();
    assert!(receipts.iter().all(|receipt| *receipt == Receipt::Stored));
    for subject in ["orders.*", "*.created", "orders.>", ">", "orders", "*", "odd.100%_"] {
        for consumer in [None, Some("orders.handle"), Some("nobody")] {
            let mut filter = Filter::new().with_subject(subject.parse().unwrap());
            filter.consumers = consumer.map(str::to_owned).into_iter().collect();
            let expected = letters.iter().filter(|letter| filter.matches(letter)).count() as u64;
            assert_eq!(store.count(filter.clone()).await.unwrap(), expected, "{filter:?}");
            assert_eq!(store.stats(filter.clone()).await.unwrap().total, expected, "{filter:?}");
            // An attribute cannot be counted by the table of counts.
            let filter = filter.attribute("tenant", "t2");
            let expected = letters.iter().filter(|letter| filter.matches(letter)).count() as u64;
            assert_eq!(store.count(filter.clone()).await.unwrap(), expected, "{filter:?}");
            assert_eq!(store.stats(filter.clone()).await.unwrap().total, expected, "{filter:?}");
        }
    }
}

/// Whatever is done to a store, in whatever order: it agrees with the one in memory, and holds together.
#[test]
fn nothing_done_to_it_breaks_it() {
    let config = Config { cases: 40, failure_persistence: None, ..Config::default() };
    let steps = (any::<bool>(), vec(any_step(), 10..80));
    let ended = TestRunner::new(config).run(&steps, |(dedup, steps)| {
        dlq_testkit::run("holds together", async {
            let fixture = SqliteFixture::fresh("holds_together").await;
            let store = fixture.open(dedup).await;
            let clock = fixture.clock().expect("the fixture has one");
            agrees_with_model(&store, clock, dedup, &steps).await;
            assert_eq!(store.verify().await.expect("check answers"), Vec::<String>::new());
        });
        Ok(())
    });
    ended.unwrap_or_else(|error| panic!("{error}"));
}

/// Every handle has connections of its own, as another process would.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_letter_is_claimed_through_one_handle_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dlq.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.put((0..400).map(letter).collect()).await.unwrap();
    let operation =
        store.start(OperationSpec::replay(Filter::new()), Actor::new("test")).await.unwrap();
    let mut claimers = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let path = path.clone();
        claimers.spawn(async move {
            let store = SqliteStore::open(path).await.unwrap();
            let mut claimed = Vec::new();
            loop {
                let request = ClaimRequest::due([CONSUMER], 7, Duration::from_secs(600));
                let claims = store.claim(request).await.unwrap();
                if claims.is_empty() {
                    return claimed;
                }
                let succeeded = Finish::Resolved(Resolution::Succeeded);
                let ends = claims.iter().map(|claim| (claim.token, succeeded.clone()));
                let ends = store.finish(ends.collect()).await.unwrap();
                assert!(ends.iter().all(|end| *end == Finished::Applied));
                claimed.extend(claims.iter().map(|claim| claim.token.letter));
            }
        });
    }
    let mut claimed: Vec<_> = claimers.join_all().await.into_iter().flatten().collect();
    claimed.sort_unstable();
    let mut expected: Vec<_> = (0..400).map(|n| letter(n).id).collect();
    expected.sort_unstable();
    assert_eq!(claimed, expected);
    let operation = store.operation(operation.id).await.unwrap().unwrap();
    assert_eq!(operation.state, OperationState::Completed);
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}
