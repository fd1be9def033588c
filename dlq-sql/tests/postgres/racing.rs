//! Calls that change the same letters at the same moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, Cleanup, Control, Edit, Finish, Letters as _,
    Maintenance as _, Mark, OperationSpec, Operations as _, Receipt, Selection, Sink as _,
};
use dlq_core::{
    DeadLetter, Filter, LetterId, Resolution, RetryQueue as _, StoreErrorKind, Timestamp,
};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::{CONSUMER, delayed_retry, died_again, letter};
use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Executor as _, PgConnection};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::fixture::{PATIENCE, Schema, available};

/// The same original message, at another place.
fn copy(n: u64, place: u64) -> DeadLetter {
    let mut copy = letter(n);
    let mut id = [0; 16];
    id[..8].copy_from_slice(&n.to_be_bytes());
    id[8..].copy_from_slice(&(place + 1).to_be_bytes());
    copy.id = LetterId::from_bytes(id);
    copy
}

/// Waits until somebody waits for a lock in this schema.
pub(crate) async fn until_blocked(conn: &mut PgConnection, schema: &Schema) {
    let began = Instant::now();
    let sql = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1)";
    loop {
        let blocked = sqlx::query_scalar(sql).bind(format!("%\"{}\"%", schema.name));
        if blocked.fetch_one(&mut *conn).await.unwrap() {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "nobody waits");
        sleep(Duration::from_millis(5)).await;
    }
}

/// What the letters are by kind, as the table of counts has it and as they are counted one by one, must be the same.
pub(crate) async fn counts_are_right(schema: &Schema) {
    let kinds = "status, reason, cause, class, consumer, subject, fingerprint";
    let sql = format!(
        "SELECT count(*) FROM (SELECT {kinds}, sum(n) AS n FROM dlq_counts GROUP BY {kinds} HAVING sum(n) <> 0) c \
         FULL JOIN (SELECT {kinds}, count(*) AS n FROM dlq_events GROUP BY {kinds}) e \
         ON (c.status, c.reason, c.class, c.consumer, c.subject, c.fingerprint, c.n) \
         = (e.status, e.reason, e.class, e.consumer, e.subject, e.fingerprint, e.n) \
         AND c.cause IS NOT DISTINCT FROM e.cause WHERE c.n IS NULL OR e.n IS NULL"
    );
    let mut conn = schema.connect().await;
    let wrong: i64 = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut conn).await.unwrap();
    assert_eq!(wrong, 0, "kinds are counted wrongly");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g2_eight_at_once_write_the_same_deaths_once() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let stores = join_all((0..8).map(|_| schema.store())).await;
    for round in 0..20_u64 {
        let deaths: Vec<_> = (round * 10..round * 10 + 10).map(letter).collect();
        let again: Vec<_> = deaths.iter().map(died_again).collect();
        for (deaths, expected) in [(deaths, Receipt::Stored), (again, Receipt::Reopened)] {
            let puts = stores.iter().enumerate().map(|(n, store)| {
                let mut deaths = deaths.clone();
                // Each begins with another death, so that they meet at every one.
                deaths.rotate_left(n);
                store.put(deaths)
            });
            let receipts = join_all(puts).await.into_iter().flat_map(Result::unwrap);
            let receipts: Vec<_> = receipts.collect();
            let first = receipts.iter().filter(|receipt| **receipt == expected).count();
            let same = receipts.iter().filter(|receipt| **receipt == Receipt::Unchanged).count();
            assert_eq!((first, same), (10, 70));
        }
    }
    assert_eq!(stores[0].count(Filter::new()).await.unwrap(), 200);
    counts_are_right(&schema).await;
}

/// Each payload has a letter, and everybody is told the same ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g2_conflicting_payloads_at_once_each_have_a_letter() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let stores = join_all((0..8).map(|_| schema.store())).await;
    for round in 0..20_u64 {
        let death = |n: usize| {
            let mut death = letter(round);
            let payload = format!("payload {}", n % 2);
            death.message = death.message.with_payload(Some(payload.into()));
            death
        };
        let puts = stores.iter().enumerate().map(|(n, store)| store.put(vec![death(n)]));
        let receipts: Vec<_> = join_all(puts).await.into_iter().flat_map(Result::unwrap).collect();
        let stored = receipts.iter().filter(|receipt| **receipt == Receipt::Stored).count();
        let unchanged = receipts.iter().filter(|receipt| **receipt == Receipt::Unchanged).count();
        let conflicts: BTreeSet<_> = receipts
            .iter()
            .filter_map(|receipt| match receipt {
                Receipt::Conflicting(other) => Some(*other),
                _ => None,
            })
            .collect();
        assert_eq!((stored, unchanged, conflicts.len()), (1, 3, 1), "{receipts:?}");
        let other = conflicts.first().copied().unwrap();
        let payloads = join_all([letter(round).id, other].map(|id| stores[0].get(id))).await;
        let payload = |read: Result<Option<DeadLetter>, _>| read.unwrap().unwrap().message;
        let payloads: BTreeSet<_> =
            payloads.into_iter().filter_map(|read| payload(read).payload().cloned()).collect();
        assert_eq!(payloads.len(), 2);
    }
    assert_eq!(stores[0].count(Filter::new()).await.unwrap(), 40);
}

/// Whoever looked before it was switched on, and writes afterwards, looks again.
#[tokio::test]
async fn g2_dedup_holds_for_a_write_that_began_before_it() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.builder().dedup(true).open().await.unwrap();
    let merged = store.put(vec![copy(1, 0), copy(1, 1)]).await.unwrap();
    assert_eq!(merged, [Receipt::Stored, Receipt::Merged(copy(1, 0).id)]);
    let off = schema.builder().dedup(false).open().await.unwrap();
    // As one that switches it on does, at a moment that cannot be hit otherwise.
    let mut switch = schema.connect().await;
    let mut watch = schema.connect().await;
    switch.execute("BEGIN; LOCK TABLE dlq_events IN SHARE ROW EXCLUSIVE MODE").await.unwrap();
    let put = off.restore(vec![copy(1, 2)], Actor::new("ana"));
    let switched = async {
        until_blocked(&mut watch, &schema).await;
        let on = "UPDATE dlq_meta SET value = 1 WHERE name = 'dedup'; COMMIT";
        switch.execute(on).await.unwrap();
    };
    let (receipts, ()) = tokio::join!(put, switched);
    assert_eq!(receipts.unwrap(), [Receipt::Merged(copy(1, 0).id)]);
}

/// The letter of the same original is deleted while another is about to be merged into it.
#[tokio::test]
async fn g1_a_death_is_not_merged_into_a_letter_that_goes() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.builder().dedup(true).open().await.unwrap();
    store.put(vec![copy(1, 0)]).await.unwrap();
    let mut delete = schema.connect().await;
    let mut watch = schema.connect().await;
    delete.execute("BEGIN; SELECT FROM dlq_events FOR UPDATE").await.unwrap();
    let gone = async {
        until_blocked(&mut watch, &schema).await;
        delete.execute("DELETE FROM dlq_events; COMMIT").await.unwrap();
    };
    let (receipts, ()) = tokio::join!(store.put(vec![copy(1, 1)]), gone);
    assert_eq!(receipts.unwrap(), [Receipt::Stored]);
    assert!(store.get(copy(1, 1).id).await.unwrap().is_some());
}

/// Dedup is switched on and off and run while eight write copies: each is there, or was merged into one that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_dedup_is_switched_while_eight_write_and_nothing_is_lost() {
    if !available() {
        return;
    }
    const ORIGINALS: u64 = 40;
    const COPIES: u64 = 12;
    let schema = Schema::fresh();
    let store = schema.store().await;
    let mut tasks = JoinSet::new();
    for writer in 0..8_u64 {
        let store = schema.store().await;
        tasks.spawn(async move {
            for place in 0..COPIES {
                let copies =
                    (0..ORIGINALS).map(|n| copy((n + writer) % ORIGINALS, writer * COPIES + place));
                for some in copies.collect::<Vec<_>>().chunks(5) {
                    store.put(some.to_vec()).await.unwrap();
                }
            }
        });
    }
    let mut rounds = 0;
    loop {
        while let Some(ended) = tasks.try_join_next() {
            ended.unwrap();
        }
        if tasks.is_empty() {
            break;
        }
        match rounds % 3 {
            0 => drop(schema.builder().dedup(true).open().await.unwrap()),
            1 => drop(schema.builder().dedup(false).open().await.unwrap()),
            _ => drop(store.deduplicate(true).await.unwrap()),
        }
        rounds += 1;
    }
    store.deduplicate(true).await.unwrap();
    let mut conn = schema.connect().await;
    let found: Vec<(Vec<u8>, i64)> = sqlx::query_as(
        "SELECT letter_id, seen FROM dlq_events UNION ALL \
         SELECT a.alias, 0 FROM dlq_aliases a JOIN dlq_events USING (letter_id)",
    )
    .fetch_all(&mut conn)
    .await
    .unwrap();
    let ids: BTreeSet<_> = found.iter().map(|(id, _)| id.clone()).collect();
    println!(
        "{} copies by 8 writers, dedup switched or run {rounds} times: {} letters, {} merged",
        8 * ORIGINALS * COPIES,
        store.count(Filter::new()).await.unwrap(),
        found.len() as u64 - ORIGINALS
    );
    assert_eq!(ids.len() as u64, 8 * ORIGINALS * COPIES, "each is there or was merged");
    assert_eq!(store.count(Filter::new()).await.unwrap(), ORIGINALS);
    assert_eq!(found.iter().map(|(_, seen)| *seen as u64).sum::<u64>(), 8 * ORIGINALS * COPIES);
    counts_are_right(&schema).await;
}

/// Everything that changes letters, at the same 30 letters at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g6_outcomes_add_up_whatever_happens_at_once() {
    if !available() {
        return;
    }
    const LETTERS: u64 = 30;
    let schema = Schema::fresh();
    let store = schema.builder().dedup(true).open().await.unwrap();
    store.put((0..LETTERS).map(letter).collect()).await.unwrap();
    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for worker in 0..12_u64 {
        let (store, stop, calls) = (schema.store().await, Arc::clone(&stop), Arc::clone(&calls));
        tasks.spawn(async move {
            let mut n = worker;
            while !stop.load(Ordering::SeqCst) {
                n += 12;
                change(&store, worker % 6, n, LETTERS).await;
                calls.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    sleep(Duration::from_secs(8)).await;
    stop.store(true, Ordering::SeqCst);
    tasks.join_all().await;
    for operation in store.operations(10_000).await.unwrap() {
        let control = store.control(operation.id, Control::Cancel, Actor::new("end")).await;
        assert!(control.is_ok() || operation.state.is_final(), "{control:?}");
    }
    store.put((0..LETTERS).map(letter).collect()).await.unwrap();
    store.mark(Selection::all(), Mark::Pending, Actor::new("end")).await.unwrap();
    let operations = store.operations(100_000).await.unwrap();
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    for operation in &operations {
        let mut items: BTreeMap<_, u64> = BTreeMap::new();
        let page = store.items(operation.id, 0, 1_000).await.unwrap();
        for item in &page.items {
            *items.entry(item.outcome).or_default() += 1;
            *outcomes.entry(item.outcome.to_string()).or_default() += 1;
        }
        for (outcome, count) in &items {
            assert_eq!(operation.progress.with_outcome(*outcome), *count, "{operation:?}");
        }
        assert_eq!(items.values().sum::<u64>(), operation.progress.total, "{operation:?}");
    }
    println!(
        "{} calls of 12 workers at {LETTERS} letters, {} operations: {outcomes:?}",
        calls.load(Ordering::SeqCst),
        operations.len()
    );
    counts_are_right(&schema).await;
    assert_eq!(
        store.count(Filter::new()).await.unwrap(),
        store.stats(Filter::new()).await.unwrap().total
    );
}

/// One call of this kind. None may fail, but for what it says itself.
async fn change(store: &PostgresStore, kind: u64, n: u64, letters: u64) {
    let by = || Actor::new("ana");
    let one = |n: u64| {
        let filter = Filter::new().with_id(letter(n % letters).id);
        Selection::matching(filter).unwrap()
    };
    match kind {
        0 => {
            let spec = OperationSpec::replay(Filter::new()).max_replays(0);
            let operation = store.start(spec, by()).await.unwrap();
            if n.is_multiple_of(5) {
                let control = store.control(operation.id, Control::Cancel, by()).await;
                assert!(
                    control.as_ref().is_ok_and(|_| true)
                        || control
                            .as_ref()
                            .is_err_and(|error| error.kind() == StoreErrorKind::Conflict),
                    "{control:?}"
                );
            }
        }
        1 | 2 => {
            let request = ClaimRequest::due([CONSUMER], 8, Duration::from_secs(60));
            let claims = store.claim(request).await.unwrap();
            let finishes = claims.into_iter().enumerate().map(|(at, claim)| {
                let finish = match at % 3 {
                    0 => Finish::Resolved(Resolution::Succeeded),
                    1 => Finish::Dead(Box::new(died_again(&claim.letter))),
                    _ => Finish::Released { after: Duration::ZERO },
                };
                (claim.token, finish)
            });
            store.finish(finishes.collect()).await.unwrap();
        }
        3 => {
            let mark = [Mark::Pending, Mark::Resolved, Mark::Quarantined][(n / 12 % 3) as usize];
            store.mark(one(n / 12), mark, by()).await.unwrap();
            if (n / 12).is_multiple_of(7) {
                store.delete(one(n / 5), by()).await.unwrap();
            }
            if (n / 12).is_multiple_of(11) {
                store.cleanup(Cleanup::older_than(Duration::ZERO), by()).await.unwrap();
            }
        }
        4 => {
            let number = n / 12 % letters;
            let copies = vec![copy(number, n), letter(number), copy((number + 1) % letters, n)];
            store.put(copies).await.unwrap();
            if let Some(read) = store.get(letter(number).id).await.unwrap() {
                store.put(vec![died_again(&read)]).await.unwrap();
            }
        }
        _ => {
            let number = n / 12 % letters;
            let edit = Edit::new().set_header("edited", n.to_string());
            let edited = store.edit(letter(number).id, edit.allow_invalid(), by()).await;
            let kinds =
                [StoreErrorKind::NotFound, StoreErrorKind::Conflict, StoreErrorKind::Refused];
            if let Err(error) = edited {
                assert!(kinds.contains(&error.kind()), "{error:?}");
            }
            store
                .restore((0..3).map(|at| letter((number + at) % letters)).collect(), by())
                .await
                .unwrap();
            if (n / 12).is_multiple_of(20) {
                store.deduplicate(true).await.unwrap();
            }
        }
    }
}

/// A call that is refused holds nothing: who claims at once passes over no letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_refused_is_not_locked() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    for n in 0..200 {
        let due = delayed_retry(&letter(n), 1, Timestamp::EPOCH);
        store.enqueue(due).await.unwrap();
        let edit = Edit::new().payload("edited").allow_invalid();
        let refused = store.edit(letter(n).id, edit, Actor::new("ana")).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Conflict);
        let request = ClaimRequest::due([CONSUMER], 10, Duration::from_secs(3_600));
        let claims = store.claim(request).await.unwrap();
        assert_eq!(claims.len(), 1, "letter {n} was passed over");
    }
}
