//! Letters in PostgreSQL, half from NATS and half from Kafka, are sent to their origins by two processes at once, of which
//! one is killed again and again: each arrives once. `DLQ_SENDS` and `DLQ_KILLS` make it longer.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::store::{ItemOutcome, Sink as _};
use dlq_core::{DeadLetters, Filter, Message, OperationId, Origin, Position, Status};
use dlq_nats::async_nats::{connect, jetstream};
use dlq_services::{Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::letter_of;
use tokio::time::{sleep, timeout};

use crate::common::dlq;
use crate::fixture::{Bench, PATIENCE};
use crate::process::Process;
use crate::schema::Schema;
use crate::to_origin::of_topic;

#[tokio::test(flavor = "multi_thread")]
async fn g6_two_senders_of_which_one_is_killed_send_each_letter_once() {
    let number = |name: &str, or: u64| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let (count, kills) = (number("DLQ_SENDS", 1_000), number("DLQ_KILLS", 4));
    let Some(schema) = tokio::task::block_in_place(|| Schema::new("senders")) else { return };
    let Some(bench) = Bench::new("killedsenders").await else { return };
    let installed = tokio::task::block_in_place(|| ensure_installed(Service::Nats));
    let Ok(()) = or_skip(Service::Nats, installed).map(|_| ()) else { return };
    let nats = tokio::task::block_in_place(|| Service::Nats.builder().ours().start().unwrap());
    bench.create(&bench.source, 2).await;
    let context = jetstream::new(connect(nats.url()).await.unwrap());
    let subjects = vec!["back.>".to_owned()];
    let config = jetstream::stream::Config { name: "BACK".into(), subjects, ..Default::default() };
    let mut stream = context.create_stream(config).await.unwrap();

    let store = schema.store().await;
    let mut letters = of_topic(&bench.source, (0..count).filter(|n| n % 2 == 0));
    letters.extend((0..count).filter(|n| n % 2 == 1).map(|n| {
        let mut letter = letter_of(Message::new("back.orders", n.to_string()), n);
        letter.origin = Origin::new("nats", "BACK", Position::Offset(n + 1));
        letter
    }));
    for some in letters.chunks(500) {
        store.put(some.to_vec()).await.unwrap();
    }
    let (from, kafka, host) = (schema.url(), format!("kafka://{}", bench.host), nats.url());
    let via = ["--from", &from, "--via", &kafka, "--via", host, "--send-lease", "5s", "-o", "json"];
    let rate = format!("{}/s", (count / 10).max(20));
    let begin = ["replay", "--all", "--to", "origin", "-y", "--rate", &rate];
    let mut first = Process::start(dlq(&[&begin[..], &via[..]].concat()));
    first.says("which this process sends");
    let store = DeadLetters::new(store);
    let operation = store.operations(1).await.unwrap()[0].id;
    let id = operation.to_string();
    let send = [&["op", "send", &id][..], &via[..]].concat();
    let second = Process::start(dlq(&send));
    let mut killed = first;
    for kill in 1..=kills {
        sent(&store, operation, count * kill / (kills + 1)).await;
        killed.kill();
        killed = Process::start(dlq(&send));
    }
    for process in [killed, second] {
        let ran = process.end();
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    let operation = store.operation(operation).await.unwrap();
    assert_eq!(operation.progress.with_outcome(ItemOutcome::Sent), count, "{operation:?}");
    let mut arrived: BTreeMap<String, usize> = BTreeMap::new();
    for (key, _) in bench.records(&bench.source) {
        *arrived.entry(key).or_default() += 1;
    }
    assert_eq!(arrived.len() as u64, count / 2, "each");
    assert!(arrived.values().all(|times| *times == 1), "once: {arrived:?}");
    assert_eq!(stream.info().await.unwrap().state.messages, count / 2, "each once");
    let worn = Filter::new().with_status(Status::Sent);
    assert_eq!(store.count(worn).await.unwrap(), count);
    let whole = store.get(letters[0].id).await.unwrap();
    assert_eq!((whole.state.replays, whole.state.retry_count), (1, 1));
}

/// Waits until so many letters are sent.
async fn sent(store: &DeadLetters, operation: OperationId, count: u64) {
    let until = async {
        while store.operation(operation).await.unwrap().progress.with_outcome(ItemOutcome::Sent)
            < count
        {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE * 5, until).await.expect("letters are sent");
}
