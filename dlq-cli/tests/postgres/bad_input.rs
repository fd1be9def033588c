//! What goes wrong at a server, and what is said about it.

use dlq_testkit::fixtures::letter;

use crate::fixture::{Bench, run};
use crate::schema::Schema;

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_place_is_named() {
    let Some(schema) = tokio::task::block_in_place(|| Schema::new("places")) else { return };
    let (server, _) = schema.server.rsplit_once('/').unwrap();
    for (url, expected) in [
        (format!("{server}/nowhere"), "no such database"),
        (schema.url(), "there is no table"),
        (
            "postgres://ana:s3cret@127.0.0.1:1/orders".to_owned(),
            "postgres://ana@127.0.0.1:1/orders: cannot open the store: the database does not answer; see that it runs",
        ),
        ("postgres://ana:s3cret@[/orders".to_owned(), "postgres://ana@[/orders"),
        ("postgres://ana:s3cret@host:port/x".to_owned(), "postgres://"),
        (format!("{}?schema=public%22", schema.server), "is not a name"),
        (format!("{}?table=dlq;drop", schema.server), "is not a name"),
        (
            schema.url_of("nobody_of_this_name"),
            "the database says: role \"nobody_of_this_name\" does not exist\n",
        ),
    ] {
        let ran = run(&url, &["count"]);
        assert_eq!(ran.code, 1, "{url}: {}", ran.err);
        assert!(ran.err.contains(expected), "{url}: {}", ran.err);
        assert!(!ran.err.contains("s3cret") && ran.out.is_empty(), "{}", ran.err);
        // A server that is not there is waited for.
        if !url.contains(":1/") {
            let ran = run(&url, &["migrate", "--check"]);
            assert!(ran.code != 0 && !ran.err.contains("s3cret"), "{url}: {}", ran.err);
        }
    }
}

/// People have tables of the same name that are not ours: these are left alone, and one is told what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_others_made_is_left_alone() {
    let Some(schema) = tokio::task::block_in_place(|| Schema::new("others")) else { return };
    schema.sql(&format!(
        "CREATE SCHEMA {}; CREATE TABLE dlq_events (id bigserial PRIMARY KEY, event_type text, payload jsonb, error_reason text, \
         status text); INSERT INTO dlq_events VALUES (1, 'order', '{{}}', 'boom', 'PENDING')",
        schema.name
    ));
    let (url, table) = (schema.url(), format!("{}.dlq_events", schema.name));
    for (args, code) in [
        (&["count"] as &[&str], 1),
        (&["migrate"], 2),
        (&["migrate", "--apply", "--yes"], 2),
        (&["import", "--create", "--from-table", &table], 1),
    ] {
        let ran = run(&url, args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        for text in ["somebody else made", "table=NAME", "dlq import --from-table"] {
            assert!(ran.err.contains(text), "{args:?}: {}", ran.err);
        }
    }
    let beside = format!("{url}&table=letters");
    let ran = run(&beside, &["import", "--create", "--from-table", &table]).ok();
    assert!(ran.out.contains("1 letters, 1 stored"), "{} {}", ran.out, ran.err);
    assert_eq!(run(&beside, &["count"]).ok().out, "1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named() {
    let Some(bench) = Bench::with("rights", (0..3).map(letter).collect()).await else { return };
    let user = format!("{}_user", bench.schema.name);
    bench.schema.sql(&format!("CREATE ROLE {user} LOGIN"));
    let url = bench.schema.url_of(&user);
    let refused = |args: &[&str], expected: &str| {
        let ran = run(&url, args);
        assert_ne!(ran.code, 0, "{args:?}");
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    };
    refused(&["count"], "grant USAGE on the schema");
    bench.schema.sql(&format!("GRANT USAGE ON SCHEMA {} TO {user}", bench.schema.name));
    refused(&["count"], "grant SELECT");
    bench
        .schema
        .sql(&format!("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {user}", bench.schema.name));
    // Who may look looks, and changes nothing.
    assert_eq!(run(&url, &["count"]).ok().out, "3\n");
    run(&url, &["groups"]).ok();
    run(&url, &["consumers"]).ok();
    run(&url, &["check"]).ok();
    run(&url, &["migrate", "--check"]).ok();
    for (args, needed) in [
        (&["delete", "--all", "--yes"] as &[&str], "for table dlq_events; this needs "),
        (&["mark", "resolved", "--all", "--yes"], "UPDATE"),
        (&["replay", "--all", "--yes"], "for table dlq_events; this needs SELECT and UPDATE on it"),
        (
            &["cleanup", "--older-than", "0s", "--include-unresolved", "--yes"],
            "SELECT and UPDATE on it",
        ),
        (&["edit", &letter(1).id.to_string(), "--payload-text", "{}", "--yes"], "UPDATE"),
    ] {
        refused(args, needed);
        refused(args, "on it; grant SELECT, INSERT, UPDATE and DELETE");
    }
    assert_eq!(bench.run(&["count", "--status", "pending"]).ok().out, "3\n");
    bench.schema.sql(
        "UPDATE dlq_meta SET value = 1 WHERE name = 'version'; DROP INDEX dlq_events_by_subject",
    );
    refused(&["migrate", "--apply", "--yes"], "owner");
    bench.schema.sql(&format!("DROP OWNED BY {user}; DROP ROLE {user}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_said() {
    let Some(bench) = Bench::with("absent", vec![letter(1)]).await else { return };
    let none = "0".repeat(32);
    for (args, code, expected) in [
        (&["show", &none] as &[&str], 1, "no letter has the id 0000"),
        (&["show", "xyz"], 2, ""),
        (&["edit", &none, "--payload-text", "x", "--yes"], 1, "no letter has the id 0000"),
        (&["op", "show", &none], 1, &none),
        (&["op", "cancel", &none], 1, &none),
        (&["import", "/no/such/file"], 1, "/no/such/file"),
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    }
    for args in [
        &["replay", "--subject", "no.such", "--yes"] as &[&str],
        &["mark", "resolved", "--subject", "no.such", "--yes"],
        &["delete", "--error", "%", "--yes"],
        &["export", "--event", "it's"],
    ] {
        bench.run(args).ok();
    }
    assert_eq!(bench.run(&["count", "--status", "pending"]).ok().out, "1\n");
}
