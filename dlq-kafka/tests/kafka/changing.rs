//! Topics that are no longer what they were when their consumer began.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use dlq_core::{Disposition, Settle as _, Source as _};
use dlq_kafka::rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use dlq_kafka::rdkafka::client::DefaultClientContext;
use dlq_kafka::rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use dlq_kafka::rdkafka::{Offset, TopicPartitionList};
use dlq_kafka::{KafkaLag, KafkaSource, Start};
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, TestTopic, available, handle, next, number};
use crate::topic;

/// One whose clients hear soon of what has become of its topic.
async fn place(name: &str) -> TestTopic {
    let mut place = TestTopic::with_partitions(name, 1).await;
    place.brokers = place.brokers.with("topic.metadata.refresh.interval.ms", "200");
    place
}

async fn make_anew(place: &TestTopic) {
    topic::delete(place.brokers.bootstrap(), &place.topic).await;
    place.create(&place.topic, 1, &[]).await;
    // Before anybody hears of the change.
    place.publish(11..=18).await;
}

fn asking(place: &TestTopic) -> BaseConsumer {
    let group = format!("{}-billing", place.topic);
    place.config().set("group.id", group).create().unwrap()
}

/// The commit of the group in a partition.
fn commit_of(place: &TestTopic, partition: i32, asking: &BaseConsumer) -> (Offset, String) {
    let mut list = TopicPartitionList::new();
    list.add_partition(&place.topic, partition);
    let found = tokio::task::block_in_place(|| asking.committed_offsets(list, PATIENCE)).unwrap();
    let element = &found.elements()[0];
    (element.offset(), element.metadata().to_owned())
}

/// Waits until the group has committed this of a partition.
async fn until_committed(place: &TestTopic, partition: i32, position: i64) {
    let asking = asking(place);
    let committed = || commit_of(place, partition, &asking).0;
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
    added("added", Start::Earliest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_partitions_that_are_added_are_read_from_their_beginning_by_who_began_at_the_end() {
    added("added-late", Start::Latest).await;
}

async fn added(name: &str, start: Start) {
    if !available() {
        return;
    }
    let place = place(name).await;
    let mut source = place.billing().start(start).source(&place.brokers).await.unwrap();
    if start == Start::Latest {
        until_committed(&place, 0, 0).await;
    }
    place.publish([1]).await;
    assert_eq!(number(&handle(&mut source).await), 1);
    let admin: AdminClient<DefaultClientContext> = place.config().create().unwrap();
    let more = NewPartitions::new(&place.topic, 4);
    let made = admin.create_partitions([&more], &AdminOptions::new()).await.unwrap();
    made.into_iter().next().unwrap().unwrap();
    // The controller answers before the broker knows of them.
    let client: BaseConsumer = place.config().create().unwrap();
    let known = || client.fetch_metadata(Some(&place.topic), PATIENCE).unwrap();
    let until = Instant::now() + PATIENCE;
    while tokio::task::block_in_place(known).topics()[0].partitions().len() < 4 {
        assert!(Instant::now() < until, "they are not there");
    }
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

/// A producer of transactions in a topic of one partition.
struct Transactions<'a> {
    place: &'a TestTopic,
    producer: FutureProducer,
}

impl<'a> Transactions<'a> {
    fn of(place: &'a TestTopic) -> Self {
        let id = format!("{}-producer", place.topic);
        let producer: FutureProducer = place.config().set("transactional.id", id).create().unwrap();
        tokio::task::block_in_place(|| producer.init_transactions(PATIENCE)).unwrap();
        Self { place, producer }
    }

    async fn begin(&self, numbers: impl IntoIterator<Item = u32>) {
        self.producer.begin_transaction().unwrap();
        for number in numbers {
            let payload = number.to_string();
            let record = FutureRecord::<[u8], _>::to(&self.place.topic).payload(payload.as_bytes());
            self.producer.send(record, PATIENCE).await.unwrap();
        }
    }

    fn end(&self, is_committed: bool) {
        tokio::task::block_in_place(|| {
            let ended = if is_committed {
                self.producer.commit_transaction(PATIENCE)
            } else {
                self.producer.abort_transaction(PATIENCE)
            };
            ended.unwrap();
            topic::settled(self.place.brokers.bootstrap(), &self.place.topic);
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_transaction_leaves_behind_holds_no_commit_up() {
    if !available() {
        return;
    }
    let place = place("markers").await;
    let transactions = Transactions::of(&place);
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    // Offsets 0 and 1, their mark; 3 and 4 that are taken back, their mark; 6, its mark.
    for (numbers, is_committed) in [(1..=2, true), (3..=4, false), (5..=5, true)] {
        transactions.begin(numbers).await;
        transactions.end(is_committed);
    }
    for expected in [1, 2, 5] {
        assert_eq!(number(&handle(&mut source).await), expected);
    }
    // The last mark too.
    until_committed(&place, 0, 8).await;
    place.publish([6]).await;
    assert_eq!(number(&handle(&mut source).await), 6);
    until_committed(&place, 0, 9).await;
    // The next one begins there, and nothing comes again.
    source.close().await;
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    place.publish([7]).await;
    assert_eq!(number(&handle(&mut source).await), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_has_done_everything_is_not_behind_for_marks_and_what_was_taken_back() {
    if !available() {
        return;
    }
    let place = place("behind").await;
    let transactions = Transactions::of(&place);
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    place.publish([1]).await;
    assert_eq!(number(&handle(&mut source).await), 1);
    transactions.begin(2..=4).await;
    transactions.end(false);
    until_committed(&place, 0, 5).await;
    let group = format!("{}-billing", place.topic);
    let lag = KafkaLag::new(place.brokers.clone(), group, [&*place.topic]);
    assert_eq!(lag.read().await.unwrap()[0].lag, 0);

    // One that is open has its end at its first record, and what it commits comes.
    transactions.begin(5..=6).await;
    let (delivery, settle) = {
        let other = place.producer();
        let record = FutureRecord::<[u8], _>::to(&place.topic).payload(b"7");
        other.send(record, PATIENCE).await.unwrap();
        transactions.end(true);
        next(&mut source).await
    };
    assert_eq!(number(&delivery), 5);
    assert_eq!(number(&handle(&mut source).await), 6);
    assert_eq!(number(&handle(&mut source).await), 7);
    until_committed(&place, 0, 5).await;
    settle.settle(Disposition::Succeeded).await.unwrap();
    until_committed(&place, 0, 9).await;
    assert_eq!(lag.read().await.unwrap()[0].lag, 0);

    // And with a process that was not there.
    source.close().await;
    transactions.begin(8..=9).await;
    transactions.end(false);
    assert_eq!(lag.read().await.unwrap()[0].lag, 3);
    let source = place.billing().source(&place.brokers).await.unwrap();
    until_committed(&place, 0, 12).await;
    assert_eq!(lag.read().await.unwrap()[0].lag, 0);
    drop(source);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_made_anew_and_is_shorter_is_read_from_its_beginning() {
    if !available() {
        return;
    }
    let place = place("anew").await;
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    place.publish(1..=5).await;
    for expected in 1..=5 {
        assert_eq!(number(&handle(&mut source).await), expected);
    }
    until_committed(&place, 0, 5).await;
    topic::delete(place.brokers.bootstrap(), &place.topic).await;
    place.create(&place.topic, 1, &[]).await;
    // Before anybody hears of the change.
    place.publish(11..=13).await;
    until_all_came(&mut source, 11..=13).await;
    until_committed(&place, 0, 3).await;
}

/// Handles until these have come. Whatever comes besides has come before, or is of the topic before.
async fn until_all_came(source: &mut KafkaSource, numbers: RangeInclusive<u32>) {
    let mut missing: BTreeSet<u32> = numbers.clone().collect();
    while !missing.is_empty() {
        let came = number(&handle(source).await);
        assert!(missing.remove(&came) || came <= *numbers.end(), "{came} came");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_topic_that_was_made_anew_while_nobody_was_there_is_read_from_its_beginning() {
    if !available() {
        return;
    }
    let place = place("anew-away").await;
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    place.publish(1..=5).await;
    until_all_came(&mut source, 1..=5).await;
    source.close().await;
    let asking = asking(&place);
    assert_eq!(commit_of(&place, 0, &asking).0, Offset::Offset(5));
    make_anew(&place).await;
    // The brokers forget what the group had committed.
    assert_eq!(commit_of(&place, 0, &asking).0, Offset::Invalid);
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    until_all_came(&mut source, 11..=18).await;
    until_committed(&place, 0, 8).await;
    source.close().await;
    // A commit beyond the end, of a topic that is gone.
    let mut beyond = TopicPartitionList::new();
    beyond.add_partition_offset(&place.topic, 0, Offset::Offset(50)).unwrap();
    tokio::task::block_in_place(|| asking.commit(&beyond, CommitMode::Sync)).unwrap();
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    until_all_came(&mut source, 11..=18).await;
    until_committed(&place, 0, 8).await;
    source.close().await;
}
