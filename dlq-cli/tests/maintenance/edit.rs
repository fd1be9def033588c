use std::fs::File;

use dlq_core::store::{
    Actor, AuditRequest, ClaimRequest, Claims as _, Letters as _, Maintenance as _, Mark,
};
use dlq_core::store::{OperationSpec, Operations as _, Receipt, Selection};
use dlq_core::{DeadLetter, Filter, Message, RetryQueue as _, Sink as _, Timestamp};
use dlq_testkit::fixtures::{CONSUMER, delayed_retry, letter, letter_of};
use serde_json::Value;

use crate::fixture::Bench;

async fn payload(bench: &Bench, letter: &DeadLetter) -> Option<Vec<u8>> {
    let found = bench.store.get(letter.id).await.unwrap().unwrap();
    found.message.payload().map(|payload| payload.to_vec())
}

#[tokio::test]
async fn an_edited_letter_is_sent_as_it_is_now_and_is_one_letter() {
    let bench = Bench::with(vec![letter(1)]).await;
    let id = letter(1).id.to_string();
    let edit = ["edit", &id[..12], "--payload-text", "{\"order\":2}", "--note", "a typo", "--yes"];
    let ran =
        bench.run(&[&edit[..], &["--header", "fixed=1", "--remove-header", "trace"]].concat());
    let ran = ran.ok();
    for line in ["payload", "-   \"order\": 1", "+   \"order\": 2", "- trace: t-1", "+ fixed: 1"] {
        assert!(ran.out.lines().any(|found| found == line), "`{line}` is not in\n{}", ran.out);
    }
    assert_eq!(bench.run(&["show", &id, "--payload"]).ok().out, "{\"order\":2}");
    assert!(bench.run(&["show", &id]).ok().out.contains("edited     1 times"));
    assert_eq!(bench.store.put(vec![letter(1)]).await.unwrap(), [Receipt::Unchanged]);

    let audit = bench.store.audit(AuditRequest::latest(1)).await.unwrap().remove(0);
    assert_eq!((audit.action.as_str(), audit.by.who.as_str()), ("edit", "ana@ops"));
    assert_eq!(audit.by.note.as_deref(), Some("a typo"));
    let subject: Value = serde_json::from_str(&audit.subject).unwrap();
    assert_eq!(subject["letter"], id);
    assert_eq!(subject["payload"]["before"], "{\"order\":1}");

    let spec = OperationSpec::replay(Filter::new());
    bench.store.start(spec, Actor::new("test")).await.unwrap();
    let request = ClaimRequest::due([CONSUMER], 1, std::time::Duration::from_secs(60));
    let claim = bench.store.claim(request).await.unwrap().remove(0);
    assert_eq!(&claim.letter.message.payload().unwrap()[..], b"{\"order\":2}");
    assert_eq!(claim.letter.message.headers().get("fixed"), Some(&b"1"[..]));
    let held = bench.run(&edit);
    assert_eq!(held.code, 0, "it is so already: {}", held.err);
    let held = bench.run(&["edit", &id, "--payload-text", "{}", "--yes"]);
    assert_eq!(held.code, 2, "{}", held.err);
    assert!(held.err.contains("a consumer is running the letter now"), "{}", held.err);
}

#[tokio::test]
async fn a_payload_comes_from_a_file_or_standard_input_byte_for_byte() {
    let one = letter_of(Message::new("s", "text"), 1);
    let bench = Bench::with(vec![one.clone()]).await;
    let id = one.id.to_string();
    for bytes in [&b"\xff\0\r\n"[..], b"", b"line\n"] {
        let file = bench.file("payload", bytes);
        bench.run(&["edit", &id, "--payload", &file, "--yes"]).ok();
        assert_eq!(payload(&bench, &one).await.as_deref(), Some(bytes));
    }
    bench.run(&["edit", &id, "--no-payload", "--yes"]).ok();
    assert_eq!(payload(&bench, &one).await, None);
    let file = bench.file("payload", b"\0from stdin\xfe");
    let mut command = bench.command(&["edit", &id, "--payload", "-", "--yes"]);
    command.stdin(File::open(file).unwrap());
    crate::common::Ran::from(command.output().unwrap()).ok();
    assert_eq!(payload(&bench, &one).await.as_deref(), Some(&b"\0from stdin\xfe"[..]));
}

#[tokio::test]
async fn json_stays_json_unless_it_is_meant() {
    let bench = Bench::with(vec![letter(1)]).await;
    let id = letter(1).id.to_string();
    let before = payload(&bench, &letter(1)).await;
    let broken = bench.file("broken.json", "{\n  \"order\": 1,\n}");
    let ran = bench.run(&["edit", &id, "--payload", &broken, "--yes"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("line 3, column 1"), "{}", ran.err);
    assert!(ran.err.contains("--allow-invalid"), "{}", ran.err);
    assert_eq!(payload(&bench, &letter(1)).await, before);
    bench.run(&["edit", &id, "--payload", &broken, "--yes", "--allow-invalid"]).ok();
    assert_eq!(payload(&bench, &letter(1)).await.unwrap(), b"{\n  \"order\": 1,\n}");
}

#[tokio::test]
async fn nothing_is_changed_unasked() {
    let bench = Bench::with(vec![letter(1)]).await;
    let id = letter(1).id.to_string();
    let before = bench.store.get(letter(1).id).await.unwrap();
    let ran = bench.run(&["edit", &id, "--payload-text", "{}", "--dry-run"]).ok();
    assert!(ran.out.contains("+ {}") && ran.err.contains("nothing was changed"), "{}", ran.out);
    let ran = bench.run(&["edit", &id, "--payload-text", "{}", "--dry-run", "-o", "json"]).ok();
    assert_eq!(ran.json()["edited"], false);
    assert_eq!(ran.json()["letter"]["message"]["payload"], "{}");
    let ran = bench.run(&["edit", &id, "--payload-text", "{}"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(
        ran.err.contains("about to edit 1 letter,") && ran.err.contains("--yes"),
        "{}",
        ran.err
    );
    let same = bench.run(&["edit", &id, "--payload-text", "{\"order\":1}"]).ok();
    assert!(same.err.contains("nothing to change"), "{}", same.err);
    assert_eq!(bench.store.get(letter(1).id).await.unwrap(), before);
    assert!(bench.store.audit(AuditRequest::latest(10)).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_editor_is_the_users() {
    let bench = Bench::with(vec![letter(1)]).await;
    let id = letter(1).id.to_string();
    let run = |script: &str| {
        let script = bench.file("editor.sh", script);
        let mut command = bench.command(&["edit", &id, "--editor", "--yes"]);
        crate::common::Ran::from(command.env("EDITOR", format!("sh {script}")).output().unwrap())
    };
    let idle = run("echo >> \"$1\"").ok();
    assert!(idle.err.contains("nothing to change"), "a line break at the end: {}", idle.err);
    run("printf '{\"order\":\"new\"}\\n' > \"$1\"").ok();
    assert_eq!(payload(&bench, &letter(1)).await.unwrap(), b"{\"order\":\"new\"}");

    let failed = run("echo '{}' > \"$1\"; exit 7");
    assert_eq!(failed.code, 2, "{}", failed.err);
    assert!(failed.err.contains("nothing was changed"), "{}", failed.err);

    let refused = run("printf 'my work' > \"$1\"");
    assert_eq!(refused.code, 2, "{}", refused.err);
    let kept = refused.err.lines().find_map(|line| line.strip_prefix("what you wrote is kept in "));
    let kept = kept.expect("work is not thrown away");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "my work");
    std::fs::remove_file(kept).unwrap();
    assert_eq!(payload(&bench, &letter(1)).await.unwrap(), b"{\"order\":\"new\"}");

    let none = bench.run(&["edit", &id, "--editor"]);
    assert_eq!(none.code, 2);
    assert!(none.err.contains("set EDITOR"), "{}", none.err);
}

#[tokio::test]
async fn a_colleague_is_not_overwritten() {
    let bench = Bench::with(vec![letter(1)]).await;
    let id = letter(1).id.to_string();
    let theirs = bench.command(&["edit", &id, "--payload-text", "{\"order\":3}", "--yes"]);
    let program = theirs.get_program().to_str().unwrap().to_owned();
    let url = format!("sqlite://{}", bench.arg("dlq.db"));
    // While one has the editor open, another edits.
    let script = format!(
        "printf '{{}}' > \"$1\"; {program} edit {id} --from '{url}' --payload-text '{{\"order\":3}}' --yes </dev/null >&2"
    );
    let script = bench.file("editor.sh", script);
    let mut command = bench.command(&["edit", &id, "--editor", "--yes"]);
    let ran = command.env("EDITOR", format!("sh {script}")).output().unwrap();
    let ran = crate::common::Ran::from(ran);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("has changed meanwhile"), "{}", ran.err);
    assert_eq!(payload(&bench, &letter(1)).await.unwrap(), b"{\"order\":3}");
}

#[tokio::test]
async fn what_cannot_be_edited_is_named() {
    let bench = Bench::with(vec![letter(1)]).await;
    let id = letter(1).id.to_string();
    let gone = "00000000000000000000000000000000";
    let missing = bench.arg("missing");
    for (args, code, expected) in [
        (&["edit", gone, "--no-payload", "--yes"] as &[&str], 1, "no letter has the id 0000"),
        (&["edit", "0000", "--no-payload", "--yes"], 1, "begins with `0000`"),
        (&["show", gone], 1, "no letter has the id 0000"),
        (&["mark", "resolved", "--id", gone, "--yes"], 1, "no letter has the id 0000"),
        (&["delete", "--id", gone, "--yes"], 1, "no letter has the id 0000"),
        (&["edit", "xyz", "--no-payload"], 2, "not a letter id"),
        (&["edit", &id], 2, "nothing to change was given"),
        (&["edit", &id, "--payload", &missing, "--yes"], 1, "missing"),
        (&["edit", &id, "--no-payload", "--payload-text", "x"], 2, "cannot be used with"),
        (&["edit", &id, "--header", "novalue", "--yes"], 2, "NAME=VALUE"),
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    }
    let record = letter(2);
    bench.store.enqueue(delayed_retry(&record, 2, Timestamp::MAX)).await.unwrap();
    let ran = bench.run(&["edit", &record.id.to_string(), "--no-payload", "--yes"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("waits for another attempt"), "{}", ran.err);
    let selection = Selection::matching(Filter::new().with_id(record.id)).unwrap();
    bench.store.mark(selection, Mark::Quarantined, Actor::new("ana")).await.unwrap();
    bench.run(&["edit", &record.id.to_string(), "--no-payload", "--yes"]).ok();
}
