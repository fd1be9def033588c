//! What operators and producers get wrong: at the start an error that names it; while it runs nothing is acknowledged,
//! health says why, and it goes on by itself when the cause is gone.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::{Context, stream};
use async_nats::{Client, ConnectOptions, HeaderMap};
use dlq_core::log::Log as _;
use dlq_core::{
    DelayedRetry, DeliveredFrom, Delivery, Disposition, ErrorClass, Filter, History, Message,
    RetryQueue, Settle, Sink, Source, StoreErrorKind, Timestamp, TransportErrorKind,
};
use dlq_nats::admin::{Deployment, Finding};
use dlq_nats::{DlqStream, JetStream, NatsLetters, NatsSink, NatsTransport};
use dlq_services::{NatsCluster, Service, or_skip};
use dlq_testkit::fixtures::letter_of;
use dlq_tower::consumer::{Consumer, ConsumerHealth, HealthHandle};
use dlq_tower::handler::handler;
use tokio::time::{sleep, timeout};

use crate::fixture::{
    LEASE, PATIENCE, STREAM, Server, available, billing, consumer, handle, next, number, read,
};

/// An error whose text no header takes as it is.
#[derive(Debug)]
struct Hostile;

impl fmt::Display for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("line one\r\nNats-Rollup: all\n\0 Größe 漢字 🙈")
    }
}

impl std::error::Error for Hostile {}

/// A consumer of which every message dies.
async fn failing(jetstream: &impl JetStream, consumer: &NatsTransport, sink: NatsSink) -> Consumer {
    let stack = handler("billing", |_: Delivery| async { Err::<(), _>(Hostile) })
        .classify(|_: &Hostile| ErrorClass::Permanent)
        .build()
        .unwrap();
    let source = consumer.source(jetstream).await.unwrap();
    Consumer::builder(source).handler(stack).sink(sink).build().unwrap()
}

/// Runs a consumer beside a scene, and stops it after that.
async fn beside<T>(consumer: Consumer, scene: impl AsyncFnOnce(HealthHandle) -> T) -> T {
    let stop = consumer.handle();
    let health = consumer.health();
    let playing = async {
        let seen = scene(health).await;
        stop.stop();
        seen
    };
    tokio::join!(consumer.run(std::future::pending()), playing).1
}

async fn until(
    health: &mut HealthHandle,
    condition: impl FnMut(&ConsumerHealth) -> bool,
) -> ConsumerHealth {
    let seen = timeout(PATIENCE, health.wait_for(condition)).await;
    seen.expect("its health changes").expect("it runs")
}

/// Up to where the consumer has acknowledged.
async fn settled(context: &Context) -> u64 {
    try_settled(context).await.expect("the server tells")
}

async fn try_settled(context: &Context) -> Option<u64> {
    let stream = context.get_stream(STREAM).await.ok()?;
    Some(stream.consumer_info("billing").await.ok()?.ack_floor.stream_sequence)
}

async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(timeout(PATIENCE, waiting).await.is_ok(), "{what}");
}

async fn bounded<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("it answers in bounded time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_is_an_error_that_says_so() {
    // Nothing listens there.
    let options = ConnectOptions::new().retry_on_initial_connect();
    let client = options.connect("nats://127.0.0.1:1").await.unwrap();
    let says =
        |error: String| assert!(error.contains("there is no connection to the server"), "{error}");
    let error = bounded(billing().source(&client)).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    says(error.to_string());
    let error = bounded(NatsSink::open(&client, DlqStream::new())).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    says(error.to_string());
    says(bounded(Deployment::default().check(&client)).await.unwrap_err().to_string());
}

/// The operator takes what forbids this subject away; the server reads its configuration again.
fn allow(server: &Server, subject: &str) {
    let file = server.running().folder().unwrap().join("nats.conf");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(&format!("\"{subject}\", "), "")).unwrap();
    let process = server.running().process_id().unwrap().to_string();
    let told = std::process::Command::new("kill").args(["-HUP", &process]).status().unwrap();
    assert!(told.success());
}

/// `root` may do everything, `app` what is given.
fn users(app: &str) -> String {
    format!(
        "{{ users: [ {{ user: root, password: root }}, {{ user: app, password: app, permissions: {app} }} ] }}"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permission_that_is_missing_is_named_at_the_start() {
    if !available() {
        return;
    }
    let may = "{ publish: { deny: [\"dlq.>\", \"retry-at.>\", \"$JS.API.CONSUMER.MSG.NEXT.ORDERS.>\", \
               \"$JS.API.STREAM.INFO.SECRET\"] } }";
    let server = Server::bare(&[("authorization", &users(may))], "root", "root").await;
    let app = server.connect("app", "app").await;
    let error = NatsSink::open(&app, DlqStream::new()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    let text = error.to_string();
    assert!(
        text.contains("user `app` may not publish to `dlq.>`; add it to `permissions"),
        "{text}"
    );
    let error = billing().retry_queue(&app).await.unwrap_err();
    assert!(error.to_string().contains("may not publish to `retry-at.billing.>`"), "{error}");
    let error = billing().source(&app).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
    assert!(error.to_string().contains("MSG.NEXT.ORDERS.billing"), "{error}");
    // What the server does not answer can only be guessed.
    let error =
        bounded(NatsTransport::new("SECRET").name("billing").source(&app)).await.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    assert!(text.contains("$JS.API.STREAM.INFO.SECRET") && text.contains("permissions"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_acknowledge_is_told_at_the_start() {
    if !available() {
        return;
    }
    let may = "{ publish: { deny: [\"$JS.ACK.ORDERS.billing.>\", \"$JS.ACK.DLQ.ingest.>\"] } }";
    let server = Server::bare(&[("authorization", &users(may))], "root", "root").await;
    let app = server.connect("app", "app").await;
    let error = billing().source(&app).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
    assert!(error.to_string().contains("may not publish to `$JS.ACK.ORDERS.billing.>`"), "{error}");
    let _ = NatsSink::open(&app, DlqStream::new()).await.unwrap();
    let letters = NatsLetters::new(&app, DlqStream::new());
    let feed =
        async |name: &str| letters.clone().consumer(name).follow("shop".to_owned(), LEASE).await;
    let error = feed("ingest").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    assert!(error.to_string().contains("may not publish to `$JS.ACK.DLQ.ingest.>`"), "{error}");
    feed("other").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_acknowledge_is_told_while_it_runs_where_nothing_is_known_at_the_start() {
    if !available() {
        return;
    }
    let may = "{ publish: { deny: [\"$JS.ACK.ORDERS.billing.>\", \"$SYS.>\"] } }";
    let server = Server::bare(&[("authorization", &users(may))], "root", "root").await;
    let app = server.connect("app", "app").await;
    server.publish([7]).await;
    let mut source = billing().source(&app).await.unwrap();
    let error = bounded(handle(&mut source)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("`$JS.ACK.ORDERS.billing.1.") && text.contains("permissions"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_of_one_consumer_will_do() {
    if !available() {
        return;
    }
    let may = "{ publish: { allow: [\"$SYS.REQ.USER.INFO\", \"$JS.API.STREAM.INFO.*\", \"$JS.API.CONSUMER.INFO.*.billing\", \
               \"$JS.API.CONSUMER.MSG.NEXT.*.billing\", \"$JS.ACK.*.billing.>\", \"$JS.API.STREAM.MSG.GET.DLQ_RETRY\", \"retry.billing.>\", \
               \"retry-at.billing.>\", \"retry-aside.billing.>\", \"dlq.orders.>\", \"dlq-aside.>\"] } }";
    let server = Server::bare(&[("authorization", &users(may))], "root", "root").await;
    server.source(&billing()).await.close().await;
    let _ = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    server.publish([7]).await;
    // The rest is this user's.
    let app = server.connect("app", "app").await;
    let queue = billing().retry_queue(&app).await.unwrap();
    let mut source = billing().source(&app).await.unwrap();
    let (delivery, settle) = next(&mut source).await;
    let delayed_retry = DelayedRetry {
        delivery,
        consumer: "billing".into(),
        due: Timestamp::EPOCH,
        history: History::default(),
        attempts: 1,
    };
    queue.enqueue(delayed_retry).await.unwrap();
    settle.settle(Disposition::Succeeded).await.unwrap();
    let retried = handle(&mut source).await.unwrap();
    assert_eq!((number(&retried), retried.delivered_from()), (7, DeliveredFrom::Retry));
    let sink = NatsSink::open(&app, DlqStream::new()).await.unwrap();
    let letter = letter_of(Message::new("orders.created", "7"), 7);
    sink.put(vec![letter]).await.unwrap();
    assert_eq!(server.count("DLQ").await, 1);
    let others = consumer("shipping").retry_queue(&app).await.unwrap_err();
    assert!(others.to_string().contains("may not publish to `retry.shipping.>`"), "{others}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permission_that_goes_while_it_runs_stops_settlements_until_it_is_back() {
    if !available() {
        return;
    }
    // Nobody may ask who they are, so that nothing is known at the start.
    let without = "{ publish: { deny: [\"dlq.>\", \"$SYS.>\"] } }";
    let server = Server::bare(&[("authorization", &users(without))], "root", "root").await;
    let app: Client = server.connect("app", "app").await;
    // A confirmation that does not come is waited for so long.
    let context = ContextBuilder::new().ack_timeout(Duration::from_secs(1)).build(app);
    let sink = NatsSink::open(&context, DlqStream::new()).await.unwrap();
    server.publish([7]).await;
    let consumer = failing(&context, &billing(), sink).await;
    beside(consumer, async |mut health| {
        let ill = until(&mut health, |health| health.route_error.is_some()).await;
        let why = ill.route_error.clone().unwrap();
        assert!(why.contains("`dlq.orders.created`") && why.contains("permissions"), "{why}");
        assert!(!ill.is_healthy());
        assert_eq!(settled(&server.context).await, 0);
        allow(&server, "dlq.>");
        until(&mut health, ConsumerHealth::is_healthy).await;
        eventually("it is settled", async || settled(&server.context).await == 1).await;
    })
    .await;
    assert_eq!(server.count("DLQ").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_who_may_not_fetch_is_told_while_it_runs() {
    const FETCH: &str = "$JS.API.CONSUMER.MSG.NEXT.ORDERS.>";
    if !available() {
        return;
    }
    let without = format!("{{ publish: {{ deny: [\"{FETCH}\", \"$SYS.>\"] }} }}");
    let server = Server::bare(&[("authorization", &users(&without))], "root", "root").await;
    let app: Client = server.connect("app", "app").await;
    let sink = NatsSink::open(&app, DlqStream::new()).await.unwrap();
    server.publish([7]).await;
    let consumer = failing(&app, &billing(), sink).await;
    beside(consumer, async |mut health| {
        let ill = until(&mut health, |health| health.source_error.is_some()).await;
        let why = ill.source_error.clone().unwrap();
        let names = why.contains("`$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing`");
        assert!(names && why.contains("permissions"), "{why}");
        assert!(!ill.is_healthy());
        allow(&server, FETCH);
        until(&mut health, ConsumerHealth::is_healthy).await;
        eventually("it is settled", async || settled(&server.context).await == 1).await;
    })
    .await;
    assert_eq!(server.count("DLQ").await, 1);
}

/// What stands aside of a large record is read one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_who_may_not_read_large_records_is_told() {
    const MOST: usize = 64 * 1024;
    const READS: &str = "$JS.API.STREAM.MSG.GET.DLQ_RETRY";
    if !available() {
        return;
    }
    let may = |more: &str| users(&format!("{{ publish: {{ deny: [\"{READS}\"{more}] }} }}"));
    let server = Server::bare(&[("authorization", &may(""))], "root", "root").await;
    let app = server.connect("app", "app").await;
    let error = billing().source(&app).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
    assert!(error.to_string().contains(READS), "{error}");

    // Where nothing is known at the start.
    let (silent, most) = (may(", \"$SYS.>\""), MOST.to_string());
    let settings = [("authorization", &*silent), ("max_payload", &most)];
    let server = Server::bare(&settings, "root", "root").await;
    let app = server.connect("app", "app").await;
    let queue = billing().retry_queue(&app).await.unwrap();
    let mut source = billing().source(&app).await.unwrap();
    let large = vec![b'1'; MOST - 20];
    server.context.publish("orders.created", large.into()).await.unwrap().await.unwrap();
    let (delivery, settle) = next(&mut source).await;
    let delayed_retry = DelayedRetry {
        delivery,
        consumer: "billing".into(),
        due: Timestamp::EPOCH,
        history: History::default(),
        attempts: 1,
    };
    queue.enqueue(delayed_retry).await.unwrap();
    settle.settle(Disposition::Succeeded).await.unwrap();
    let error = bounded(source.next()).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(text.contains(READS) && text.contains("permissions"), "{text}");
    // It keeps nobody from the rest.
    server.publish([7]).await;
    assert_eq!(number(&bounded(handle(&mut source)).await.unwrap()), 7);
}

/// Another process has the only request that the server keeps, and this one's are dropped without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_requests_that_come_to_nothing_are_told() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let one = pull::Config {
        durable_name: Some("billing".to_owned()),
        filter_subject: "orders.>".to_owned(),
        ack_wait: LEASE,
        max_waiting: 1,
        ..pull::Config::default()
    };
    server.context.get_stream(STREAM).await.unwrap().create_consumer(one).await.unwrap();
    let mut first = server.source(&billing()).await;
    let mut other = server.source(&billing()).await;
    let error = tokio::select! {
        biased;
        heard = first.next() => panic!("there is nothing: {heard:?}"),
        heard = bounded(other.next()) => heard.unwrap_err(),
    };
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("consumer `billing` of stream `ORDERS`"), "{text}");
    assert!(text.contains("MSG.NEXT.ORDERS.billing") && text.contains("`max_waiting`"), "{text}");
    // It asks on.
    first.close().await;
    server.publish([7]).await;
    assert_eq!(number(&bounded(handle(&mut other)).await.unwrap()), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_stream_of_letters_says_which_setting() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let mut config = server.context.get_stream("DLQ").await.unwrap().cached_info().config.clone();
    let roomy = config.clone();
    config.max_bytes = 100;
    server.context.update_stream(config).await.unwrap();
    server.publish([7]).await;
    let consumer = failing(&server.client, &billing(), sink).await;
    beside(consumer, async |mut health| {
        let ill = until(&mut health, |health| health.route_error.is_some()).await;
        let why = ill.route_error.unwrap();
        assert!(why.contains("stream `DLQ` takes no more") && why.contains("`max_bytes`"), "{why}");
        assert_eq!(settled(&server.context).await, 0);
        server.context.update_stream(roomy).await.unwrap();
        until(&mut health, ConsumerHealth::is_healthy).await;
        eventually("it is settled", async || settled(&server.context).await == 1).await;
    })
    .await;
    assert_eq!(server.count("DLQ").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_deleted_is_missed_and_taken_up_again() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let consumer = failing(&server.client, &billing(), sink).await;
    beside(consumer, async |mut health| {
        server.context.delete_stream(STREAM).await.unwrap();
        let ill = until(&mut health, |health| health.source_error.is_some()).await;
        let why = ill.source_error.unwrap();
        assert!(why.contains("there is no stream `ORDERS`"), "{why}");
        server.create_stream().await;
        server.publish([7]).await;
        until(&mut health, ConsumerHealth::is_healthy).await;
        eventually("it is settled", async || settled(&server.context).await == 1).await;
    })
    .await;
    assert_eq!(server.count("DLQ").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_letters_without_a_leader_is_waited_for() {
    let started = tokio::task::block_in_place(|| NatsCluster::builder().ours().start_cluster());
    let Ok(mut cluster) = or_skip(Service::Nats, started) else { return };
    let urls: Vec<String> = cluster.nodes().iter().map(|node| node.url().to_owned()).collect();
    let options = ConnectOptions::new().reconnect_delay_callback(|_| Duration::from_millis(100));
    let client = options.connect(urls).await.unwrap();
    let context = ContextBuilder::new().ack_timeout(Duration::from_secs(2)).build(client.clone());
    // What is consumed lives on one server, which stays; the letters on three, of which two go.
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["orders.>".to_owned()],
        ..stream::Config::default()
    };
    let orders = context.create_stream(config).await.unwrap();
    let leader = orders.cached_info().cluster.as_ref().unwrap().leader.clone().unwrap();
    let stays = leader.strip_prefix('n').unwrap().parse::<usize>().unwrap() - 1;
    let dead = DlqStream::new().replicas(3);
    let sink = NatsSink::open(&context, dead.clone()).await.unwrap();
    let without = billing().without_retries();
    let consumer = failing(&context, &without, sink).await;
    let in_cluster = Deployment::default();
    let findings = in_cluster.check(&client).await.unwrap();
    let about = |subject: &str, setting: &str, findings: &[Finding]| {
        findings.iter().any(|found| found.subject == subject && found.setting == setting)
    };
    assert!(about("stream `ORDERS`", "num_replicas", &findings), "{findings:#?}");
    assert!(about("stream `DLQ`", "num_replicas", &findings), "three are there, one was asked for");
    let _cluster = beside(consumer, async |mut health| {
        let others = [(stays + 1) % 3, (stays + 2) % 3];
        let mut cluster = tokio::task::spawn_blocking(move || {
            for node in others {
                cluster.kill(node).unwrap();
            }
            cluster
        })
        .await
        .unwrap();
        let published = async || {
            let sent = context.publish("orders.created", "7".into()).await;
            match sent {
                Ok(sent) => sent.await.is_ok(),
                Err(_) => false,
            }
        };
        eventually("it is published", published).await;
        let names_it = |why: &String| why.contains("no leader");
        until(&mut health, |health| health.route_error.as_ref().is_some_and(names_it)).await;
        // The server that is left answers alone until it notices that it has no majority.
        let unanswered = async || {
            // The connection may be on its way to it.
            let Ok(findings) = in_cluster.check(&client).await else { return false };
            findings.iter().any(|found| found.setting.starts_with("API request"))
        };
        eventually("the check finds that nobody answers", unanswered).await;
        let cluster = tokio::task::spawn_blocking(move || {
            for node in others {
                cluster.restart(node).unwrap();
            }
            cluster.await_formed().unwrap();
            cluster
        })
        .await
        .unwrap();
        let all = async || try_settled(&context).await > Some(0);
        until(&mut health, ConsumerHealth::is_healthy).await;
        eventually("it is settled", all).await;
        cluster
    })
    .await;
    let letters = NatsLetters::new(&client, dead);
    // The stream's leader may change again while the servers come together.
    let read = async {
        loop {
            match read(&letters, &Filter::new()).await {
                Ok(letters) => break letters,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    let letters = bounded(read).await;
    assert!(!letters.is_empty());
    assert!(letters.iter().all(|read| read.letter.message.payload().unwrap() == "7"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_server_takes_can_die() {
    const MOST: usize = 64 * 1024;
    if !available() {
        return;
    }
    let server = Server::with("max_payload", &MOST.to_string()).await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let long = "v".repeat(16 * 1024);
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", "order-7");
    headers.insert("long", long.as_str());
    headers.insert("odd", "Größe 漢字");
    // As large as the server takes it, to the byte: headers are framed by it.
    let framed = "NATS/1.0\r\n".len() + "\r\n".len();
    let line = |name: &str, value: &str| name.len() + value.len() + ": \r\n".len();
    let lines: usize = headers
        .iter()
        .flat_map(|(name, values)| {
            values.iter().map(move |value| line(name.as_ref(), value.as_str()))
        })
        .sum();
    let room = MOST - framed - lines;
    let publish = async |size: usize| {
        let payload = vec![b'x'; size].into();
        let subject = "orders.created";
        let sent = server.context.publish_with_headers(subject, headers.clone(), payload).await;
        match sent {
            Ok(sent) => sent.await.map(|ack| ack.sequence),
            Err(error) => Err(error),
        }
    };
    assert!(publish(room + 1).await.is_err(), "one byte more is too much");
    assert_eq!(publish(room).await.unwrap(), 1);
    let consumer = failing(&server.client, &billing(), sink).await;
    beside(consumer, async |_| {
        eventually("it is settled", async || settled(&server.context).await == 1).await;
    })
    .await;
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let letters = read(&letters, &Filter::new()).await.unwrap();
    let [read] = &letters[..] else { panic!("{} letters", letters.len()) };
    let message = &read.letter.message;
    assert_eq!(message.payload().map(|payload| payload.len()), Some(room));
    assert_eq!(message.id(), Some("order-7"));
    let header = |name: &str| {
        let found = message.headers().iter().find(|header| header.name == name.as_bytes());
        found.and_then(|header| header.value.clone())
    };
    assert_eq!(header("long").as_deref(), Some(long.as_bytes()));
    assert_eq!(header("odd").as_deref(), Some("Größe 漢字".as_bytes()));
    let failure = read.letter.history.last().unwrap();
    assert_eq!(failure.message(), Hostile.to_string(), "word for word");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_text_breaks_no_header() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    server.publish([1, 2]).await;
    let consumer = failing(&server.client, &billing(), sink).await;
    beside(consumer, async |_| {
        eventually("both are settled", async || settled(&server.context).await == 2).await;
    })
    .await;
    // The text that was sent as one of its lines would have wiped the stream.
    let stored = server.stored("DLQ").await;
    assert_eq!(stored.len(), 2);
    for stored in stored {
        assert!(stored.headers.get("Nats-Rollup").is_none());
        for (name, values) in stored.headers.iter() {
            assert!(values.iter().all(|value| !value.as_str().contains(['\r', '\n'])), "{name}");
        }
    }
}
