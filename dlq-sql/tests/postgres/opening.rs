//! What is opened, what is refused, and what an error says.

use std::time::Instant;

use dlq_core::store::{Letters as _, Sink as _};
use dlq_core::{Filter, StoreError, StoreErrorKind};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::letter;
use sqlx::{AssertSqlSafe, Executor as _};

use crate::fixture::{PATIENCE, Schema, available, url};

async fn refused(url: &str) -> StoreError {
    PostgresStore::builder(url)
        .acquire_timeout(std::time::Duration::from_secs(2))
        .open()
        .await
        .expect_err("it cannot be opened")
}

#[tokio::test]
async fn many_may_open_at_once() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let open = || schema.builder().max_connections(1).open();
    let opened = futures_util::future::join_all((0..16).map(|_| open())).await;
    for store in opened {
        store.unwrap();
    }
}

#[tokio::test]
async fn what_is_wrong_with_the_url_is_said() {
    if !available() {
        return;
    }
    let error = refused("postgres://ana:s3cret@127.0.0.1:1/orders").await;
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    for wrong in
        ["postgres://ana:s3cret@[/orders", "nonsense s3cret", "postgres://ana:s3cret@host:port/x"]
    {
        let error = refused(wrong).await;
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
    let (place, _) = url().rsplit_once('/').unwrap();
    let began = Instant::now();
    let error = loop {
        let error = refused(&format!("{place}/nowhere")).await;
        // A busy server says nothing for a while.
        if error.kind() != StoreErrorKind::Unavailable || began.elapsed() > PATIENCE {
            break error;
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("no such database"), "{error}");
    for builder in [
        PostgresStore::builder(url()).table("dlq; drop table x"),
        PostgresStore::builder(url()).schema("public\""),
        PostgresStore::builder(url()).table("t".repeat(45)),
    ] {
        let error = builder.open().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    }
}

#[tokio::test]
async fn nothing_is_created_where_that_is_not_wanted() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let error = schema.builder().migrate(false).open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
    assert!(error.to_string().contains("dlq migrate"), "{error}");
    schema.store().await;
    schema.builder().migrate(false).open().await.unwrap();
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    schema.store().await;
    let mut conn = schema.connect().await;
    conn.execute("UPDATE dlq_meta SET value = 99 WHERE name = 'version'").await.unwrap();
    for migrate in [true, false] {
        let error = schema.builder().migrate(migrate).open().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Incompatible);
        assert!(error.to_string().contains("99"), "{error}");
    }
}

#[tokio::test]
async fn several_stores_may_share_a_schema() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let one = schema.store().await;
    let other = schema.builder().table("Other_Letters").open().await.unwrap();
    one.put(vec![letter(1)]).await.unwrap();
    assert_eq!(other.count(Filter::new()).await.unwrap(), 0);
    other.put(vec![letter(1), letter(2)]).await.unwrap();
    assert_eq!(one.count(Filter::new()).await.unwrap(), 1);
    assert_eq!(other.count(Filter::new()).await.unwrap(), 2);
}

/// A program that was given the rights that the manual names gets on with them; each right that is missing is named.
#[tokio::test]
async fn the_rights_that_are_needed_are_those_that_are_named() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    schema.store().await;
    let (user, name) = (format!("{}_user", schema.name), &schema.name);
    let mut conn = schema.connect().await;
    conn.execute(AssertSqlSafe(format!("CREATE ROLE {user} LOGIN"))).await.unwrap();
    let theirs = url().replacen("postgres@", &format!("{user}@"), 1);
    assert_ne!(theirs, url());
    let opened = async |migrate: bool| {
        PostgresStore::builder(&theirs).schema(name.as_str()).migrate(migrate).open().await
    };
    let error = opened(false).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    assert!(error.to_string().contains("grant USAGE on the schema"), "{error}");
    conn.execute(AssertSqlSafe(format!("GRANT USAGE ON SCHEMA {name} TO {user}"))).await.unwrap();
    let error = opened(false).await.unwrap_err();
    assert!(error.to_string().contains("grant SELECT, INSERT, UPDATE and DELETE"), "{error}");
    let tables =
        format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO {user}");
    conn.execute(AssertSqlSafe(tables)).await.unwrap();
    let store = opened(false).await.unwrap();
    store.put(vec![letter(1)]).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), 1);
    opened(true).await.unwrap();
    let elsewhere =
        PostgresStore::builder(&theirs).schema(format!("{name}_b")).open().await.unwrap_err();
    assert_eq!(elsewhere.kind(), StoreErrorKind::InvalidConfig, "{elsewhere}");
    conn.execute(AssertSqlSafe(format!("DROP OWNED BY {user}; DROP ROLE {user}"))).await.unwrap();
}
