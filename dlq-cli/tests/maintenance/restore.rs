//! `dlq restore`: letters that were deleted.

use dlq_core::store::Letters as _;
use dlq_testkit::fixtures::letter;
use serde_json::Value;

use crate::fixture::Bench;

#[tokio::test]
async fn deleted_letters_are_listed_and_restored() {
    let bench = Bench::with((0..6).map(letter).collect()).await;
    let ids: Vec<_> = (0..6).map(|n| letter(n).id.to_string()).collect();
    let nothing = bench.run(&["restore", "--list"]).ok();
    assert!(nothing.err.contains("no deleted letters match"), "{}", nothing.err);
    let before = bench.store.get(letter(1).id).await.unwrap().unwrap();
    for id in &ids[1..4] {
        let ran = bench.run(&["delete", "--id", id, "--yes", "--note", "a mistake"]).ok();
        assert_eq!(ran.out, "deleted: 1\n");
        assert!(ran.err.contains("dlq restore --list"), "{}", ran.err);
    }
    let list = bench.run(&["restore", "--list", "-o", "json"]).ok();
    let list: Value = serde_json::from_str(&list.out).unwrap();
    let listed = list["letters"].as_array().unwrap();
    let shown: Vec<_> = listed.iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(shown, [&ids[3], &ids[2], &ids[1]], "the one deleted last first");
    assert_eq!(listed[0]["deleted_by"]["note"], "a mistake");
    let table = bench.run(&["restore", "--list", "--limit", "2"]).ok();
    assert!(
        table.out.contains(&ids[3][..12]) && !table.out.contains(&ids[1][..12]),
        "{}",
        table.out
    );
    let cursor = table.err.split("--cursor ").nth(1).unwrap().trim();
    let rest = bench.run(&["restore", "--list", "--cursor", cursor, "-o", "jsonl"]).ok();
    assert_eq!(rest.out.lines().count(), 1, "{}", rest.out);

    for (args, code, expected) in [
        (&["restore", "--yes"] as &[&str], 2, "say which letters"),
        (&["restore", "xyz"], 2, "is not a letter id"),
        (&["restore", &ids[0]], 1, "no deleted letter in"),
        (&["restore", &ids[1]], 2, "--yes"),
        (&["restore", "--limit", "3", "--all"], 2, "--list"),
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    }
    let dry = bench.run(&["restore", "--all", "--dry-run"]).ok();
    assert!(dry.err.contains("3 deleted letters match"), "{}", dry.err);
    assert_eq!(bench.count().await, 3);
    let ran = bench.run(&["restore", &ids[1][..14], "--yes", "--note", "it was one"]).ok();
    assert_eq!(ran.out, "restored: 1\n");
    let mut after = bench.store.get(letter(1).id).await.unwrap().unwrap();
    after.state.updated_at = before.state.updated_at;
    assert_eq!(after, before);
    let nobody = bench.run(&["restore", "--by", "nobody", "--yes", "-o", "json"]).ok();
    assert!(nobody.out.contains("\"changed\": 0"), "{}", nobody.out);
    assert_eq!(bench.run(&["restore", "--since", "1h", "--yes"]).ok().out, "restored: 2\n");
    assert_eq!(bench.count().await, 6);
    let audit = bench.run(&["audit", "--action", "undelete", "--letter", &ids[1]]).ok();
    assert!(audit.out.contains("it was one") && audit.out.contains(&ids[1]), "{}", audit.out);
}

#[tokio::test]
async fn a_letter_that_is_there_again_is_skipped() {
    let bench = Bench::with(vec![letter(1)]).await;
    bench.run(&["delete", "--all", "--yes"]).ok();
    dlq_core::Sink::put(&bench.store, vec![letter(1)]).await.unwrap();
    let ran = bench.run(&["restore", "--all", "--yes"]);
    assert_eq!((ran.code, &*ran.out), (3, "restored: 0\n"));
    assert!(
        ran.err.contains("skipped 1: the store has a letter of the same message"),
        "{}",
        ran.err
    );
}

#[tokio::test]
async fn what_is_deleted_for_good_cannot_be_restored() {
    let bench = Bench::with((0..3).map(letter).collect()).await;
    let id = letter(0).id.to_string();
    let ran = bench.run(&["delete", "--id", &id, "--for-good", "--yes"]).ok();
    assert!(!ran.err.contains("dlq restore"), "{}", ran.err);
    bench.run(&["delete", "--all", "--yes"]).ok();
    let look =
        bench.run(&["cleanup", "--older-than", "1d", "--archived-for", "0s", "--dry-run"]).ok();
    assert!(look.err.contains("2 letters that were deleted before leave"), "{}", look.err);
    // A week has not passed.
    assert_eq!(bench.run(&["cleanup", "--older-than", "1d", "--yes"]).ok().out, "deleted: 0\n");
    let empty = ["cleanup", "--older-than", "1d", "--archived-for", "0s", "--yes"];
    assert_eq!(bench.run(&empty).ok().out, "deleted: 0\nemptied from the archive: 2\n");
    let list = bench.run(&["restore", "--list"]).ok();
    assert!(list.err.contains("no deleted letters match"), "{}", list.err);
}
