//! Live updates.

use std::time::Duration;

use dlq_core::store::{Actor, Control, OperationSpec};
use dlq_core::{Filter, OperationId};
use dlq_testkit::fixtures::letter;
use futures_util::StreamExt as _;
use tokio::time::timeout;

use crate::common::Site;

/// Time limit of everything.
const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_events_of_an_operation_end_with_it() {
    let site = Site::of((0..3).map(letter).collect()).await;
    let operation =
        site.letters.replay(OperationSpec::replay(Filter::new()), Actor::new("ana")).await.unwrap();
    let path = format!("/api/v1/default/operations/{}/events", operation.id);
    let response = site.response(&path).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut events = response.into_body().into_data_stream();
    let first = timeout(DEADLINE, events.next()).await.unwrap().unwrap().unwrap();
    let first = String::from_utf8(first.to_vec()).unwrap();
    assert!(first.starts_with("event: news\ndata: {") && first.ends_with("}\n\n"), "{first}");
    site.letters.control(operation.id, Control::Cancel, Actor::new("ana")).await.unwrap();
    let mut rest = String::new();
    while let Some(event) = timeout(DEADLINE, events.next()).await.unwrap() {
        rest.push_str(std::str::from_utf8(&event.unwrap()).unwrap());
    }
    assert!(rest.contains("event: end\ndata: ") && rest.contains("\"cancelled\""), "{rest}");
    // One that has ended already says so, and ends.
    let whole = timeout(DEADLINE, site.get(&path)).await.unwrap();
    assert!(whole.body.starts_with("event: end\n"), "{}", whole.body);
}

#[tokio::test]
async fn the_overview_tells_what_has_changed() {
    let site = Site::of((0..3).map(letter).collect()).await;
    let mut events = site.response("/api/v1/default/events").await.into_body().into_data_stream();
    let first = timeout(DEADLINE, events.next()).await.unwrap().unwrap().unwrap();
    assert!(String::from_utf8(first.to_vec()).unwrap().contains("\"total\":3"));
    site.letters.put(vec![letter(9)]).await.unwrap();
    let next = timeout(DEADLINE, events.next()).await.unwrap().unwrap().unwrap();
    assert!(String::from_utf8(next.to_vec()).unwrap().contains("\"total\":4"));
}

#[tokio::test]
async fn what_is_not_there_has_no_events() {
    let site = Site::of(Vec::new()).await;
    let id = OperationId::from_bytes([7; 16]);
    site.get(&format!("/api/v1/default/operations/{id}/events")).await.is(404);
}
