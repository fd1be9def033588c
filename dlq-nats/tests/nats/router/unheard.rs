//! What a work queue still has although its consumer has given it up, and no ear has heard of it.

use std::collections::BTreeMap;
use std::time::Instant;

use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::{AckKind, kv, stream};
use dlq_nats::router::{MESSAGES_IN_DLQ_TOTAL, RouterConfig};
use dlq_nats::{DlqStream, EventRouter};
use futures_util::StreamExt as _;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::{Letter, Routing, SECOND, facts};
use crate::fixture::{PATIENCE, Server, available};

/// A work queue whose consumer gives up after one delivery, and messages that it gave up while no router was there.
async fn exhausted_unheard(server: &Server, subject: &'static str) {
    let config = stream::Config {
        name: "QUEUE".to_owned(),
        subjects: vec!["queue.>".to_owned()],
        retention: stream::RetentionPolicy::WorkQueue,
        ..stream::Config::default()
    };
    let queue = server.context.create_stream(config).await.unwrap();
    let config = pull::Config {
        durable_name: Some("worker".to_owned()),
        max_deliver: 1,
        ack_wait: PATIENCE * 2,
        filter_subject: "queue.>".to_owned(),
        ..pull::Config::default()
    };
    let worker: PullConsumer = queue.create_consumer(config.clone()).await.unwrap();
    for number in 1..=4 {
        let sent = server.context.publish(subject, number.to_string().into()).await;
        sent.unwrap().await.unwrap();
    }
    // Two are handled, two are not; it goes on pulling, so that the advisories are sent, and nobody hears them.
    let mut messages = worker.messages().await.unwrap();
    for number in 1..=4 {
        let message = messages.next().await.unwrap().unwrap();
        let answer = if number <= 2 { AckKind::Ack } else { AckKind::Nak(None) };
        message.double_ack_with(answer).await.unwrap();
    }
    let idle = async {
        while queue.consumer_info("worker").await.unwrap().num_ack_pending > 0 {
            sleep(SECOND / 20).await;
        }
    };
    timeout(PATIENCE, idle).await.expect("they are given up");
    // For so long a router waits: what is in flight is nobody's then.
    queue.update_consumer(pull::Config { ack_wait: SECOND, ..config }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_ear_has_heard_of_is_found_in_a_work_queue() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    exhausted_unheard(&server, "queue.x").await;
    // No window: a second copy would be there to see.
    let dead = DlqStream::new().duplicate_window(SECOND / 10);
    let config = || {
        let mut config = RouterConfig::default();
        config.letters = dead.clone();
        config.sweep_every = SECOND / 4;
        config.max_retries = Some(3);
        config
    };
    // The topic is that of this test only.
    let recorder = DebuggingRecorder::new();
    let counted = recorder.snapshotter();
    recorder.install().unwrap();
    let start = || async {
        let router = EventRouter::builder(server.client.clone()).config(config());
        let router = router.open().await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        (router.run(async { _ = stopped.await }), stop)
    };
    let began = Instant::now();
    let (run, stop) = start().await;
    let waiting = async {
        Letter::until(&server, 2).await;
        // Who had them last could have been at them for as long as that.
        assert!(began.elapsed() >= SECOND, "{:?}", began.elapsed());
        // It goes on, and finds nothing more.
        sleep(SECOND).await;
        stop.send(()).unwrap();
    };
    let (report, ()) = tokio::join!(run, waiting);
    assert_eq!((report.routed, report.found, report.unexpected), (2, 2, 1), "{report}");
    let mut payloads: Vec<_> =
        server.stored("DLQ").await.iter().map(|stored| stored.payload.clone()).collect();
    payloads.sort();
    assert_eq!(payloads, ["3", "4"]);
    for stored in server.stored("DLQ").await {
        assert_eq!(facts(&stored.headers)["confirmed"], true);
    }
    let written = counted.snapshot().into_vec().into_iter().find_map(|(key, _, _, value)| {
        let topic = key.key().labels().any(|label| label.value() == "queue.x");
        (key.key().name() == MESSAGES_IN_DLQ_TOTAL && topic).then_some(value)
    });
    assert_eq!(written, Some(DebugValue::Counter(2)));

    // Another router knows up to where the first has looked.
    let (run, stop) = start().await;
    let waiting = async {
        sleep(SECOND * 2).await;
        stop.send(()).unwrap();
    };
    let (report, ()) = tokio::join!(run, waiting);
    assert_eq!((report.routed, report.found), (0, 0), "{report}");
    assert_eq!(server.count("DLQ").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_ear_has_heard_of_is_found_in_a_work_queue_that_has_something_to_do_again() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    exhausted_unheard(&server, "queue.busy").await;
    let mut sweeps = server.client.subscribe("$JS.API.CONSUMER.LIST.QUEUE").await.unwrap();
    server.client.flush().await.unwrap();
    let router = Routing::start(&server).await;
    // The second begins when the first has seen that there was nothing to do.
    for _ in 0..2 {
        timeout(PATIENCE, sweeps.next()).await.expect("the sweep comes").unwrap();
    }
    let letters = both_found_while_busy(&server, "queue.busy", async {}).await;
    assert!(letters["3"].confirmed && letters["4"].confirmed, "nobody told of them");
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_ear_has_heard_of_is_found_after_a_look_that_failed() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    exhausted_unheard(&server, "queue.again").await;
    let mut sweeps = server.client.subscribe("$JS.API.CONSUMER.LIST.QUEUE").await.unwrap();
    server.client.flush().await.unwrap();
    let router = Routing::start(&server).await;
    // While this is there nobody can say up to where was looked.
    let config = kv::Config {
        bucket: "DLQ_ROUTER".to_owned(),
        max_age: SECOND * 3600,
        ..kv::Config::default()
    };
    server.context.create_key_value(config).await.unwrap();
    let mut asked = server.client.subscribe("$JS.API.STREAM.INFO.KV_DLQ_ROUTER").await.unwrap();
    server.client.flush().await.unwrap();
    for _ in 0..2 {
        timeout(PATIENCE, sweeps.next()).await.expect("the sweep comes").unwrap();
    }
    let until_failed = async {
        timeout(PATIENCE, asked.next()).await.expect("the bucket is looked at").unwrap();
        let mut next = server.client.subscribe("$JS.API.CONSUMER.LIST.QUEUE").await.unwrap();
        server.client.flush().await.unwrap();
        timeout(PATIENCE, next.next()).await.expect("the next sweep comes").unwrap();
        server.context.delete_key_value("DLQ_ROUTER").await.unwrap();
    };
    let letters = both_found_while_busy(&server, "queue.again", until_failed).await;
    assert!(letters["3"].confirmed && letters["4"].confirmed, "nobody told of them");
    router.stop().await;
}

/// The letters, when both that were given up have one, once `first` is over. All the while the consumer has a message in
/// hand.
async fn both_found_while_busy(
    server: &Server,
    subject: &'static str,
    first: impl Future<Output = ()>,
) -> BTreeMap<String, Letter> {
    server.context.publish(subject, "5".into()).await.unwrap().await.unwrap();
    let queue: stream::Stream = server.context.get_stream("QUEUE").await.unwrap();
    let worker: PullConsumer = queue.get_consumer("worker").await.unwrap();
    let mut batch = worker.fetch().max_messages(1).expires(PATIENCE).messages().await.unwrap();
    let held = timeout(PATIENCE, batch.next()).await.unwrap().unwrap().unwrap();
    let working = async {
        loop {
            held.ack_with(AckKind::Progress).await.unwrap();
            sleep(SECOND / 10).await;
        }
    };
    let found = async {
        first.await;
        let both = async {
            loop {
                let letters = Letter::all(server).await;
                if letters.contains_key("3") && letters.contains_key("4") {
                    return letters;
                }
                sleep(SECOND / 20).await;
            }
        };
        timeout(PATIENCE, both).await.expect("both are found")
    };
    tokio::select! {
        letters = found => letters,
        () = working => unreachable!("it never ends"),
    }
}
