//! Answers of the HTTP interface are what the store says.

use dlq_core::store::{Actor, AuditRequest, Maintenance as _, Mark, OperationSpec, Selection};
use dlq_core::{DeadLetters, Filter, Order, PageRequest};
use dlq_testkit::fixtures::letter;
use serde_json::{Value, json};

use crate::common::{Site, stores};

fn document(value: impl serde::Serialize) -> Value {
    let mut document = serde_json::to_value(value).unwrap();
    document["schema_version"] = json!(1);
    document
}

async fn site(store: DeadLetters) -> Site {
    let site = Site::with(store, (0..120).map(letter).collect()).await;
    let one = Selection::matching(Filter::new().with_id(letter(3).id)).unwrap();
    site.letters
        .store()
        .mark(one, Mark::Quarantined, Actor::new("ana").with_note("why"))
        .await
        .unwrap();
    let spec = OperationSpec::replay(Filter::new()).limit(7);
    site.letters.replay(spec, Actor::new("bo")).await.unwrap();
    site
}

#[tokio::test]
async fn what_is_asked_for_is_what_the_store_says() {
    for (name, store, _folder) in stores().await {
        let site = site(store).await;
        let get = async |path: &str| site.get(&format!("/api/v1/default/{path}")).await.ok().json();
        let letters = &site.letters;

        let page = letters.list(Filter::new(), PageRequest::new()).await.unwrap();
        assert_eq!(get("letters").await, document(&page), "{name}");
        let oldest = PageRequest::new().limit(5).order(Order::OldestFirst);
        let oldest = letters.list(Filter::new(), oldest).await.unwrap();
        assert_eq!(get("letters?limit=5&oldest-first=true").await, document(&oldest), "{name}");

        let filter = Filter::new().with_status(dlq_core::Status::Quarantined);
        let count = letters.count(filter.clone()).await.unwrap();
        assert_eq!(get("count?status=quarantined").await, document(json!({ "count": count })));
        let stats = letters.stats(filter).await.unwrap();
        assert_eq!(get("stats?status=quarantined").await, document(stats), "{name}");
        let groups = letters.triaged_groups(Filter::new(), 20).await.unwrap();
        assert_eq!(get("groups").await, document(json!({ "groups": groups })), "{name}");

        let id = letter(5).id;
        let one = letters.get(id).await.unwrap();
        assert_eq!(get(&format!("letters/{id}")).await, document(&one), "{name}");
        let digits = &id.to_string()[..12];
        assert_eq!(get(&format!("letters/{digits}")).await, document(&one), "{name}");

        let operations = letters.operations(20).await.unwrap();
        let operation = &operations[0];
        assert_eq!(get("operations").await, document(json!({ "operations": operations })));
        let items = letters.items(operation.id, 0, 50).await.unwrap();
        let shown = json!({ "operation": operation, "items": items.items, "next": items.next });
        assert_eq!(get(&format!("operations/{}", operation.id)).await, document(shown), "{name}");
        assert_eq!(get(&format!("operations/{}/items", operation.id)).await, document(items));

        let entries = letters.store().audit(AuditRequest::latest(50)).await.unwrap();
        let entries: Vec<_> = entries.iter().map(dlq_admin::shown::audit_entry).collect();
        assert_eq!(get("audit").await, document(json!({ "entries": entries })), "{name}");
    }
}

#[tokio::test]
async fn a_walk_by_cursors_has_every_letter_once() {
    let site = site(DeadLetters::new(dlq_letters::memory::MemoryStore::new())).await;
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let after = cursor.map_or_else(String::new, |cursor: String| format!("&cursor={cursor}"));
        let page = site.get(&format!("/api/v1/default/letters?limit=17{after}")).await.ok().json();
        seen.extend(page["letters"].as_array().unwrap().iter().map(|one| one["id"].clone()));
        match page["next"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(seen.len(), 120);
    seen.sort_by_key(Value::to_string);
    seen.dedup();
    assert_eq!(seen.len(), 120);
}

#[tokio::test]
async fn filters_mean_what_they_mean_to_the_command() {
    let mut other = letter(1);
    other.consumer = "billing & co".to_owned();
    other.attributes.insert("tenant".to_owned(), "a=b".to_owned());
    let site = Site::of(vec![letter(0), other.clone()]).await;
    let count = async |query: &str| {
        let reply = site.get(&format!("/api/v1/default/count?{query}")).await;
        reply.ok().json()["count"].as_u64().unwrap()
    };
    for (query, wanted) in [
        ("", 2),
        ("consumer=billing+%26+co", 1),
        ("consumer=billing+%26+co&consumer=orders.handle", 2),
        ("attr=tenant%3Da%3Db", 1),
        ("event-id=evt-0", 1),
        ("subject=orders.*", 2),
        ("subject=%3E", 2),
        ("status=pending&status=resolved", 2),
        ("status=resolved", 0),
        ("error=REFUSED", 2),
        ("min-attempts=4", 0),
        ("max-attempts=3&min-attempts=3", 2),
        ("until=1h", 0),
        ("since=1h", 2),
        ("consumer=", 0),
    ] {
        assert_eq!(count(query).await, wanted, "{query}");
    }
    let digits = &other.id.to_string()[..10];
    assert_eq!(count(&format!("id={digits}")).await, 1);
}

#[tokio::test]
async fn what_is_not_acceptable_is_refused_with_what_to_do() {
    let site = Site::of(vec![letter(0)]).await;
    for (path, status, text) in [
        ("/api/v1/default/letters?stat=pending", 400, "there is no parameter `stat`"),
        ("/api/v1/default/letters?status=dead", 400, "`status`: `dead` is not a status"),
        ("/api/v1/default/letters?limit=501", 400, "from 1 to 500"),
        ("/api/v1/default/letters?limit=0", 400, "from 1 to 500"),
        ("/api/v1/default/letters?limit=1&limit=2", 400, "more than once"),
        ("/api/v1/default/letters?cursor=x", 400, "is not a cursor"),
        ("/api/v1/default/letters?error=", 400, "`error` is empty"),
        ("/api/v1/default/letters?attr=x", 400, "NAME=VALUE"),
        ("/api/v1/default/letters/xyz", 400, "is not a letter id"),
        ("/api/v1/default/letters/00000000000000000000000000000000", 404, "no letter has the id"),
        ("/api/v1/default/operations/abc", 404, "has an id that begins"),
        ("/api/v1/other/letters", 404, "there is no store of this name; there are: default"),
        ("/api/v1/nothing", 404, "there is nothing"),
    ] {
        let reply = site.get(path).await.is(status);
        let error = reply.json();
        assert_eq!(error["error"]["status"], status, "{path}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(text), "{path}: {message}");
    }
}

#[tokio::test]
async fn every_route_of_the_document_is_served() {
    let site = Site::of(vec![letter(0)]).await;
    let document = site.get("/api/v1/openapi.json").await.ok().json();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 15, "{}", paths.len());
    let id = letter(0).id.to_string();
    for (path, methods) in paths {
        let path = path.replace("{store}", "default").replace("{id}", &id);
        for method in methods.as_object().unwrap().keys() {
            let request = site.request(&method.to_ascii_uppercase(), &path);
            if path.ends_with("/events") {
                continue;
            }
            let reply = site.send(request.body(axum::body::Body::empty()).unwrap()).await;
            let is_routed = !reply.body.contains("there is nothing at this path");
            assert!(is_routed && reply.status != 405, "{method} {path}: {}", reply.body);
        }
    }
}

#[tokio::test]
async fn a_payload_comes_byte_for_byte_and_as_nothing_that_runs() {
    let bytes: Vec<u8> = (0..=255).collect();
    let message = dlq_core::Message::new("s", bytes.clone());
    let one = dlq_testkit::fixtures::letter_of(message, 1);
    let site = Site::of(vec![one.clone()]).await;
    let response = site.response(&format!("/api/v1/default/letters/{}/payload", one.id)).await;
    assert_eq!(response.headers()["content-type"], "application/octet-stream");
    let disposition = response.headers()["content-disposition"].to_str().unwrap().to_owned();
    assert!(disposition.starts_with("attachment; filename=\""), "{disposition}");
    let body = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
    assert_eq!(body, bytes);
}
