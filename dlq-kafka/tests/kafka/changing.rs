//! Topics that are no longer what they were when their consumer began.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::Source as _;
use dlq_kafka::rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use dlq_kafka::rdkafka::client::DefaultClientContext;
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use dlq_kafka::rdkafka::{Offset, TopicPartitionList};
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, Place, available, handle, number};
use crate::topic;

/// One whose clients hear soon of what has become of its topic.
async fn place(name: &str) -> Place {
    let mut place = Place::with_partitions(name, 1).await;
    place.brokers = place.brokers.with("topic.metadata.refresh.interval.ms", "200");
    place
}

/// Waits until the group has committed this of a partition.
async fn until_committed(place: &Place, partition: i32, position: i64) {
    let group = format!("{}-billing", place.topic);
    let asking: BaseConsumer = place.config().set("group.id", group).create().unwrap();
    let committed = || {
        let mut list = TopicPartitionList::new();
        list.add_partition(&place.topic, partition);
        let found = tokio::task::block_in_place(|| asking.committed_offsets(list, PATIENCE));
        found.unwrap().elements()[0].offset()
    };
    let reached = async {
        while committed() != Offset::Offset(position) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let reached = timeout(PATIENCE, reached).await;
    assert!(reached.is_ok(), "committed is {:?}, not {position}", committed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_are_added_are_read_from_their_beginning() {
    if !available() {
        return;
    }
    let place = place("added").await;
    let mut source = place.billing().source().await.unwrap();
    place.publish([1]).await;
    assert_eq!(number(&handle(&mut source).await), 1);
    let admin: AdminClient<DefaultClientContext> = place.config().create().unwrap();
    let more = NewPartitions::new(&place.topic, 4);
    let made = admin.create_partitions([&more], &AdminOptions::new()).await.unwrap();
    made.into_iter().next().unwrap().unwrap();
    // Before the consumer has heard of them.
    let producer = place.producer();
    for partition in 1..4 {
        let payload = (partition + 1).to_string();
        let record = FutureRecord::<[u8], _>::to(&place.topic).partition(partition);
        producer.send(record.payload(payload.as_bytes()), PATIENCE).await.unwrap();
    }
    let mut missing = BTreeSet::from([2, 3, 4]);
    while !missing.is_empty() {
        // The first partition may have changed hands before its commit.
        let came = number(&handle(&mut source).await);
        assert!(missing.remove(&came) || came == 1, "{came} came twice");
    }
    for partition in 0..4 {
        until_committed(&place, partition, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_transaction_leaves_behind_holds_no_commit_up() {
    if !available() {
        return;
    }
    let place = place("markers").await;
    let mut config = place.config();
    let id = format!("{}-producer", place.topic);
    let producer: FutureProducer = config.set("transactional.id", id).create().unwrap();
    tokio::task::block_in_place(|| producer.init_transactions(PATIENCE)).unwrap();
    let mut source = place.billing().source().await.unwrap();
    // Offsets 0 and 1, their mark; 3 and 4 that are taken back, their mark; 6, its mark.
    for (numbers, is_committed) in [(1..=2, true), (3..=4, false), (5..=5, true)] {
        producer.begin_transaction().unwrap();
        for number in numbers {
            let payload = number.to_string();
            let record = FutureRecord::<[u8], _>::to(&place.topic).payload(payload.as_bytes());
            producer.send(record, PATIENCE).await.unwrap();
        }
        tokio::task::block_in_place(|| {
            let ended = if is_committed {
                producer.commit_transaction(PATIENCE)
            } else {
                producer.abort_transaction(PATIENCE)
            };
            ended.unwrap();
            topic::settled(place.brokers.bootstrap(), &place.topic);
        });
    }
    for expected in [1, 2, 5] {
        assert_eq!(number(&handle(&mut source).await), expected);
    }
    until_committed(&place, 0, 7).await;
    place.publish([6]).await;
    assert_eq!(number(&handle(&mut source).await), 6);
    until_committed(&place, 0, 9).await;
    // The next one begins there, and nothing comes again.
    source.close().await;
    let mut source = place.billing().source().await.unwrap();
    place.publish([7]).await;
    assert_eq!(number(&handle(&mut source).await), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_made_anew_and_is_shorter_is_read_from_its_beginning() {
    if !available() {
        return;
    }
    let place = place("anew").await;
    let mut source = place.billing().source().await.unwrap();
    place.publish(1..=5).await;
    for expected in 1..=5 {
        assert_eq!(number(&handle(&mut source).await), expected);
    }
    until_committed(&place, 0, 5).await;
    topic::delete(place.brokers.bootstrap(), &place.topic).await;
    place.create(&place.topic, 1, &[]).await;
    // Before anybody hears of the change. Of more records than were read of the old one the first would be passed over.
    place.publish(11..=13).await;
    for expected in 11..=13 {
        assert_eq!(number(&handle(&mut source).await), expected);
    }
    until_committed(&place, 0, 3).await;
}
