//! Letters of a store go back to the subjects that they came from.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dlq_core::store::{Letters as _, Maintenance as _, Processed, Sink as _};
use dlq_core::{DeadLetter, DeadLetters, Filter, Message, Origin, PageRequest, Position, Status};
use dlq_nats::async_nats::HeaderMap;
use dlq_nats::async_nats::jetstream::consumer::pull;
use dlq_nats::async_nats::jetstream::stream;
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::letter_of;
use tokio::time::{sleep, timeout};

use crate::common::{Ran, dlq};
use crate::fixture::{Bench, PATIENCE};
use crate::process::Process;
#[cfg(feature = "postgres")]
use crate::schema::Schema;

/// A consumer in Python. Killed when it is dropped.
struct Python(Child);

impl Python {
    fn start(bench: &Bench, stream: &str) -> Self {
        let address = bench.host().rsplit('/').next().unwrap();
        let (host, port) = address.rsplit_once(':').unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nats/consumer.py");
        let child = Command::new("python3")
            .args([script, host, port, stream, "shipping", &bench.file("fixed")])
            .arg(bench.file("handled"))
            .stdin(Stdio::null())
            .spawn();
        Self(child.expect("python3 is there"))
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn until<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE * 2, looking).await.expect("it comes true")
}

fn run(args: &[&str]) -> Ran {
    tokio::task::block_in_place(|| dlq(args).output().unwrap().into())
}

/// The flow that event routers are for: a consumer in another language gives a message up, the router writes its letter into a
/// store, somebody mends the consumer and sends the letter back by its event, and the consumer handles it.
async fn what_a_foreign_consumer_gave_up_goes_back(
    bench: &Bench,
    into: &str,
    open: impl AsyncFn() -> DeadLetters,
) {
    let name = format!("{}_WORK", bench.name.to_uppercase());
    let subjects = vec![format!("{}.>", name.to_lowercase())];
    let config = stream::Config { name: name.clone(), subjects, ..stream::Config::default() };
    let kept = bench.context.create_stream(config).await.unwrap();
    let config = pull::Config {
        durable_name: Some("shipping".to_owned()),
        max_deliver: 2,
        ack_wait: PATIENCE * 2,
        ..pull::Config::default()
    };
    kept.create_consumer(config).await.unwrap();
    // A stream of letters of its own, or tests that run at the same time would share their subjects.
    bench.put(Vec::new()).await;
    let from = bench.url();
    let args = ["route", "--from", &from, "--stream", &name, "--into", into];
    let mut command = dlq(&args);
    command.env("DLQ_ROUTE_SWEEP_EVERY", "250ms");
    let mut router = Process::start(command);
    router.says("routing what the consumers of");
    let _python = Python::start(bench, &name);
    for (id, payload) in [("evt_abc", "bad 1"), ("evt_def", "bad 2"), ("evt_ghi", "good")] {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", id);
        let subject = format!("{}.parcel", name.to_lowercase());
        let sent = bench.context.publish_with_headers(subject, headers, payload.into()).await;
        sent.unwrap().await.unwrap();
    }
    let store = until(async || {
        let store = open().await;
        (store.count(Filter::new()).await.ok()? == 2).then_some(store)
    })
    .await;
    let rows = until(async || {
        let rows = store.store().processed(10).await.unwrap();
        (rows.len() >= 2).then_some(rows)
    })
    .await;
    assert!(rows.iter().all(|row| row.status == Processed::Dlq), "{rows:?}");

    std::fs::write(bench.file("fixed"), "").unwrap();
    let via = bench.host();
    let refused = run(&["replay", "--from", into, "--event-id", "evt_abc", "--to", "origin", "-y"]);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("--via"), "{}", refused.err);
    let args = ["replay", "--from", into, "--event-id", "evt_abc", "--to", "origin", "--via", via];
    let ran = run(&[&args[..], &["-y", "-o", "json"]].concat()).ok();
    assert_eq!(ran.json()["progress"]["by_outcome"]["sent"], 1, "{}", ran.err);
    let handled = bench.file("handled");
    until(async || {
        let text = std::fs::read_to_string(&handled).unwrap_or_default();
        text.contains("bad 1\n").then_some(())
    })
    .await;
    let found = store.find("evt_abc").await.unwrap();
    assert_eq!(found.len(), 1);
    let state = &found[0].state;
    assert_eq!((state.status, state.retry_count, state.replays), (Status::Sent, 1, 1));
    assert!(state.last_retry_at.is_some());
    let other = store.find("evt_def").await.unwrap();
    assert_eq!(other[0].state.status, Status::Pending);

    // The others by a filter, to the broker of the configuration file; what was sent stays.
    let config = bench.file("dlq.toml");
    let cluster = format!("[clusters.here]\nurl = \"{via}\"\nalias = \"default\"\n");
    std::fs::write(&config, cluster).unwrap();
    let subject = format!("{}.*", name.to_lowercase());
    let args = ["replay", "--from", into, "--subject", &subject, "--since", "1h", "--to", "origin"];
    let args = [&args[..], &["--rate", "50/s", "-y", "-o", "json"]].concat();
    let output = || dlq(&args).env("DLQ_CONFIG", &config).output().unwrap();
    let ran = Ran::from(tokio::task::block_in_place(output)).ok();
    assert_eq!(ran.json()["progress"]["total"], 1, "{}", ran.err);
    until(async || {
        let text = std::fs::read_to_string(&handled).unwrap_or_default();
        text.contains("bad 2\n").then_some(())
    })
    .await;
    let text = std::fs::read_to_string(&handled).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["bad 1", "bad 2", "good"], "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_routers_letter_goes_back_from_sqlite() {
    let Some(bench) = Bench::new("tosqlite").await else { return };
    let into = bench.store_url();
    let file = bench.file("dlq.db");
    let open = async || DeadLetters::new(SqliteStore::open(&file).await.unwrap());
    what_a_foreign_consumer_gave_up_goes_back(&bench, &into, open).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_routers_letter_goes_back_from_postgres() {
    let Some(schema) = tokio::task::block_in_place(|| Schema::new("to_origin")) else { return };
    let Some(bench) = Bench::new("topostgres").await else { return };
    let open = async || DeadLetters::new(schema.store().await);
    what_a_foreign_consumer_gave_up_goes_back(&bench, &schema.url(), open).await;
}

/// Letters that were born at this server, under subjects of a stream.
fn born(bench: &Bench, count: u64) -> Vec<DeadLetter> {
    let at = |n| {
        let message = Message::new(format!("{}.created", bench.name), format!("{n}"));
        let mut letter = letter_of(message.with_id(format!("evt-{n}")).with_key("k"), n);
        letter.origin = Origin::new("nats", bench.name.clone(), Position::Offset(n + 1));
        letter
    };
    (0..count).map(at).collect()
}

/// One process sends and is killed, another goes on; a letter of another cluster is skipped and named.
#[tokio::test(flavor = "multi_thread")]
async fn g6_senders_that_are_killed_send_each_letter_once() {
    let Some(bench) = Bench::new("killedsends").await else { return };
    let subjects = vec![format!("{}.created", bench.name)];
    let config = stream::Config { name: bench.name.clone(), subjects, ..stream::Config::default() };
    let mut kept = bench.context.create_stream(config).await.unwrap();
    let store = SqliteStore::open(bench.file("dlq.db")).await.unwrap();
    let mut letters = born(&bench, 400);
    let mut elsewhere = letters.pop().unwrap();
    elsewhere.origin = elsewhere.origin.with_cluster("eu");
    letters.push(elsewhere.clone());
    store.put(letters.clone()).await.unwrap();
    let (from, via) = (bench.store_url(), bench.host());
    let args = [
        "replay", "--from", &from, "--all", "--to", "origin", "--via", via, "--rate", "200/s", "-y",
    ];
    let lease = ["--send-lease", "5s", "--via-key-header", "key"];
    let mut process = Process::start(dlq(&[&args[..], &lease[..]].concat()));
    process.says("which this process sends");
    let begun = until(async || (kept.info().await.unwrap().state.messages > 20).then_some(()));
    if timeout(PATIENCE, begun).await.is_err() {
        panic!("nothing is sent: {}", process.kill());
    }
    process.kill();
    let store = DeadLetters::new(store);
    let id = store.operations(1).await.unwrap()[0].id.to_string();
    let send = ["op", "send", &id, "--from", &from, "--via", via, "-o", "json"];
    let ran = run(&[&send[..], &lease[..]].concat());
    assert_eq!(ran.code, 3, "one letter is skipped: {}", ran.err);
    assert!(ran.err.contains("eu"), "{}", ran.err);
    assert_eq!(ran.json()["progress"]["by_outcome"]["sent"], 399, "{}", ran.err);
    assert_eq!(kept.info().await.unwrap().state.messages, 399, "each once");
    let page = PageRequest::new().limit(1);
    let pending = store.list(Filter::new().with_status(Status::Pending), page).await.unwrap();
    assert_eq!(pending.letters[0].id, elsewhere.id);
    let whole = store.store().get(letters[0].id).await.unwrap().unwrap();
    assert_eq!((whole.state.status, whole.state.replays), (Status::Sent, 1));
}
