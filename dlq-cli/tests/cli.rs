//! The command as its users meet it: a process with arguments, standard output, standard error and an exit code.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::store::{
    Actor, AuditRequest, ClaimRequest, Claims as _, Finish, Finished, Letters as _,
    Maintenance as _, OperationSpec, Operations as _,
};
use dlq_core::{
    Attempt, Cause, DeadLetter, ErrorClass, Failure, Filter, History, Message, Origin, Position,
    Reason, Resolution, Sink as _, Status, Timestamp,
};
use dlq_sql::sqlite::SqliteStore;
use serde_json::Value;

mod common;

use common::{Ran, dlq};

/// A store in a folder of its own, and the command on it.
struct Bench {
    folder: tempfile::TempDir,
    store: SqliteStore,
}

impl Bench {
    async fn with(letters: Vec<DeadLetter>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("dlq.db")).await.unwrap();
        store.put(letters).await.unwrap();
        Self { folder, store }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("dlq.db")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = dlq(args);
        command.env("DLQ_FROM", format!("sqlite://{}", self.path().display()));
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }
}

fn letter(n: u64, cause: Cause, error: &str) -> DeadLetter {
    let origin = Origin::new("memory", "payments", Position::Offset(n));
    let class = if cause == Cause::Decode { ErrorClass::Permanent } else { ErrorClass::Transient };
    let reason = if cause == Cause::Decode { Reason::Permanent } else { Reason::Exhausted };
    let failure = Failure::new(class, cause, "app::ChargeError", error)
        .timed(Timestamp::from_millis(1_763_683_200_000), Duration::from_millis(12));
    let mut history = History::new();
    history.push(Attempt { number: 1, generation: 0, failure });
    let message = Message::new("payments.requested", format!("{{\"n\":{n}}}"));
    let message = message.with_id(format!("evt-{n}"));
    let letter = DeadLetter::new(message, origin, "payments.charge", reason);
    let mut letter = letter.with_history(history);
    letter.attempts = 1;
    letter.deliveries = 1;
    letter.died_at = Timestamp::from_millis(1_763_683_200_000);
    letter
}

fn some() -> Vec<DeadLetter> {
    (0..10)
        .map(|n| match n {
            0..3 => letter(n, Cause::Decode, "expected value at line 1"),
            _ => letter(n, Cause::Error, "provider timed out"),
        })
        .collect()
}

#[tokio::test]
async fn list_pages_and_counts() {
    let bench = Bench::with(some()).await;
    assert_eq!(bench.run(&["list", "--count"]).ok().out, "10\n");
    assert_eq!(bench.run(&["list", "--count", "--cause", "decode"]).ok().out, "3\n");
    let page = bench.run(&["list", "--limit", "4", "-o", "json"]).ok().json();
    assert_eq!(page["schema_version"], 1);
    assert_eq!(page["letters"].as_array().unwrap().len(), 4);
    let mut seen: Vec<String> = ids(&page["letters"]);
    let cursor = page["next"].as_str().unwrap();
    let rest = bench.run(&["list", "--limit", "0", "-o", "json", "--cursor", cursor]).ok().json();
    seen.extend(ids(&rest["letters"]));
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), &rest["next"]), (10, &Value::Null));
    let lines = bench.run(&["list", "-o", "jsonl"]).ok().out;
    assert_eq!(lines.lines().count(), 10);
    let table = bench.run(&["list", "--limit", "2"]).ok();
    assert_eq!(table.out.lines().count(), 3, "{}", table.out);
    assert!(table.err.contains("2 of 10 letters"), "{}", table.err);
}

#[tokio::test]
async fn programs_get_a_document_of_whatever_was_asked() {
    let bench = Bench::with(some()).await;
    let none = ["--cause", "panic", "--yes", "-o", "json"];
    for (verb, field, value) in [
        (&["replay"] as &[&str], "id", Value::Null),
        (&["mark", "resolved"], "changed", 0.into()),
        (&["delete"], "changed", 0.into()),
        (&["cleanup", "--older-than", "0s"], "deleted", 0.into()),
    ] {
        let said = bench.run(&[verb, &none].concat()).ok().json();
        assert_eq!(
            (&said["schema_version"], said.get(field)),
            (&1.into(), Some(&value)),
            "{verb:?}"
        );
    }
    let replay = ["replay", "--cause", "decode", "--yes", "-o", "json"];
    let said = bench.run(&replay).ok().json();
    assert_eq!((&said["schema_version"], &said["progress"]["total"]), (&1.into(), &3.into()));
}

fn ids(letters: &Value) -> Vec<String> {
    letters
        .as_array()
        .unwrap()
        .iter()
        .map(|letter| letter["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn show_takes_the_first_digits_of_an_id() {
    let bench = Bench::with(some()).await;
    let id = some()[5].id.to_string();
    let shown = bench.run(&["show", &id[..12]]).ok().out;
    for expected in
        [id.as_str(), "payments.charge", "provider timed out", "evt-5", "\"n\": 5", "attempts (1)"]
    {
        assert!(shown.contains(expected), "{expected} is not in\n{shown}");
    }
    assert_eq!(bench.run(&["show", &id, "--payload"]).ok().out, "{\"n\":5}");
    let missing = bench.run(&["show", "00000000000000000000000000000000"]);
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("no letter has the id 0000"), "{}", missing.err);
    let ambiguous = bench.run(&["show", ""]);
    assert_eq!(ambiguous.code, 2, "{}", ambiguous.err);
    assert_eq!(bench.run(&["show", "xyz"]).code, 2);
}

#[tokio::test]
async fn groups_stats_and_peek_agree_with_each_other() {
    let bench = Bench::with(some()).await;
    let groups = bench.run(&["groups", "-o", "json"]).ok().json();
    let counts: Vec<_> =
        groups["groups"].as_array().unwrap().iter().map(|g| g["count"].as_u64().unwrap()).collect();
    assert_eq!(counts, [7, 3]);
    let fingerprint = groups["groups"][1]["fingerprint"].as_str().unwrap();
    assert_eq!(bench.run(&["list", "--count", "--fingerprint", fingerprint]).ok().out, "3\n");
    let stats = bench.run(&["stats", "-o", "json"]).ok().json();
    assert_eq!(stats["total"], 10);
    assert_eq!(stats["by_cause"]["decode"], 3);
    let table = bench.run(&["stats"]).ok().out;
    assert!(table.contains("exhausted") && table.contains("10 letters"), "{table}");
    let peek = bench.run(&["peek", "--limit", "2"]).ok().out;
    assert!(peek.contains('█') && peek.contains("7"), "{peek}");
}

#[tokio::test]
async fn hostile_content_cannot_steer_a_terminal_and_is_exact_in_json() {
    let hostile = "\u{1b}]0;owned\u{7}\u{9b}31m\r\nline two\0\u{202e}gpj";
    let mut letter = letter(1, Cause::Error, hostile);
    letter.message = Message::new("payments.\u{1b}[2J", Bytes::from_static(b"\xff\x00\x1b[31m"))
        .with_key(Bytes::from_static(b"\x00\xfe"))
        .with_header("x\u{1b}[1m", Bytes::from_static(b"\x1b[31m\xff"));
    let bench = Bench::with(vec![letter.clone()]).await;
    let id = letter.id.to_string();
    for args in
        [&["list"] as &[&str], &["groups"], &["stats"], &["peek"], &["show", &id], &["op", "list"]]
    {
        let ran = bench.run(args).ok();
        let bad = ran
            .out
            .chars()
            .chain(ran.err.chars())
            .find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
        assert_eq!(bad, None, "{args:?}: {:?}", ran.out);
    }
    let exported: DeadLetter = serde_json::from_str(&bench.run(&["export"]).ok().out).unwrap();
    assert_eq!(exported.message, letter.message);
    assert_eq!(exported.history, letter.history);
    let output = bench.command(&["show", &id, "--payload"]).output().unwrap();
    assert_eq!(output.stdout, b"\xff\x00\x1b[31m");
}

#[tokio::test]
async fn a_filter_that_matches_nothing_is_not_an_error() {
    let bench = Bench::with(some()).await;
    let ran = bench.run(&["list", "--subject", "orders.*"]).ok();
    assert_eq!(ran.out, "");
    assert!(ran.err.contains("no letters match"));
    assert_eq!(bench.run(&["delete", "--subject", "orders.*", "--yes"]).ok().out, "");
    bench.run(&["replay", "--subject", "orders.*", "--yes"]).ok();
}

#[tokio::test]
async fn destructive_verbs_want_a_filter_and_a_yes() {
    let bench = Bench::with(some()).await;
    for args in [&["delete"] as &[&str], &["mark", "resolved"], &["replay"]] {
        let ran = bench.run(&[args, &["--yes"]].concat());
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(ran.err.contains("--all"), "{}", ran.err);
        let ran = bench.run(&[args, &["--cause", "decode"]].concat());
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(ran.err.contains("--yes"), "{}", ran.err);
        let ran = bench.run(&[args, &["--cause", "decode", "--dry-run"]].concat()).ok();
        assert!(ran.err.contains("nothing was changed"), "{}", ran.err);
    }
    assert_eq!(bench.store.count(Filter::new().with_status(Status::Pending)).await.unwrap(), 10);
    assert_eq!(bench.run(&["delete", "--all", "--yes"]).ok().out, "deleted: 10\n");
    assert_eq!(bench.store.count(Filter::new()).await.unwrap(), 0);
}

/// What is left of a filter whose variable was empty means every letter, and is refused like none.
#[tokio::test]
async fn a_filter_that_excludes_nothing_is_none() {
    let bench = Bench::with(some()).await;
    for void in [
        &["--error", ""] as &[&str],
        &["--min-attempts", "0"],
        &["--max-attempts", "4294967295"],
        &["--min-retries", "0", "--max-retries", "4294967295"],
        &["--subject", ">"],
    ] {
        for verb in [&["delete"] as &[&str], &["mark", "resolved"], &["replay"]] {
            let ran = bench.run(&[verb, void, &["--yes"]].concat());
            assert_eq!(ran.code, 2, "{verb:?} {void:?}: {}", ran.err);
        }
    }
    assert_eq!(bench.store.count(Filter::new().with_status(Status::Pending)).await.unwrap(), 10);
    assert_eq!(
        bench.run(&["delete", "--subject", ">", "--all", "--yes"]).ok().out,
        "deleted: 10\n"
    );
}

#[tokio::test]
async fn an_id_that_is_no_letters_is_an_error() {
    let bench = Bench::with(some()).await;
    let id = "0".repeat(32);
    for verb in [&["show"] as &[&str], &["delete", "--yes", "--id"], &["replay", "--yes", "--id"]] {
        let ran = bench.run(&[verb, &[&id]].concat());
        assert_eq!(ran.code, 1, "{verb:?}: {}", ran.err);
        assert!(ran.err.contains(&id) && ran.err.contains("dlq list"), "{}", ran.err);
    }
    let ran = bench.run(&["export", "--id", &id]);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{}", ran.err);
}

#[tokio::test]
async fn a_limit_of_nothing_is_all_or_refused() {
    let bench = Bench::with(some()).await;
    bench.run(&["replay", "--cause", "decode", "--yes"]).ok();
    assert_eq!(bench.run(&["groups", "--limit", "0"]).ok().out, bench.run(&["groups"]).ok().out);
    assert_eq!(bench.run(&["op", "list", "--limit", "0"]).ok().out.lines().count(), 2);
    assert_eq!(bench.run(&["peek", "--limit", "0"]).code, 2);
    assert_eq!(bench.run(&["replay", "--all", "--limit", "0", "--yes"]).code, 2);
}

/// Numbers, order and duplicates are what the producer wrote.
#[tokio::test]
async fn a_payload_is_shown_as_it_is() {
    let mut letter = letter(1, Cause::Decode, "expected one `a`, found two");
    let json = r#"{"z":1,"id":12345678901234567890123,"price":0.10000000000000000555,"a":1,"a":2}"#;
    letter.message = Message::new("payments.requested", json);
    let id = letter.id.to_string();
    let bench = Bench::with(vec![letter]).await;
    let shown = bench.run(&["show", &id]).ok().out;
    let lines: Vec<_> = shown.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| *line == "{").unwrap();
    let expected = [
        "{",
        "\"z\": 1,",
        "\"id\": 12345678901234567890123,",
        "\"price\": 0.10000000000000000555,",
        "\"a\": 1,",
        "\"a\": 2",
        "}",
    ];
    assert_eq!(lines[at..at + 7], expected, "{shown}");
}

#[tokio::test]
async fn marks_go_round_and_keep_the_note() {
    let bench = Bench::with(some()).await;
    for (mark, expected) in [("quarantined", 3), ("pending", 3), ("resolved", 3), ("resolved", 0)] {
        let ran = bench
            .run(&["mark", mark, "--cause", "decode", "--yes", "--note", "a schema change"])
            .ok();
        assert_eq!(ran.out, format!("marked {mark}: {expected}\n"));
        assert_eq!(
            bench.run(&["list", "--count", "--status", mark, "--cause", "decode"]).ok().out,
            "3\n"
        );
    }
    let audit = bench.store.audit(AuditRequest::latest(10)).await.unwrap();
    assert_eq!(audit[0].by.who, "ana@ops");
    assert_eq!(audit[0].by.note.as_deref(), Some("a schema change"));
    assert_eq!(audit[0].action, "resolve");
}

#[tokio::test]
async fn letters_in_somebodys_hands_are_skipped_with_exit_code_3() {
    let bench = Bench::with(some()).await;
    bench.run(&["replay", "--cause", "decode", "--yes"]).ok();
    let request = ClaimRequest::due(["payments.charge"], 1, Duration::from_secs(60));
    let claimed = bench.store.claim(request).await.unwrap();
    assert_eq!(claimed.len(), 1);
    let ran = bench.run(&["delete", "--cause", "decode", "--yes"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert_eq!(ran.out, "deleted: 2\n");
    assert!(ran.err.contains("skipped 1"), "{}", ran.err);
}

#[tokio::test]
async fn a_replay_becomes_an_operation_that_is_followed_to_its_end() {
    let bench = Bench::with(some()).await;
    let planned =
        bench.run(&["replay", "--cause", "decode", "--dry-run", "-o", "json"]).ok().json();
    assert_eq!(planned["plan"]["count"], 3);
    let id = bench
        .run(&["replay", "--cause", "decode", "--yes", "--note", "fixed"])
        .ok()
        .out
        .trim()
        .to_owned();
    let claims = bench
        .store
        .claim(ClaimRequest::due(["payments.charge"], 10, Duration::from_secs(60)))
        .await
        .unwrap();
    assert_eq!(claims.len(), 3);
    let listed = bench.run(&["op", "list"]).ok().out;
    assert!(
        listed.contains(&id) && listed.contains("fixed") && listed.contains("running"),
        "{listed}"
    );
    for claim in claims {
        let finish = vec![(claim.token, Finish::Resolved(Resolution::Succeeded))];
        assert_eq!(bench.store.finish(finish).await.unwrap(), [Finished::Applied]);
    }
    let shown = bench.run(&["op", "show", &id]).ok().out;
    assert!(
        shown.contains("completed: 3 of 3 letters done") && shown.contains("succeeded"),
        "{shown}"
    );
    bench.run(&["op", "watch", &id]).ok();
    let ended = bench.run(&["op", "resume", &id]);
    assert_eq!(ended.code, 2, "{}", ended.err);
}

#[tokio::test]
async fn a_cancelled_replay_leaves_the_rest_untouched() {
    let bench = Bench::with(some()).await;
    let id = bench.run(&["replay", "--all", "--rate", "1/h", "--yes"]).ok().out.trim().to_owned();
    let claims = bench
        .store
        .claim(ClaimRequest::due(["payments.charge"], 10, Duration::from_secs(60)))
        .await
        .unwrap();
    assert_eq!(claims.len(), 1, "one an hour");
    let cancelled = bench.run(&["op", "cancel", &id]).ok().out;
    assert!(cancelled.contains("cancelled") && cancelled.contains("9 skipped"), "{cancelled}");
    assert_eq!(bench.run(&["op", "watch", &id]).code, 3);
    assert_eq!(bench.store.count(Filter::new().with_status(Status::Pending)).await.unwrap(), 9);
}

#[tokio::test]
async fn a_store_does_not_publish() {
    let bench = Bench::with(some()).await;
    let ran = bench.run(&["replay", "--all", "--yes", "--to", "origin"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--via nats://HOST"), "{}", ran.err);
}

#[tokio::test]
async fn a_closed_pipe_is_not_an_error() {
    let letters = (0..3000).map(|n| letter(n, Cause::Error, "provider timed out")).collect();
    let bench = Bench::with(letters).await;
    for args in [
        &["list", "--limit", "0", "-o", "jsonl"] as &[&str],
        &["export"],
        &["list", "--limit", "0"],
    ] {
        let mut child =
            bench.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
    }
}

/// What was asked for is done, and the exit code says so, whoever listens.
#[tokio::test]
async fn closed_pipes_on_both_sides_are_not_errors() {
    let bench = Bench::with(some()).await;
    for args in [
        &["list", "--subject", "orders.*"] as &[&str],
        &["mark", "quarantined", "--cause", "decode", "--yes"],
        &["replay", "--cause", "error", "--yes"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = bench.command(args);
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        assert_eq!(command.status().unwrap().code(), Some(0), "{args:?}");
    }
    let with = |status| bench.store.count(Filter::new().with_status(status));
    assert_eq!(with(Status::Quarantined).await.unwrap(), 3);
    assert_eq!(bench.store.operations(10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn export_is_byte_exact_and_never_overwrites() {
    let bench = Bench::with(some()).await;
    let file = bench.folder.path().join("out.jsonl");
    let path = file.to_str().unwrap();
    bench.run(&["export", "--cause", "decode", "--file", path]).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    let letters: Vec<DeadLetter> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(letters.len(), 3);
    for exported in letters {
        assert_eq!(bench.store.get(exported.id).await.unwrap(), Some(exported));
    }
    let again = bench.run(&["export", "--file", path]);
    assert_eq!(again.code, 1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[tokio::test]
async fn words_outside_the_vocabulary_are_usage_errors() {
    let bench = Bench::with(some()).await;
    for (args, expected) in [
        (&["list", "--cause", "oops"] as &[&str], "decode"),
        (&["list", "--status", "gone"], "quarantined"),
        (&["list", "--since", "yesterday"], "2h"),
        (&["replay", "--all", "--rate", "fast"], "50/s"),
        (&["list", "--fingerprint", "x"], "dlq groups"),
        (&["mark", "dead"], "resolved"),
        (&["op", "show", "one"], "dlq op list"),
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    }
    // Other systems' names are read as ours.
    assert_eq!(bench.run(&["list", "--count", "--reason", "retries_exhausted"]).ok().out, "7\n");
}

#[tokio::test]
async fn a_file_that_is_missing_foreign_or_damaged_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let run = |from: &str| Ran::from(dlq(&["list", "--from", from]).output().unwrap());
    let url = |name: &str| format!("sqlite://{}", folder.path().join(name).display());

    let missing = run(&url("none.db"));
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("none.db"), "{}", missing.err);
    assert!(!folder.path().join("none.db").exists());

    std::fs::write(
        folder.path().join("text.db"),
        "this is not a database, but it is long enough to be read",
    )
    .unwrap();
    let text = run(&url("text.db"));
    assert_eq!(text.code, 1);
    assert!(text.err.contains("text.db"), "{}", text.err);

    for (name, statements, expected) in [
        ("foreign.db", "CREATE TABLE t (x); INSERT INTO t VALUES (1)", "not a dlq database"),
        ("newer.db", "", "newer"),
    ] {
        let path = folder.path().join(name);
        if name == "newer.db" {
            drop(SqliteStore::open(&path).await.unwrap());
        }
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch(statements).unwrap();
        if name == "newer.db" {
            connection.pragma_update(None, "user_version", 999).unwrap();
        }
        drop(connection);
        let before = std::fs::read(&path).unwrap();
        let ran = run(&url(name));
        assert_eq!(ran.code, 1, "{name}: {}", ran.err);
        assert!(ran.err.contains(name) && ran.err.contains(expected), "{}", ran.err);
        assert_eq!(std::fs::read(&path).unwrap(), before, "{name} was changed");
    }

    let none = Ran::from(dlq(&["list"]).output().unwrap());
    assert_eq!(none.code, 2);
    assert!(none.err.contains("DLQ_FROM"), "{}", none.err);
    for from in ["dlq.db", "ftp://x", "mysql://ana:s3cret@h/db"] {
        let ran = run(from);
        assert_eq!(ran.code, 2, "{from}");
        assert!(ran.err.contains("sqlite://") && !ran.err.contains("s3cret"), "{}", ran.err);
    }
}

#[tokio::test]
async fn a_file_that_another_process_holds_is_reported() {
    let bench = Bench::with(some()).await;
    drop(bench.store);
    let path = bench.folder.path().join("dlq.db");
    let holder = rusqlite::Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let url = format!("sqlite://{}", path.display());
    // Reading goes on beside a writer.
    let read = Ran::from(dlq(&["list", "--count", "--from", &url]).output().unwrap());
    assert_eq!((read.code, read.out.as_str()), (0, "10\n"), "{}", read.err);
    let write = Ran::from(dlq(&["delete", "--all", "--yes", "--from", &url]).output().unwrap());
    assert_eq!(write.code, 1, "{}", write.err);
    assert!(write.err.contains("another process") || write.err.contains("locked"), "{}", write.err);
    drop(holder);
    let again = Ran::from(dlq(&["delete", "--all", "--yes", "--from", &url]).output().unwrap());
    assert_eq!(again.out, "deleted: 10\n");
}

#[tokio::test]
async fn an_operation_started_in_code_is_seen_by_the_command() {
    let bench = Bench::with(some()).await;
    let letters = dlq_core::DeadLetters::new(bench.store.clone());
    let spec = OperationSpec::replay(Filter::new().with_cause(Cause::Decode)).canary(1);
    let operation = letters.replay(spec, Actor::new("deploy")).await.unwrap();
    let shown = bench.run(&["op", "show", &operation.id.to_string(), "-o", "json"]).ok().json();
    assert_eq!(shown["operation"]["state"], "canary");
    assert_eq!(shown["items"].as_array().unwrap().len(), 3);
}
