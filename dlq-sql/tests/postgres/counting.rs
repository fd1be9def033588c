//! What is counted is right at every moment, and takes little room.

use dlq_core::store::{Actor, Letters as _, Maintenance as _, Mark, Selection, Sink as _};
use dlq_core::{Filter, Message};
use dlq_testkit::fixtures::{letter, varied};
use sqlx::{Executor as _, PgConnection};
use tokio::task::JoinSet;

use crate::fixture::{Schema, available};
use crate::racing::{counts_are_right, until_blocked};

async fn differences(conn: &mut PgConnection) -> i64 {
    let count = sqlx::query_scalar("SELECT count(*) FROM dlq_counts");
    count.fetch_one(conn).await.unwrap()
}

/// Letters never become fewer while they are only put, however their counts are folded meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counts_are_right_while_they_are_folded() {
    if !available() {
        return;
    }
    const WRITERS: u64 = 4;
    const EACH: u64 = 700;
    let schema = Schema::fresh();
    let store = schema.store().await;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        // One store, as one process has it; and one that folds at other moments.
        let store = if writer == 0 { schema.store().await } else { store.clone() };
        writers.spawn(async move {
            for n in 0..EACH {
                let kind = if n % 10 == 0 { varied } else { letter };
                store.put(vec![kind(writer * EACH + n)]).await.unwrap();
            }
        });
    }
    let (mut seen, mut looks) = (0, 0);
    loop {
        while let Some(ended) = writers.try_join_next() {
            ended.unwrap();
        }
        let all = store.count(Filter::new()).await.unwrap();
        assert!(all >= seen, "{all} letters, and there were {seen}");
        (seen, looks) = (all, looks + 1);
        if writers.is_empty() {
            break;
        }
    }
    assert_eq!(store.count(Filter::new()).await.unwrap(), WRITERS * EACH);
    let rows = differences(&mut schema.connect().await).await;
    println!("{} letters put, looked at {looks} times: {rows} rows count them", WRITERS * EACH);
    assert!(rows < 2_000, "nobody folded: {rows}");
    counts_are_right(&schema).await;
}

#[tokio::test]
async fn statistics_fold_what_others_left() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    store.put((0..30).map(varied).collect()).await.unwrap();
    let mut conn = schema.connect().await;
    let many = "INSERT INTO dlq_counts SELECT status, reason, cause, class, consumer, subject, fingerprint, s.n \
                FROM dlq_counts, generate_series(1, 300), (VALUES (1), (-1)) s (n)";
    conn.execute(many).await.unwrap();
    let before = differences(&mut conn).await;
    assert_eq!(store.stats(Filter::new()).await.unwrap().total, 30);
    let after = differences(&mut conn).await;
    println!("{before} rows before, {after} after");
    assert!(before > 12_000 && after < 100);
    assert_eq!(store.stats(Filter::new()).await.unwrap().total, 30);
    counts_are_right(&schema).await;
}

/// A fold that ends with its connection has done nothing, and the call that it came with is none the worse.
#[tokio::test]
async fn a_fold_that_is_cut_off_changes_nothing() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    store.put((0..10).map(letter).collect()).await.unwrap();
    let by = Actor::new("ana");
    store.mark(Selection::all(), Mark::Resolved, by).await.unwrap();
    let mut hold = schema.connect().await;
    let mut watch = schema.connect().await;
    let before = differences(&mut watch).await;
    hold.execute("BEGIN; SELECT FROM dlq_counts FOR UPDATE").await.unwrap();
    // Of a kind each.
    let kind = |n| letter(n).with_message(Message::new(format!("orders.{n}"), "{}"));
    let put = store.put((10..1_010).map(kind).collect());
    let cut = async {
        until_blocked(&mut watch, &schema).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
        let pattern = format!("WITH gone AS (DELETE FROM \"{}\"%", schema.name);
        let ended = sqlx::query(end).bind(pattern).execute(&mut watch).await.unwrap();
        assert_eq!(ended.rows_affected(), 1);
    };
    let (put, ()) = tokio::join!(put, cut);
    assert_eq!(put.unwrap().len(), 1_000);
    hold.execute("ROLLBACK").await.unwrap();
    assert!(differences(&mut watch).await > before);
    assert_eq!(store.count(Filter::new()).await.unwrap(), 1_010);
    counts_are_right(&schema).await;
}

/// Where there are many kinds of letters there is a row for each, and adding up makes them no fewer.
#[tokio::test]
async fn statistics_fold_nothing_that_cannot_be_fewer() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    store.put(vec![letter(0)]).await.unwrap();
    let mut conn = schema.connect().await;
    let many = "INSERT INTO dlq_counts SELECT status, reason, cause, class, consumer, subject, 'kind ' || k, 1 \
                FROM dlq_counts, generate_series(1, 10100) k";
    conn.execute(many).await.unwrap();
    let written = "SELECT max(xmin::text::bigint), count(*) FROM dlq_counts";
    let before: (i64, i64) = sqlx::query_as(written).fetch_one(&mut conn).await.unwrap();
    for _ in 0..2 {
        assert_eq!(store.stats(Filter::new()).await.unwrap().total, 10_101);
    }
    let after: (i64, i64) = sqlx::query_as(written).fetch_one(&mut conn).await.unwrap();
    assert_eq!(after, before, "reading has written");
}
