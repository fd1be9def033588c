//! Letters on their way back while the broker or the database is away, or while a sender stands still.

use std::time::Duration;

use dlq_core::store::{
    Actor, Cluster, ItemOutcome, OperationSpec, OperationState, Sink as _, Target,
};
use dlq_core::{DeadLetter, DeadLetters, Filter, Message, OperationId, Origin, Position};
use dlq_nats::async_nats::jetstream::{self, stream};
use dlq_nats::async_nats::{self, connect};
use dlq_services::{Running, Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::letter_of;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use crate::common::dlq;
use crate::fixture::PATIENCE;
use crate::process::Process;
use crate::schema::Schema;

const COUNT: u64 = 300;

/// A server of this test alone, which it may kill.
fn own(service: Service) -> Option<Running> {
    block_in_place(|| {
        or_skip(service, ensure_installed(service)).ok()?;
        Some(service.builder().ours().start().unwrap())
    })
}

/// A stream, and letters in a store of messages that were born there.
struct Bench {
    nats: Running,
    postgres: Running,
    schema: Schema,
}

impl Bench {
    async fn new(name: &str) -> Option<Self> {
        let (nats, postgres) = (own(Service::Nats)?, own(Service::Postgres)?);
        let schema = Schema::at(postgres.url(), name);
        let bench = Self { nats, postgres, schema };
        let config = stream::Config {
            name: "BACK".to_owned(),
            subjects: vec!["back.>".to_owned()],
            ..stream::Config::default()
        };
        bench.context().await.create_stream(config).await.unwrap();
        let letter = |n: u64| -> DeadLetter {
            let mut letter = letter_of(Message::new("back.orders", n.to_string()), n);
            letter.origin = Origin::new("nats", "BACK", Position::Offset(n + 1));
            letter
        };
        bench.schema.store().await.put((0..COUNT).map(letter).collect()).await.unwrap();
        Some(bench)
    }

    async fn context(&self) -> jetstream::Context {
        jetstream::new(connect(self.nats.url()).await.unwrap())
    }

    async fn letters(&self) -> DeadLetters {
        DeadLetters::new(self.schema.store().await)
    }

    fn start(&self, args: &[&str], lease: &str) -> Process {
        let from = self.schema.url();
        let via = ["--from", &from, "--via", self.nats.url(), "--send-lease", lease, "-o", "json"];
        Process::start(dlq(&[args, &via[..]].concat()))
    }

    /// Begins to send all letters, slowly enough for something to happen meanwhile.
    async fn begin(&self, lease: &str) -> (Process, OperationId) {
        let args = ["replay", "--all", "--to", "origin", "-y", "--rate", "100/s"];
        let mut sender = self.start(&args, lease);
        sender.says("which this process sends");
        let operation = self.letters().await.operations(1).await.unwrap()[0].id;
        self.until(|operation| operation.progress.with_outcome(ItemOutcome::Sent) >= 50).await;
        (sender, operation)
    }

    async fn until(&self, is_so: impl Fn(&dlq_core::store::Operation) -> bool) {
        let letters = self.letters().await;
        let until = async {
            while !is_so(&letters.operations(1).await.unwrap()[0]) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE * 2, until).await.expect("letters are sent");
    }

    /// Every letter is `sent`, and is in the stream once.
    async fn each_once(&self) {
        let operation = self.letters().await.operations(1).await.unwrap().remove(0);
        assert_eq!(operation.state, OperationState::Completed, "{operation:?}");
        assert_eq!(operation.progress.with_outcome(ItemOutcome::Sent), COUNT, "{operation:?}");
        let mut stream = self.context().await.get_stream("BACK").await.unwrap();
        assert_eq!(stream.info().await.unwrap().state.messages, COUNT, "each once");
        let mut payloads = std::collections::BTreeSet::new();
        for sequence in 1..=COUNT {
            let message: async_nats::jetstream::message::StreamMessage =
                stream.get_raw_message(sequence).await.unwrap();
            payloads.insert(message.payload);
        }
        assert_eq!(payloads.len() as u64, COUNT, "each of them");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g6_a_broker_that_goes_away_gets_each_letter_once() {
    let Some(mut bench) = Bench::new("broker_away").await else { return };
    let (sender, _) = bench.begin("5s").await;
    block_in_place(|| bench.nats.kill()).unwrap();
    // A sender that has letters in flight now waits for the broker, or for the end of their lease.
    sleep(Duration::from_secs(1)).await;
    block_in_place(|| bench.nats.restart()).unwrap();
    assert_eq!(bench.nats.starts(), 2);
    let ran = sender.end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    bench.each_once().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g6_letters_of_a_database_that_goes_away_are_sent_once() {
    let Some(mut bench) = Bench::new("database_away").await else { return };
    let (sender, _) = bench.begin("5s").await;
    block_in_place(|| bench.postgres.kill()).unwrap();
    sleep(Duration::from_secs(1)).await;
    block_in_place(|| bench.postgres.restart()).unwrap();
    assert_eq!(bench.postgres.starts(), 2);
    let ran = sender.end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    bench.each_once().await;
}

/// A sender is stopped past its lease, another takes its letters over, and the first goes on.
#[tokio::test(flavor = "multi_thread")]
async fn g6_a_sender_that_stood_still_past_its_lease_repeats_nothing() {
    let Some(bench) = Bench::new("stopped_sender").await else { return };
    let (first, operation) = bench.begin("2s").await;
    first.signal("-STOP");
    let second = bench.start(&["op", "send", &operation.to_string()], "2s");
    bench.until(|operation| operation.progress.with_outcome(ItemOutcome::Sent) >= 200).await;
    first.signal("-CONT");
    for sender in [first, second] {
        let ran = sender.end();
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    bench.each_once().await;
}

/// A server that sends letters and was started while the database was away sends them once it is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_without_its_store_sends_once_it_is_there() {
    let Some(mut bench) = Bench::new("away_at_start").await else { return };
    let spec = OperationSpec::replay(Filter::new())
        .target(Target::Origin, [Cluster::new("nats", "default")]);
    bench.letters().await.replay(spec, Actor::new("ana")).await.unwrap();
    block_in_place(|| bench.postgres.kill()).unwrap();
    let mut server = bench.start(&["serve", "--replay", "--metrics", "127.0.0.1:0"], "5s");
    server.says("sending begins once the store answers");
    block_in_place(|| bench.postgres.restart()).unwrap();
    bench.until(|operation| operation.state == OperationState::Completed).await;
    server.signal("-TERM");
    server.end().ok();
    bench.each_once().await;
}
