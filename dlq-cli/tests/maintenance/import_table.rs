//! `dlq import --from-table`, at a real server.

use std::process::Command;
use std::sync::OnceLock;

use dlq_services::{Running, Service, or_skip};
use serde_json::Value;

use crate::common::{Ran, dlq};

/// The server that these tests share; `None` when there is none to be had, which is said.
fn server() -> Option<&'static str> {
    static SERVER: OnceLock<Option<Running>> = OnceLock::new();
    let start = || or_skip(Service::Postgres, Service::Postgres.builder().start()).ok();
    SERVER.get_or_init(start).as_ref().map(Running::url)
}

fn psql(url: &str, sql: &str) {
    let ran =
        Command::new("psql").args(["-qX", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]).output();
    let ran = ran.unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

fn run(args: &[&str]) -> Ran {
    dlq(args).env_remove("DLQ_DATABASE").output().unwrap().into()
}

const EVENT_DLQ: &str = "CREATE TABLE event_dlq (
    id VARCHAR(36) PRIMARY KEY, event_name VARCHAR(255) NOT NULL, original_id TEXT NOT NULL, payload BYTEA NOT NULL,
    metadata JSONB, error TEXT NOT NULL, retry_count INT NOT NULL DEFAULT 0, source VARCHAR(255),
    created_at TIMESTAMP NOT NULL DEFAULT NOW(), retried_at TIMESTAMP, quarantined_at TIMESTAMP);
    INSERT INTO event_dlq
    SELECT n, 'order.created', 'o' || n, '\\xff00', '{\"trace\": \"t\"}', 'no answer', n, 'shop', now() - interval '1 day',
        CASE WHEN n % 4 = 0 THEN now() END, CASE WHEN n % 5 = 0 THEN now() END
    FROM generate_series(1, 2000) n;";

#[test]
fn a_table_is_imported_once_into_any_store() {
    let Some(url) = server() else { return };
    let schema = "import_once";
    psql(url, &format!("CREATE SCHEMA {schema}; SET search_path = {schema}; {EVENT_DLQ}"));
    let folder = tempfile::tempdir().unwrap();
    let table = format!("{schema}.event_dlq");
    let file = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let postgres = format!("{url}?schema={schema}_ours");
    for (store, database) in [(&*file, Some(url)), (&*postgres, None)] {
        let import = |more: &[&str]| {
            let mut args = vec!["--from", store, "import", "--from-table", &*table, "--create"];
            args.extend(database.iter().flat_map(|url| ["--database", url]));
            args.extend(more);
            run(&args)
        };
        let looked = import(&["--dry-run"]).ok();
        assert!(looked.out.contains("payload"), "{}", looked.out);
        assert!(
            looked.err.contains("2000 rows in import_once.event_dlq, read as `event_dlq`"),
            "{}",
            looked.err
        );
        assert!(looked.err.contains("kept as attributes: id"), "{}", looked.err);
        assert_eq!(run(&["--from", store, "count"]).ok().out.trim(), "0");
        let first = import(&["-o", "json", "--consumer", "billing"]).ok().json();
        assert_eq!(
            (&first["letters"], &first["receipts"]["stored"]),
            (&Value::from(2000), &Value::from(2000))
        );
        let again = import(&["-o", "json"]).ok().json();
        assert_eq!(again["receipts"]["unchanged"], 2000);
        assert_eq!(run(&["--from", store, "count"]).ok().out.trim(), "2000");
        for (status, count) in [("quarantined", "400"), ("resolved", "400"), ("pending", "1200")] {
            let counted =
                run(&["--from", store, "count", "--status", status, "--consumer", "billing"]);
            assert_eq!(counted.ok().out.trim(), count, "{status} in {store}");
        }
        let found = run(&["--from", store, "-o", "json", "export", "--event-id", "o7"]).ok();
        let letter: Value = serde_json::from_str(&found.out).unwrap();
        assert_eq!(letter["state"]["retry_count"], 7);
        assert_eq!(letter["service"], "shop");
        assert_eq!(letter["attributes"]["column.id"], "7");
        let created = letter["state"]["created_at"].as_str().unwrap();
        assert_eq!(
            created,
            letter["died_at"].as_str().unwrap(),
            "when it was written, not when it was imported"
        );
    }
}

#[test]
fn rows_that_cannot_be_read_are_said_and_counted() {
    let Some(url) = server() else { return };
    let schema = "import_bad";
    psql(
        url,
        &format!(
            "CREATE SCHEMA {schema}; SET search_path = {schema}; {EVENT_DLQ}
        UPDATE event_dlq SET created_at = 'infinity' WHERE id::int % 50 = 0"
        ),
    );
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let ran = run(&[
        "--from",
        &store,
        "import",
        "--create",
        "--from-table",
        "import_bad.event_dlq",
        "--database",
        url,
    ]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.err.contains("row id=100: column `created_at` is `infinity`"), "{}", ran.err);
    assert_eq!(ran.err.matches("row id=").count(), 20, "{}", ran.err);
    assert!(ran.out.contains("imported: 1960 letters, 1960 stored, 40 bad rows"), "{}", ran.out);
}

#[test]
fn unknown_columns_are_mapped_by_arguments() {
    let Some(url) = server() else { return };
    psql(url, "CREATE SCHEMA import_unknown; CREATE TABLE import_unknown.t (a INT, b TEXT)");
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let ran = run(&[
        "--from",
        &store,
        "import",
        "--create",
        "--from-table",
        "import_unknown.t",
        "--database",
        url,
    ]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("(--map payload=COLUMN --map subject=COLUMN)"), "{}", ran.err);
    assert!(!ran.err.contains("ForeignBuilder"), "{}", ran.err);
}

#[test]
fn what_was_asked_wrongly_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let cases: [(&[&str], i32, &str); 6] = [
        (&[], 2, "<FILE|->"),
        (&["--from-table", "t"], 2, "which database has `t`? say --database"),
        (&["--from-table", "t", "f.jsonl"], 2, "cannot be used with"),
        (&["--map", "payload=body", "f.jsonl"], 2, "cannot be used with"),
        (&["--from-table", "t", "--map", "body"], 2, "expected FIELD=COLUMN"),
        (&["--from-table", "t", "--map", "body=x"], 2, "expected one of: id, subject"),
    ];
    for (args, code, says) in cases {
        let mut all = vec!["--from", &store, "import", "--create"];
        all.extend(args);
        let ran = run(&all);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(says), "{args:?}: {}", ran.err);
    }
    let secret = "postgres://ana:s3cret@127.0.0.1:1/db";
    let ran =
        run(&["--from", &store, "import", "--create", "--from-table", "t", "--database", secret]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("table `t` of postgres://ana@127.0.0.1:1/db: "), "{}", ran.err);
    assert!(!ran.err.contains("s3cret"), "{}", ran.err);
}
