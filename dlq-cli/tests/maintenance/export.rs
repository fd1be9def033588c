use dlq_core::store::Sink as _;
use dlq_core::{DeadLetter, Message};
use dlq_testkit::fixtures::{letter, letter_of};

use crate::fixture::{Bench, of_every_kind, until};
use crate::process::Process;

/// Letters that make a file of a few megabytes.
fn many() -> Vec<DeadLetter> {
    (0..4_000).map(|n| letter_of(Message::new("orders.created", "x".repeat(2_000)), n)).collect()
}

fn whole_lines(bench: &Bench, name: &str) -> usize {
    std::fs::read(bench.path(name)).unwrap().iter().filter(|byte| **byte == b'\n').count()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_is_killed_goes_on() {
    let bench = Bench::with(many()).await;
    let whole = bench.run(&["export"]).ok().out;
    let to = bench.arg("out.jsonl");
    let process = Process::start(bench.command(&["export", "--to", &to]));
    let file = bench.path("out.jsonl");
    until(async || std::fs::metadata(&file).is_ok_and(|file| file.len() > 1 << 20)).await;
    process.kill();
    let written = whole_lines(&bench, "out.jsonl");
    assert!((1..4_000).contains(&written), "it was killed in the middle: {written}");
    let refused = bench.run(&["export", "--to", &to]);
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert!(refused.err.contains("--resume"), "{}", refused.err);
    let rest = bench.run(&["export", "--to", &to, "--resume"]).ok();
    assert!(rest.err.contains(&format!("exported {} letters", 4_000 - written)), "{}", rest.err);
    assert!(std::fs::read_to_string(&file).unwrap() == whole, "the file is another one");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_export_ends_with_a_whole_line() {
    let bench = Bench::with(many()).await;
    let to = bench.arg("out.jsonl");
    let process = Process::start(bench.command(&["export", "--to", &to]));
    let file = bench.path("out.jsonl");
    until(async || std::fs::metadata(&file).is_ok_and(|file| file.len() > 1 << 20)).await;
    process.signal("-INT");
    let ended = process.end();
    assert_eq!(ended.code, 3, "{}", ended.err);
    assert!(ended.err.contains("the same command with --resume goes on"), "{}", ended.err);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.ends_with('\n'));
    assert!((1..4_000).contains(&text.lines().count()));
    bench.run(&["export", "--to", &to, "--resume"]).ok();
    assert!(std::fs::read_to_string(&file).unwrap() == bench.run(&["export"]).ok().out);
}

#[tokio::test]
async fn a_file_that_was_cut_anywhere_is_completed() {
    let bench = of_every_kind().await;
    let whole = bench.run(&["export"]).ok().out.into_bytes();
    let to = bench.arg("out.jsonl");
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap();
    let length = whole.len();
    for cut in [0, 1, 7, 8, 40, first, first + 1, first + 2, length / 2, length - 1, length] {
        bench.file("out.jsonl", &whole[..cut]);
        let ran = bench.run(&["export", "--to", &to, "--resume"]).ok();
        assert!(std::fs::read(&to).unwrap() == whole, "cut at {cut}");
        let is_torn = cut > 0 && whole[cut - 1] != b'\n';
        assert_eq!(ran.err.contains("cut a torn last line"), is_torn, "cut at {cut}: {}", ran.err);
    }
    // What a power cut may leave instead of the last line.
    bench.file("out.jsonl", [&whole[..=first], &[0; 4096]].concat());
    bench.run(&["export", "--to", &to, "--resume"]).ok();
    assert!(std::fs::read(&to).unwrap() == whole);
    std::fs::remove_file(&to).unwrap();
    bench.run(&["export", "--to", &to, "--resume"]).ok();
    assert!(std::fs::read(&to).unwrap() == whole, "a file that is missing is begun");
}

#[tokio::test]
async fn a_file_of_somebody_else_is_left_alone() {
    let bench = Bench::with(vec![letter(1)]).await;
    for text in ["Dear diary", "Dear diary\n", "{}\n", "{\"id\":\"1\"}\n{\"id"] {
        let to = bench.file("diary.txt", text);
        let ran = bench.run(&["export", "--to", &to, "--resume"]);
        assert_eq!(ran.code, 1, "{text}: {}", ran.err);
        assert!(ran.err.contains("diary.txt"), "{}", ran.err);
        assert_eq!(std::fs::read_to_string(&to).unwrap(), text);
    }
    let to = bench.arg("no/such/folder");
    assert_eq!(bench.run(&["export", "--to", &to]).code, 1);
    assert_eq!(bench.run(&["export", "--resume"]).code, 2, "there is no file to go on with");
}

#[tokio::test]
async fn nothing_that_matches_is_said() {
    let bench = Bench::with(vec![letter(1)]).await;
    let to = bench.arg("out.jsonl");
    for args in [
        &["export", "--consumer", "nobody"] as &[&str],
        &["export", "--consumer", "x", "--to", &to],
    ] {
        let ran = bench.run(args).ok();
        assert!(ran.err.contains("none match"), "{}", ran.err);
        assert_eq!(ran.out, "");
    }
    assert_eq!(std::fs::read(&to).unwrap(), b"");
}

/// A file that goes on under another filter would lack letters, and look complete.
#[tokio::test]
async fn a_file_that_was_begun_with_another_filter_is_told() {
    let bench = Bench::with((0..9).map(letter).collect()).await;
    // Stored later than the others.
    bench.store.put(vec![letter(9)]).await.unwrap();
    let to = bench.arg("out.jsonl");
    let last = bench.run(&["export"]).ok().out;
    let last: serde_json::Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
    let last = last["id"].as_str().unwrap();
    bench.run(&["export", "--to", &to, "--id", last]).ok();
    bench.run(&["export", "--to", &to, "--id", last, "--resume"]).ok();
    for filter in [&[] as &[&str], &["--status", "resolved"]] {
        let ran = bench.run(&[&["export", "--to", &to, "--resume"], filter].concat());
        assert_eq!(ran.code, 3, "{filter:?}: {}", ran.err);
        assert!(ran.err.contains("begun with another one"), "{filter:?}: {}", ran.err);
    }
}
