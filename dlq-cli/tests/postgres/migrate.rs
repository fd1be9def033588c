use dlq_testkit::fixtures::letter;

use crate::fixture::{Bench, run};
use crate::schema::Schema;

const TO_VERSION_1: &str = "DROP INDEX dlq_events_by_subject; DROP INDEX dlq_events_by_type; \
                            DROP TABLE dlq_documents; DROP INDEX dlq_events_items_to_send; \
                            UPDATE dlq_meta SET value = 1 WHERE name = 'version'";

/// Shown, checked, refused without a yes, done, and then nothing is left to do.
#[tokio::test(flavor = "multi_thread")]
async fn missing_tables_are_shown_checked_and_made() {
    let Some(schema) = tokio::task::block_in_place(|| Schema::new("missing")) else { return };
    let run = |args: &[&str]| run(&schema.url(), args);
    let none = run(&["count"]);
    assert_eq!(none.code, 1, "{}", none.err);
    assert!(
        none.err.contains("create it: dlq migrate --apply --from 'postgres://"),
        "{}",
        none.err
    );
    let shown = run(&["migrate"]).ok();
    assert!(
        shown.out.contains("create the tables") && shown.err.contains("no store yet"),
        "{}",
        shown.err
    );
    assert_eq!(run(&["migrate", "--check"]).code, 3);
    assert_eq!(run(&["migrate", "--apply"]).code, 2);
    assert_eq!(run(&["count"]).code, 1, "nothing was changed");
    // What it says to type, typed.
    let typed = none.err.split("--from '").nth(1).and_then(|rest| rest.split('\'').next()).unwrap();
    let done = run(&["migrate", "--apply", "--yes", "--from", typed]).ok();
    assert!(done.err.contains("has version 5 now"), "{}", done.err);
    run(&["migrate", "--check"]).ok();
    assert_eq!(run(&["count"]).ok().out, "0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn older_tables_are_refused_until_they_are_migrated() {
    let Some(bench) = Bench::with("older", vec![letter(1)]).await else { return };
    bench.schema.sql(TO_VERSION_1);
    for args in [&["count"] as &[&str], &["delete", "--all", "--yes"], &["check"]] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 1, "{}", ran.err);
        assert!(
            ran.err.contains("version 1") && ran.err.contains("dlq migrate --apply"),
            "{}",
            ran.err
        );
    }
    let shown = bench.run(&["migrate", "-o", "json"]).ok().json();
    assert_eq!((&shown["migration"]["found"], &shown["applied"]), (&1.into(), &false.into()));
    assert_eq!(shown["migration"]["steps"][0]["is_online"], true);
    bench.run(&["migrate", "--apply", "--yes"]).ok();
    assert_eq!(bench.run(&["count"]).ok().out, "1\n");
    bench.run(&["check", "--deep"]).ok();

    bench.schema.sql("UPDATE dlq_meta SET value = 99 WHERE name = 'version'");
    for args in [&["migrate"] as &[&str], &["migrate", "--apply", "--yes"]] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains("version 99") && ran.err.contains("newer program"), "{}", ran.err);
    }
}
