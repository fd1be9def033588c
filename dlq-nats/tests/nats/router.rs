//! The event router, beside consumers that are not ours.

mod anew;
mod cluster;
mod expecting;
mod headers;
mod once;
mod rights;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::{AckKind, kv, stream};
use dlq_core::protocol::{Decoded, split};
use dlq_core::{Header, Headers, Position, Reason, StoreErrorKind};
use dlq_nats::router::EventRouterBuilder;
use dlq_nats::router::{MESSAGES_IN_DLQ_TOTAL, RouterConfig, RouterReport};
use dlq_nats::{DlqStream, EventRouter};
use futures_util::StreamExt as _;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
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

async fn consumer(server: &Server, stream: &str, max_deliver: i64) -> PullConsumer {
    let config = pull::Config {
        durable_name: Some("theirs".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: SECOND,
        max_deliver,
        ..pull::Config::default()
    };
    server.context.create_consumer_on_stream(config, stream).await.unwrap()
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
    // It dies again and again with advisories in hand.
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
    let theirs = jobs(&server, 3).await;
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
    assert!(letter.confirmed, "the consumer itself refused it");
}

/// A consumer of a work queue.
async fn jobs(server: &Server, max_deliver: i64) -> PullConsumer {
    let config = stream::Config {
        name: "JOBS".to_owned(),
        subjects: vec!["jobs.>".to_owned()],
        retention: stream::RetentionPolicy::WorkQueue,
        ..stream::Config::default()
    };
    server.context.create_stream(config).await.unwrap();
    consumer(server, "JOBS", max_deliver).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_last_run_that_then_acknowledges_was_not_confirmed_to_have_failed() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let theirs = jobs(&server, 1).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_missing_is_named_at_the_start() {
    if !available() {
        return;
    }
    let denied = [
        ("get", "$JS.API.STREAM.MSG.GET.>"),
        ("next", "$JS.API.CONSUMER.MSG.NEXT.DLQ_ADVISORY.>"),
        ("ack", "$JS.ACK.>"),
        ("users", "$JS.API.STREAM.MSG.GET.USERS"),
    ];
    let user = |(name, subject)| {
        let permissions = format!("{{ publish: {{ deny: [\"{subject}\"] }} }}");
        format!("{{ user: {name}, password: p, permissions: {permissions} }}")
    };
    let users = format!("{{ user: root, password: root }}, {}", denied.map(user).join(", "));
    let users = format!("{{ users: [ {users} ] }}");
    let server = Server::bare(&[("authorization", &users)], "root", "root").await;
    let refused = async |user: &str| {
        let error = EventRouter::builder(server.connect(user, "p").await).open().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
        error.to_string()
    };
    for (user, named) in [
        ("get", "`$JS.API.STREAM.MSG.GET.*`"),
        ("next", "`$JS.API.CONSUMER.MSG.NEXT.DLQ_ADVISORY.dlq-router`"),
        ("ack", "`$JS.ACK.DLQ_ADVISORY.dlq-router.>`"),
        ("users", "`$JS.API.STREAM.MSG.GET.*`"),
    ] {
        let text = refused(user).await;
        assert!(text.contains(named) && text.contains(user), "{text}");
    }
    // What it does not watch it need not read.
    let orders = EventRouter::builder(server.connect("users", "p").await).stream(STREAM);
    drop(orders.open().await.unwrap());
}

/// Built once; skipped aloud where there is no Go.
fn foreign() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign");
    let mut build = Command::new("go");
    build.arg("build").arg("-o").arg(&program).arg(".").current_dir(source);
    match build.status() {
        Ok(status) => {
            assert!(status.success(), "the foreign consumer does not build");
            Some(program)
        }
        Err(error) => {
            let required = std::env::var("DLQ_TEST_REQUIRE").is_ok_and(|all| all.contains("nats"));
            assert!(!required, "go cannot be run: {error}");
            println!("skipped: go cannot be run: {error}");
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_every_message_of_a_foreign_consumer_succeeds_or_has_exactly_one_letter() {
    const MESSAGES: u64 = 200;
    if !available() {
        return;
    }
    let Some(program) = tokio::task::block_in_place(foreign) else { return };
    let server = Server::start().await;
    let kind = |n: u64| match n {
        40 | 80 | 120 => "die",
        n if n % 10 == 3 => "fail",
        n if n % 10 == 7 => "term",
        _ => "ok",
    };
    for n in 0..MESSAGES {
        let payload = format!("{} {n}", kind(n));
        server.context.publish("orders.created", payload.into()).await.unwrap().await.unwrap();
    }
    let url = server.running().url().to_owned();
    let mut router = Routing::start(&server).await;
    let (mut succeeded, mut runs, mut kills) = (Vec::new(), 0, 0);
    loop {
        let (program, url) = (program.clone(), url.clone());
        let run = move || Command::new(program).args([&url, STREAM, "foreign"]).output().unwrap();
        let run = tokio::task::spawn_blocking(run);
        if runs % 3 == 1 {
            // The router dies while the consumer works.
            sleep(SECOND / 20).await;
            router.kill().await;
            kills += 1;
            router = Routing::start(&server).await;
        }
        let output = timeout(PATIENCE, run).await.expect("it ends").unwrap();
        runs += 1;
        succeeded.extend(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned));
        if output.status.success() {
            break;
        }
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.is_empty() && runs < 40, "run {runs}: {error}");
    }
    let dead = (0..MESSAGES).filter(|n| kind(*n) != "ok").count() as u64;
    Letter::until(&server, dead).await;
    let report = router.stop().await;
    let letters = Letter::all(&server).await;
    for n in 0..MESSAGES {
        let payload = format!("{} {n}", kind(n));
        let letter = letters.get(&payload);
        if kind(n) == "ok" {
            assert!(succeeded.contains(&payload) && letter.is_none(), "{payload}");
            continue;
        }
        assert!(!succeeded.contains(&payload), "{payload}");
        let letter = letter.unwrap_or_else(|| panic!("`{payload}` has no letter"));
        assert_eq!(letter.subject, "dlq.orders.created");
        assert_eq!(letter.says.original.offset, Some(Position::Offset(n + 1)), "{payload}");
        let reason = if kind(n) == "term" { Reason::Permanent } else { Reason::MaxDeliveries };
        assert_eq!(letter.says.reason, Some(reason), "{payload}");
        assert_eq!(letter.deliveries, if kind(n) == "term" { 1 } else { 3 }, "{payload}");
    }
    assert_eq!(letters.len() as u64, dead);
    println!(
        "{MESSAGES} messages, {runs} runs of the consumer, {kills} kills of the router: {} succeeded, {} letters ({report})",
        succeeded.len(),
        letters.len()
    );
}

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
        ack_wait: SECOND,
        filter_subject: "queue.>".to_owned(),
        ..pull::Config::default()
    };
    let worker: PullConsumer = queue.create_consumer(config).await.unwrap();
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_ear_has_heard_of_is_found_in_a_work_queue() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    exhausted_unheard(&server, "queue.x").await;
    // No window: a second copy would be there to see.
    let dead = DlqStream::new().with_duplicate_window(SECOND / 10);
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
