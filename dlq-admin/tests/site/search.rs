//! Letters are found by what their messages hold, by those who may see it.

use axum::http::StatusCode;
use dlq_admin::Role;
use dlq_core::{Filter, Status};
use dlq_testkit::fixtures::letter;
use serde_json::json;

use crate::common::{Site, stores, tokens};

#[tokio::test]
async fn every_route_with_a_filter_searches() {
    for (name, store, _folder) in stores().await {
        let site = Site::with(store, (0..40).map(letter).collect()).await;
        let get = async |path: &str| site.get(&format!("/api/v1/default/{path}")).await.ok().json();
        assert_eq!(get("count?payload=order%3D17").await["count"], 1, "{name}");
        assert_eq!(get("count?key=customer-3&key=customer-4").await["count"], 12, "{name}");
        let page = get("letters?payload-text=%22order%22%3A2&limit=4").await;
        assert_eq!(page["letters"].as_array().unwrap().len(), 4, "{name}");
        let next = page["next"].as_str().unwrap();
        let rest = get(&format!("letters?payload-text=%22order%22%3A2&cursor={next}")).await;
        assert_eq!(rest["letters"].as_array().unwrap().len(), 7, "{name}");
        assert_eq!((&rest["next"], page["read"].as_u64() < Some(40)), (&json!(null), true));
        let marked = json!({ "mark": "quarantined", "header": "trace=t-4", "note": "x" });
        let marked = site.post_json("/api/v1/default/mark", marked).await.ok().json();
        assert_eq!(marked["changed"], 1, "{name}");
        let nothing = json!({ "payload": "order=40", "note": "x" });
        let nothing = site.post_json("/api/v1/default/delete", nothing).await.ok().json();
        assert_eq!(nothing["changed"], 0, "{name}");
        let quarantined = Filter::new().with_status(Status::Quarantined);
        assert_eq!(site.letters.count(quarantined).await.unwrap(), 1, "{name}");
        assert_eq!(site.letters.count(Filter::new()).await.unwrap(), 40, "{name}");
        for wrong in ["payload=order", "header=trace", "payload-text="] {
            site.get(&format!("/api/v1/default/letters?{wrong}")).await.is(400);
        }
    }
}

#[tokio::test]
async fn a_page_goes_on_with_what_was_found() {
    let site = Site::of((0..40).map(letter).collect()).await;
    let page = site.get("/s/default/letters?payload=order%3D17").await.ok();
    assert!(page.body.contains("1</strong> letters found among 40"), "{}", page.body);
    assert!(page.body.contains("s/default/replay?payload=order%3D17"), "{}", page.body);
    let plan = site.get("/s/default/replay?payload=order%3D17").await.ok();
    let id = letter(17).id.to_string();
    assert!(plan.body.contains(&format!("name=\"id\" value=\"{id}\"")), "{}", plan.body);
    let many = site.get("/s/default/replay?payload-text=order").await.ok();
    assert!(many.body.contains("40</strong> letters, by their ids"), "{}", many.body);
    // An identical search of more letters than a change may name is refused, not cut.
    let site = Site::of((0..501).map(letter).collect()).await;
    let refused = site.get("/s/default/replay?payload-text=order").await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", refused.body);
    assert!(refused.body.contains("narrow it"), "{}", refused.body);
}

#[tokio::test]
async fn a_role_that_does_not_see_payloads_does_not_search_them() {
    let site = Site::of((0..3).map(letter).collect()).await.access(tokens()).bearer(Role::Read);
    for search in
        ["payload=order%3D1", "payload-text=order", "key=customer-1", "header=trace%3Dt-1"]
    {
        for at in ["api/v1/default/letters", "api/v1/default/count", "s/default/letters"] {
            site.get(&format!("/{at}?{search}")).await.is(403);
        }
    }
    site.get("/api/v1/default/letters?status=pending").await.ok();
}
