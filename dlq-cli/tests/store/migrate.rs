use dlq_core::Message;
use dlq_core::store::{Letters as _, Sink as _};
use dlq_testkit::fixtures::{letter, letter_of};

use crate::bench::{Bench, url};
use crate::common::{Ran, dlq};

#[tokio::test]
async fn present_tables_need_nothing() {
    let bench = Bench::with(vec![letter(1)]).await;
    for args in [&["migrate"] as &[&str], &["migrate", "--check"], &["migrate", "--apply"]] {
        let ran = bench.run(args).ok();
        assert!(ran.err.contains("as this program has"), "{}", ran.err);
        assert_eq!(ran.out, "");
    }
    let shown = bench.run(&["migrate", "-o", "json"]).ok().json();
    assert_eq!(shown["migration"]["found"], shown["migration"]["known"]);
    assert_eq!(
        (&shown["applied"], &shown["migration"]["steps"]),
        (&false.into(), &serde_json::json!([]))
    );
}

/// Shown, checked, refused without a yes, done, and then nothing is left to do.
#[tokio::test]
async fn missing_tables_are_shown_checked_and_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dlq.db");
    std::fs::write(&path, "").unwrap();
    let run =
        |args: &[&str]| -> Ran { dlq(args).env("DLQ_FROM", url(&path)).output().unwrap().into() };
    let shown = run(&["migrate"]).ok();
    assert!(shown.out.contains("create the tables") && shown.out.contains("yes"), "{}", shown.out);
    assert!(shown.err.contains("dlq migrate --apply --from 'sqlite://"), "{}", shown.err);
    assert_eq!(run(&["migrate", "--check"]).code, 3);
    let unasked = run(&["migrate", "--apply"]);
    assert_eq!(unasked.code, 2, "{}", unasked.err);
    assert!(unasked.err.contains("say --yes"), "{}", unasked.err);
    assert_eq!(std::fs::read(&path).unwrap(), b"", "nothing was changed");
    let done = run(&["migrate", "--apply", "--yes"]).ok();
    assert!(done.err.contains("now"), "{}", done.err);
    run(&["migrate", "--check"]).ok();
    assert_eq!(run(&["count"]).ok().out, "0\n");
}

/// Statistics that ask for a migration get one: it makes again what somebody has removed.
#[tokio::test]
async fn what_was_removed_is_shown_checked_and_made_again() {
    let bench = Bench::with((1..=3).map(letter).collect()).await;
    let before = bench.run(&["stats", "-o", "json"]).ok().json();
    bench.tamper("DROP TABLE dlq_counts");
    assert_eq!(bench.run(&["stats"]).code, 1);
    let shown = bench.run(&["migrate"]).ok();
    assert!(shown.err.contains("table dlq_counts"), "{}", shown.err);
    assert!(shown.err.contains("dlq migrate --apply --from"), "{}", shown.err);
    assert_eq!(bench.run(&["migrate", "--check"]).code, 3);
    let json = bench.run(&["migrate", "-o", "json"]).ok().json();
    assert_eq!(json["migration"]["missing"], serde_json::json!(["table dlq_counts"]));
    let done = bench.run(&["migrate", "--apply", "--yes"]).ok();
    assert!(done.err.contains("now"), "{}", done.err);
    bench.run(&["migrate", "--check"]).ok();
    assert_eq!(bench.run(&["stats", "-o", "json"]).ok().json(), before);
}

/// Whoever only looks leaves an older file to the programs that use it.
#[tokio::test]
async fn looking_migrates_nothing() {
    let bench = Bench::with(vec![letter(1)]).await;
    bench.tamper("UPDATE dlq_meta SET value = 1 WHERE name = 'version'; PRAGMA user_version = 1");
    let lines = bench.folder.path().join("letters.jsonl").display().to_string();
    std::fs::write(&lines, "").unwrap();
    for args in [
        &["list"] as &[&str],
        &["count"],
        &["mark", "resolved", "--all", "--yes"],
        &["import", &lines],
        &["import", "--create", &lines],
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 1, "{args:?}: {}", ran.err);
        assert!(ran.err.contains("dlq migrate --apply --from sqlite://"), "{}", ran.err);
    }
    let shown = bench.run(&["migrate", "-o", "json"]).ok().json();
    assert_eq!(shown["migration"]["found"], 1);
}

#[tokio::test]
async fn a_file_that_is_empty_stays_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("some.lock");
    std::fs::write(&path, "").unwrap();
    let ran = Ran::from(dlq(&["list", "--from", &url(&path)]).output().unwrap());
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("no tables yet"), "{}", ran.err);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}

#[tokio::test]
async fn a_newer_store_is_refused() {
    let bench = Bench::with(vec![letter(1)]).await;
    bench.tamper("PRAGMA user_version = 99");
    for args in [&["migrate"] as &[&str], &["migrate", "--check"], &["migrate", "--apply", "--yes"]]
    {
        let ran = bench.run(args);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains("version 99") && ran.err.contains("newer program"), "{}", ran.err);
    }
    assert_eq!(bench.store.count(dlq_core::Filter::new()).await.unwrap(), 1);
}

#[tokio::test]
async fn what_has_no_tables_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = url(&folder.path().join("no.db"));
    let ran = Ran::from(dlq(&["migrate", "--from", &missing]).output().unwrap());
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("there is no file"), "{}", ran.err);
    let ran = Ran::from(dlq(&["migrate", "--from", "nats://t0ken@h/DLQ"]).output().unwrap());
    assert_eq!((ran.code, ran.err.contains("t0ken")), (2, false), "{}", ran.err);
    assert_eq!(Ran::from(dlq(&["migrate"]).output().unwrap()).code, 2);
}

/// Nothing else makes one letter of several: it is asked for, and where it would take most of them, asked for twice.
#[tokio::test]
async fn letters_of_one_message_are_collapsed_for_good() {
    let copy = |n| letter_of(Message::new("orders", format!("copy {n}")).with_id("a"), n);
    let bench = Bench::with((1..=4).map(copy).collect()).await;
    for (args, hint) in [
        (&["migrate", "--deduplicate"] as &[&str], "say --yes"),
        (&["migrate", "--deduplicate", "--yes"], "3 of 4 letters would be removed"),
        (&["migrate", "--deduplicate", "--yes"], "say --force"),
    ] {
        let refused = bench.run(args);
        assert_eq!(refused.code, 2, "{}", refused.err);
        assert!(refused.err.contains(hint), "{}", refused.err);
        assert_eq!(bench.run(&["count"]).ok().out, "4\n");
    }
    let done = bench.run(&["migrate", "--deduplicate", "--force", "--yes", "-o", "json"]).ok();
    assert_eq!(done.json()["removed"], 3);
    bench.store.put(vec![copy(5)]).await.unwrap();
    assert_eq!(bench.run(&["count"]).ok().out, "1\n");
    assert_eq!(bench.run(&["migrate", "--force"]).code, 2);
}
