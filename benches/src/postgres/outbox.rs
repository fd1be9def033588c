//! Letters of the store sent to their origins, beside a claim and completion of as many: both write each row twice.

use std::future::pending;
use std::time::Duration;

use async_nats::jetstream;
use dlq_core::outbox::{Dispatcher, Outbox, Outboxes};
use dlq_core::store::{
    Actor, BoxStore, Cluster, OperationSpec, Operations as _, Sink as _, Target,
};
use dlq_core::{DeadLetter, Filter, Message, Origin, Position};
use dlq_kafka::{Brokers, KafkaOutbox};
use dlq_nats::NatsOutbox;
use dlq_services::{Service, ensure_installed, or_skip};

use super::claim::{drain, due};
use super::{Bench, Failed, show, timed, with_server};
use crate::kafka::create_topic;
use crate::letters::letter;
use crate::measure::Size;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count: u64 = size.pick(1_000, 50_000);
    with_server(|bench| measure(bench, count))
}

async fn measure(mut bench: Bench, count: u64) -> Result<(), Failed> {
    let store = bench.store.clone();
    let mut claimed = Duration::MAX;
    for _ in 0..2 {
        bench.empty().await?;
        due(&store, 0..count).await?;
        claimed = timed(drain(&store, 500)).await?.min(claimed);
    }
    let claim = show("claim and complete, 500 at a time", claimed, count);

    if or_skip(Service::Nats, ensure_installed(Service::Nats)).is_ok() {
        let server = Service::Nats.builder().ours().start()?;
        let context = jetstream::new(async_nats::connect(server.url()).await?);
        context
            .create_stream(jetstream::stream::Config {
                name: "BACK".to_owned(),
                subjects: vec!["back.>".to_owned()],
                ..Default::default()
            })
            .await?;
        let origin = |n| Origin::new("nats", "BACK", Position::Offset(n + 1));
        let letters = letters(count, "back.orders", origin);
        let sent = send(&mut bench, letters, NatsOutbox::new(&context).key_header("key")).await?;
        let rate = show("sent to NATS", sent, count);
        println!("ratio to claim and complete: {:.2}", rate / claim);
    }

    if or_skip(Service::Kafka, ensure_installed(Service::Kafka)).is_ok() {
        let server = Service::Kafka.builder().start()?;
        let brokers = Brokers::at(server.url());
        let origin = |n| Origin::new("kafka", "back", Position::Offset(n)).with_partition(0);
        // A replay creates no topic: letters to one that is gone are refused.
        create_topic(server.url(), "back").await?;
        let letters = letters(count, "back", origin);
        let outbox = KafkaOutbox::open(&brokers, "bench.outbox").await?;
        let sent = send(&mut bench, letters, outbox).await?;
        let rate = show("sent to Kafka", sent, count);
        println!("ratio to claim and complete: {:.2}", rate / claim);
    }
    Ok(())
}

fn letters(count: u64, subject: &str, origin: impl Fn(u64) -> Origin) -> Vec<DeadLetter> {
    let letter = |n| {
        let mut letter = letter(n, 1024);
        let payload = letter.message.payload().cloned();
        letter.message =
            Message::tombstone(subject).with_payload(payload).with_key(format!("k-{n}"));
        letter.origin = origin(n);
        letter
    };
    (0..count).map(letter).collect()
}

/// Measures sending all of these letters to their origin.
async fn send(
    bench: &mut Bench,
    letters: Vec<DeadLetter>,
    outbox: impl Outbox,
) -> Result<Duration, Failed> {
    bench.empty().await?;
    let (store, count) = (bench.store.clone(), letters.len() as u64);
    for some in letters.chunks(1_000) {
        store.put(some.to_vec()).await?;
    }
    let cluster = Cluster::new(outbox.transport(), outbox.cluster());
    let spec = OperationSpec::replay(Filter::new()).target(Target::Origin, [cluster]);
    let operation = store.start(spec, Actor::new("bench")).await?;
    let mut outboxes = Outboxes::new();
    outboxes.add(outbox)?;
    let dispatcher = Dispatcher::new(BoxStore::new(store), outboxes);
    let mut confirmed = 0;
    let time = timed(async {
        let sent = dispatcher.run(operation.id, pending(), |_| {}).await?;
        confirmed = sent.confirmed;
        if sent.refused > 0 {
            return Err(format!("{} letters were refused", sent.refused).into());
        }
        Ok(())
    })
    .await?;
    if confirmed != count {
        return Err(format!("{confirmed} of {count} letters were sent").into());
    }
    Ok(time)
}
