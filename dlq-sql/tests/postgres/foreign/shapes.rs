//! Tables as others make them: whatever was in a row is found again in its letter, byte for byte.

use std::collections::{BTreeMap, BTreeSet};

use dlq_core::{DeadLetter, ErrorClass, Reason, Resolution, Status};
use sqlx::AssertSqlSafe;

use super::fixture::Shown::{self, Bytes, Local, Text, Time};
use super::fixture::{Schema, Shape, hex, hostile, hostile_bytes, letters, shown};

const ROWS: usize = 2_500;

/// Rows and letters are the same, whatever their order.
fn assert_same(mut rows: Vec<Shape>, letters: &[DeadLetter], again: impl Fn(&DeadLetter) -> Shape) {
    assert_eq!(rows.len(), ROWS);
    let ids: BTreeSet<_> = letters.iter().map(|letter| letter.id).collect();
    assert_eq!(ids.len(), ROWS, "each row is a letter of its own");
    let mut found: Vec<_> = letters.iter().map(again).collect();
    rows.sort();
    found.sort();
    for (row, found) in rows.iter().zip(&found) {
        assert_eq!(row, found);
    }
}

fn row<const N: usize>(values: [(&str, Option<String>); N]) -> Shape {
    BTreeMap::from(values.map(|(name, value)| (name.to_owned(), value)))
}

fn attribute(letter: &DeadLetter, column: &str) -> Option<String> {
    letter.attributes.get(&format!("column.{column}")).cloned()
}

fn text(letter: &DeadLetter) -> Option<String> {
    letter.message.payload().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
}

/// What an error column held: the whole of a long one is an attribute.
fn error(letter: &DeadLetter, column: &str) -> Option<String> {
    let whole = attribute(letter, column);
    whole.or_else(|| letter.failure().map(|failure| failure.message().to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_event_types_loses_nothing() {
    let Some(mut schema) = Schema::create("event_types").await else { return };
    schema
        .run(
            "CREATE TABLE dlq_events (
                id BIGSERIAL PRIMARY KEY,
                event_type VARCHAR(255) NOT NULL,
                payload JSONB NOT NULL,
                error_reason TEXT NOT NULL,
                error_stacktrace TEXT,
                status VARCHAR(20) NOT NULL,
                retry_count INT NOT NULL DEFAULT 0,
                retry_after TIMESTAMP WITH TIME ZONE NOT NULL,
                created_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT NOW(),
                updated_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT NOW()
             );
             CREATE INDEX idx_dlq_status ON dlq_events (status);
             CREATE INDEX idx_dlq_status_retry_after ON dlq_events (status, retry_after);
             BEGIN",
        )
        .await;
    for n in 0..ROWS {
        let payload =
            serde_json::json!({ "n": n, hostile(n): hostile(n / 7), "deep": [null, 1.5e300, {}] });
        let long = if n % 100 == 0 { 20_000 } else { 1 };
        let insert = "INSERT INTO dlq_events (event_type, payload, error_reason, error_stacktrace, status,
                retry_count, retry_after, created_at, updated_at)
             VALUES ($1, $2::jsonb, $3, $4, $5, $6, now() - $6 * interval '1 day 0.000001 second',
                timestamptz '2020-02-29 23:59:59.999999+05:30' + $6 * interval '1 hour 0.000001 second', now())";
        let query = sqlx::query(insert)
            .bind(hostile(n))
            .bind(payload.to_string())
            .bind(hostile(n / 3).repeat(long))
            .bind((n % 3 > 0).then(|| hostile(n / 5).repeat(long)))
            .bind(["PENDING", "SUCCEEDED", "Sleeping"][n % 3])
            .bind(n as i32);
        query.execute(&mut schema.conn).await.unwrap();
    }
    schema.run("COMMIT").await;
    let found = letters(schema.table("dlq_events")).await;
    let columns: &[(&str, Shown)] = &[
        ("id", Text),
        ("event_type", Text),
        ("payload", Text),
        ("error_reason", Text),
        ("error_stacktrace", Text),
        ("status", Text),
        ("retry_count", Text),
        ("retry_after", Text),
        ("created_at", Time),
        ("updated_at", Time),
    ];
    schema.run("SET TimeZone = 'UTC'").await;
    let rows = schema.rows("dlq_events", columns).await;
    assert_same(rows, &found, |letter| {
        let trace = attribute(letter, "error_stacktrace");
        row([
            ("id", Some(letter.origin.position().to_string())),
            ("event_type", letter.message.event().map(str::to_owned)),
            ("payload", text(letter)),
            ("error_reason", error(letter, "error_reason")),
            ("error_stacktrace", trace.or_else(|| letter.failure()?.backtrace.clone())),
            ("status", attribute(letter, "status")),
            ("retry_count", Some(letter.state.retry_count.to_string())),
            ("retry_after", attribute(letter, "retry_after")),
            ("created_at", shown(letter.died_at)),
            ("updated_at", shown(letter.state.updated_at)),
        ])
    });
    for letter in &found {
        let (status, resolution) = match &*attribute(letter, "status").unwrap() {
            "SUCCEEDED" => (Status::Resolved, Some(Resolution::Succeeded)),
            _ => (Status::Pending, None),
        };
        assert_eq!((letter.state.status, letter.state.resolution), (status, resolution));
        assert_eq!(letter.state.due, None, "nothing runs because it was imported");
        assert_eq!(letter.attributes.get("import.payload-type").map(String::as_str), Some("jsonb"));
        assert_eq!((letter.class, letter.reason), (ErrorClass::Transient, Reason::Exhausted));
        assert_eq!(letter.message.subject(), letter.message.event().unwrap());
        assert_eq!(letter.consumer, "dlq_events");
        assert_eq!(letter.origin.stream(), "event_types.dlq_events");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_message_types_loses_nothing() {
    let Some(mut schema) = Schema::create("message_types").await else { return };
    schema
        .run(
            "CREATE TABLE dlq_table (
                id uuid PRIMARY KEY,
                messagetype TEXT NOT NULL,
                payload TEXT,
                retries SMALLINT NOT NULL,
                replay_status TEXT,
                created_at TIMESTAMP NOT NULL,
                extra BYTEA
             ); BEGIN",
        )
        .await;
    for n in 0..ROWS {
        let insert = "INSERT INTO dlq_table VALUES
            (md5($1::text)::uuid, $2, $3, $1, $4, timestamp '2024-10-27 02:30:00' + $1 * interval '1 minute', $5)";
        let query = sqlx::query(insert)
            .bind(n as i32)
            .bind(hostile(n))
            .bind((n % 5 > 0).then(|| hostile(n / 2)))
            .bind([None, Some("COMPLETED"), Some("FAILED"), Some("")][n % 4])
            .bind((n % 2 > 0).then(|| hostile_bytes(n)));
        query.execute(&mut schema.conn).await.unwrap();
    }
    schema.run("COMMIT").await;
    let found = letters(schema.table("dlq_table")).await;
    let columns: &[(&str, Shown)] = &[
        ("id", Text),
        ("messagetype", Text),
        ("payload", Text),
        ("retries", Text),
        ("replay_status", Text),
        ("created_at", Local),
        ("extra", Bytes),
    ];
    let rows = schema.rows("dlq_table", columns).await;
    assert_same(rows, &found, |letter| {
        let extra = attribute(letter, "extra");
        row([
            ("id", attribute(letter, "id")),
            ("messagetype", letter.message.event().map(str::to_owned)),
            ("payload", text(letter)),
            ("retries", Some(letter.state.retry_count.to_string())),
            ("replay_status", attribute(letter, "replay_status")),
            ("created_at", shown(letter.died_at)),
            ("extra", extra.map(|text| text.strip_prefix("\\x").unwrap().to_owned())),
        ])
    });
    for letter in &found {
        let is_done = attribute(letter, "replay_status").as_deref() == Some("COMPLETED");
        assert_eq!(letter.state.status == Status::Resolved, is_done);
        // No column says that there was an error.
        assert_eq!((letter.attempts, letter.cause), (0, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_event_names_loses_nothing() {
    let Some(mut schema) = Schema::create("event_names").await else { return };
    schema
        .run(
            "CREATE TABLE event_dlq (
                id VARCHAR(36) PRIMARY KEY,
                event_name VARCHAR(255) NOT NULL,
                original_id TEXT NOT NULL,
                payload BYTEA NOT NULL,
                metadata JSONB,
                error TEXT NOT NULL,
                retry_count INT NOT NULL DEFAULT 0,
                source VARCHAR(255),
                created_at TIMESTAMP NOT NULL DEFAULT NOW(),
                retried_at TIMESTAMP,
                quarantined_at TIMESTAMP
             );
             CREATE INDEX idx_dlq_retried_at ON event_dlq (retried_at) WHERE retried_at IS NULL;
             BEGIN",
        )
        .await;
    for n in 0..ROWS {
        let metadata = match n % 7 {
            0 => None,
            1 => Some("{}".to_owned()),
            2 => Some(r#"{"n": 12345678901234567890.5, "t": "x", "z": null}"#.to_owned()),
            3 => Some("[1, null]".to_owned()),
            _ => Some(
                serde_json::json!({ hostile(n): hostile(n / 3), "k": hostile(n / 9) }).to_string(),
            ),
        };
        let insert = "INSERT INTO event_dlq VALUES
            ($1, $2, $3, $4, $5::jsonb, $6, $7, $8, timestamp '1999-12-31 23:59:59.999999' + $7 * interval '1 day',
             CASE WHEN $7 % 3 = 1 THEN now()::timestamp + $7 * interval '1 second' END,
             CASE WHEN $7 % 5 = 1 THEN now()::timestamp - $7 * interval '1 second' END)";
        let query = sqlx::query(insert)
            .bind(format!("{n:x}'\\\""))
            .bind(hostile(n))
            .bind(hostile(n / 3))
            .bind(hostile_bytes(n))
            .bind(metadata)
            .bind(hostile(n / 5))
            .bind(n as i32)
            .bind((n % 2 > 0).then(|| hostile(n / 4)));
        query.execute(&mut schema.conn).await.unwrap();
    }
    schema.run("COMMIT").await;
    let found = letters(schema.table("event_dlq")).await;
    let columns: &[(&str, Shown)] = &[
        ("id", Text),
        ("event_name", Text),
        ("original_id", Text),
        ("payload", Bytes),
        ("metadata", Text),
        ("error", Text),
        ("retry_count", Text),
        ("source", Text),
        ("created_at", Local),
        ("retried_at", Local),
        ("quarantined_at", Text),
    ];
    let rows = schema.rows("event_dlq", columns).await;
    assert_same(rows, &found, |letter| {
        row([
            ("id", attribute(letter, "id")),
            ("event_name", letter.message.event().map(str::to_owned)),
            ("original_id", letter.message.id().map(str::to_owned)),
            ("payload", letter.message.payload().and_then(|bytes| hex(bytes))),
            ("metadata", metadata(letter)),
            ("error", error(letter, "error")),
            ("retry_count", Some(letter.state.retry_count.to_string())),
            ("source", letter.service.clone()),
            ("created_at", shown(letter.state.created_at)),
            ("retried_at", letter.state.last_retry_at.and_then(shown)),
            // It stands as the database shows it in UTC.
            (
                "quarantined_at",
                attribute(letter, "quarantined_at").map(|text| text.replace("+00", "")),
            ),
        ])
    });
    for letter in &found {
        let status = match (attribute(letter, "quarantined_at"), letter.state.last_retry_at) {
            (Some(_), _) => Status::Quarantined,
            (None, Some(_)) => Status::Resolved,
            (None, None) => Status::Pending,
        };
        assert_eq!(letter.state.status, status);
    }
}

/// As the database would show it: the headers say it all, or else an attribute does.
fn metadata(letter: &DeadLetter) -> Option<String> {
    if let Some(whole) = attribute(letter, "metadata") {
        return Some(whole);
    }
    let headers = letter.message.headers();
    let json = |bytes: &[u8]| serde_json::to_string(std::str::from_utf8(bytes).unwrap()).unwrap();
    let pairs = headers.iter().map(|header| {
        format!("{}: {}", json(&header.name), json(header.value.as_deref().unwrap()))
    });
    (!headers.is_empty()).then(|| format!("{{{}}}", pairs.collect::<Vec<_>>().join(", ")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_subjects_loses_nothing() {
    let Some(mut schema) = Schema::create("subjects").await else { return };
    schema
        .run(
            "CREATE TABLE dlq_events (
                event_id TEXT PRIMARY KEY,
                subject TEXT NOT NULL,
                data BYTEA NOT NULL,
                error TEXT NOT NULL,
                retry_count INT DEFAULT 0,
                created_at TIMESTAMPTZ DEFAULT NOW(),
                last_retry_at TIMESTAMPTZ
             ); BEGIN",
        )
        .await;
    for n in 0..ROWS {
        let insert = "INSERT INTO dlq_events VALUES ($1, $2, $3, $4, $5,
            timestamptz '2026-03-29 02:30:00.000001+01' + $6 * interval '61 second',
            CASE WHEN $6 % 2 = 1 THEN now() END)";
        let query = sqlx::query(AssertSqlSafe(insert))
            .bind(format!("{}-{n}", hostile(n)))
            .bind(hostile(n / 3))
            .bind(hostile_bytes(n))
            .bind(hostile(n / 2))
            .bind((n % 3 > 0).then_some(n as i32))
            .bind(n as i32);
        query.execute(&mut schema.conn).await.unwrap();
    }
    schema.run("COMMIT").await;
    let found = letters(schema.table("dlq_events")).await;
    let columns: &[(&str, Shown)] = &[
        ("event_id", Text),
        ("subject", Text),
        ("data", Bytes),
        ("error", Text),
        ("coalesce(retry_count, 0)", Text),
        ("created_at", Time),
        ("last_retry_at", Time),
    ];
    let rows = schema.rows("dlq_events", columns).await;
    assert_same(rows, &found, |letter| {
        row([
            ("event_id", letter.message.id().map(str::to_owned)),
            ("subject", Some(letter.message.subject().to_owned())),
            ("data", letter.message.payload().and_then(|bytes| hex(bytes))),
            ("error", error(letter, "error")),
            ("coalesce(retry_count, 0)", Some(letter.state.retry_count.to_string())),
            ("created_at", shown(letter.died_at)),
            ("last_retry_at", letter.state.last_retry_at.and_then(shown)),
        ])
    });
    assert!(found.iter().all(|letter| letter.state.status == Status::Pending));
    assert!(found.iter().all(|letter| letter.message.event().is_none()));
}
