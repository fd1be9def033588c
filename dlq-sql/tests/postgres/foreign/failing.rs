//! Whatever happens while it is read, no row is missed in silence.

use std::collections::BTreeSet;
use std::future::Future as _;
use std::task::{Context, Waker};
use std::time::Duration;

use dlq_core::StoreErrorKind;
use dlq_sql::postgres::foreign::ForeignTable;
use tokio::time::timeout;

use crate::fixture::{PATIENCE, url};
use crate::proxy::Proxy;

use super::fixture::{Schema, letters, read_rest};

const TABLE: &str =
    "CREATE TABLE t (event_id INT PRIMARY KEY, subject TEXT, data TEXT, error TEXT);
    INSERT INTO t SELECT n, 's', 'd', 'e' FROM generate_series(1, 3000) n";

async fn opened(schema: &Schema) -> (ForeignTable, usize) {
    let mut table = schema.table("t").open().await.unwrap();
    let first = table.next_page().await.unwrap().unwrap().len();
    assert!((1..3000).contains(&first), "it is read a page at a time");
    (table, first)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_change_meanwhile_is_not_half_seen() {
    let Some(mut schema) = Schema::create("meanwhile").await else { return };
    schema.run(TABLE).await;
    let (mut table, first) = opened(&schema).await;
    // Rows move, go and come.
    schema.run("UPDATE t SET error = 'new', event_id = 10000 - event_id; DELETE FROM t WHERE event_id < 9000").await;
    schema.run("VACUUM t").await;
    schema.run("INSERT INTO t SELECT n, 's', 'd', 'e' FROM generate_series(20000, 21000) n").await;
    assert_eq!(table.count().await.unwrap(), 3000);
    let (rest, bad) = read_rest(&mut table).await;
    assert_eq!((first + rest.len(), bad.len()), (3000, 0));
    assert!(rest.iter().all(|letter| letter.error() == "e"));
    let different: BTreeSet<_> = rest.iter().map(|letter| letter.id).collect();
    assert_eq!(different.len(), rest.len());
    assert_eq!(table.next_page().await.unwrap(), None, "it stays at its end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_is_no_end() {
    let Some(mut schema) = Schema::create("breaks").await else { return };
    schema.run(TABLE).await;
    let (mut table, _) = opened(&schema).await;
    let others = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity
        WHERE query LIKE 'FETCH FORWARD%breaks%' OR (state = 'idle in transaction' AND EXISTS (
            SELECT FROM pg_locks l WHERE l.pid = pg_stat_activity.pid AND l.relation = 'breaks.t'::regclass))";
    schema.run(others).await;
    for _ in 0..2 {
        let error = table.next_page().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    }
    assert_eq!(letters(schema.table("t")).await.len(), 3000, "opened again it is whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_silent_is_given_up() {
    let Some(mut schema) = Schema::create("silent").await else { return };
    schema.run(TABLE).await;
    let proxy = Proxy::before(url()).await;
    let limit = Duration::from_millis(500);
    let builder = || ForeignTable::builder(&proxy.url, "silent.t").answer_timeout(limit);
    let mut table = builder().open().await.unwrap();
    table.next_page().await.unwrap();
    proxy.swallow(true);
    let page = timeout(PATIENCE, table.next_page()).await.expect("it is given up");
    let opened = timeout(PATIENCE, builder().open()).await.expect("it is given up");
    for error in [page.unwrap_err(), opened.map(|_| ()).unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(error.to_string().contains("silent for 500ms"), "{error}");
    }
    proxy.swallow(false);
    // What did not come would be missing.
    assert!(table.next_page().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_dropped_is_no_page() {
    let Some(mut schema) = Schema::create("dropped").await else { return };
    schema.run(TABLE).await;
    let proxy = Proxy::before(url()).await;
    let mut table = ForeignTable::builder(&proxy.url, "dropped.t").open().await.unwrap();
    table.next_page().await.unwrap();
    // An answer could be there before the call is dropped.
    proxy.swallow(true);
    {
        let mut page = std::pin::pin!(table.next_page());
        let polled = page.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    let error = table.next_page().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("open the table and read it again"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_rows_are_read() {
    let Some(mut schema) = Schema::create("large").await else { return };
    schema
        .run(
            "CREATE TABLE t (event_id INT PRIMARY KEY, subject TEXT, data BYTEA, error TEXT);
             INSERT INTO t SELECT n, 's', convert_to(repeat('x', 4000000), 'UTF8'), repeat('e', 100000)
                FROM generate_series(1, 20) n",
        )
        .await;
    let mut table = schema.table("t").open().await.unwrap();
    table.next_page().await.unwrap();
    let second = table.next_page().await.unwrap().unwrap();
    assert_eq!(second.len(), 2, "as many as are about 8 MiB");
    let letter = second[0].as_ref().unwrap();
    assert_eq!(letter.message.payload().unwrap().len(), 4_000_000);
    assert_eq!(
        letter.attributes["column.error"].len(),
        100_000,
        "what a history holds cut is whole beside it"
    );
}
