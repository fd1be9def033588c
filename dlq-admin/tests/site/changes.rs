//! Changes by the HTTP interface: how often they are carried out, and which are refused.

use axum::body::Body;
use dlq_admin::Admin;
use dlq_core::store::{Cluster, OperationState, Target};
use dlq_core::{DeadLetters, Status};
use dlq_letters::memory::MemoryStore;
use dlq_testkit::fixtures::letter;
use serde_json::{Value, json};

use crate::common::{Reply, Site, stores};

async fn post(site: &Site, path: &str, body: Value) -> Reply {
    site.post_json(&format!("/api/v1/default/{path}"), body).await
}

#[tokio::test]
async fn letters_are_planned_sent_and_steered() {
    for (name, store, _folder) in stores().await {
        let site = Site::with(store, (0..20).map(letter).collect()).await;
        let plan = post(&site, "plan?status=pending", json!({ "limit": 15 })).await.ok().json();
        assert_eq!(plan["plan"]["count"], 15, "{name}");
        let asked = json!({ "note": "the fix is out", "limit": 15, "rate": "5/s", "canary": 3, "expect": 15 });
        let wrong = json!({ "note": "x", "expect": 14 });
        let refused = post(&site, "replay?status=pending", wrong).await.is(409);
        assert!(
            refused.body.contains("20 letters match now, and 14 were agreed to"),
            "{}",
            refused.body
        );
        let operation = post(&site, "replay?status=pending", asked).await.ok().json();
        let id = operation["id"].as_str().unwrap();
        assert_eq!(
            operation["by"],
            json!({ "who": "console", "note": "the fix is out" }),
            "{name}"
        );
        assert_eq!(
            (&operation["spec"]["pace"], &operation["progress"]["total"]),
            (&json!("5/s"), &json!(15))
        );
        for (verb, state, status) in [
            ("pause", "paused", 200),
            ("rate", "paused", 200),
            ("resume", "canary", 200),
            ("cancel", "cancelled", 200),
            ("resume", "", 409),
            ("rate", "", 409),
        ] {
            let mut body = json!({ "note": verb });
            if verb == "rate" {
                body["rate"] = "none".into();
            }
            let reply = post(&site, &format!("operations/{id}/{verb}"), body).await.is(status);
            if status == 200 {
                let reply = reply.json();
                assert_eq!(reply["state"], state, "{name} {verb}");
                let has_rate = reply["spec"]["pace"] == "5/s";
                assert_eq!(has_rate, verb == "pause", "{name} {verb}");
            }
        }
        let at = format!("operations/{id}/rate");
        let wrong = post(&site, &at, json!({ "note": "x", "rate": "fast" })).await.is(400);
        assert!(wrong.body.contains("or `none` for no limit"), "{}", wrong.body);
        let nothing =
            post(&site, "replay?consumer=nobody", json!({ "note": "x" })).await.ok().json();
        assert_eq!((&nothing["id"], &nothing["plan"]["count"]), (&Value::Null, &json!(0)));
        let audit = site.get("/api/v1/default/audit").await.ok().json();
        let done: Vec<_> =
            audit["entries"].as_array().unwrap().iter().map(|one| one["action"].clone()).collect();
        assert_eq!(done, ["cancel", "resume", "rate", "pause", "replay"], "{name}");
    }
}

#[tokio::test]
async fn letters_are_marked_and_deleted_within_the_ceiling() {
    let site = Site::of((0..30).map(letter).collect()).await;
    let every = post(&site, "mark", json!({ "mark": "resolved", "note": "x" })).await.is(422);
    assert!(every.body.contains("all=true"), "{}", every.body);
    let dry = post(&site, "mark?all=true&dry-run=true", json!({ "mark": "resolved", "note": "x" }))
        .await
        .ok()
        .json();
    assert_eq!((&dry["count"], dry["sample"].as_array().unwrap().len()), (&json!(30), 10));
    let id = letter(4).id.to_string();
    let marked = post(&site, "mark", json!({ "mark": "quarantined", "id": [id], "note": "x" }))
        .await
        .ok()
        .json();
    assert_eq!((&marked["changed"], &marked["skipped"]), (&json!(1), &json!(0)));
    post(&site, "mark", json!({ "mark": "dead", "id": id, "note": "x" })).await.is(400);
    post(&site, "mark", json!({ "mark": "resolved", "id": id })).await.is(400);
    post(&site, "mark", json!({ "mark": "resolved", "id": id, "note": " " })).await.is(400);
    let unknown = "00000000000000000000000000000000";
    post(&site, "delete", json!({ "id": unknown, "note": "x" })).await.is(404);
    let refused = post(&site, "delete?status=pending&max=20", json!({ "note": "x" })).await.is(422);
    assert!(
        refused.body.contains("29 letters would be deleted, and 20 at most"),
        "{}",
        refused.body
    );
    let deleted =
        post(&site, "delete?status=pending&max=29", json!({ "note": "x" })).await.ok().json();
    assert_eq!(deleted["changed"], 29);
    assert_eq!(site.letters.count(dlq_core::Filter::new()).await.unwrap(), 1);
}

#[tokio::test]
async fn deleted_letters_are_listed_and_restored() {
    for (name, store, _folder) in stores().await {
        let site = Site::with(store, (0..5).map(letter).collect()).await;
        let archive = async |query: &str| {
            site.get(&format!("/api/v1/default/archive{query}")).await.ok().json()
        };
        let [one, two] = [letter(1), letter(2)].map(|letter| letter.id.to_string());
        for id in [&one, &two] {
            post(&site, "delete", json!({ "id": id, "note": "a mistake" })).await.ok();
        }
        let page = archive("?limit=1").await;
        let last = &page["letters"][0];
        assert_eq!((&last["id"], &last["deleted_by"]["note"]), (&json!(two), &json!("a mistake")));
        let next = page["next"].as_str().unwrap();
        assert_eq!(
            archive(&format!("?cursor={next}")).await["letters"][0]["id"],
            json!(one),
            "{name}"
        );
        let refused = post(&site, "restore", json!({ "note": "x" })).await.is(422);
        assert!(refused.body.contains("all=true"), "{}", refused.body);
        let restored = post(&site, "restore", json!({ "id": one, "note": "x" })).await.ok().json();
        assert_eq!((&restored["changed"], &restored["skipped"]), (&json!(1), &json!(0)), "{name}");
        let by = post(&site, "restore", json!({ "by": "console", "note": "x" })).await.ok().json();
        assert_eq!(by["changed"], 1, "{name}");
        assert_eq!(site.letters.count(dlq_core::Filter::new()).await.unwrap(), 5);
        let gone = json!({ "id": two, "for-good": true, "note": "personal data" });
        post(&site, "delete", gone).await.ok();
        assert_eq!(archive("").await["letters"], json!([]), "{name}");
    }
}

#[tokio::test]
async fn more_letters_than_the_commands_ceiling_are_not_deleted() {
    let site = Site::of((0..10_001).map(letter).collect()).await;
    let refused = post(&site, "delete?all=true", json!({ "note": "x" })).await.is(422);
    assert!(
        refused.body.contains("10001 letters would be deleted, and 10000 at most"),
        "{}",
        refused.body
    );
}

#[tokio::test]
async fn a_letter_is_edited_and_the_edit_undone() {
    for (name, store, _folder) in stores().await {
        let site = Site::with(store, vec![letter(1)]).await;
        let at = format!("letters/{}/edit", letter(1).id);
        let dry = json!({ "payload-text": "{\"order\":2}", "dry-run": true, "note": "x" });
        let dry = post(&site, &at, dry).await.ok().json();
        assert_eq!(
            (&dry["edited"], &dry["letter"]["message"]["payload"]),
            (&json!(false), &json!("{\"order\":2}"))
        );
        let asked = json!({
            "payload-base64": "eyJvcmRlciI6Mn0=", "header": ["trace=t=2", "new=1"], "remove-header": "old", "note": "typo",
        });
        let edited = post(&site, &at, asked.clone()).await.ok().json();
        assert_eq!(
            (&edited["edited"], &edited["letter"]["message"]["payload"]),
            (&json!(true), &json!("{\"order\":2}"))
        );
        assert_eq!(edited["letter"]["message"]["headers"][0]["value"], "t=2", "{name}");
        assert_eq!(post(&site, &at, asked).await.ok().json()["edited"], false);
        for (wrong, status) in [
            (json!({ "payload-text": "{", "note": "x" }), 422),
            (json!({ "payload-text": "{}", "no-payload": true, "note": "x" }), 400),
            (json!({ "payload-base64": "*", "note": "x" }), 400),
            (json!({ "header": "x", "note": "x" }), 400),
            (
                json!({ "payload-text": "{}", "binding": "00000000000000000000000000000000", "note": "x" }),
                409,
            ),
        ] {
            post(&site, &at, wrong).await.is(status);
        }
        let at = format!("letters/{}/undo", letter(1).id);
        let undone = post(&site, &at, json!({ "note": "no typo" })).await.ok().json();
        assert_eq!(undone["letter"]["message"]["payload"], "{\"order\":1}", "{name}");
    }
    let site = Site::of(vec![letter(1)]).await;
    post(&site, &format!("letters/{}/undo", letter(1).id), json!({ "note": "x" })).await.is(422);
}

#[tokio::test]
async fn a_request_of_one_key_is_carried_out_once() {
    let site = Site::of((0..20).map(letter).collect()).await.header("idempotency-key", "k1");
    let asked = json!({ "note": "x", "limit": 5 });
    let first = post(&site, "replay?status=pending", asked.clone()).await.ok().json();
    let again = post(&site, "replay?status=pending", asked.clone()).await.ok().json();
    assert_eq!(first, again);
    assert_eq!(site.letters.operations(10).await.unwrap().len(), 1);
    post(&site, "replay?status=pending", json!({ "note": "x", "limit": 6 })).await.is(422);
    let site = site.header("idempotency-key", "k2");
    let other = post(&site, "replay?status=pending", asked.clone()).await.ok().json();
    assert_ne!(first["id"], other["id"]);
    let site = site.header("idempotency-key", &"k".repeat(201));
    post(&site, "replay?status=pending", asked).await.is(400);
}

#[tokio::test]
async fn letters_go_to_brokers_only_where_somebody_sends_them() {
    let store = DeadLetters::new(MemoryStore::new());
    let site = Site::with(store.clone(), vec![letter(0)]).await;
    let refused =
        post(&site, "replay?all=true", json!({ "to": "origin", "note": "x" })).await.is(422);
    assert!(refused.body.contains("dlq serve --console --replay"), "{}", refused.body);
    let router = Admin::new(store).via([Cluster::new("nats", "eu")]).router();
    let site = site.router(router);
    let asked = json!({ "to": "orders.again", "canary": 1, "canary-wait": "5s", "note": "x" });
    let operation = post(&site, "replay?all=true", asked).await.ok().json();
    let id = operation["id"].as_str().unwrap().parse().unwrap();
    let operation = site.letters.operation(id).await.unwrap();
    assert_eq!(operation.spec.target, Target::Subject("orders.again".to_owned()));
    assert_eq!(operation.spec.canary_wait.as_secs(), 5);
    assert_eq!(operation.state, OperationState::Canary);
}

#[tokio::test]
async fn bodies_are_bounded_and_of_a_known_kind() {
    let site = Site::of(vec![letter(0)]).await;
    let long = format!("note={}", "x".repeat(1024 * 1024));
    site.post("/api/v1/default/mark?all=true&mark=resolved", &long).await.is(413);
    // An edit may be as long as the store takes.
    let at = format!("/api/v1/default/letters/{}/edit", letter(0).id);
    let payload = format!("note=x&payload-text=%22{}%22", "x".repeat(2 * 1024 * 1024));
    site.post(&at, &payload).await.ok();
    let request = site.request("POST", "/api/v1/default/mark?all=true&mark=resolved&note=x");
    let request = request.header("content-type", "text/plain");
    let reply = site.send(request.body(Body::from("{}")).unwrap()).await;
    assert_eq!(reply.status, 415, "{}", reply.body);
    let one = site.letters.get(letter(0).id).await.unwrap();
    assert_eq!(one.state.status, Status::Pending);
}
