//! The event router, beside consumers that are not ours.

mod anew;
mod cluster;
mod domains;
mod expecting;
mod foreign;
mod headers;
mod once;
mod rights;
mod unheard;
mod watching;

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::{AckKind, kv, stream};
use dlq_core::protocol::{Decoded, split};
use dlq_core::{Header, Headers, Position, Reason, StoreErrorKind};
use dlq_nats::EventRouter;
use dlq_nats::router::EventRouterBuilder;
use dlq_nats::router::RouterReport;
use futures_util::StreamExt as _;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, STREAM, Server, available};

const SECOND: Duration = Duration::from_secs(1);

/// A router in the background.
struct Routing {
    stop: oneshot::Sender<()>,
    task: JoinSet<RouterReport>,
}

impl Routing {
    async fn start(server: &Server) -> Self {
        Self::of(server, &[]).await
    }

    /// One that watches these streams only.
    async fn of(server: &Server, streams: &[&str]) -> Self {
        let mut router =
            EventRouter::builder(server.client.clone()).sweep_every(SECOND / 4).lease(SECOND * 2);
        for stream in streams {
            router = router.stream(*stream);
        }
        Self::with(router).await
    }

    async fn with(router: EventRouterBuilder) -> Self {
        let router = router.open().await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let mut task = JoinSet::new();
        task.spawn(router.run(async { _ = stopped.await }));
        Self { stop, task }
    }

    async fn stop(mut self) -> RouterReport {
        self.stop.send(()).unwrap();
        timeout(PATIENCE, self.task.join_next()).await.expect("it stops").unwrap().unwrap()
    }

    async fn kill(mut self) {
        self.task.shutdown().await;
    }
}

/// A letter as it stands on the stream.
struct Letter {
    says: Decoded,
    /// Of the advisory, among what no header of the protocol says.
    deliveries: u64,
    confirmed: bool,
    subject: String,
    payload: String,
}

impl Letter {
    /// By payload; two of one message are a failure.
    async fn all(server: &Server) -> BTreeMap<String, Self> {
        let mut letters = BTreeMap::new();
        for stored in server.stored("DLQ").await {
            let says = decoded(&stored.headers);
            let payload = String::from_utf8(stored.payload.to_vec()).unwrap();
            let facts = facts(&stored.headers);
            let deliveries = facts["deliveries"].as_u64().unwrap();
            let confirmed = facts["confirmed"].as_bool().unwrap();
            let subject = stored.subject;
            let letter = Self { says, deliveries, confirmed, subject, payload: payload.clone() };
            let second = letters.insert(payload, letter);
            assert!(second.is_none(), "two letters of `{}`", second.unwrap().payload);
        }
        letters
    }

    /// Waits until there are so many.
    async fn until(server: &Server, count: u64) {
        let enough = async {
            while server.count("DLQ").await < count {
                sleep(SECOND / 200).await;
            }
        };
        let waited = timeout(PATIENCE, enough).await;
        assert!(waited.is_ok(), "{} letters, expected {count}", server.count("DLQ").await);
    }
}

fn facts(headers: &HeaderMap) -> serde_json::Value {
    let rest = headers.get("dlq.nats.rest").unwrap().as_str();
    let mut rest: serde_json::Value = serde_json::from_str(rest).unwrap();
    rest["facts"].take()
}

fn decoded(headers: &HeaderMap) -> Decoded {
    let all = headers.iter().flat_map(|(name, values)| {
        values.iter().map(move |value| Header {
            name: AsRef::<[u8]>::as_ref(name).to_vec().into(),
            value: Some(value.as_str().as_bytes().to_vec().into()),
        })
    });
    split(&all.collect::<Headers>()).1
}

/// A consumer that is not ours. What it has in flight it has for as long as a test takes.
async fn consumer(server: &Server, stream: &str, max_deliver: i64) -> PullConsumer {
    server.context.create_consumer_on_stream(theirs(max_deliver), stream).await.unwrap()
}

fn theirs(max_deliver: i64) -> pull::Config {
    pull::Config {
        durable_name: Some("theirs".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: PATIENCE * 2,
        max_deliver,
        ..pull::Config::default()
    }
}

/// Takes so many deliveries and answers each.
async fn answer(consumer: &PullConsumer, deliveries: usize, word: impl Fn(&[u8]) -> AckKind) {
    for _ in 0..deliveries {
        let mut batch =
            consumer.fetch().max_messages(1).expires(PATIENCE).messages().await.unwrap();
        let message = timeout(PATIENCE, batch.next()).await.unwrap().unwrap().unwrap();
        message.double_ack_with(word(&message.payload)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exhausted_message_becomes_one_letter_however_many_ears_hear_it() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let (one, two) = (Routing::start(&server).await, Routing::start(&server).await);
    let theirs = consumer(&server, STREAM, 2).await;
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", "evt-1");
    headers.insert("trace", "Ärger");
    server.publish([1]).await;
    let sent = server.context.publish_with_headers("orders.eu", headers, "poison".into()).await;
    sent.unwrap().await.unwrap();
    // Nobody pulls after the last delivery: only the sweep makes the server say so.
    let refused = |payload: &[u8]| payload == b"poison";
    answer(&theirs, 3, |payload| if refused(payload) { AckKind::Nak(None) } else { AckKind::Ack })
        .await;
    Letter::until(&server, 1).await;
    let (one, two) = (one.stop().await, two.stop().await);
    assert_eq!(one.routed + two.routed, 1, "{one}; {two}");
    assert!(one.pokes + two.pokes > 0, "{one}; {two}");
    let letters = Letter::all(&server).await;
    let letter = &letters["poison"];
    assert_eq!((letters.len(), letter.subject.as_str()), (1, "dlq.orders.eu"));
    assert_eq!(letter.says.reason, Some(Reason::MaxDeliveries));
    assert_eq!(letter.says.consumer.as_deref(), Some("theirs"));
    assert_eq!(letter.says.original.topic.as_deref(), Some(STREAM));
    assert_eq!(letter.says.original.offset, Some(Position::Offset(2)));
    assert_eq!(server.count(STREAM).await, 2, "the stream is left as it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_while_no_router_runs_is_heard_later() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    Routing::start(&server).await.kill().await;
    let theirs = consumer(&server, STREAM, 1).await;
    server.publish(0..300).await;
    answer(&theirs, 300, |_| AckKind::Nak(None)).await;
    answer_nothing(&theirs).await;
    server.kill_and_restart().await;
    // It dies again and again with advisories in flight.
    for letters in [1, 60, 120, 180] {
        let router = Routing::start(&server).await;
        Letter::until(&server, letters).await;
        router.kill().await;
    }
    let router = Routing::start(&server).await;
    Letter::until(&server, 300).await;
    let report = router.stop().await;
    assert_eq!(Letter::all(&server).await.len(), 300, "{report}");
}

/// A pull that finds nothing, at which a server notices what is exhausted.
async fn answer_nothing(consumer: &PullConsumer) {
    let mut batch = consumer.fetch().max_messages(1).expires(SECOND).messages().await.unwrap();
    assert!(batch.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_left_its_stream_is_a_letter_without_payload() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let theirs = jobs(&server, theirs(3)).await;
    let router = Routing::start(&server).await;
    server.context.publish("jobs.a", "gone".into()).await.unwrap().await.unwrap();
    answer(&theirs, 1, |_| AckKind::Term).await;
    Letter::until(&server, 1).await;
    let report = router.stop().await;
    assert_eq!((report.routed, report.without_payload), (1, 1), "{report}");
    let letters = Letter::all(&server).await;
    let letter = &letters[""];
    assert_eq!(letter.says.reason, Some(Reason::Permanent));
    assert_eq!(letter.says.original.offset, Some(Position::Offset(1)));
    assert!(!letter.confirmed, "anybody could have said it");
}

/// A consumer of a work queue.
async fn jobs(server: &Server, config: pull::Config) -> PullConsumer {
    work_queue(server).await.create_consumer(config).await.unwrap()
}

async fn work_queue(server: &Server) -> stream::Stream {
    let config = stream::Config {
        name: "JOBS".to_owned(),
        subjects: vec!["jobs.>".to_owned()],
        retention: stream::RetentionPolicy::WorkQueue,
        ..stream::Config::default()
    };
    server.context.create_stream(config).await.unwrap()
}

/// One whose only run the server gives up after a second.
async fn given_up(server: &Server) -> PullConsumer {
    jobs(server, pull::Config { ack_wait: SECOND, ..theirs(1) }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_last_run_that_then_acknowledges_was_not_confirmed_to_have_failed() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let theirs = given_up(&server).await;
    let router = Routing::start(&server).await;
    server.context.publish("jobs.a", "slow".into()).await.unwrap().await.unwrap();
    let mut batch = theirs.fetch().max_messages(1).expires(PATIENCE).messages().await.unwrap();
    let run = timeout(PATIENCE, batch.next()).await.unwrap().unwrap().unwrap();
    // The server gives it up while the run goes on.
    Letter::until(&server, 1).await;
    run.double_ack().await.unwrap();
    assert_eq!(server.count("JOBS").await, 0, "a late acknowledgement removes it");
    let report = router.stop().await;
    assert_eq!((report.routed, report.found), (1, 0), "{report}");
    let letters = Letter::all(&server).await;
    assert_eq!(letters["slow"].says.reason, Some(Reason::MaxDeliveries));
    assert!(!letters["slow"].confirmed, "it was handled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_with_another_lease_takes_that_which_is_there() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let one = Routing::start(&server).await;
    let two = EventRouter::builder(server.client.clone()).lease(SECOND * 40).open().await.unwrap();
    drop(two);
    one.stop().await;
    let advisories = server.context.get_stream("DLQ_ADVISORY").await.unwrap();
    let durable = advisories.consumer_info("dlq-router").await.unwrap();
    assert_eq!(durable.config.ack_wait, SECOND * 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_would_forget_how_far_routers_are_is_refused() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let config = kv::Config {
        bucket: "DLQ_ROUTER".to_owned(),
        storage: stream::StorageType::Memory,
        max_age: SECOND,
        ..kv::Config::default()
    };
    server.context.create_key_value(config).await.unwrap();
    let error = EventRouter::builder(server.client.clone()).open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    let text = error.to_string();
    for part in ["DLQ_ROUTER", "`storage` is Memory", "`max_age` is 1s"] {
        assert!(text.contains(part), "{text}");
    }
}

async fn users(server: &Server) -> PullConsumer {
    let config = stream::Config {
        name: "USERS".to_owned(),
        subjects: vec!["users.>".to_owned()],
        ..stream::Config::default()
    };
    server.context.create_stream(config).await.unwrap();
    consumer(server, "USERS", 1).await
}

/// A message that the consumer does not handle, and that the server has given up.
async fn exhaust(server: &Server, consumer: &PullConsumer, subject: &'static str, payload: &str) {
    let sent = server.context.publish(subject, payload.to_owned().into()).await;
    sent.unwrap().await.unwrap();
    answer(consumer, 1, |_| AckKind::Nak(None)).await;
    answer_nothing(consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_was_made_again_has_letters_of_its_own() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let router = Routing::start(&server).await;
    for (letters, payload) in [(1, "before"), (2, "after")] {
        let orders = consumer(&server, STREAM, 1).await;
        exhaust(&server, &orders, "orders.a", payload).await;
        Letter::until(&server, letters).await;
        server.context.delete_stream(STREAM).await.unwrap();
        server.create_stream().await;
    }
    let report = router.stop().await;
    assert_eq!((report.routed, report.without_payload), (2, 0), "{report}");
    let letters = Letter::all(&server).await;
    for payload in ["before", "after"] {
        assert_eq!(letters[payload].says.original.offset, Some(Position::Offset(1)));
    }
}
