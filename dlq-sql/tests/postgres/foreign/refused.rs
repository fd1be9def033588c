//! What cannot be read is refused before anything is read, with what to do.

use std::error::Error as _;

use dlq_core::{StoreError, StoreErrorKind};
use dlq_sql::postgres::PostgresStore;
use dlq_sql::postgres::foreign::{Field, ForeignBuilder, ForeignTable};

use super::fixture::Schema;

/// With the sources, as users read it.
fn text(error: &StoreError) -> String {
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{source}")
}

async fn refusal(builder: ForeignBuilder, kind: StoreErrorKind, says: &str) {
    let error = builder.open().await.unwrap_err();
    let said = text(&error);
    assert_eq!(error.kind(), kind, "{said}");
    assert!(said.contains(says), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_will_not_do() {
    use StoreErrorKind::{InvalidConfig, NotFound};
    let Some(mut schema) = Schema::create("will_not_do").await else { return };
    schema
        .run(
            "CREATE TABLE unknown (a INT, b TEXT); CREATE SEQUENCE numbers;
             CREATE TABLE known (event_id TEXT, subject TEXT, data TEXT, error TEXT, n INT, at TIMESTAMP)",
        )
        .await;
    let known = || schema.table("known");
    refusal(
        schema.table("unknown"),
        InvalidConfig,
        "the columns of `will_not_do.unknown` are not known (a, b); say which of them are payload and subject or event \
         with `ForeignBuilder::map`",
    )
    .await;
    refusal(schema.table("nowhere"), NotFound, "there is no table `will_not_do.nowhere`").await;
    refusal(schema.table("Nowhere"), NotFound, "capital letters stands in double quotes").await;
    refusal(schema.table("\"known"), InvalidConfig, "is not the name of a table").await;
    refusal(schema.table("a.b.c"), InvalidConfig, "is not the name of a table").await;
    refusal(schema.table("numbers"), InvalidConfig, "neither a table nor a view").await;
    refusal(
        known().map(Field::Error, "why"),
        InvalidConfig,
        "has no column `why`; it has event_id, subject",
    )
    .await;
    refusal(known().skip("why"), InvalidConfig, "has no column `why`").await;
    refusal(
        known().map(Field::CreatedAt, "n"),
        InvalidConfig,
        "column `n` is integer, and a time is expected",
    )
    .await;
    refusal(
        known().map(Field::Key, "n").map(Field::Id, "n"),
        InvalidConfig,
        "column `n` cannot be both",
    )
    .await;
    for zone in ["Mars/Olympus", "", "UTC'; SELECT 1 --", "a b"] {
        refusal(known().time_zone(zone), InvalidConfig, "is not a time zone").await;
    }
    known().time_zone("+02:00").open().await.expect("offsets are zones too");
}

#[tokio::test(flavor = "multi_thread")]
async fn places_that_will_not_do() {
    use StoreErrorKind::{InvalidConfig, NotFound, Unavailable};
    let Some(schema) = Schema::create("places").await else { return };
    let at = |url: &str| ForeignTable::builder(url, "t");
    refusal(at("postgres://ana:s3cret@[/db"), InvalidConfig, "the URL will not do").await;
    refusal(at("postgres://ana:s3cret@127.0.0.1:1/db"), Unavailable, "does not answer").await;
    let (server, _) = schema.url.rsplit_once('/').unwrap();
    refusal(at(&format!("{server}/nowhere")), NotFound, "no such database").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_opened_as_one() {
    let Some(schema) = Schema::create("ours").await else { return };
    let store = PostgresStore::builder(&*schema.url).schema("ours").open().await.unwrap();
    drop(store);
    refusal(
        schema.table("dlq_events"),
        StoreErrorKind::InvalidConfig,
        "open it with `PostgresStore::builder`",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_are_named_and_no_row_is_hidden() {
    let Some(mut schema) = Schema::create("rights").await else { return };
    schema
        .run(
            "DROP ROLE IF EXISTS foreign_reader; CREATE ROLE foreign_reader LOGIN;
             CREATE TABLE t (event_id TEXT PRIMARY KEY, subject TEXT, data TEXT, error TEXT);
             INSERT INTO t VALUES ('1', 's', 'd', 'e')",
        )
        .await;
    let url = schema.url.replacen("postgres://postgres", "postgres://foreign_reader", 1);
    assert_ne!(url, schema.url);
    let table = || ForeignTable::builder(&*url, "rights.t");
    refusal(table(), StoreErrorKind::InvalidConfig, "grant USAGE on the schema and SELECT").await;
    schema.run("GRANT USAGE ON SCHEMA rights TO foreign_reader").await;
    refusal(table(), StoreErrorKind::InvalidConfig, "grant USAGE on the schema and SELECT").await;
    schema.run("GRANT SELECT ON t TO foreign_reader").await;
    // That right is enough, and nothing is written with it.
    let mut opened = table().open().await.unwrap();
    assert_eq!(opened.next_page().await.unwrap().unwrap().len(), 1);
    drop(opened);
    schema.run("ALTER TABLE t ENABLE ROW LEVEL SECURITY").await;
    let mut hidden = match table().open().await {
        Ok(table) => table,
        Err(error) => return assert!(text(&error).contains("row-level security"), "{error}"),
    };
    let error = hidden.next_page().await.unwrap_err();
    assert!(text(&error).contains("row-level security"), "{error}");
}
