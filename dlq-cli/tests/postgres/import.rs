//! Letters out of one store and into another.

use dlq_core::store::{Actor, Edit, Letters as _, Maintenance as _};
use dlq_core::{DeadLetter, Filter, Sink as _};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::{hostile_messages, letter, letter_of, varied};

use crate::fixture::{Bench, command, run};
use crate::process::Process;
use crate::schema::Schema;

fn odd() -> Vec<DeadLetter> {
    let hostile = (100..).zip(hostile_messages()).map(|(n, (_, message))| letter_of(message, n));
    (0..30).map(varied).chain(hostile).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_exported_comes_back_byte_for_byte() {
    let Some(bench) = Bench::with("export", odd()).await else { return };
    let edit = Edit::new().payload("edited").allow_invalid();
    let _ = bench.store.edit(varied(0).id, edit, Actor::new("ana")).await.unwrap();
    bench.run(&["mark", "quarantined", "--reason", "permanent", "--yes"]).ok();
    let file = bench.arg("out.jsonl");
    bench.run(&["export", "--to", &file]).ok();
    let exported = std::fs::read_to_string(&file).unwrap();
    assert!(bench.run(&["export"]).ok().out == exported, "a file and a pipe get the same");
    let count = exported.lines().count();
    assert_eq!(count, odd().len());
    assert_eq!(bench.run(&["export", "--to", &file]).code, 1, "a file is never overwritten");

    let other = Schema::new("import").unwrap();
    let missing = run(&other.url(), &["import", &file]);
    assert_eq!(missing.code, 1, "{}", missing.err);
    assert!(missing.err.contains("dlq migrate --apply"), "{}", missing.err);
    let ran = run(&other.url(), &["import", &file, "--create", "--batch", "7"]).ok();
    assert_eq!(ran.out, format!("imported: {count} letters, {count} stored\n"));
    assert!(run(&other.url(), &["export"]).ok().out == exported, "it is another file");
    let again = run(&other.url(), &["import", &file, "-o", "json"]).ok().json();
    assert_eq!(again["receipts"]["unchanged"], count);
    assert_eq!(other.store().await.verify().await.unwrap(), Vec::<String>::new());
}

/// From a file of SQLite, which keeps time more exactly.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_moves_in_from_sqlite() {
    let Some(bench) = Bench::with("moves", Vec::new()).await else { return };
    let path = bench.arg("dlq.db");
    let old = SqliteStore::open(&path).await.unwrap();
    old.put(odd()).await.unwrap();
    let file = bench.arg("out.jsonl");
    run(&format!("sqlite://{path}"), &["export", "--to", &file]).ok();
    bench.run(&["import", &file]).ok();
    for letter in odd() {
        let (old, new) =
            (old.get(letter.id).await.unwrap().unwrap(), bench.store.get(letter.id).await);
        let mut new = new.unwrap().unwrap();
        assert!(new.state.created_at.since(old.state.created_at).as_nanos() < 1_000);
        new.state = old.state.clone();
        assert_eq!(new, old);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_it_is_run_again() {
    const COUNT: usize = 2_000;
    let Some(bench) = Bench::with("killed", Vec::new()).await else { return };
    let path = bench.arg("dlq.db");
    let old = SqliteStore::open(&path).await.unwrap();
    old.put((0..COUNT as u64).map(letter).collect()).await.unwrap();
    let file = bench.arg("out.jsonl");
    run(&format!("sqlite://{path}"), &["export", "--to", &file]).ok();
    let args = ["import", &file, "--batch", "10"];
    let mut kills = 0;
    for round in 1..=4 {
        let process = Process::start(command(&bench.schema.url(), &args));
        // In the middle of whatever it does then.
        let enough = round * COUNT as u64 / 10;
        while bench.store.count(Filter::new()).await.unwrap() < enough {}
        process.kill();
        kills += u32::from(bench.store.count(Filter::new()).await.unwrap() < COUNT as u64);
    }
    assert_eq!(kills, 4, "each was killed before its end");
    bench.run(&args).ok();
    assert_eq!(bench.store.count(Filter::new()).await.unwrap(), COUNT as u64);
    assert_eq!(bench.store.verify().await.unwrap(), Vec::<String>::new());
}
