//! Every verb of a store.

use std::time::Duration;

use dlq_core::store::{
    Actor, AuditRequest, ClaimRequest, Claims as _, Finish, Finished, Letters as _,
    Maintenance as _, Receipt,
};
use dlq_core::{Clock as _, DeadLetter, Filter, Resolution, Sink as _, Status, SystemClock};
use dlq_testkit::fixtures::{CONSUMER, letter, varied};
use serde_json::Value;

use crate::fixture::Bench;

fn letters(count: u64) -> Vec<DeadLetter> {
    (0..count).map(letter).collect()
}

fn ids(letters: &Value) -> Vec<String> {
    let id = |letter: &Value| letter["id"].as_str().unwrap().to_owned();
    letters.as_array().unwrap().iter().map(id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verbs_that_look_agree_with_each_other() {
    let Some(bench) = Bench::with("look", (0..40).map(varied).collect()).await else { return };
    assert_eq!(bench.run(&["count"]).ok().out, "40\n");
    let page = bench.run(&["list", "--limit", "15", "-o", "json"]).ok().json();
    let mut seen = ids(&page["letters"]);
    let cursor = page["next"].as_str().unwrap();
    let rest = bench.run(&["list", "--limit", "0", "-o", "json", "--cursor", cursor]).ok().json();
    seen.extend(ids(&rest["letters"]));
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), &rest["next"]), (40, &Value::Null));

    let stats = bench.run(&["stats", "-o", "json"]).ok().json();
    assert_eq!(stats["total"], 40);
    for (by, flag) in
        [("by_status", "--status"), ("by_reason", "--reason"), ("by_class", "--class")]
    {
        for (word, count) in stats[by].as_object().unwrap() {
            let counted = bench.run(&["count", flag, word]).ok().out;
            assert_eq!(counted, format!("{count}\n"), "{flag} {word}");
        }
    }
    let groups = bench.run(&["groups", "--limit", "100", "-o", "json"]).ok().json();
    let groups = groups["groups"].as_array().unwrap();
    assert_eq!(groups.iter().map(|group| group["count"].as_u64().unwrap()).sum::<u64>(), 40);
    let fingerprint = groups[0]["fingerprint"].as_str().unwrap();
    let counted = bench.run(&["count", "--fingerprint", fingerprint]).ok().out;
    assert!(counted.trim().parse::<u64>().unwrap() >= groups[0]["count"].as_u64().unwrap());
    assert!(bench.run(&["peek", "--limit", "2"]).ok().out.contains('█'));

    let one = varied(7);
    let id = one.id.to_string();
    let shown = bench.run(&["show", &id[..12], "-o", "json"]).ok().out;
    assert!(shown.contains(&id), "{shown}");
    let output = bench.command(&["show", &id, "--payload"]).output().unwrap();
    assert_eq!(&output.stdout[..], one.message.payload().map_or(&b""[..], |payload| payload));
    let text = bench.run(&["list", "--subject", "no.such.*"]).ok();
    assert_eq!(
        (text.out.as_str(), text.err.contains("no letters match")),
        ("", true),
        "{}",
        text.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_becomes_an_operation_that_is_followed_to_its_end() {
    let Some(bench) = Bench::with("replay", letters(5)).await else { return };
    let planned =
        bench.run(&["replay", "--all", "--limit", "3", "--dry-run", "-o", "json"]).ok().json();
    assert_eq!(planned["plan"]["count"], 3, "{planned}");
    let id = bench.run(&["replay", "--all", "--limit", "3", "--yes", "--note", "fixed"]).ok();
    let id = id.out.trim().to_owned();
    let request = ClaimRequest::due([CONSUMER], 10, Duration::from_secs(60));
    let claims = bench.store.claim(request).await.unwrap();
    assert_eq!(claims.len(), 3);
    let listed = bench.run(&["op", "list"]).ok().out;
    assert!(listed.contains(&id) && listed.contains("running"), "{listed}");
    // What a consumer holds is left alone.
    let held = bench.run(&["delete", "--all", "--yes"]);
    assert_eq!((held.code, held.out.as_str()), (3, "deleted: 2\n"), "{}", held.err);
    for claim in claims {
        let finish = vec![(claim.token, Finish::Resolved(Resolution::Succeeded))];
        assert_eq!(bench.store.finish(finish).await.unwrap(), [Finished::Applied]);
    }
    let shown = bench.run(&["op", "show", &id]).ok().out;
    assert!(shown.contains("completed: 3 of 3 letters done"), "{shown}");
    bench.run(&["op", "watch", &id]).ok();
    let ended = bench.run(&["op", "resume", &id]);
    assert_eq!(ended.code, 2, "{}", ended.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_is_paused_resumed_and_cancelled() {
    let Some(bench) = Bench::with("steer", letters(4)).await else { return };
    let id = bench.run(&["replay", "--all", "--rate", "1/h", "--yes"]).ok().out.trim().to_owned();
    assert!(bench.run(&["op", "pause", &id]).ok().out.contains("paused"));
    let claim = || bench.store.claim(ClaimRequest::due([CONSUMER], 10, Duration::from_secs(60)));
    assert_eq!(claim().await.unwrap().len(), 0);
    assert!(bench.run(&["op", "resume", &id]).ok().out.contains("running"));
    assert_eq!(claim().await.unwrap().len(), 1, "one an hour");
    let cancelled = bench.run(&["op", "cancel", &id]).ok().out;
    assert!(cancelled.contains("cancelled") && cancelled.contains("3 skipped"), "{cancelled}");
    assert_eq!(bench.run(&["op", "watch", &id]).code, 3);
    assert_eq!(bench.store.count(Filter::new().with_status(Status::Pending)).await.unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_go_round_and_deleting_wants_a_filter_and_a_yes() {
    let Some(bench) = Bench::with("mark", letters(6)).await else { return };
    for (mark, expected) in [("quarantined", 6), ("pending", 6), ("resolved", 6), ("resolved", 0)] {
        let ran = bench.run(&["mark", mark, "--all", "--yes", "--note", "a schema change"]).ok();
        assert_eq!(ran.out, format!("marked {mark}: {expected}\n"));
        assert_eq!(bench.run(&["count", "--status", mark]).ok().out, "6\n");
    }
    let audit = bench.store.audit(AuditRequest::latest(1)).await.unwrap().remove(0);
    assert_eq!((audit.action.as_str(), audit.by.who.as_str()), ("resolve", "ana@ops"));
    assert_eq!(audit.by.note.as_deref(), Some("a schema change"));
    for args in [&["delete", "--yes"] as &[&str], &["delete", "--all"]] {
        assert_eq!(bench.run(args).code, 2, "{args:?}");
    }
    let none = bench.run(&["delete", "--subject", "no.such", "--yes"]).ok();
    assert_eq!(none.out, "", "{}", none.err);
    let look = bench.run(&["delete", "--all", "--dry-run"]).ok();
    assert!(look.err.contains("nothing was changed"), "{}", look.err);
    assert_eq!(bench.run(&["delete", "--all", "--yes"]).ok().out, "deleted: 6\n");
    assert_eq!(bench.run(&["count"]).ok().out, "0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_letter_is_another_text_and_the_same_letter() {
    let Some(bench) = Bench::with("edit", letters(2)).await else { return };
    let id = letter(1).id.to_string();
    let edit = ["edit", &id[..12], "--payload-text", "{\"order\":2}", "--note", "a typo", "--yes"];
    let ran =
        bench.run(&[&edit[..], &["--header", "fixed=1", "--remove-header", "trace"]].concat()).ok();
    for line in ["-   \"order\": 1", "+   \"order\": 2", "+ fixed: 1"] {
        assert!(ran.out.lines().any(|found| found == line), "`{line}` is not in\n{}", ran.out);
    }
    assert_eq!(bench.run(&["show", &id, "--payload"]).ok().out, "{\"order\":2}");
    assert_eq!(bench.store.put(vec![letter(1)]).await.unwrap(), [Receipt::Unchanged]);
    let broken = bench.run(&["edit", &id, "--payload-text", "{", "--yes"]);
    assert_eq!(broken.code, 2, "{}", broken.err);
    assert!(broken.err.contains("--allow-invalid"), "{}", broken.err);
    std::fs::write(bench.arg("bytes"), b"\xff\0").unwrap();
    bench.run(&["edit", &id, "--payload", &bench.arg("bytes"), "--allow-invalid", "--yes"]).ok();
    let found = bench.store.get(letter(1).id).await.unwrap().unwrap();
    assert_eq!(found.message.payload().unwrap()[..], b"\xff\0"[..]);
    let held = ClaimRequest::due([CONSUMER], 10, Duration::from_secs(60));
    bench.run(&["replay", "--all", "--yes"]).ok();
    assert_eq!(bench.store.claim(held).await.unwrap().len(), 2);
    let held = bench.run(&["edit", &id, "--payload-text", "{}", "--allow-invalid", "--yes"]);
    assert_eq!(held.code, 2, "{}", held.err);
    assert!(held.err.contains("a consumer is running the letter now"), "{}", held.err);
    let none = bench.run(&["edit", &"0".repeat(32), "--payload-text", "{}", "--yes"]);
    assert_eq!(none.code, 1, "{}", none.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_resolved_and_old_is_cleaned_up() {
    let Some(bench) = Bench::with("cleanup", Vec::new()).await else { return };
    let now = SystemClock.now();
    let aged = (0..30).map(|n| {
        let mut letter = letter(n);
        let at = now.before(Duration::from_secs(n * 86_400));
        (letter.state.created_at, letter.state.updated_at) = (at, at);
        if n % 3 == 0 {
            letter.state.status = Status::Resolved;
            letter.state.resolution = Some(Resolution::Succeeded);
        }
        letter
    });
    bench.store.restore(aged.collect(), Actor::new("ana")).await.unwrap();
    let look = bench.run(&["cleanup", "--older-than", "10d", "--dry-run", "-o", "json"]).ok();
    assert_eq!(look.json()["count"], 6);
    let args = ["cleanup", "--older-than", "10d", "--batch", "2", "--yes", "--note", "monthly"];
    assert_eq!(bench.run(&args).ok().out, "deleted: 6\n");
    assert_eq!(bench.run(&args).ok().out, "deleted: 0\n");
    let evidence = ["cleanup", "--older-than", "10d", "--status", "pending", "--yes"];
    assert_eq!(bench.run(&evidence).code, 2);
    assert_eq!(
        bench.run(&[&evidence[..], &["--include-unresolved"]].concat()).ok().out,
        "deleted: 14\n"
    );
    assert_eq!(bench.run(&["count"]).ok().out, "10\n");
    let audit = bench.store.audit(AuditRequest::latest(3)).await.unwrap();
    assert_eq!((audit[2].action.as_str(), audit[2].affected), ("cleanup", 6));
    assert_eq!(bench.store.verify().await.unwrap(), Vec::<String>::new());
}
