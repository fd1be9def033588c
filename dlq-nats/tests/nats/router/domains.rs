//! What is said in a JetStream domain.

use async_nats::jetstream::AckKind;
use async_nats::jetstream::context::ContextBuilder;
use dlq_nats::EventRouter;
use tokio::sync::oneshot;

use super::{Letter, Routing, SECOND, answer, consumer, exhaust};
use crate::fixture::{STREAM, Server, available};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_in_another_domain_is_left_alone() {
    if !available() {
        return;
    }
    let store = tempfile::tempdir().unwrap();
    let domain = format!("{{ store_dir: \"{}\", domain: hub }}", store.path().display());
    let server = Server::with("jetstream", &domain).await;
    let theirs = consumer(&server, STREAM, 1).await;
    let router = Routing::start(&server).await;
    // As a leaf node says it of a stream of its own that has the same name.
    let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{STREAM}.edge");
    let advisory = serde_json::json!({
        "type": "io.nats.jetstream.advisory.v1.max_deliver", "timestamp": "2026-11-20T22:13:27Z",
        "stream": STREAM, "consumer": "edge", "stream_seq": 1, "deliveries": 1, "domain": "edge-7",
    });
    server.publish([1]).await;
    server.client.publish(subject, advisory.to_string().into()).await.unwrap();
    answer(&theirs, 1, |_| AckKind::Ack).await;
    exhaust(&server, &theirs, "orders.a", "here").await;
    Letter::until(&server, 1).await;
    let report = router.stop().await;
    assert!(report.routed == 1 && report.ignored > 0, "{report}");
    let letters = Letter::all(&server).await;
    assert_eq!(letters.into_keys().collect::<Vec<_>>(), ["here"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_domain_that_the_server_is_given_while_the_router_runs_is_ours() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let orders = consumer(&server, STREAM, 1).await;
    let router = Routing::start(&server).await;
    exhaust(&server, &orders, "orders.a", "before").await;
    Letter::until(&server, 1).await;
    let file = server.running().folder().unwrap().join("nats.conf");
    let text = std::fs::read_to_string(&file).unwrap();
    let renamed = text.replace("max_mem:", "domain: hub, max_mem:");
    assert_ne!(renamed, text);
    std::fs::write(file, renamed).unwrap();
    server.kill_and_restart().await;
    exhaust(&server, &orders, "orders.a", "after").await;
    Letter::until(&server, 2).await;
    // What waits since the server had no domain.
    let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{STREAM}.other");
    let advisory = serde_json::json!({
        "type": "io.nats.jetstream.advisory.v1.max_deliver", "timestamp": "2026-11-20T22:13:27Z",
        "stream": STREAM, "consumer": "other", "stream_seq": 1, "deliveries": 1,
    });
    server.client.publish(subject, advisory.to_string().into()).await.unwrap();
    Letter::until(&server, 3).await;
    let report = router.stop().await;
    assert_eq!((report.routed, report.ignored), (3, 0), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_domain_is_not_known_nothing_is_left_alone() {
    if !available() {
        return;
    }
    let store = tempfile::tempdir().unwrap();
    let domain = format!("{{ store_dir: \"{}\", domain: hub }}", store.path().display());
    let users = "{ users: [ { user: root, password: root }, { user: app, password: app, \
                 permissions: { publish: { deny: [\"$JS.API.INFO\"] } } } ] }";
    let settings = [("jetstream", &*domain), ("authorization", users)];
    let server = Server::bare(&settings, "root", "root").await;
    let app = server.connect("app", "app").await;
    let theirs = consumer(&server, STREAM, 1).await;
    // An answer that does not come is waited for so long.
    let context = ContextBuilder::new().timeout(SECOND).build(app);
    let router = EventRouter::builder(context).sweep_every(SECOND / 4).open().await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let scene = async {
        exhaust(&server, &theirs, "orders.a", "here").await;
        Letter::until(&server, 1).await;
        stop.send(()).unwrap();
    };
    let (report, ()) = tokio::join!(router.run(async { _ = stopped.await }), scene);
    assert_eq!((report.routed, report.ignored), (1, 0), "{report}");
}
