use dlq_core::store::{Heartbeat, Letters as _, Maintenance as _, Sink as _};
use dlq_core::{Cause, DeadLetter, ErrorClass, Failure, Fingerprint, Reason};
use dlq_testkit::fixtures::letter;

use crate::fixture::Bench;

/// The `n`-th letter, in a group by the name of `error`.
fn of(n: u64, error: &str) -> DeadLetter {
    let failure = Failure::new(ErrorClass::Permanent, Cause::Error, error, error);
    let mut letter = letter(n);
    letter.fingerprint = Fingerprint::of(&letter.consumer, Reason::Permanent, Some(&failure));
    letter
}

fn groups(bench: &Bench, args: &[&str]) -> Vec<(String, String)> {
    let found = bench.run(&[&["groups", "-o", "json"][..], args].concat()).ok().json();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let group = |it: &serde_json::Value| (text(&it["fingerprint"]), text(&it["state"]));
    found["groups"].as_array().unwrap().iter().map(group).collect()
}

#[tokio::test]
async fn a_group_is_acknowledged_snoozed_and_resolved() {
    let bench = Bench::with(vec![of(1, "timeout"), of(2, "timeout"), of(3, "declined")]).await;
    let [timeout, declined] = ["timeout", "declined"].map(|it| of(1, it).fingerprint.to_string());
    let state = |group: &str, state: &str| (group.to_owned(), state.to_owned());
    assert_eq!(groups(&bench, &[]), [state(&timeout, "new"), state(&declined, "new")]);

    bench.run(&["group", "ack", &timeout, "--reason", "ticket 7"]).ok();
    // What nobody has looked at comes first.
    assert_eq!(groups(&bench, &[]), [state(&declined, "new"), state(&timeout, "acknowledged")]);
    bench.run(&["group", "snooze", &timeout, "--for", "2h"]).ok();
    assert_eq!(groups(&bench, &[]), [state(&declined, "new")]);
    assert_eq!(groups(&bench, &["--state", "snoozed"]), [state(&timeout, "snoozed")]);
    let shown = bench.run(&["group", "resolve", &declined]).ok().out;
    assert!(shown.contains("resolved") && shown.contains("by ana@ops"), "{shown}");
    let open = bench.run(&["groups"]).ok();
    assert!(open.out.is_empty(), "{}", open.out);
    assert!(open.err.contains("2 snoozed or resolved; --state snoozed,resolved"), "{}", open.err);
    bench.run(&["group", "reopen", &timeout]).ok();
    assert_eq!(groups(&bench, &[]), [state(&timeout, "new")]);

    let audit = bench.run(&["audit", "--action", "triage", "--wide"]).ok().out;
    assert_eq!(audit.lines().count(), 5, "{audit}");
    assert!(audit.contains("ticket 7") && audit.contains("ana@ops"), "{audit}");
    assert_eq!(bench.count().await, 3, "letters stay as they are");
}

#[tokio::test]
async fn a_group_has_an_owner_and_a_note() {
    let bench = Bench::with(vec![of(1, "timeout")]).await;
    let group = of(1, "timeout").fingerprint.to_string();
    bench.run(&["group", "assign", &group, "payments\u{1b}[1m"]).ok();
    let shown = bench.run(&["group", "note", &group, "call the bank"]).ok().out;
    assert!(shown.contains("call the bank") && shown.contains("payments"), "{shown}");
    let table = bench.run(&["groups", "--wide"]).ok().out;
    assert!(table.contains("OWNER") && table.contains("payments"), "{table}");
    assert!(!format!("{shown}{table}").contains('\u{1b}'), "nothing steers the terminal");
    let long = bench.run(&["group", "note", &group, &"x".repeat(5_000)]);
    assert_eq!(long.code, 2, "{}", long.err);
    assert!(long.err.contains("5000 characters"), "{}", long.err);
    // It is known without letters, too.
    bench.run(&["delete", "--all", "--yes"]).ok();
    let gone = bench.run(&["group", "show", &group]);
    assert_eq!(gone.code, 1);
    assert!(gone.err.contains("--consumer"), "{}", gone.err);
    let known = bench.run(&["group", "show", &group, "--consumer", "orders.handle", "-o", "json"]);
    let known = known.ok().json();
    assert_eq!((&known["count"], &known["record"]["note"]), (&0.into(), &"call the bank".into()));
    assert!(known["record"]["first_seen"].is_string(), "{known}");
}

#[tokio::test]
async fn groups_that_began_are_told_from_those_that_go_on() {
    let bench = Bench::with(vec![of(1, "timeout")]).await;
    let filter = dlq_core::Filter::new();
    let first = bench.store.groups(filter, 9).await.unwrap()[0].first_seen;
    let later = first.after(std::time::Duration::from_micros(1)).to_string();
    bench.store.put(vec![of(2, "timeout"), of(3, "declined")]).await.unwrap();
    let declined = of(3, "declined").fingerprint.to_string();
    assert_eq!(groups(&bench, &["--began", &later]), [(declined, "new".to_owned())]);
    assert_eq!(groups(&bench, &["--since", &later]).len(), 2);
    assert_eq!(groups(&bench, &["--began", &first.to_string()]).len(), 2);
}

#[tokio::test]
async fn of_two_consumers_one_is_named() {
    let mut other = of(2, "timeout");
    other.consumer = "audit".to_owned();
    let bench = Bench::with(vec![of(1, "timeout"), other]).await;
    let group = of(1, "timeout").fingerprint.to_string();
    let both = bench.run(&["group", "ack", &group]);
    assert_eq!(both.code, 2);
    assert!(both.err.contains("audit") && both.err.contains("orders.handle"), "{}", both.err);
    bench.run(&["group", "ack", &group, "--consumer", "audit"]).ok();
    let states = groups(&bench, &[]);
    assert_eq!(
        states.iter().map(|(_, state)| state.as_str()).collect::<Vec<_>>(),
        ["new", "acknowledged"]
    );
}

#[tokio::test]
async fn consumers_are_listed() {
    let bench = Bench::with(Vec::new()).await;
    let none = bench.run(&["consumers"]).ok();
    assert!(none.err.contains("no consumer of this store"), "{}", none.err);
    let heartbeat = Heartbeat::new("billing", "1-x").host("web-1\u{1b}").build("1.4.2");
    bench.store.heartbeat(heartbeat.reads(["NATS stream ORDERS"])).await.unwrap();
    let listed = bench.run(&["consumers", "--wide"]).ok().out;
    for part in ["billing", "alive", "web-1", "1.4.2", "NATS stream ORDERS"] {
        assert!(listed.contains(part), "`{part}` is not in\n{listed}");
    }
    assert!(!listed.contains('\u{1b}'));
    let listed = bench.run(&["consumers", "-o", "json"]).ok().json();
    assert_eq!(listed["consumers"][0]["is_alive"], true);
    let gone = bench.run(&["consumers", "--gone", "-o", "json"]).ok().json();
    assert_eq!(gone["consumers"].as_array().map(Vec::len), Some(0));
}
