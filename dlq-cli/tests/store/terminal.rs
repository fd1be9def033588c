//! What is seen at a terminal, which `script` plays here.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use dlq_core::store::{ClaimRequest, Claims as _, Finish, Letters as _, Sink as _};
use dlq_core::{DeadLetter, Filter, PageRequest, Resolution};
use dlq_testkit::fixtures::{CONSUMER, failed, letter};
use unicode_width::UnicodeWidthStr as _;

use crate::bench::Bench;
use crate::common::Ran;

const HOSTILE: &str = "\u{1b}]0;title\u{7}支払いに失敗しました\u{202e}\r\n\u{9b}2J it failed at the very end of a long line";

fn hostile() -> Vec<DeadLetter> {
    (0..3).map(|n| failed(letter(n), HOSTILE)).collect()
}

/// What the command shows at a terminal so wide; `None` where nobody can play one.
fn shown(bench: &Bench, columns: usize, args: &[&str]) -> Option<String> {
    let line = [&[env!("CARGO_BIN_EXE_dlq")], args].concat().join(" ");
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("COLUMNS", columns.to_string());
    command.env("DLQ_FROM", bench.url()).env("DLQ_CONFIG", "").env("TERM", "xterm");
    command.env("NO_COLOR", "1").env("DLQ_PAGER", "");
    let Ok(output) = command.output() else {
        eprintln!("SKIPPED: there is no `script` here to play a terminal");
        return None;
    };
    Some(Ran::from(output).ok().out)
}

#[tokio::test]
async fn tables_fit_the_terminal() {
    let bench = Bench::with(hostile()).await;
    bench
        .run(&[
            "replay",
            "--all",
            "--yes",
            "--note",
            "a note that is longer than most terminals are wide",
        ])
        .ok();
    for columns in [20, 40, 80, 120] {
        for args in [&["list"] as &[&str], &["groups"], &["stats"], &["peek"], &["op", "list"]] {
            let Some(out) = shown(&bench, columns, args) else { return };
            let lines: Vec<_> = out.lines().collect();
            assert!(lines.len() > 1, "{out}");
            for line in lines {
                let line = line.trim_end_matches('\r');
                assert!(!line.chars().any(char::is_control), "{args:?}: {line:?}");
                let is_fixed = line.contains("oldest") || line.contains("newest");
                assert!(is_fixed || line.width() <= columns, "{args:?} at {columns}: {line}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_cut_can_be_seen_whole() {
    let bench = Bench::with(hostile()).await;
    let Some(out) = shown(&bench, 60, &["list"]) else { return };
    assert!(out.contains('…') && !out.contains("CONSUMER"), "{out}");
    for wide in ["--wide", "--no-trunc"] {
        let out = shown(&bench, 60, &["list", wide]).unwrap();
        assert!(out.contains("the very end of a long line") && out.contains("CONSUMER"), "{out}");
    }
    let piped = bench.command(&["list"]).env("COLUMNS", "60").output().unwrap();
    let piped = Ran::from(piped).ok().out;
    assert!(piped.contains("the very end of a long line") && !piped.contains('…'), "{piped}");
}

/// At 80 columns the error has more room than any other column, and it is said how to see the rest.
#[tokio::test]
async fn the_error_has_most_of_the_room() {
    let bench = Bench::with(hostile()).await;
    let Some(out) = shown(&bench, 80, &["list"]) else { return };
    let (header, error) = out.split_once("ERROR").unwrap();
    assert!(header.lines().last().unwrap().width() <= 48, "{out}");
    assert!(error.contains("\\u{1b}]0;title"), "{out}");
    assert!(out.contains("--wide shows consumer, reason, cause, attempts\r\n"), "{out}");
    let out = shown(&bench, 80, &["list", "--columns", "id,age,size"]).unwrap();
    assert!(out.starts_with("ID") && out.contains("SIZE") && !out.contains("--wide"), "{out}");
}

/// A command line at a terminal of so many lines, and what is seen of it.
fn typed(bench: &Bench, rows: u32, line: &str, env: &[(&str, &str)]) -> Option<String> {
    let dlq = env!("CARGO_BIN_EXE_dlq");
    let line = format!("stty rows {rows} cols 200; {dlq} {line}");
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("DLQ_FROM", bench.url());
    command.env("DLQ_CONFIG", "").env("TERM", "xterm").env_remove("COLUMNS").env_remove("NO_COLOR");
    let Ok(output) = command.envs(env.iter().copied()).output() else {
        eprintln!("SKIPPED: there is no `script` here to play a terminal");
        return None;
    };
    Some(Ran::from(output).ok().out)
}

#[tokio::test]
async fn states_have_colours_at_a_terminal_only() {
    let bench = Bench::with(vec![letter(1)]).await;
    let yellow = "\u{1b}[33mpending\u{1b}[0m";
    let id = letter(1).id.to_string();
    let show = format!("show {id}");
    for line in ["list", "list --wide", &show] {
        let Some(out) = typed(&bench, 60, line, &[("DLQ_PAGER", "")]) else { return };
        assert!(out.contains(yellow), "{line}: {out:?}");
        for none in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let out = typed(&bench, 60, line, &[none, ("DLQ_PAGER", "")]).unwrap();
            assert!(out.contains("pending") && !out.contains('\u{1b}'), "{line}: {out:?}");
        }
    }
    assert!(!bench.run(&["list"]).ok().out.contains('\u{1b}'));
}

#[tokio::test]
async fn what_is_longer_than_the_terminal_is_paged() {
    let bench = Bench::with((0..30).map(letter).collect()).await;
    let paged = [("DLQ_PAGER", "sed s/^/P:/")];
    let Some(out) = typed(&bench, 10, "list --limit 20", &paged) else { return };
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[..21].iter().all(|line| line.starts_with("P:")), "{out}");
    assert!(out.contains("\n20 of 30 letters; the next page"), "{out}");
    for (rows, line) in
        [(10, "list --no-pager"), (10, "list -o jsonl"), (60, "list"), (10, "export")]
    {
        let out = typed(&bench, rows, line, &paged).unwrap();
        assert!(!out.contains("P:"), "{rows} {line}: {out}");
    }
    let all = typed(&bench, 10, "list", &[("DLQ_PAGER", "")]).unwrap();
    assert_eq!(all.lines().count(), 31, "{all}");
    // A pager that is not there, and one that is left at once.
    let out = typed(&bench, 10, "list", &[("PAGER", "no-such-pager")]).unwrap();
    assert!(out.lines().count() >= 31 && out.contains("ERROR"), "{out}");
    let out = typed(&bench, 10, "list", &[("PAGER", "head -n 1")]).unwrap();
    assert_eq!(out.lines().count(), 1, "{out}");
}

/// Ctrl-C is for the pager: the command that waits for it does not end, and says what it has to say when the pager has.
#[tokio::test]
async fn an_interrupt_in_the_pager_ends_nothing() {
    let bench = Bench::with((0..30).map(letter).collect()).await;
    let pager = bench.folder.path().join("pager");
    let steps = "trap '' INT; cat > /dev/null; echo ready; read word < /dev/tty; echo left";
    std::fs::write(&pager, steps).unwrap();
    let line = format!("stty rows 10 cols 200; exec {} list --limit 20", env!("CARGO_BIN_EXE_dlq"));
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("DLQ_FROM", bench.url()).env("DLQ_CONFIG", "");
    command.env("DLQ_PAGER", format!("sh {}", pager.display())).env("TERM", "xterm");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("SKIPPED: there is no `script` here to play a terminal");
        return;
    };
    let (mut said, mut out) = (Vec::new(), child.stdout.take().unwrap());
    while !said.ends_with(b"ready\r\n") {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
        said.push(byte[0]);
    }
    child.stdin.take().unwrap().write_all(b"\x03word\n").unwrap();
    out.read_to_end(&mut said).unwrap();
    let said = String::from_utf8_lossy(&said);
    assert!(child.wait().unwrap().success(), "{said}");
    assert!(said.contains("left\r\n20 of 30 letters"), "{said}");
}

#[tokio::test]
async fn tables_are_sorted_by_any_column_and_show_those_that_are_chosen() {
    let mut letters: Vec<_> = (0..4).map(letter).collect();
    for (letter, attempts) in letters.iter_mut().zip([9, 10, 3, 10]) {
        letter.attempts = attempts;
    }
    let bench = Bench::with(letters).await;
    let table = bench.run(&["list", "--columns", "attempts", "--sort", "-attempts"]).ok();
    assert_eq!(table.out, "ATTEMPTS\n10\n10\n9\n3\n");
    let documents = bench.run(&["list", "--sort", "attempts", "-o", "jsonl"]).ok().out;
    let attempts =
        documents.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let attempts: Vec<_> = attempts.map(|letter| letter["attempts"].as_u64().unwrap()).collect();
    assert_eq!(attempts, [3, 9, 10, 10]);
    let cut = bench.run(&["list", "--sort", "attempts", "--limit", "2"]).ok().err;
    assert_eq!(cut, "2 of 4 letters; they alone are sorted, the newest; --limit 0 sorts all\n");
    let unknown = bench.run(&["list", "--columns", "id,size,x"]);
    assert_eq!(unknown.code, 2);
    assert!(
        unknown.err.contains("no column `x`; there are: id, status, subject"),
        "{}",
        unknown.err
    );
    let documents = bench.run(&["list", "--columns", "id", "-o", "json"]);
    assert_eq!(documents.code, 2, "{}", documents.err);
    let groups = bench.run(&["groups", "--columns", "count,class", "--sort", "-count"]).ok().out;
    assert!(groups.starts_with("COUNT  CLASS\n"), "{groups}");
    // Those that are left out by the limit are sorted, too.
    let least =
        bench.run(&["groups", "--columns", "count", "--sort", "count", "--limit", "1"]).ok().out;
    let all = bench.run(&["groups", "-o", "json"]).ok().json();
    let fewest =
        all["groups"].as_array().unwrap().iter().map(|it| it["count"].as_u64().unwrap()).min();
    assert_eq!(least, format!("COUNT\n{}\n", fewest.unwrap()));
}

#[tokio::test]
async fn progress_is_shown_at_a_terminal_only() {
    let bench = Bench::with((0..200).map(letter).collect()).await;
    let file = |name: &str| bench.folder.path().join(name).display().to_string();
    let ran = bench.run(&["export", "--file", &file("piped")]).ok();
    assert_eq!(ran.err, "exported 200 letters\n");
    let Some(out) = shown(&bench, 100, &["export", "--file", &file("seen")]) else { return };
    assert!(out.contains("/200 letters") && out.contains(" left"), "{out:?}");
    for (args, bar) in [
        (&["mark", "resolved", "--all", "--yes"] as &[&str], "marking letters"),
        (&["import", &file("seen")], "B/s"),
        (&["cleanup", "--older-than", "0s", "--yes"], "/200 letters"),
    ] {
        let out = shown(&bench, 100, args).unwrap();
        assert!(out.contains(bar), "{args:?}: {out:?}");
    }
    bench.store.put((0..200).map(letter).collect()).await.unwrap();
    let out = shown(&bench, 100, &["export", "--quiet", "--file", &file("quiet")]).unwrap();
    assert!(!out.contains("/200"), "{out:?}");
    assert!(out.contains("exported 200 letters"), "{out:?}");
}

/// What is stored while the operator reads and thinks is not what they said yes to.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_the_question_is_not_meant() {
    let bench = Bench::with((0..10).map(letter).collect()).await;
    for (n, (verb, done)) in [("mark resolved", "marked resolved: 10"), ("delete", "deleted: 10")]
        .into_iter()
        .enumerate()
    {
        let line = format!("{} {verb} --all", env!("CARGO_BIN_EXE_dlq"));
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("DLQ_FROM", bench.url());
        command.env("DLQ_CONFIG", "").env("TERM", "xterm");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            eprintln!("SKIPPED: there is no `script` here to play a terminal");
            return;
        };
        let mut said = Vec::new();
        let mut out = child.stdout.take().unwrap();
        while !said.ends_with(b"y to go on] ") {
            let mut byte = [0];
            assert_eq!(out.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
        bench.store.put(vec![letter(100 + n as u64)]).await.unwrap();
        child.stdin.take().unwrap().write_all(b"y\n").unwrap();
        out.read_to_end(&mut said).unwrap();
        assert!(child.wait().unwrap().success());
        let said = String::from_utf8_lossy(&said);
        // The second time the first newcomer is among what was counted.
        let expected = if n == 0 { done.to_owned() } else { done.replace("10", "11") };
        assert!(said.contains(&expected), "{said}");
    }
    assert_eq!(bench.store.count(Filter::new()).await.unwrap(), 1);
}

/// A watched operation says how far it has come and how letters ended.
#[tokio::test]
async fn a_watched_operation_shows_its_outcomes() {
    let bench = Bench::with((0..2).map(letter).collect()).await;
    let id = bench.run(&["replay", "--all", "--yes"]).ok().out.trim().to_owned();
    let request = ClaimRequest::due([CONSUMER], 2, Duration::from_secs(60));
    for claim in bench.store.claim(request).await.unwrap() {
        let done = vec![(claim.token, Finish::Resolved(Resolution::Succeeded))];
        bench.store.finish(done).await.unwrap();
    }
    let Some(out) = shown(&bench, 100, &["op", "watch", &id]) else { return };
    assert!(out.contains("2/2 letters") && out.contains("completed, 2 succeeded"), "{out:?}");
    let out = shown(&bench, 100, &["op", "watch", &id, "--quiet"]).unwrap();
    assert!(!out.contains("2/2 letters"), "{out:?}");
}

/// A payload can hold what clears the screen, or types a command.
#[tokio::test]
async fn a_payload_cannot_steer_the_terminal() {
    let payload = "\u{1b}[2J\u{1b}]0;title\u{7}first\nsecond";
    let mut hostile = letter(1);
    hostile.message = hostile.message.with_payload(Some(payload.into()));
    let bench = Bench::with(vec![hostile]).await;
    let id = bench.store.list(Filter::new(), PageRequest::new()).await.unwrap().letters[0].id;
    let args = ["show", &id.to_string(), "--payload"];
    let Some(out) = shown(&bench, 80, &args) else { return };
    let is_steering = |char: char| char.is_control() && !matches!(char, '\r' | '\n');
    assert!(!out.contains(is_steering), "{out:?}");
    assert!(out.contains("first\r\nsecond"), "{out:?}");
    assert_eq!(bench.run(&args).ok().out, payload, "a pipe has it byte for byte");
}
