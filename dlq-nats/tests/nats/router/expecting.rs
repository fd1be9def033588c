//! What a router expects of consumers, and tells once of each that has it otherwise.

use async_nats::Subscriber;
use async_nats::jetstream::consumer::pull;
use dlq_nats::EventRouter;
use futures_util::StreamExt as _;
use tokio::time::timeout;

use super::{Routing, SECOND};
use crate::fixture::{PATIENCE, STREAM, Server, available, billing};

/// Waits until all that stands now was looked at: the sweep after the next has begun.
async fn swept(looks: &mut Subscriber) {
    // What was asked before does not count.
    while futures_util::FutureExt::now_or_never(looks.next()).is_some() {}
    for _ in 0..3 {
        timeout(PATIENCE, looks.next()).await.expect("it looks at consumers").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_expected_only_of_consumers_that_stay_and_give_up() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let _ours = server.source(&billing()).await;
    let stream = server.context.get_stream(STREAM).await.unwrap();
    let fleeting =
        pull::Config { inactive_threshold: PATIENCE, max_deliver: 7, ..pull::Config::default() };
    stream.create_consumer(fleeting).await.unwrap();
    let theirs = || pull::Config {
        durable_name: Some("theirs".to_owned()),
        max_deliver: 2,
        ..pull::Config::default()
    };
    stream.create_consumer(theirs()).await.unwrap();
    let subject = format!("$JS.API.CONSUMER.LIST.{STREAM}");
    let mut looks = server.client.subscribe(subject).await.unwrap();
    server.client.flush().await.unwrap();
    let router = EventRouter::builder(server.client.clone()).sweep_every(SECOND / 10);
    let router = Routing::with(router.max_retries(3)).await;
    swept(&mut looks).await;
    // What has gone is forgotten.
    stream.delete_consumer("theirs").await.unwrap();
    swept(&mut looks).await;
    stream.create_consumer(theirs()).await.unwrap();
    swept(&mut looks).await;
    let report = router.stop().await;
    assert_eq!(report.unexpected, 2, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_expected_of_a_consumer_that_is_named() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let _ours = server.source(&billing()).await;
    let subject = format!("$JS.API.CONSUMER.LIST.{STREAM}");
    let mut looks = server.client.subscribe(subject).await.unwrap();
    server.client.flush().await.unwrap();
    let router = EventRouter::builder(server.client.clone()).sweep_every(SECOND / 10);
    let router = Routing::with(router.consumer(STREAM, "billing").max_retries(3)).await;
    swept(&mut looks).await;
    let report = router.stop().await;
    assert_eq!(report.unexpected, 1, "{report}");
}
