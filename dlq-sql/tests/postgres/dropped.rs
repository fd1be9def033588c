//! Calls that are dropped before they end: by a time-out, by a task that is aborted.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use dlq_core::store::{Letters as _, Receipt, Sink as _};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::letter;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _};
use tokio::time::{Instant, sleep, timeout};

use crate::fixture::{PATIENCE, Schema, available};
use crate::silence::{Call, calls};

/// Polls a call so often and drops it, as soon as it waits for what it has asked last; whether it came to its end.
async fn dropped_after(polls: u32, mut call: Call<'_>) -> bool {
    let mut left = polls;
    poll_fn(|context| {
        left -= 1;
        match call.as_mut().poll(context) {
            Poll::Ready(done) => {
                done.unwrap();
                Poll::Ready(true)
            }
            Poll::Pending if left == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drops each call wherever it waits, and lets `check` look after each.
pub(crate) async fn drop_everywhere(
    store: &PostgresStore,
    mut check: impl AsyncFnMut(&str, u32, u64),
) {
    store.put(vec![letter(0)]).await.unwrap();
    let (all, mut count) = (calls(store).len(), 0);
    for which in 0..all {
        for polls in 1.. {
            let (name, call) = calls(store).swap_remove(which);
            if dropped_after(polls, call).await {
                break;
            }
            count += 1;
            check(name, polls, 1000 + count).await;
        }
    }
    println!("calls were dropped at {count} places");
    assert!(count > all as u64, "{all} calls were dropped at {count} places only");
}

/// What is left of a dropped call does not take in the next one, to be rolled back with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_what_is_stored_after_a_dropped_call_stays_stored() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let other = schema.store().await;
    let store = schema.builder().max_connections(1).open().await.unwrap();
    drop_everywhere(&store, async |name, polls, n| {
        let receipts = store.put(vec![letter(n)]).await.unwrap();
        assert_eq!(receipts, [Receipt::Stored], "{name}, dropped after {polls} polls");
        let found = other.get(letter(n).id).await.unwrap();
        assert!(found.is_some(), "{name}, dropped after {polls} polls, takes back a later letter");
    })
    .await;
}

/// Waits until nobody of this name is in a transaction.
pub(crate) async fn no_transaction_is_open(schema: &Schema, application: &str, what: &str) {
    let mut conn = schema.connect().await;
    let sql = format!(
        "SELECT FROM pg_stat_activity WHERE application_name = '{application}' AND xact_start IS NOT NULL"
    );
    let began = Instant::now();
    while conn.fetch_optional(AssertSqlSafe(sql.as_str())).await.unwrap().is_some() {
        assert!(began.elapsed() < PATIENCE, "{what} leaves a transaction open");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Whether or not a pooler is reckoned with: a transaction that stays open holds the locks on its letters.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dropped_call_leaves_no_transaction_open() {
    if !available() {
        return;
    }
    for pooler in [false, true] {
        let schema = Schema::fresh();
        schema.store().await;
        let url = format!("{}?application_name={}", schema.url, schema.name);
        let builder = PostgresStore::builder(url).schema(&schema.name).max_connections(1);
        let store = builder.pooler(pooler).open().await.unwrap();
        drop_everywhere(&store, async |name, polls, _| {
            let what = format!("{name} (pooler: {pooler}), dropped after {polls} polls,");
            no_transaction_is_open(&schema, &schema.name, &what).await;
        })
        .await;
    }
}

/// A transaction that could not begin whole is not handed to whoever gets the connection next.
#[tokio::test]
async fn a_transaction_that_does_not_begin_spoils_no_connection() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    schema.store().await;
    let options: PgConnectOptions = schema.url.parse().unwrap();
    let pool = PgPoolOptions::new().max_connections(1);
    let pool = pool.connect_lazy_with(options.statement_cache_capacity(0));
    let builder = || PostgresStore::with_pool(pool.clone()).schema(&schema.name).pooler(true);
    // More milliseconds than the database takes, so that all of BEGIN fails after its first word.
    let too_long = builder().statement_timeout(Duration::from_secs(u64::from(u32::MAX)));
    too_long.open().await.unwrap_err();
    let opened = timeout(PATIENCE, builder().open()).await.unwrap();
    opened.expect("the connection serves the next").put(vec![letter(1)]).await.unwrap();
}
