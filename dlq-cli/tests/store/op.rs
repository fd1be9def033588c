use dlq_core::OperationId;
use dlq_core::store::{
    ClaimRequest, Claims as _, Finish, Heartbeat, Maintenance as _, OperationState, Operations as _,
};
use dlq_testkit::fixtures::{CONSUMER, died_again, letter};

use crate::bench::Bench;
use crate::process::Process;

/// Whoever stops watching does not stop the operation.
#[tokio::test(flavor = "multi_thread")]
async fn watching_can_be_ended_and_the_operation_goes_on() {
    for signal in [Some("-INT"), Some("-TERM"), None] {
        let bench = Bench::with((0..3).map(letter).collect()).await;
        let id = bench.run(&["replay", "--all", "--yes"]).ok().out.trim().to_owned();
        bench.run(&["op", "pause", &id]).ok();
        let mut watch = Process::start(bench.command(&["op", "watch", &id]));
        watch.says(&format!("dlq op resume {id}"));
        if let Some(signal) = signal {
            watch.signal(signal);
            let ran = watch.end();
            assert_eq!(ran.code, 3, "what was waited for has not come: {}", ran.err);
            assert!(ran.err.contains("the operation goes on"), "{}", ran.err);
            assert!(ran.out.contains("paused: 0 of 3"), "{}", ran.out);
        } else {
            watch.kill();
        }
        bench.run(&["op", "resume", &id]).ok();
        let id: OperationId = id.parse().unwrap();
        let operation = bench.store.operation(id).await.unwrap().unwrap();
        assert_eq!(operation.state, OperationState::Running);
    }
}

/// Letters of a store on which no consumer runs wait for ever.
#[tokio::test(flavor = "multi_thread")]
async fn that_nobody_takes_the_letters_is_said() {
    let bench = Bench::with((0..3).map(letter).collect()).await;
    let planned = bench.run(&["replay", "--all", "--dry-run"]).ok();
    let lacking = format!("no consumer reported that it runs `{CONSUMER}`");
    assert!(planned.err.contains(&lacking), "{}", planned.err);
    // The canary is out, which nobody takes either.
    let replay = ["replay", "--all", "--yes", "--wait", "--canary", "1"];
    let mut waiting = Process::start(bench.command(&replay));
    waiting.says(&format!("waiting: nobody reported to run `{CONSUMER}`"));
    waiting.says("see whether they do");
    waiting.signal("-INT");
    let ran = waiting.end();
    assert_eq!(ran.code, 3, "{}", ran.err);
}

/// A consumer that is there is not said to be lacking.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_reports_is_not_waited_for() {
    let bench = Bench::with((0..3).map(letter).collect()).await;
    bench.store.heartbeat(Heartbeat::new(CONSUMER, "1-x")).await.unwrap();
    let planned = bench.run(&["replay", "--all", "--dry-run", "-o", "json"]).ok();
    assert!(!planned.err.contains("no consumer reported"), "{}", planned.err);
    assert_eq!(planned.json()["unattended"], serde_json::json!([]));
    bench.store.sign_off(Heartbeat::new(CONSUMER, "1-x")).await.unwrap();
    let planned = bench.run(&["replay", "--all", "--dry-run", "-o", "json"]).ok().json();
    assert_eq!(planned["unattended"], serde_json::json!([CONSUMER]));
}

/// The rate of an operation is changed while it sends; a word that is none is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_changed() {
    let bench = Bench::with((0..3).map(letter).collect()).await;
    let replay = ["replay", "--all", "--yes", "--rate", "1/h"];
    let id = bench.run(&replay).ok().out.trim().to_owned();
    let ran = bench.run(&["op", "rate", &id[..8], "50/s", "--note", "it holds"]).ok();
    assert!(ran.out.contains("at most 50/s from now on"), "{}", ran.out);
    let rate = || bench.run(&["op", "show", &id, "-o", "json"]).ok().json();
    assert_eq!(rate()["operation"]["spec"]["pace"], "50/s");
    assert!(bench.run(&["op", "show", &id]).ok().out.contains("at most 50/s"));
    bench.run(&["op", "rate", &id, "none"]).ok();
    assert_eq!(rate()["operation"]["spec"]["pace"], serde_json::Value::Null);
    let wrong = bench.run(&["op", "rate", &id, "fast"]);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    assert!(wrong.err.contains("or `none` for no limit"), "{}", wrong.err);
    let audit = bench.run(&["audit", "--action", "rate", "--wide"]).ok().out;
    assert!(audit.contains("rate=50/s") && audit.contains("it holds"), "{audit}");
    bench.run(&["op", "cancel", &id]).ok();
    let ended = bench.run(&["op", "rate", &id, "50/s"]);
    assert_eq!(ended.code, 2, "{}", ended.err);
    assert!(ended.err.contains("it is cancelled"), "{}", ended.err);
}

/// What another operation has is told from what cannot be sent.
#[tokio::test(flavor = "multi_thread")]
async fn letters_that_another_operation_has_are_said_to_be_held() {
    let bench = Bench::with((0..3).map(letter).collect()).await;
    bench.run(&["replay", "--all", "--yes"]).ok();
    let ran = bench.run(&["replay", "--all", "--yes"]).ok();
    assert!(ran.err.contains("3 more match and are held by another operation"), "{}", ran.err);
}

/// The first digits of an id are enough, as everywhere; what begins none is said.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_is_named_by_its_first_digits() {
    let bench = Bench::with((0..3).map(letter).collect()).await;
    let id = bench.run(&["replay", "--all", "--yes"]).ok().out.trim().to_owned();
    let short = &id[..8];
    for (verb, state) in [("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")] {
        let ran = bench.run(&["op", verb, short]).ok();
        assert!(ran.out.starts_with(&format!("{id} {state}: ")), "{}", ran.out);
    }
    assert!(bench.run(&["op", "show", &short.to_uppercase()]).ok().out.starts_with(&id));
    let other = if id.starts_with("ffff") { "0000" } else { "ffff" };
    for (digits, code, text) in [
        (other, 1, "`dlq op list` shows which there are"),
        ("xyz", 2, "`xyz` begins no id of an operation"),
        ("", 2, "hexadecimal digits"),
    ] {
        let ran = bench.run(&["op", "show", digits]);
        assert_eq!(ran.code, code, "{digits}: {}", ran.err);
        assert!(ran.err.contains(text), "{digits}: {}", ran.err);
    }
}

/// One that stopped itself says what to do, and why its canary died.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_operation_says_why_and_what_to_do() {
    let bench = Bench::with((0..3).map(letter).collect()).await;
    let replay = ["replay", "--all", "--yes", "--canary", "1"];
    let id = bench.run(&replay).ok().out.trim().to_owned();
    let request = ClaimRequest::due([CONSUMER], 3, std::time::Duration::from_secs(60));
    let claim = bench.store.claim(request).await.unwrap().remove(0);
    let died = died_again(&claim.letter);
    let error = died.error().to_string();
    bench.store.finish(vec![(claim.token, Finish::Dead(Box::new(died)))]).await.unwrap();
    let ran = bench.run(&["op", "watch", &id]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    for text in ["died again", &format!("dlq op resume {id}"), &format!("dlq op cancel {id}")] {
        assert!(ran.err.contains(text), "{text}: {}", ran.err);
    }
    let shown = bench.run(&["op", "show", &id, "--wide"]).ok().out;
    assert!(shown.contains(&error), "{error} is not in {shown}");
}

/// One that runs to its end is followed to it; letters that failed again are said by the exit code.
#[tokio::test(flavor = "multi_thread")]
async fn watching_says_by_its_exit_code_that_letters_failed() {
    let bench = Bench::with(vec![letter(1)]).await;
    let id = bench.run(&["replay", "--all", "--yes"]).ok().out.trim().to_owned();
    bench.run(&["op", "pause", &id]).ok();
    let mut watch = Process::start(bench.command(&["op", "watch", &id]));
    watch.says("the operation is paused");
    bench.run(&["op", "resume", &id]).ok();
    let request = ClaimRequest::due([CONSUMER], 1, std::time::Duration::from_secs(60));
    let claim = bench.store.claim(request).await.unwrap().remove(0);
    let died = died_again(&claim.letter);
    bench.store.finish(vec![(claim.token, Finish::Dead(Box::new(died)))]).await.unwrap();
    let ran = watch.end();
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.out.contains("completed: 1 of 1 letters done, 1 failed"), "{}", ran.out);
}

/// An operation may have hundreds of thousands of letters: those that somebody has to look at are shown first.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_shows_a_few_letters_and_first_those_that_failed() {
    let bench = Bench::with((0..60).map(letter).collect()).await;
    let id = bench.run(&["replay", "--all", "--yes"]).ok().out.trim().to_owned();
    let request = ClaimRequest::due([CONSUMER], 60, std::time::Duration::from_secs(60));
    let claim = bench.store.claim(request).await.unwrap().pop().unwrap();
    let died = died_again(&claim.letter);
    bench.store.finish(vec![(claim.token, Finish::Dead(Box::new(died)))]).await.unwrap();
    let rows = |args: &[&str]| bench.run(&[&["op", "show", &id], args].concat()).ok();
    let few = rows(&["--limit", "2"]);
    assert_eq!(few.out.lines().count(), 2 + 1 + 2, "{}", few.out);
    assert!(few.out.contains("failed_again"), "{}", few.out);
    assert!(few.err.contains("58 more letters; all of them: dlq op show"), "{}", few.err);
    assert_eq!(rows(&[]).out.lines().count(), 2 + 1 + 50);
    assert_eq!(rows(&["-o", "jsonl"]).out.lines().count(), 1 + 60, "a program has them all");
    let all = rows(&["--limit", "0"]);
    assert_eq!((all.out.lines().count(), all.err.as_str()), (2 + 1 + 60, ""));
}

/// Deleting letters of a paused operation says so, as replaying them does.
#[tokio::test(flavor = "multi_thread")]
async fn letters_of_an_operation_are_said_to_be_held_before_they_are_deleted() {
    let bench = Bench::with((0..3).map(letter).collect()).await;
    let ran = bench.run(&["delete", "--all", "--dry-run"]).ok();
    assert!(!ran.err.contains("held"), "{}", ran.err);
    let id = bench.run(&["replay", "--all", "--yes"]).ok().out.trim().to_owned();
    bench.run(&["op", "pause", &id]).ok();
    for args in [&["delete", "--all", "--dry-run"] as &[&str], &["delete", "--all", "--yes"]] {
        let ran = bench.run(args).ok();
        assert!(ran.err.contains("3 of them are held by an operation"), "{}", ran.err);
    }
}

/// A name that was mistyped is not taken for one without letters.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_has_no_letter_is_told_and_who_has_some() {
    let bench = Bench::with((0..3).map(letter).collect()).await;
    let ran = bench.run(&["replay", "--consumer", "nosuch", "--yes"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    let told = format!("no letter is of the consumer `nosuch`; there are letters of `{CONSUMER}`");
    assert!(ran.err.contains(&told), "{}", ran.err);
}

/// A broker that is typed is one that letters are meant to go to.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_typed_and_not_sent_to_is_refused() {
    let bench = Bench::with((0..3).map(letter).collect()).await;
    for to in [&[] as &[&str], &["--to", "handler"]] {
        let via = ["replay", "--all", "--yes", "--via", "nats://127.0.0.1:1"];
        let ran = bench.run(&[&via, to].concat());
        assert_eq!(ran.code, 2, "{}", ran.err);
        for part in ["`--via`", "--to origin", "leave `--via` out"] {
            assert!(ran.err.contains(part), "{part}: {}", ran.err);
        }
    }
    // In the environment it is there for whoever needs it.
    let mut command = bench.command(&["replay", "--all", "--yes"]);
    command.env("DLQ_VIA", "nats://127.0.0.1:1");
    let ran = crate::common::Ran::from(command.output().unwrap()).ok();
    assert!(ran.err.contains("consumers that run on this store take them"), "{}", ran.err);
}
