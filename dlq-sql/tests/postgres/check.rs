//! What only a database on a server can have wrong.

use std::time::Duration;

use dlq_core::store::{CheckLimits, Maintenance, Sink as _};
use dlq_core::{Finding, Severity};
use dlq_services::Service;
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::letter;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};

use crate::fixture::{PATIENCE, Schema, available};

struct Bench {
    schema: Schema,
    store: PostgresStore,
}

impl Bench {
    async fn with(letters: u64) -> Self {
        Self::at(Schema::fresh(), letters).await
    }

    async fn at(schema: Schema, letters: u64) -> Self {
        let store = schema.store().await;
        store.put((0..letters).map(letter).collect()).await.unwrap();
        Self { schema, store }
    }

    async fn found(&self, limits: CheckLimits) -> Vec<Finding> {
        Maintenance::check(&self.store, limits).await.unwrap()
    }

    async fn is_well(&self) {
        assert_eq!(self.found(CheckLimits::default().deep(true)).await, []);
    }

    /// The one thing that is wrong.
    async fn only(&self, limits: CheckLimits) -> Finding {
        let mut found = self.found(limits).await;
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    /// By a user who has closed the connection again, upon which the server counts what it did.
    async fn sql(&self, sql: &str) {
        let mut conn = self.schema.connect().await;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
    }

    /// Types what a finding says to type, and looks again.
    async fn follow(&self, finding: &Finding, from: &str) {
        let start = finding.advice.find(from).expect("the advice says what to type");
        // What stands between two statements is for people.
        let sql = finding.advice[start..].replace("Then count anew:", "");
        self.sql(&sql).await;
        self.is_well().await;
    }

    async fn names(&self, sql: &str) -> Vec<String> {
        let mut conn = self.schema.connect().await;
        let rows = conn.fetch_all(AssertSqlSafe(sql)).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

/// What others left long ago does not hide the claims that somebody did not finish.
#[tokio::test]
async fn lapsed_claims_are_seen_behind_any_backlog() {
    if !available() {
        return;
    }
    let bench = Bench::with(1_201).await;
    // A thousand and more are due to a consumer that is no more, some are retries; one claim has lapsed since.
    bench
        .sql(
            "UPDATE dlq_events SET consumer = 'gone', available_at = now() - interval '7 days';
             UPDATE dlq_events SET status = 'retrying', available_at = now() - interval '8 days'
                 WHERE ctid IN (SELECT ctid FROM dlq_events LIMIT 10);
             UPDATE dlq_events SET consumer = 'killed', status = 'replaying', claim_former = 'pending', claim_fence = 7,
                 claim_until = now() - interval '1 day', available_at = now() - interval '1 day'
             WHERE letter_id = (SELECT letter_id FROM dlq_events WHERE status = 'pending' LIMIT 1)",
        )
        .await;
    let found = bench.found(CheckLimits::default()).await;
    let of = |consumer: &str, setting: &str| {
        let part = format!("consumer `{consumer}`");
        let finding = found.iter().find(|found| found.subject == part && found.setting == setting);
        finding.unwrap_or_else(|| panic!("{setting} of {consumer}: {found:?}")).found.clone()
    };
    assert!(of("gone", "overdue letters").starts_with("at least 990, "));
    assert!(of("gone", "overdue retries").starts_with("at least 10, "));
    assert!(of("killed", "unfinished claims").starts_with("1, "));
}

#[tokio::test]
async fn every_index_that_is_missing_is_found_and_its_advice_creates_it() {
    if !available() {
        return;
    }
    let bench = Bench::with(3).await;
    bench.is_well().await;
    let free = format!(
        "SELECT relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
         WHERE relnamespace = to_regnamespace('{}') \
           AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid)",
        bench.schema.name
    );
    let indexes = bench.names(&free).await;
    assert_eq!(indexes.len(), 20, "{indexes:?}");
    for index in indexes {
        bench.sql(&format!("DROP INDEX {index}")).await;
        let finding = bench.only(CheckLimits::default()).await;
        assert_eq!(finding.severity, Severity::Error);
        assert_eq!(
            (finding.subject, finding.found),
            (format!("index `{index}`"), "missing".to_owned())
        );
        // They are left out of the way of the next.
        let create = &finding.advice[finding.advice.find("CREATE").unwrap()..];
        bench.sql(&create.replace("CONCURRENTLY", "")).await;
    }
    bench.is_well().await;
}

#[tokio::test]
async fn an_index_that_was_never_finished_is_found() {
    if !available() {
        return;
    }
    let bench = Bench::with(3).await;
    bench
        .sql("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'dlq_events_by_subject'::regclass")
        .await;
    let finding = bench.only(CheckLimits::default()).await;
    assert_eq!((finding.severity, finding.found.as_str()), (Severity::Error, "half-built"));
    bench.follow(&finding, "REINDEX").await;
}

/// Letters that were written meanwhile are counted afterwards.
#[tokio::test]
async fn a_trigger_that_does_not_count_is_found() {
    if !available() {
        return;
    }
    for (wrong, found, advice) in [
        ("DROP TRIGGER dlq_events_count_insert ON dlq_events", "missing", "CREATE TRIGGER"),
        (
            "ALTER TABLE dlq_events DISABLE TRIGGER dlq_events_count_insert",
            "disabled",
            "ALTER TABLE",
        ),
    ] {
        let bench = Bench::with(3).await;
        bench.sql(wrong).await;
        bench.store.put(vec![letter(100)]).await.unwrap();
        let finding = bench.only(CheckLimits::default()).await;
        assert_eq!((finding.severity, finding.found.as_str()), (Severity::Error, found));
        bench.follow(&finding, advice).await;
    }
}

#[tokio::test]
async fn the_rest_that_is_missing_is_found() {
    if !available() {
        return;
    }
    for (wrong, subject, severity, advice) in [
        (
            "DROP VIEW dlq_events_readable",
            "view `dlq_events_readable`",
            Severity::Warning,
            "CREATE VIEW",
        ),
        ("DROP SEQUENCE dlq_fences", "sequence `dlq_fences`", Severity::Error, "CREATE SEQUENCE"),
    ] {
        let bench = Bench::with(3).await;
        bench.sql(wrong).await;
        let finding = bench.only(CheckLimits::default()).await;
        assert_eq!((finding.subject.as_str(), finding.severity), (subject, severity));
        bench.follow(&finding, advice).await;
    }
    for (wrong, subject) in [
        ("DROP FUNCTION dlq_events_json CASCADE", "function `dlq_events_json`"),
        ("DROP TABLE dlq_schedules", "table `dlq_schedules`"),
    ] {
        let bench = Bench::with(3).await;
        bench.sql(wrong).await;
        let found = bench.found(CheckLimits::default()).await;
        assert!(found.iter().any(|finding| finding.subject == subject), "{found:?}");
    }
}

#[tokio::test]
async fn a_table_that_is_not_vacuumed_is_found() {
    if !available() {
        return;
    }
    let bench = Bench::with(1).await;
    bench.sql("ALTER TABLE dlq_events SET (autovacuum_enabled = off)").await;
    let finding = bench.only(CheckLimits::default()).await;
    assert_eq!((finding.setting.as_str(), finding.found.as_str()), ("autovacuum", "off"));
    bench.follow(&finding, "ALTER TABLE").await;
}

#[tokio::test]
async fn a_server_that_vacuums_nothing_is_found() {
    if !available() {
        return;
    }
    let server = Service::Postgres.builder().setting("autovacuum", "off").start().unwrap();
    let bench = Bench::at(Schema::at(server.url()), 1).await;
    let finding = bench.only(CheckLimits::default()).await;
    assert_eq!((finding.subject.as_str(), finding.setting.as_str()), ("server", "autovacuum"));
}

#[tokio::test]
async fn many_dead_rows_are_found() {
    if !available() {
        return;
    }
    let bench = Bench::with(1).await;
    let make = "ALTER TABLE dlq_crash_marks SET (autovacuum_enabled = off); \
                INSERT INTO dlq_crash_marks SELECT int8send(n), 1 FROM generate_series(1, 100100) n; \
                DELETE FROM dlq_crash_marks WHERE begun = 1";
    bench.sql(make).await;
    // The server counts what a connection did a second after it, or ten when the connection is idle.
    let until = std::time::Instant::now() + PATIENCE;
    let finding = loop {
        let found = bench.found(CheckLimits::default()).await;
        if let Some(finding) = found.iter().find(|finding| finding.setting == "dead rows") {
            break finding.clone();
        }
        assert!(std::time::Instant::now() < until, "{found:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    assert_eq!(finding.subject, "table `dlq_crash_marks`");
    assert!(finding.found.starts_with("100100, beside 0"), "{finding}");
    bench.sql("ALTER TABLE dlq_crash_marks RESET (autovacuum_enabled)").await;
    // Other tests are at work in this database: what a transaction of theirs may still see stays for the moment.
    loop {
        bench.sql("VACUUM dlq_crash_marks").await;
        let found = bench.found(CheckLimits::default()).await;
        if found.is_empty() {
            break;
        }
        assert!(std::time::Instant::now() < until, "{found:?}");
    }
    bench.is_well().await;
}

#[tokio::test]
async fn a_table_that_a_crash_would_empty_is_found() {
    if !available() {
        return;
    }
    let bench = Bench::with(1).await;
    bench.sql("ALTER TABLE dlq_crash_marks SET UNLOGGED").await;
    let finding = bench.only(CheckLimits::default()).await;
    assert_eq!((finding.severity, finding.found.as_str()), (Severity::Error, "unlogged"));
    bench.follow(&finding, "ALTER TABLE").await;
}

/// A database an hour ahead of this process.
#[tokio::test]
async fn clocks_that_differ_are_found() {
    if !available() {
        return;
    }
    let mut bench = Bench::with(0).await;
    let name = bench.schema.name.clone();
    bench
        .sql(&format!(
            "CREATE FUNCTION {name}.statement_timestamp() RETURNS timestamptz LANGUAGE sql \
             AS 'SELECT pg_catalog.statement_timestamp() + interval ''1 hour'''"
        ))
        .await;
    // The schema stands first in the search path, so that its clock is asked and not that of the system.
    let joint = if bench.schema.url.contains('?') { '&' } else { '?' };
    let url = format!("{}{joint}options=-csearch_path%3D{name}%2Cpg_catalog", bench.schema.url);
    bench.store = PostgresStore::builder(url).schema(name).open().await.unwrap();
    let finding = bench.only(CheckLimits::default()).await;
    assert_eq!(
        (finding.subject.as_str(), finding.setting.as_str()),
        ("clock", "time of the database")
    );
    let patient = CheckLimits::default().skew(Duration::from_secs(2 * 3600));
    assert_eq!(bench.found(patient).await, []);
}

/// What nobody sees who does not read all of it.
#[tokio::test]
async fn damage_is_found_by_a_deep_look() {
    if !available() {
        return;
    }
    for (wrong, expected) in [
        ("UPDATE dlq_counts SET n = n + 1", "the count of pending letters"),
        ("UPDATE dlq_events SET available_at = now()", "cannot be claimed when it should be"),
        ("UPDATE dlq_events SET status = 'replaying'", "is replaying and its claim says otherwise"),
        (
            "UPDATE dlq_events SET operation = '\\x01', item = 0",
            "is held by an operation that has let go of it",
        ),
    ] {
        let bench = Bench::with(1).await;
        bench.sql(wrong).await;
        let quick = bench.found(CheckLimits::default()).await;
        assert!(quick.iter().all(|finding| finding.setting != "integrity"), "{quick:?}");
        let found = bench.found(CheckLimits::default().deep(true)).await;
        let found: Vec<_> =
            found.into_iter().filter(|finding| finding.setting == "integrity").collect();
        assert_eq!(found.len(), 1, "{wrong}: {found:?}");
        assert!(found[0].found.contains(expected), "{wrong}: {found:?}");
    }
}
