use dlq_core::Message;
use dlq_testkit::fixtures::{letter, letter_of};

use crate::fixture::Bench;

#[tokio::test]
async fn what_was_done_is_found_by_who_and_whose() {
    let bench = Bench::with(vec![letter(1), letter(2), letter(3)]).await;
    let [one, two, three] = [1, 2, 3].map(|n| letter(n).id.to_string());
    let edit = ["edit", &one, "--payload-text", "{}", "--note", "a\u{1b}[1mtypo", "--yes"];
    bench.run(&edit).ok();
    bench.run(&["mark", "quarantined", "--id", &two, "--yes"]).ok();
    bench.run(&["delete", "--id", &three, "--yes", "--note", "a test"]).ok();

    let all = bench.run(&["audit"]).ok().out;
    let actions: Vec<_> = all.lines().skip(1).map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(actions, ["delete", "quarantine", "edit"].map(Some), "{all}");
    assert!(!all.contains('\u{1b}'), "nothing steers the terminal");
    let who = bench.run(&["audit", "--action", "delete", "--since", "1d", "--wide"]).ok().out;
    assert_eq!(who.lines().count(), 2, "{who}");
    for part in ["ana@ops", &format!("ids={three}"), "a test"] {
        assert!(who.contains(part), "`{part}` is not in\n{who}");
    }
    let of_one = bench.run(&["audit", "--letter", &one[..12], "--diff"]).ok().out;
    for line in ["  payload", "  -   \"order\": 1", "  + {}"] {
        assert!(of_one.lines().any(|found| found == line), "`{line}` is not in\n{of_one}");
    }
    let gone = bench.run(&["audit", "--letter", &three, "-o", "json"]).ok().json();
    assert_eq!(gone["entries"][0]["action"], "delete");
    assert_eq!(gone["entries"][0]["subject"]["ids"][0], three);
    assert_eq!(gone["entries"].as_array().map(Vec::len), Some(1));
    let line = bench.run(&["audit", "--letter", &three, "-o", "jsonl"]).ok().out;
    assert_eq!(line.matches("\"subject\":").count(), 1, "{line}");
    let nobody = bench.run(&["audit", "--by", "an"]).ok();
    assert!(nobody.out.is_empty() && nobody.err.contains("nothing was done"), "{}", nobody.err);
}

#[tokio::test]
async fn all_that_an_operation_did_to_a_letter_is_shown() {
    let bench = Bench::with(vec![letter(1)]).await;
    let id = letter(1).id.to_string();
    bench.run(&["replay", "--all", "--yes"]).ok();
    let operations = bench.run(&["op", "list", "-o", "json"]).ok().json();
    let operation = operations["operations"][0]["id"].as_str().unwrap().to_owned();
    bench.run(&["op", "pause", &operation[..12]]).ok();
    for of in [["--letter", &id], ["--op", &operation[..12]]] {
        let found = bench.run(&[&["audit", "-o", "json"][..], &of[..]].concat()).ok().json();
        let actions: Vec<_> = found["entries"].as_array().unwrap().iter().collect();
        let actions: Vec<_> = actions.iter().map(|entry| entry["action"].as_str()).collect();
        assert_eq!(actions, [Some("pause"), Some("replay")]);
    }
}

#[tokio::test]
async fn an_edit_is_undone_once_it_is_the_last() {
    let bench = Bench::with(vec![letter(1), letter(2)]).await;
    let id = letter(1).id.to_string();
    let payload = || bench.run(&["show", &id, "--payload"]).ok().out;
    let before = payload();
    let none = bench.run(&["edit", &id, "--undo", "--yes"]);
    assert_eq!(none.code, 2, "{}", none.err);
    assert!(none.err.contains("was not edited"), "{}", none.err);
    bench.run(&["edit", &id, "--payload-text", "[1]", "--header", "h=1", "--yes"]).ok();
    // An edit of another letter whose payload holds the id.
    let other = letter(2).id.to_string();
    bench.run(&["edit", &other, "--payload-text", &format!("\"{id}\""), "--yes"]).ok();
    let dry = bench.run(&["edit", &id, "--undo", "--dry-run"]).ok();
    assert!(dry.out.lines().any(|line| line == "- h: 1"), "{}", dry.out);
    bench.run(&["edit", &id, "--undo", "--yes"]).ok();
    assert_eq!(payload(), before);
    bench.run(&["edit", &id, "--undo", "--yes"]).ok();
    assert_eq!(payload(), "[1]", "undone again, it is made again");
}

#[tokio::test]
async fn an_edit_that_cannot_be_undone_says_why() {
    let large = letter_of(Message::new("s", vec![b'x'; 70_000]), 1);
    let bench = Bench::with(vec![large.clone()]).await;
    let id = large.id.to_string();
    bench.run(&["edit", &id, "--payload-text", "small", "--yes"]).ok();
    let ran = bench.run(&["edit", &id, "--undo", "--yes"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("the audit does not hold the payload as it was"), "{}", ran.err);
    assert_eq!(bench.run(&["show", &id, "--payload"]).ok().out, "small");
}
