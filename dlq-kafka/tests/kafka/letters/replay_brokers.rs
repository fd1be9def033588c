//! A replay whose brokers go away, or are behind.

use std::io::{BufRead as _, BufReader};
use std::sync::mpsc;
use std::time::Duration;

use dlq_core::{Filter, Status};
use dlq_kafka::ReplayOutcome;
use dlq_kafka::rdkafka::admin::{NewTopic, TopicReplication};
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_services::{Cluster, Service, or_skip};
use futures_util::future::join;

use super::replay_killed::{LAST_COMMIT, LETTERS, RATE, finish, start};
use crate::fixture::{available, start_with};
use crate::fixture_reading::Look as _;
use crate::fixture_replay::{PATIENCE, Shop, to_origin};
use crate::topic;

/// How long a replay is watched that must not end.
const WATCHED: Duration = Duration::from_millis(1_500);
const STATES: &str = "__transaction_state";

pub(super) fn three(settings: &[(&str, &str)]) -> Option<Cluster> {
    let builder = Service::Kafka.builder().ours();
    let builder =
        settings.iter().fold(builder, |builder, (name, value)| builder.setting(*name, *value));
    let cluster = tokio::task::block_in_place(|| builder.start_cluster());
    or_skip(Service::Kafka, cluster).ok()
}

/// The id of the broker that leads a partition, once there is one.
pub(super) fn leader(shop: &Shop, topic: &str, partition: i32) -> i32 {
    let client: BaseConsumer = shop.config().create().unwrap();
    let metadata =
        tokio::task::block_in_place(|| client.fetch_metadata(Some(topic), PATIENCE)).unwrap();
    let partitions = metadata.topics()[0].partitions();
    partitions.iter().find(|found| found.id() == partition).unwrap().leader()
}

/// The id of the broker that decides about transactions of these letters. They have to have been asked for before.
fn coordinator(shop: &Shop) -> i32 {
    let id = format!("dlq-replay.{}", shop.dlq);
    let hash =
        id.bytes().fold(0_i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte)));
    // Of that topic there are five partitions here.
    leader(shop, STATES, (hash.unsigned_abs() % 5).cast_signed())
}

/// The index of a broker among the nodes.
pub(super) fn node(id: i32) -> usize {
    usize::try_from(id).unwrap() - 1
}

pub(super) async fn make(
    shop: &Shop,
    name: &str,
    partitions: i32,
    replication: TopicReplication<'_>,
) {
    let mut new = NewTopic::new(name, partitions, replication);
    if name.ends_with(".replays") {
        new = new.set("cleanup.policy", "compact");
    }
    topic::make(&shop.url, &new).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_after_a_replay_sees_everything_that_it_sent() {
    if !available() {
        return;
    }
    // What decides about transactions waits for no other broker.
    let settings =
        [("transaction.state.log.replication.factor", "1"), ("transaction.state.log.min.isr", "1")];
    let Some(mut cluster) = three(&settings) else { return };
    let shop = Shop::at(cluster.url(), "shown");
    // Something has to be sent before it is known who decides.
    let first = Shop::at(cluster.url(), "first");
    for name in [&shop.topic, &first.topic] {
        make(&shop, name, 3, TopicReplication::Fixed(1)).await;
    }
    for name in [&shop.dlq, &first.dlq] {
        make(&shop, name, 2, TopicReplication::Fixed(1)).await;
    }
    finish_one(&first).await;
    let decides = coordinator(&shop);
    let other = (1..=3).find(|id| *id != decides).unwrap();
    let ledger = format!("{}.replays", shop.dlq);
    make(&shop, &ledger, 1, TopicReplication::Variable(&[&[other]])).await;
    assert_eq!(leader(&shop, &ledger, 0), other);
    shop.bury(&shop.dead(0..LETTERS)).await;

    // It stops the broker of the ledger just before it commits: that is decided elsewhere, and not seen here.
    let stopped = cluster.nodes()[node(other)].process_id().unwrap();
    let mut child = start(&shop.url, &shop.topic, LAST_COMMIT, "-STOP", 0, stopped);
    let output = BufReader::new(child.stdout.take().unwrap());
    let (tell, said) = mpsc::channel();
    let reading = std::thread::spawn(move || {
        output.lines().map_while(Result::ok).for_each(|line| drop(tell.send(line)));
    });
    let until = |word: &str, patience: Duration| {
        tokio::task::block_in_place(|| {
            while let Ok(line) = said.recv_timeout(patience) {
                if line.starts_with(word) {
                    return true;
                }
            }
            false
        })
    };
    assert!(until("step: the transaction is to be committed", PATIENCE));
    assert!(!until("ended: ", WATCHED), "it has ended, and nobody sees what it sent");
    cluster.resume(node(other)).unwrap();
    assert!(until(&format!("ended: {LETTERS}"), PATIENCE));
    let sent = Filter::new().with_status(Status::Sent);
    assert_eq!(shop.letters().count(sent).await.unwrap(), u64::from(LETTERS));
    child.wait().unwrap();
    reading.join().unwrap();
}

/// Sends letters back, all of them.
async fn finish_one(shop: &Shop) {
    shop.bury(&shop.dead(0..LETTERS)).await;
    finish(shop, "nobody").await;
}

/// Sends letters back, does this after the first ones, and has another replay send what was left.
async fn interrupted(shop: &Shop, interrupt: impl FnOnce() + Send) {
    shop.bury(&shop.dead(0..LETTERS)).await;
    let (tell, told) = tokio::sync::oneshot::channel();
    let mut tell = Some(tell);
    let letters = shop.letters();
    let replay = to_origin(&letters, 1).rate(RATE);
    let running = replay.run(std::future::pending(), |replayed| {
        let is_sent = matches!(replayed.outcome, ReplayOutcome::Sent);
        if let Some(tell) = tell.take_if(|_| is_sent) {
            tell.send(()).unwrap();
        }
    });
    let interrupting = async {
        told.await.unwrap();
        // Not while the end of a transaction is being written: a broker that is started again may take it for written in
        // partitions that have no leader then, and never ends it (KAFKA-20734).
        tokio::time::sleep(Duration::from_millis(100)).await;
        tokio::task::block_in_place(interrupt);
    };
    // Whether it has come to its end does not matter.
    let (report, ()) = join(tokio::time::timeout(PATIENCE * 3, running), interrupting).await;
    let report = report.unwrap().unwrap();
    assert!(report.sent > 0, "{report}");
    let rest = finish(shop, "a broker").await;
    assert_eq!(report.sent + rest, u64::from(LETTERS), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_one_of_three_brokers_dies_in_the_middle_and_each_letter_arrives_once() {
    if !available() {
        return;
    }
    let Some(mut cluster) = three(&[]) else { return };
    let shop = Shop::at(cluster.url(), "one-of-three");
    let first = Shop::at(cluster.url(), "before");
    for name in [&shop.topic, &first.topic] {
        make(&shop, name, 3, TopicReplication::Fixed(3)).await;
    }
    for name in [&shop.dlq, &first.dlq] {
        make(&shop, name, 2, TopicReplication::Fixed(3)).await;
    }
    finish_one(&first).await;
    // The one that decides about the transactions.
    let decides = node(coordinator(&shop));
    interrupted(&shop, || cluster.kill(decides).unwrap()).await;
    tokio::task::block_in_place(|| cluster.restart(decides)).unwrap();
    shop.assert_once(0..LETTERS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_the_only_broker_dies_in_the_middle_and_each_letter_arrives_once() {
    if !available() {
        return;
    }
    let mut broker = start_with(&[]);
    let shop = Shop::at(broker.url().to_owned(), "only-one");
    make(&shop, &shop.topic, 3, TopicReplication::Fixed(1)).await;
    make(&shop, &shop.dlq, 2, TopicReplication::Fixed(1)).await;
    interrupted(&shop, || broker.restart().unwrap()).await;
    assert_eq!(broker.starts(), 2, "it was really killed");
}
