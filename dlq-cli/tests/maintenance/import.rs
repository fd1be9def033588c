use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use dlq_core::store::{Actor, ClaimRequest, Claims as _, Edit, Letters as _, OperationSpec};
use dlq_core::store::{Maintenance as _, Operations as _, Receipt};
use dlq_core::{Filter, Sink as _, Status};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::{CONSUMER, letter};

use crate::common::Ran;
use crate::fixture::{Bench, of_every_kind, until};
use crate::process::Process;

fn into(bench: &Bench, name: &str, args: &[&str]) -> Command {
    let mut command = bench.command(args);
    command.env("DLQ_FROM", format!("sqlite://{}", bench.arg(name)));
    command
}

fn run(bench: &Bench, name: &str, args: &[&str]) -> Ran {
    into(bench, name, args).output().unwrap().into()
}

#[tokio::test]
async fn what_was_exported_comes_back_byte_for_byte() {
    let bench = of_every_kind().await;
    let edit = Edit::new().payload("edited").allow_invalid();
    let _ = bench.store.edit(letter(0).id, edit, Actor::new("ana")).await.unwrap();
    let exported = bench.run(&["export"]).ok().out;
    assert!(exported.lines().count() > Status::ALL.len());
    let file = bench.file("out.jsonl", &exported);
    let missing = run(&bench, "new.db", &["import", &file]);
    assert_eq!(missing.code, 1, "{}", missing.err);
    let ran = run(&bench, "new.db", &["import", &file, "--create", "--batch", "4"]).ok();
    let count = exported.lines().count();
    assert_eq!(ran.out, format!("imported: {count} letters, {count} stored\n"));
    assert!(run(&bench, "new.db", &["export"]).ok().out == exported, "it is another file");

    let again = run(&bench, "new.db", &["import", &file, "-o", "json"]).ok().json();
    assert_eq!(
        (&again["letters"], &again["receipts"]["unchanged"]),
        (&count.into(), &count.into())
    );
    assert!(run(&bench, "new.db", &["export"]).ok().out == exported);
    let store = SqliteStore::open(bench.path("new.db")).await.unwrap();
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
    // The message of the edited letter is handed out by its broker once more.
    assert_eq!(store.put(vec![letter(0)]).await.unwrap(), [Receipt::Unchanged]);
}

#[tokio::test]
async fn what_was_being_run_is_pending() {
    let bench = Bench::with(vec![letter(1), letter(2)]).await;
    bench.store.start(OperationSpec::replay(Filter::new()), Actor::new("ana")).await.unwrap();
    let request = ClaimRequest::due([CONSUMER], 1, Duration::from_secs(60));
    assert_eq!(bench.store.claim(request).await.unwrap().len(), 1);
    let exported = bench.run(&["export"]).ok().out;
    assert!(exported.contains("\"replaying\""));
    let mut command = into(&bench, "new.db", &["import", "-", "--create"]);
    command.stdin(File::open(bench.file("out.jsonl", exported)).unwrap());
    Ran::from(command.output().unwrap()).ok();
    let store = SqliteStore::open(bench.path("new.db")).await.unwrap();
    let pending = Filter::new().with_status(Status::Pending);
    assert_eq!(store.count(pending).await.unwrap(), 2);
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_bad_line_is_named_and_the_rest_goes_on() {
    let bench = Bench::with((0..5).map(letter).collect()).await;
    let exported = bench.run(&["export"]).ok().out;
    let mut lines: Vec<_> = exported.lines().map(|line| line.as_bytes().to_vec()).collect();
    lines[1] = b"{\"id\":\"nonsense\"}".to_vec();
    lines[3] = b"\xff\xfe".to_vec();
    lines.insert(2, b"  \r".to_vec());
    let torn = lines[5].len() / 2;
    lines[5].truncate(torn);
    let file = bench.file("bad.jsonl", lines.join(&b'\n'));
    let ran = run(&bench, "new.db", &["import", &file, "--create"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    for expected in [
        "line 2 is not a letter: ",
        "line 5 is not a letter: expected value",
        "line 6 is not a letter: EOF",
    ] {
        assert!(ran.err.contains(expected), "`{expected}` is not in {}", ran.err);
    }
    assert_eq!(ran.out, "imported: 2 letters, 2 stored, 3 bad lines\n");
    let rest = run(&bench, "new.db", &["import", &bench.file("good.jsonl", &exported)]).ok();
    assert_eq!(rest.out, "imported: 5 letters, 3 stored, 2 unchanged\n");

    let all_bad = bench.file("bad.jsonl", "no letter\n".repeat(1_000));
    let ran = run(&bench, "new.db", &["import", &all_bad, "-o", "jsonl", "--batch", "7"]);
    assert_eq!((ran.code, &ran.json()["bad_lines"]), (3, &1_000.into()));
    assert!(ran.err.lines().count() < 30, "{}", ran.err);
}

#[tokio::test]
async fn what_cannot_be_read_is_named() {
    let bench = Bench::with(vec![letter(1)]).await;
    let folder = bench.folder.path().to_str().unwrap();
    for file in [&bench.arg("missing.jsonl"), folder] {
        let ran = bench.run(&["import", file]);
        assert_eq!(ran.code, 1, "{}", ran.err);
        assert!(ran.err.contains(&format!("cannot read {file}")), "{}", ran.err);
    }
    let empty = bench.run(&["import", &bench.file("empty.jsonl", "")]).ok();
    assert!(empty.err.contains("there is no line"), "{}", empty.err);
    assert_eq!(empty.out, "imported: 0 letters\n");
    assert_eq!(bench.run(&["import"]).code, 2);
    let other = bench.command(&["import", "x", "--from", "ftp://x"]).output().unwrap();
    assert_eq!(Ran::from(other).code, 2);
}

#[tokio::test]
async fn another_message_with_the_same_identity_is_kept() {
    let bench = Bench::with(vec![letter(1)]).await;
    let message = letter(1).message.with_payload(Some("other".into()));
    let other = letter(1).with_message(message);
    let file = bench.file("other.jsonl", serde_json::to_string(&other).unwrap());
    for _ in 0..2 {
        let ran = bench.run(&["import", &file]).ok();
        assert_eq!(ran.out, "imported: 1 letters, 1 conflicting\n");
        assert!(ran.err.contains("both are kept"), "{}", ran.err);
    }
    assert_eq!(bench.count().await, 2);
}

/// An import that has read a bad line and 25 of 60 letters in batches of 10 and waits for more; the file and the pipe it reads.
async fn half_way(bench: &Bench) -> (Process, String, File) {
    let source = Bench::with((0..60).map(letter).collect()).await;
    let exported = source.run(&["export"]).ok().out;
    let pipe = bench.arg("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut process = Process::start(bench.command(&["import", &pipe, "--batch", "10"]));
    // Opened for both, which waits for nobody.
    let mut writer = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    for line in ["nonsense"].into_iter().chain(exported.lines().take(25)) {
        writeln!(writer, "{line}").unwrap();
    }
    process.says("line 1 is not a letter");
    until(async || bench.count().await == 20).await;
    (process, exported, writer)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_is_killed_goes_on() {
    let bench = Bench::with(Vec::new()).await;
    let (process, exported, _writer) = half_way(&bench).await;
    process.kill();
    assert_eq!(bench.count().await, 20);
    let ran = bench.run(&["import", &bench.file("out.jsonl", &exported)]).ok();
    assert_eq!(ran.out, "imported: 60 letters, 40 stored, 20 unchanged\n");
    assert!(bench.run(&["export"]).ok().out == exported);
    assert_eq!(bench.store.verify().await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_import_says_how_to_go_on() {
    let bench = Bench::with(Vec::new()).await;
    let (process, exported, _writer) = half_way(&bench).await;
    process.signal("-INT");
    // It waits for more lines, and ends all the same.
    let ended = tokio::task::spawn_blocking(|| process.end());
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap().unwrap();
    let expected = "ended after line 21; the same command goes on from there";
    assert!(ended.err.contains(expected), "{}", ended.err);
    assert_eq!(ended.code, 3, "{}", ended.err);
    assert_eq!(ended.out, "imported: 20 letters, 20 stored, 1 bad lines\n");
    let ran = bench.run(&["import", &bench.file("out.jsonl", &exported)]).ok();
    assert_eq!(ran.out, "imported: 60 letters, 40 stored, 20 unchanged\n");
}
