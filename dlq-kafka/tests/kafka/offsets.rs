//! What is committed, and what is not.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::{
    CrashMarks, DeliveredFrom, Delivery, Disposition, Settle, Source, TransportErrorKind,
};
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::producer::FutureRecord;
use dlq_kafka::rdkafka::{Offset, TopicPartitionList};
use dlq_kafka::{Concurrency, DLQ_KAFKA_PAUSED, KafkaSource, Ladder};
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, TestTopic, available, handle, next, number, start_with};
use crate::gauges::{Told, with_told};
use crate::waiting::send;

const DONE: Disposition = Disposition::Succeeded;

fn asking(place: &TestTopic) -> BaseConsumer {
    place.config().set("group.id", group(place)).create().unwrap()
}

fn group(place: &TestTopic) -> String {
    format!("{}-billing", place.topic)
}

/// The commit of partition 0: position and metadata, without the number of the source, the id of the topic, and how far
/// records were handed out.
fn committed(place: &TestTopic) -> Option<(i64, String)> {
    committed_of(place, 0)
}

fn committed_of(place: &TestTopic, partition: i32) -> Option<(i64, String)> {
    tokio::task::block_in_place(|| {
        let asking = asking(place);
        let mut list = TopicPartitionList::new();
        list.add_partition(&place.topic, partition);
        let found = asking.committed_offsets(list, PATIENCE).unwrap();
        let element = &found.elements()[0];
        match element.offset() {
            Offset::Offset(offset) => {
                let is_said = |part: &&str| {
                    !["by=", "topic=", "handed="].iter().any(|of| part.starts_with(of))
                };
                let parts = element.metadata().split(';').filter(is_said);
                Some((offset, parts.collect::<Vec<_>>().join(";")))
            }
            _ => None,
        }
    })
}

/// Waits until that is committed.
async fn until_committed(place: &TestTopic, position: i64, metadata: &str) {
    let wanted = Some((position, metadata.to_owned()));
    let reached = async {
        while committed(place) != wanted {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reached = timeout(PATIENCE, reached).await;
    reached.unwrap_or_else(|_| panic!("committed is {:?}, not {wanted:?}", committed(place)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_the_lowest_record_that_is_not_done_is_committed() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("lowest", 2).await;
    let producer = place.producer();
    let send = async |partition, number: u32| {
        let payload = number.to_string();
        let record = FutureRecord::<[u8], _>::to(&place.topic).partition(partition);
        producer.send(record.payload(&payload), PATIENCE).await.unwrap();
    };
    for number in 1..=5 {
        send(0, number).await;
    }
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(next(&mut source).await.1);
    }
    until_committed(&place, 0, "dlq1;open").await;
    let first = held.remove(0);
    held.remove(0).settle(DONE).await.unwrap();
    held.remove(0).settle(DONE).await.unwrap();
    // What is done later is committed, of another partition; each commit says all that there is to say.
    send(1, 6).await;
    assert_eq!(number(&handle(&mut source).await), 6);
    let other = async {
        while committed_of(&place, 1).is_none_or(|(position, _)| position < 1) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, other).await.expect("the other partition is committed");
    // The first is not done, and two behind it are.
    until_committed(&place, 0, "dlq1;open;done=0:BC").await;
    first.settle(DONE).await.unwrap();
    until_committed(&place, 3, "dlq1;open").await;
    for settle in held {
        settle.settle(DONE).await.unwrap();
    }
    until_committed(&place, 5, "dlq1;open").await;
    source.close().await;
    until_committed(&place, 5, "dlq1;clean").await;
}

/// A record waits for a quarter of an hour, in the process or in a stage that is shorter than that.
async fn restarted_behind_one_that_waits(name: &str, waits_in_a_stage: bool) {
    if !available() {
        return;
    }
    const WAIT: Duration = Duration::from_secs(15 * 60);
    const STAGE: Duration = Duration::from_secs(3);
    let place = TestTopic::with_partitions(name, 1).await;
    let consumer = place.billing().ladder(Ladder::of([STAGE]));
    let queue = consumer.retry_queue(&place.brokers).await.unwrap();
    let last = if waits_in_a_stage { DeliveredFrom::Retry } else { DeliveredFrom::Main };
    place.publish(0..=500).await;
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let mut succeeded = 0;
    while succeeded < 500 {
        let (delivery, settle) = next(&mut source).await;
        let is_first = number(&delivery) == 0;
        if delivery.delivered_from() != last {
            send(&queue, delivery, settle, if is_first { WAIT } else { STAGE }).await;
        } else if is_first {
            settle.settle(Disposition::Deferred { after: WAIT }).await.unwrap();
        } else {
            settle.settle(DONE).await.unwrap();
            succeeded += 1;
        }
    }
    for restart in 1..=3 {
        source.close().await;
        source = consumer.source(&place.brokers).await.unwrap();
        // What is new comes, and nothing before it but what waits.
        place.publish([500 + restart]).await;
        loop {
            let (delivery, settle) = next(&mut source).await;
            match number(&delivery) {
                0 => settle.settle(Disposition::Deferred { after: WAIT }).await.unwrap(),
                new if new == 500 + restart && delivery.delivered_from() == last => {
                    break settle.settle(DONE).await.unwrap();
                }
                new if new == 500 + restart => send(&queue, delivery, settle, STAGE).await,
                again => panic!("{again} succeeded, and ran again after restart {restart}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_what_succeeded_behind_one_that_waits_does_not_run_again_after_restarts() {
    restarted_behind_one_that_waits("behind", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_what_succeeded_behind_one_that_waits_in_a_stage_does_not_run_again() {
    restarted_behind_one_that_waits("behind-stage", true).await;
}

/// Brokers may be told to take less than the 4 KiB that they take otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_where_brokers_take_less_metadata_less_of_what_is_done_is_told() {
    if !available() {
        return;
    }
    let running = start_with(&[("offset.metadata.max.bytes", "300")]);
    let place = TestTopic::at(Arc::new(Mutex::new(running)), "short", 1).await;
    place.publish(1..=600).await;
    let consumer = place.billing().without_retries();
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let mut held = Vec::new();
    for n in 0..600 {
        let (_, settle) = next(&mut source).await;
        if n % 2 == 0 { held.push(settle) } else { settle.settle(DONE).await.unwrap() }
    }
    let some = async {
        while committed(&place).is_none_or(|(_, metadata)| !metadata.contains("done=0:BBBBBB")) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, some).await.expect("what there is room for is told");
    for settle in held {
        settle.settle(DONE).await.unwrap();
    }
    until_committed(&place, 600, "dlq1;open").await;
    source.close().await;
    until_committed(&place, 600, "dlq1;clean").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_is_dropped_leaves_as_one_that_died() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("dropped", 1).await;
    place.publish(1..=3).await;
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    let _ = handle(&mut source).await;
    let held = next(&mut source).await;
    drop(source);
    until_committed(&place, 1, "dlq1;open").await;
    let late = held.1.settle(DONE).await.unwrap_err();
    assert_eq!(late.kind(), TransportErrorKind::Lost, "{late}");
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    let (again, _settle) = next(&mut source).await;
    assert_eq!((number(&again), again.deliveries()), (2, 2));
    until_committed(&place, 1, "dlq1;open;deaths=1;until=2;careful=1002").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_two_deaths_make_suspects_of_what_was_handed_out_and_of_nothing_else() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("two-deaths", 1).await;
    place.publish(1..=100).await;
    for _ in 0..2 {
        let mut source = place.billing().source(&place.brokers).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(next(&mut source).await);
        }
        drop((held, source));
    }
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    let mut suspects = Vec::new();
    for expected in 1..=100 {
        let delivery = handle(&mut source).await;
        assert_eq!(number(&delivery), expected);
        if delivery.deliveries() > 1 {
            suspects.push((number(&delivery), delivery.deliveries()));
        }
    }
    assert_eq!(suspects, [1, 2, 3, 4, 5].map(|number| (number, 3)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_a_run_alone_is_marked_before_and_cleared_after() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("marks", 1).await;
    place.publish(1..=3).await;
    for _ in 0..2 {
        let mut source = place.billing().source(&place.brokers).await.unwrap();
        drop(next(&mut source).await.1);
    }
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    let marks = source.crash_marks();
    let (one, settle) = next(&mut source).await;
    assert_eq!(one.deliveries(), 3);
    let letter = one.death("billing").letter;
    assert_eq!(marks.begin(letter).await.unwrap(), 0);
    let marked = "dlq1;open;deaths=2;until=1;careful=1001;marks=0:1;running=0";
    assert_eq!(committed(&place), Some((0, marked.to_owned())));
    // It dies while it runs.
    drop((settle, source));
    let other = dlq_core::LetterId::from_bytes([9; 16]);
    assert!(marks.begin(other).await.is_err(), "what is not in flight cannot be marked");

    // That a settle handle is dropped says nothing of the run: its end has to be told.
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    let marks = source.crash_marks();
    let (one, settle) = next(&mut source).await;
    assert_eq!(marks.begin(letter).await.unwrap(), 1, "it never ended");
    marks.end(letter, 0).await.unwrap();
    assert_eq!(marks.begin(letter).await.unwrap(), 0, "it has ended");
    std::mem::forget(settle);
    drop(source);
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    let marks = source.crash_marks();
    let (_, settle) = next(&mut source).await;
    assert_eq!(marks.begin(one.death("billing").letter).await.unwrap(), 1, "it never ended");
    settle.settle(DONE).await.unwrap();
    until_committed(&place, 1, "dlq1;open;deaths=4;until=1;careful=1001").await;
}

/// The next run may kill the process, and only that is to be blamed for it. Nothing is committed by the clock here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_that_a_run_alone_has_ended_is_told_before_another_begins() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("marks-told", 2).await;
    let billing = place.billing().commit_interval(Duration::from_secs(3_600));
    for partition in [0, 0, 1] {
        let record = FutureRecord::<[u8], _>::to(&place.topic).partition(partition);
        place.producer().send(record.payload("1"), PATIENCE).await.unwrap();
    }
    let all = async |source: &mut KafkaSource| {
        let mut of = [const { Vec::new() }; 2];
        for _ in 0..3 {
            let next = next(source).await;
            of[next.0.origin().partition().unwrap() as usize].push(next);
        }
        of.map(Vec::into_iter)
    };
    for _ in 0..2 {
        let mut source = billing.source(&place.brokers).await.unwrap();
        drop(all(&mut source).await);
    }
    let mut source = billing.source(&place.brokers).await.unwrap();
    let marks = source.crash_marks();
    let [mut zero, mut one] = all(&mut source).await;
    let letter = |delivery: &Delivery| delivery.death("billing").letter;
    let has_marks = |partition| committed_of(&place, partition).unwrap().1.contains("marks=");

    let (suspect, settle) = zero.next().unwrap();
    assert_eq!(suspect.deliveries(), 3);
    assert_eq!(marks.begin(letter(&suspect)).await.unwrap(), 0);
    assert!(has_marks(0));
    settle.settle(DONE).await.unwrap();
    marks.end(letter(&suspect), 0).await.unwrap();
    assert!(!has_marks(0), "whatever comes next has not killed it");

    let (suspect, settle) = one.next().unwrap();
    assert_eq!(marks.begin(letter(&suspect)).await.unwrap(), 0);
    settle.settle(DONE).await.unwrap();
    assert!(has_marks(1), "who wrote the mark was cut off before it was ended");
    let (suspect, _settle) = zero.next().unwrap();
    assert_eq!(marks.begin(letter(&suspect)).await.unwrap(), 0);
    assert_eq!([0, 1].map(has_marks), [true, false]);
}

/// One process has 20 records in flight when another joins. `moves` says whether a partition of one that stays is lost.
async fn moved(name: &str, strategy: &str, all_move: bool) {
    if !available() {
        return;
    }
    let mut place = TestTopic::with_partitions(name, 2).await;
    place.brokers = place.brokers.clone().with("partition.assignment.strategy", strategy);
    place.publish(1..=20).await;
    let consumer = place.billing().without_retries().drain(Duration::ZERO);
    let mut one = consumer.source(&place.brokers).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(next(&mut one).await);
    }
    let mut two = consumer.source(&place.brokers).await.unwrap();
    let (first, settle) = next(&mut two).await;
    let partition = first.origin().partition();
    let mut again = BTreeSet::new();
    for (delivery, settle) in held {
        let settled = settle.settle(DONE).await;
        let has_moved = all_move || delivery.origin().partition() == partition;
        assert_eq!(settled.is_err(), has_moved, "{:?}", delivery.origin());
        if has_moved {
            again.insert(number(&delivery));
        }
    }
    settle.settle(DONE).await.unwrap();
    assert!(again.remove(&number(&first)));
    while !again.is_empty() {
        let (delivery, settle) = tokio::select! {
            next = next(&mut one) => next,
            next = next(&mut two) => next,
        };
        settle.settle(DONE).await.unwrap();
        assert!(again.remove(&number(&delivery)), "{} came once too often", number(&delivery));
    }
    assert!(timeout(Duration::from_secs(1), two.next()).await.is_err(), "each came once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_what_ends_after_its_partition_was_given_up_counts_no_more() {
    moved("eager", "range", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_partition_that_stays_is_not_given_up() {
    moved("cooperative", "cooperative-sticky", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_while_a_partition_is_drained_does_not_run_again() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("drained", 2).await;
    place.publish(1..=20).await;
    let consumer = place.billing().drain(PATIENCE);
    let mut one = consumer.source(&place.brokers).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(next(&mut one).await);
    }
    let mut two = consumer.source(&place.brokers).await.unwrap();
    // The rebalance waits for these.
    let settling = async {
        until_group(&place, |state, _| state != "Stable").await;
        for (_, settle) in held {
            settle.settle(DONE).await.unwrap();
        }
    };
    let (_, early) = tokio::join!(settling, timeout(Duration::from_secs(3), two.next()));
    assert!(early.is_err(), "{:?}", early.map(|next| next.map(|next| next.map(|next| next.0))));
    place.publish(21..=40).await;
    for _ in 0..20 {
        let delivery = tokio::select! {
            (delivery, settle) = next(&mut one) => { settle.settle(DONE).await.unwrap(); delivery }
            (delivery, settle) = next(&mut two) => { settle.settle(DONE).await.unwrap(); delivery }
        };
        assert!(number(&delivery) > 20);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g5_one_of_a_partition_is_in_flight_where_that_was_asked_for() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("one-each", 1).await;
    place.publish(1..=6).await;
    let consumer = place.billing().concurrency(Concurrency::Partition);
    let mut source = consumer.source(&place.brokers).await.unwrap();
    for expected in 1..=6 {
        let (delivery, settle) = next(&mut source).await;
        assert_eq!(number(&delivery), expected);
        let beside = timeout(Duration::from_millis(200), source.next()).await;
        assert!(beside.is_err(), "another came beside it");
        if expected == 2 {
            // It waits, and so do those behind it.
            let after = Duration::from_millis(300);
            settle.settle(Disposition::Deferred { after }).await.unwrap();
            let (again, settle) = next(&mut source).await;
            assert_eq!(number(&again), 2);
            settle.settle(DONE).await.unwrap();
        } else {
            settle.settle(DONE).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g5_one_of_a_key_is_in_flight_and_other_keys_go_on() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("key-each", 1).await;
    for (number, key) in [(1, "a"), (2, "a"), (3, "b"), (4, "a")] {
        place.publish_keyed(number, key).await;
    }
    let consumer = place.billing().concurrency(Concurrency::Key);
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let (one, first) = next(&mut source).await;
    let (three, third) = next(&mut source).await;
    assert_eq!((number(&one), number(&three)), (1, 3));
    assert!(timeout(Duration::from_millis(300), source.next()).await.is_err());
    first.settle(DONE).await.unwrap();
    assert_eq!(number(&handle(&mut source).await), 2);
    assert_eq!(number(&handle(&mut source).await), 4);
    third.settle(DONE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_what_is_in_flight_is_bounded_by_its_span_and_goes_on() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("span", 1).await;
    place.publish(1..=600).await;
    let consumer = place.billing().max_span(50).prefetch(1);
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let (first, stuck) = next(&mut source).await;
    let mut seen = 1;
    while let Ok(next) = timeout(Duration::from_secs(2), source.next()).await {
        next.unwrap().unwrap().1.settle(DONE).await.unwrap();
        seen += 1;
    }
    assert!(seen < 600, "the bound did not hold: {seen}");
    assert_eq!(number(&first), 1);
    stuck.settle(DONE).await.unwrap();
    while seen < 600 {
        let _ = handle(&mut source).await;
        seen += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_lives_while_its_handlers_take_nothing() {
    if !available() {
        return;
    }
    let mut place = TestTopic::with_partitions("slow", 1).await;
    // As short as the client allows.
    place.brokers = place.brokers.clone().with("max.poll.interval.ms", "6000");
    place.publish(1..=3_000).await;
    let consumer = place.billing().prefetch(10);
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let (_, first) = next(&mut source).await;
    // It is time itself that must not matter.
    tokio::time::sleep(Duration::from_secs(8)).await;
    first.settle(DONE).await.expect("the partition is still ours");
    for expected in 2..=3_000 {
        assert_eq!(number(&handle(&mut source).await), expected);
    }
}

/// Waits until the group is in this state, with so many members.
async fn until_group(place: &TestTopic, is_right: impl Fn(&str, usize) -> bool) {
    let asking = asking(place);
    let reached = async {
        loop {
            let groups = tokio::task::block_in_place(|| {
                asking.fetch_group_list(Some(&group(place)), PATIENCE).unwrap()
            });
            let found = &groups.groups()[0];
            if is_right(found.state(), found.members().len()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, reached).await.expect("the group is as it should be");
}

#[test]
fn a_partition_that_was_paused_is_heard_when_it_comes_back() {
    with_told("paused", 2, heard_again);
}

async fn heard_again(place: &TestTopic, told: &Told) {
    let send = async |partition, number: u32| {
        let payload = number.to_string();
        let record = FutureRecord::<[u8], _>::to(&place.topic).partition(partition);
        place.producer().send(record.payload(&payload), PATIENCE).await.unwrap();
    };
    let consumer = place.billing().without_retries().prefetch(1).drain(PATIENCE);
    let member = async |name| consumer.source(&place.member(name)).await.unwrap();
    let mut one = member("b").await;
    send(0, 0).await;
    assert_eq!(number(&handle(&mut one).await), 0);
    send(0, 0).await;
    send(0, 0).await;
    // They are not asked for, so that their partition is paused; the other one only after something of it has come.
    told.until(DLQ_KAFKA_PAUSED, |partitions| partitions == 1.0).await;
    send(1, 1).await;
    told.until(DLQ_KAFKA_PAUSED, |partitions| partitions == 2.0).await;
    let mut taken = [0; 3];
    for taken in &mut taken {
        *taken = number(&handle(&mut one).await);
    }
    taken.sort_unstable();
    assert_eq!(taken, [0, 0, 1]);
    told.until(DLQ_KAFKA_PAUSED, |partitions| partitions == 0.0).await;
    send(0, 2).await;
    send(0, 3).await;
    told.until(DLQ_KAFKA_PAUSED, |partitions| partitions == 2.0).await;
    let mut two = member("a").await;
    let (delivery, settle) = next(&mut two).await;
    assert_eq!(number(&delivery), 2);
    // Partition 1 stays with the first; but until the second has settled, nobody has anything.
    let _three = member("c").await;
    assert!(timeout(Duration::from_secs(2), one.next()).await.is_err(), "it has nothing");
    settle.settle(DONE).await.unwrap();
    until_group(place, |state, members| state == "Stable" && members == 3).await;
    send(1, 4).await;
    assert_eq!(number(&handle(&mut one).await), 4);
}
