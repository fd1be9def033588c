//! What a router watches, and what it leaves to others.

use async_nats::jetstream::stream;
use tokio::time::{sleep, timeout};

use super::{Letter, Routing, SECOND, consumer, exhaust, users};
use crate::fixture::{PATIENCE, STREAM, Server, available};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_leaves_to_others_what_it_does_not_watch() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let (orders, users) = (consumer(&server, STREAM, 1).await, users(&server).await);
    let one = Routing::of(&server, &[STREAM]).await;
    Routing::of(&server, &["USERS"]).await.stop().await;
    exhaust(&server, &users, "users.a", "user").await;
    exhaust(&server, &orders, "orders.a", "order").await;
    // It has heard of both.
    Letter::until(&server, 1).await;
    let report = one.stop().await;
    assert!(report.routed == 1 && report.ignored > 0, "{report}");
    let two = Routing::of(&server, &["USERS"]).await;
    Letter::until(&server, 2).await;
    assert_eq!(two.stop().await.routed, 1);
    assert!(Letter::all(&server).await.contains_key("user"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_watched_no_longer_is_kept_for_who_watches_it_again() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let (orders, users) = (consumer(&server, STREAM, 1).await, users(&server).await);
    let all = Routing::start(&server).await;
    exhaust(&server, &orders, "orders.a", "known").await;
    Letter::until(&server, 1).await;
    let advisories: stream::Stream = server.context.get_stream("DLQ_ADVISORY").await.unwrap();
    let settled = async {
        while advisories.consumer_info("dlq-router").await.unwrap().ack_floor.stream_sequence < 1 {
            sleep(SECOND / 50).await;
        }
    };
    timeout(PATIENCE, settled).await.expect("the advisory is acknowledged");
    all.stop().await;
    exhaust(&server, &users, "users.a", "user").await;
    exhaust(&server, &orders, "orders.a", "order").await;
    let narrowed = Routing::of(&server, &[STREAM]).await;
    Letter::until(&server, 2).await;
    let report = narrowed.stop().await;
    // It begins where the other stood.
    assert_eq!((report.routed, report.known, report.ignored), (1, 0, 1), "{report}");
    let all = Routing::start(&server).await;
    Letter::until(&server, 3).await;
    assert_eq!(all.stop().await.routed, 1);
    assert!(Letter::all(&server).await.contains_key("user"));
}
