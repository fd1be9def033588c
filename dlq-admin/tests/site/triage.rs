//! Groups that somebody decides about, and consumers that are there.

use std::time::Duration;

use dlq_admin::Role;
use dlq_core::store::{GroupKey, Heartbeat, Maintenance as _, Triage};
use dlq_core::{Clock as _, RetryQueue as _, SystemClock};
use dlq_testkit::fixtures::{delayed_retry, letter};
use serde_json::json;

use crate::common::{Site, form, stores, tokens};

fn query() -> String {
    let fingerprint = letter(0).fingerprint.to_string();
    form(&[("fingerprint", &fingerprint), ("consumer", "orders.handle")])
}

#[tokio::test]
async fn a_group_is_decided_about_by_a_program() {
    for (name, store, _folder) in stores().await {
        let site = Site::with(store, (0..3).map(letter).collect()).await;
        let at = format!("/api/v1/default/group?{}", query());
        assert_eq!(site.get(&at).await.ok().json()["state"], "new", "{name}");
        let decide =
            json!({ "decision": "snoozed", "for": "2h", "owner": "payments", "note": "x" });
        let decided = site.post_json(&at, decide).await.ok().json();
        assert_eq!((&decided["state"], &decided["count"]), (&json!("snoozed"), &json!(3)));
        assert_eq!(decided["record"]["owner"], "payments", "{name}");
        let count = async |path: &str| {
            let groups = site.get(path).await.ok().json();
            groups["groups"].as_array().unwrap().len()
        };
        assert_eq!(count("/api/v1/default/groups").await, 0, "{name}");
        assert_eq!(count("/api/v1/default/groups?state=snoozed").await, 1, "{name}");
        for wrong in [
            json!({ "decision": "later", "note": "x" }),
            json!({ "decision": "snoozed", "note": "x" }),
            json!({ "note": "x" }),
            json!({ "decision": "resolved" }),
        ] {
            site.post_json(&at, wrong.clone()).await.is(400);
        }
        let long = json!({ "text": "x".repeat(5_000), "note": "x" });
        site.post_json(&at, long).await.is(422);
        let audit = site.get("/api/v1/default/audit?action=triage").await.ok().json();
        assert_eq!(audit["entries"].as_array().unwrap().len(), 1, "{name}");
    }
}

#[tokio::test]
async fn groups_are_told_apart_by_when_they_began() {
    let site = Site::of((0..3).map(letter).collect()).await;
    let count = async |began: &str| {
        let groups = site.get(&format!("/api/v1/default/groups?began={began}")).await.ok().json();
        groups["groups"].as_array().unwrap().len()
    };
    assert_eq!((count("1h").await, count("2100-01-01T00:00:00Z").await), (1, 0));
    site.get("/api/v1/default/groups?began=soon").await.is(400);
}

#[tokio::test]
async fn a_group_is_decided_about_on_its_page() {
    let site = Site::of((0..3).map(letter).collect()).await;
    let at = format!("/s/default/group?{}", query());
    let page = site.get(&at).await.ok();
    assert!(page.body.contains("Decide"), "{}", page.body);
    let (csrf, key) = (page.field("csrf"), page.field("idempotency-key"));
    let fingerprint = letter(0).fingerprint.to_string();
    let sent = form(&[
        ("csrf", &csrf),
        ("idempotency-key", &key),
        ("fingerprint", &fingerprint),
        ("consumer", "orders.handle"),
        ("decision", "resolved"),
        ("for", ""),
        ("owner", "ana"),
        ("text", "call the bank"),
        ("note", "the fix is out"),
    ]);
    let saved = site.post("/s/default/group", &sent).await.is(303);
    assert!(saved.location().contains("s/default/group?fingerprint="), "{}", saved.location());
    let record = GroupKey::new("orders.handle", letter(0).fingerprint);
    let record = site.letters.group_record(record).await.unwrap();
    assert_eq!((record.triage, record.owner.as_deref()), (Triage::Resolved, Some("ana")));
    let page = site.get(&at).await.ok().body;
    assert!(page.contains("call the bank") && page.contains("resolved"), "{page}");
    let groups = site.get("/s/default/groups").await.ok().body;
    assert!(groups.contains("1 more are snoozed or resolved"), "{groups}");
    let read = site.access(tokens()).bearer(Role::Read);
    assert!(!read.get(&at).await.ok().body.contains("Decide"), "who only reads has no form");
}

#[tokio::test]
async fn a_replay_says_that_nobody_runs_its_handler() {
    let site = Site::of((0..3).map(letter).collect()).await;
    let plan = async || {
        let asked = json!({ "status": "pending" });
        site.post_json("/api/v1/default/plan", asked).await.ok().json()["unattended"].clone()
    };
    let page = async |path: &str| {
        site.get(path).await.ok().body.contains("No consumer reported that it runs `orders.handle`")
    };
    assert_eq!(plan().await, json!(["orders.handle"]));
    let of_old = json!({ "status": "pending", "until": "2000-01-01T00:00:00Z" });
    let of_old = site.post_json("/api/v1/default/plan", of_old).await.ok().json();
    assert_eq!(of_old["unattended"], json!([]), "no letter of the replay waits");
    assert!(page("/s/default/replay?status=pending").await);
    let operation = json!({ "status": "pending", "note": "x", "limit": 2 });
    let operation = site.post_json("/api/v1/default/replay", operation).await.ok().json();
    let at = format!("/s/default/operations/{}", operation["id"].as_str().unwrap());
    assert!(page(&at).await, "it waits for somebody");
    let heartbeat = Heartbeat::new("orders.handle", "1-x");
    site.letters.store().heartbeat(heartbeat).await.unwrap();
    assert_eq!(plan().await, json!([]));
    assert!(!page(&at).await && !page("/s/default/replay?status=pending").await);
}

#[tokio::test]
async fn letters_are_counted_and_drawn_by_hour() {
    for (name, store, _folder) in stores().await {
        let site = Site::with(store, (0..5).map(letter).collect()).await;
        let resolve = json!({ "mark": "resolved", "id": letter(1).id, "note": "x" });
        site.post_json("/api/v1/default/mark", resolve).await.ok();
        let sum = |document: &serde_json::Value, of: &str| {
            let hours = document[of].as_array().unwrap();
            let sum = hours.iter().map(|hour| hour.as_u64().unwrap()).sum::<u64>();
            (hours.len(), sum)
        };
        let week = site.get("/api/v1/default/hours").await.ok().json();
        assert_eq!((sum(&week, "stored"), sum(&week, "resolved")), ((168, 5), (168, 1)), "{name}");
        let pending = "/api/v1/default/hours?hours=3&status=pending";
        let pending = site.get(pending).await.ok().json();
        assert_eq!((sum(&pending, "stored"), sum(&pending, "resolved")), ((3, 4), (3, 0)));
        for wrong in ["0", "745"] {
            site.get(&format!("/api/v1/default/hours?hours={wrong}")).await.is(400);
        }
        for path in ["/s/default".to_owned(), format!("/s/default/group?{}", query())] {
            let page = site.get(&path).await.ok().body;
            assert!(page.contains("<svg class=\"chart\""), "{name} {path}: {page}");
            assert!(page.contains("5 stored, 1 resolved"), "{name} {path}: {page}");
        }
    }
}

#[tokio::test]
async fn what_is_due_later_is_on_the_schedule() {
    let site = Site::of((0..5).map(letter).collect()).await;
    let empty = site.get("/s/default/schedule").await.ok().body;
    assert!(empty.contains("No letter is due now or later"), "{empty}");
    let in_an_hour = SystemClock.now().after(Duration::from_secs(3_600));
    let retry = delayed_retry(&letter(7), 1, in_an_hour);
    site.letters.store().enqueue(retry).await.unwrap();
    let replay = json!({ "status": "pending", "rate": "1/h", "note": "x" });
    let operation = site.post_json("/api/v1/default/replay", replay).await.ok().json();
    let page = site.get("/s/default/schedule").await.ok().body;
    let id = operation["id"].as_str().unwrap();
    for part in
        ["Retries to come", "Replays at a rate", "1/h", id, "aria-current=\"page\">Schedule"]
    {
        assert!(page.contains(part), "`{part}` is not in {page}");
    }
}

#[tokio::test]
async fn consumers_are_shown() {
    let site = Site::of(Vec::new()).await;
    let heartbeat = Heartbeat::new("billing", "1-x").host("web-1").build("1.4.2");
    site.letters.store().heartbeat(heartbeat.reads(["orders.>"])).await.unwrap();
    let page = site.get("/s/default/consumers").await.ok().body;
    for part in ["billing", "alive", "web-1", "1.4.2", "orders.&gt;"] {
        assert!(page.contains(part), "`{part}` is not in {page}");
    }
    let all = site.get("/api/v1/default/consumers").await.ok().json();
    assert_eq!(all["consumers"][0]["is_alive"], true);
    let gone = site.get("/api/v1/default/consumers?gone=true").await.ok().json();
    assert_eq!(gone["consumers"], json!([]));
}
