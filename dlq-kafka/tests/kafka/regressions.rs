//! What went wrong once, or would have.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::{
    Clock, CrashMarks, DelayedRetry, DeliveredFrom, Delivery, Disposition, History, RetryQueue,
    Settle, Source, SystemClock,
};
use dlq_kafka::rdkafka::admin::{AdminClient, AdminOptions};
use dlq_kafka::rdkafka::client::DefaultClientContext;
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::producer::FutureRecord;
use dlq_kafka::rdkafka::{Offset, TopicPartitionList};
use dlq_kafka::{Concurrency, KafkaRetryQueue, KafkaSource, KafkaTransport, Ladder, Start};
use tokio::time::timeout;

use crate::fixture::{PATIENCE, TestTopic, available, handle, next, number};
use crate::topic;

const DONE: Disposition = Disposition::Succeeded;

/// Members have their partitions in the order of their names.
fn hasty(place: &TestTopic) -> KafkaTransport {
    place.billing().without_retries().drain(Duration::ZERO)
}

async fn member(place: &TestTopic, name: &str) -> KafkaSource {
    hasty(place).source(&place.member(name)).await.unwrap()
}

async fn enqueue(queue: &KafkaRetryQueue, delivery: Delivery) {
    let delayed_retry = DelayedRetry {
        delivery,
        consumer: "billing".into(),
        due: SystemClock.now(),
        history: History::new(),
        attempts: 1,
    };
    queue.enqueue(delayed_retry).await.unwrap();
}

/// The first delivery of a source that begins at the end: it is not known when it looks where that is.
async fn first(source: &mut KafkaSource, place: &TestTopic) -> Delivery {
    loop {
        place.publish([7]).await;
        if let Ok(next) = timeout(Duration::from_millis(500), source.next()).await {
            return next.unwrap().unwrap().0;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_retry_record_is_read_by_a_group_that_began_at_the_end() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("late-retry", 1).await;
    let ladder = Ladder::of([Duration::from_secs(1)]);
    let consumer = place.billing().start(Start::Latest).ladder(ladder);
    let queue = consumer.retry_queue(&place.brokers).await.unwrap();
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let delivery = first(&mut source, &place).await;
    drop(source);
    // It dies after this, and has committed nothing of the retry topic.
    enqueue(&queue, delivery).await;
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let heard =
        async { while handle(&mut source).await.delivered_from() != DeliveredFrom::Retry {} };
    timeout(PATIENCE, heard).await.expect("the retry record comes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_begins_at_the_end_passes_over_what_was_before() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("late", 1).await;
    place.publish(1..=5_000).await;
    let consumer = place.billing().without_retries().start(Start::Latest);
    let mut source = consumer.source(&place.brokers).await.unwrap();
    assert_eq!(number(&first(&mut source, &place).await), 7);
    // What comes while it is away is what it has not heard.
    drop(source);
    place.publish([8]).await;
    let mut source = consumer.source(&place.brokers).await.unwrap();
    while number(&handle(&mut source).await) != 8 {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_what_is_left_is_read_where_what_was_committed_is_gone() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("deleted", 1).await;
    let consumer = place.billing().without_retries().start(Start::Latest);
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let _ = first(&mut source, &place).await;
    drop(source);
    place.publish(100..=200).await;
    let admin: AdminClient<DefaultClientContext> = place.config().create().unwrap();
    let end = {
        let client: BaseConsumer = place.config().create().unwrap();
        tokio::task::block_in_place(|| client.fetch_watermarks(&place.topic, 0, PATIENCE)).unwrap()
    };
    let mut before = TopicPartitionList::new();
    before.add_partition_offset(&place.topic, 0, Offset::Offset(end.1 - 3)).unwrap();
    admin.delete_records(&before, &AdminOptions::new()).await.unwrap();
    let mut source = consumer.source(&place.brokers).await.unwrap();
    for expected in 198..=200 {
        let heard = timeout(PATIENCE, handle(&mut source)).await;
        assert_eq!(number(&heard.expect("it is still there")), expected);
    }
}

/// Three of 100 records are handled, and the first `gone` are deleted while nobody is there.
async fn told_of_deleted(name: &str, gone: i64) {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions(name, 1).await;
    let consumer = place.billing().without_retries();
    place.publish(0..100).await;
    let mut source = consumer.source(&place.brokers).await.unwrap();
    for expected in 0..3 {
        assert_eq!(number(&handle(&mut source).await), expected);
    }
    source.close().await;
    let admin: AdminClient<DefaultClientContext> = place.config().create().unwrap();
    let mut before = TopicPartitionList::new();
    before.add_partition_offset(&place.topic, 0, Offset::Offset(gone)).unwrap();
    admin.delete_records(&before, &AdminOptions::new()).await.unwrap();
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let told = async {
        loop {
            match source.next().await {
                Ok(next) => next.unwrap().1.settle(DONE).await.unwrap(),
                Err(error) => break error,
            }
        }
    };
    let error = timeout(PATIENCE, told).await.expect("that they are gone is told");
    let text = format!("{} records from offset 3 to {gone} were deleted", gone - 3);
    assert!(error.is_transient() && error.to_string().contains(&text), "{error}");
    source.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_records_that_were_deleted_before_they_were_handled_are_told() {
    told_of_deleted("lost", 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_that_all_were_deleted_before_they_were_handled_is_told() {
    told_of_deleted("lost-all", 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_what_waits_is_heard_by_a_group_whose_consumer_has_another_name_now() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("renamed", 1).await;
    let ladder = Ladder::of([Duration::from_secs(1)]);
    let billing = place.billing().ladder(ladder.clone());
    let queue = billing.retry_queue(&place.brokers).await.unwrap();
    let mut source = billing.source(&place.brokers).await.unwrap();
    place.publish([1]).await;
    let (delivery, settle) = next(&mut source).await;
    enqueue(&queue, delivery).await;
    settle.settle(DONE).await.unwrap();
    source.close().await;
    let group = format!("{}-billing", place.topic);
    let renamed = place.consumer("invoicing").group(group).ladder(ladder);
    let mut source = renamed.source(&place.brokers).await.unwrap();
    let heard = timeout(PATIENCE, handle(&mut source)).await;
    let heard = heard.expect("the topic is the group's, and so is what stands in it");
    let by = "who failed, whose handler is asked first";
    assert_eq!((number(&heard), heard.attempt(), heard.consumer()), (1, 2, "billing"), "{by}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_what_waits_in_a_stage_that_was_taken_off_the_ladder_is_heard() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("taken-off", 1).await;
    let of = |seconds| place.billing().ladder(Ladder::of([Duration::from_secs(seconds)]));
    let queue = of(1).retry_queue(&place.brokers).await.unwrap();
    place.publish([1]).await;
    let mut source = of(1).source(&place.brokers).await.unwrap();
    for later in [of(2), place.billing().without_retries()] {
        let (delivery, settle) = next(&mut source).await;
        enqueue(&queue, delivery).await;
        settle.settle(DONE).await.unwrap();
        source.close().await;
        source = later.source(&place.brokers).await.unwrap();
        let (heard, settle) = next(&mut source).await;
        assert_eq!(
            (number(&heard), heard.delivered_from(), heard.attempt()),
            (1, DeliveredFrom::Retry, 2)
        );
        settle.settle(Disposition::Deferred { after: Duration::ZERO }).await.unwrap();
    }
    // What others wrote there is for this group, too.
    let stage = format!("{}.{0}-billing.retry.1s", place.topic);
    place.send(&stage, b"3", &[("retry.due", b"2020-01-01T00:00:00Z")]).await;
    let last = [number(&handle(&mut source).await), number(&handle(&mut source).await)];
    assert_eq!(BTreeSet::from(last), BTreeSet::from([1, 3]));
    // Nothing waits there any more, and it can go.
    topic::delete(place.brokers.bootstrap(), &stage).await;
    place.publish([2]).await;
    assert_eq!(number(&handle(&mut source).await), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_of_others_is_not_taken_for_one_that_was_taken_off() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("others", 1).await;
    let of = |seconds| {
        let ladder = Ladder::of([Duration::from_secs(seconds)]);
        place.billing().ladder(ladder.names("{topic}.retry.{delay}"))
    };
    // The group had this stage, and reads it still.
    let queue = of(1).retry_queue(&place.brokers).await.unwrap();
    let mut source = of(1).source(&place.brokers).await.unwrap();
    place.publish([1]).await;
    for _ in 0..2 {
        let (delivery, settle) = next(&mut source).await;
        enqueue(&queue, delivery).await;
        settle.settle(DONE).await.unwrap();
    }
    source.close().await;
    // This one is somebody else's, who waits in another way.
    let other = format!("{}.retry.3s", place.topic);
    place.create(&other, 1, &[]).await;
    for stage in [&other, &format!("{}.retry.1s", place.topic)] {
        place.send(stage, b"9", &[("retry.due", b"2020-01-01T00:00:00Z")]).await;
    }
    let mut source = of(2).source(&place.brokers).await.unwrap();
    let heard = handle(&mut source).await;
    assert_eq!(
        (number(&heard), heard.delivered_from(), heard.attempt()),
        (1, DeliveredFrom::Retry, 2)
    );
    place.publish([2]).await;
    assert_eq!(number(&handle(&mut source).await), 2);
    let more = timeout(Duration::from_secs(4), source.next()).await;
    assert!(more.is_err(), "it is not for us: {more:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_what_waits_of_a_past_assignment_holds_nobody_up() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("past", 1).await;
    place.publish([1, 2]).await;
    let consumer = hasty(&place).concurrency(Concurrency::Partition);
    let mut one = consumer.source(&place.member("a")).await.unwrap();
    let (_, settle) = next(&mut one).await;
    let after = Duration::from_secs(300);
    settle.settle(Disposition::Deferred { after }).await.unwrap();
    // The partition goes, and comes back.
    let _two = member(&place, "b").await;
    let again = timeout(PATIENCE, handle(&mut one)).await;
    assert_eq!(number(&again.expect("its line is free")), 1);
    assert_eq!(number(&handle(&mut one).await), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_a_suspect_whose_partition_goes_while_it_runs_is_not_blamed() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("moves", 1).await;
    place.publish([1]).await;
    for _ in 0..2 {
        let mut source = member(&place, "b").await;
        drop(next(&mut source).await.1);
    }
    let mut one = member(&place, "b").await;
    let (delivery, settle) = next(&mut one).await;
    let letter = delivery.death("billing").letter;
    assert_eq!(one.crash_marks().begin(letter).await.unwrap(), 0);
    let mut two = member(&place, "a").await;
    let _second = next(&mut two).await;
    assert_eq!(two.crash_marks().begin(letter).await.unwrap(), 0, "nobody has died of it");
    settle.settle(DONE).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_topic_that_is_consumed_too_is_refused() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("both", 1).await;
    let ladder = Ladder::of([Duration::from_secs(1)]).names("{topic}.retry.{delay}");
    let stage = format!("{}.retry.1s", place.topic);
    let consumer = place.billing().ladder(ladder).topic(&stage);
    let refused = consumer.source(&place.brokers).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("`{stage}`")), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_of_one_consumer_may_share_their_retry_topics() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("shares", 1).await;
    let other = format!("{}-other", place.topic);
    place.create(&other, 1, &[]).await;
    let ladder = Ladder::of([Duration::from_secs(1)]).names("retry.{group}.{delay}");
    let consumer = place.billing().topic(&other).ladder(ladder);
    let queue = consumer.retry_queue(&place.brokers).await.unwrap();
    let mut source = consumer.source(&place.brokers).await.unwrap();
    place.send(&other, b"1", &[]).await;
    let (delivery, settle) = next(&mut source).await;
    enqueue(&queue, delivery).await;
    settle.settle(DONE).await.unwrap();
    let again = handle(&mut source).await;
    assert_eq!(
        (again.delivered_from(), again.message().subject()),
        (DeliveredFrom::Retry, &*other)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_counts_at_their_limit_are_carried_on() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("counts", 1).await;
    let consumer = place.billing().ladder(Ladder::of([Duration::from_secs(1)]));
    let queue = consumer.retry_queue(&place.brokers).await.unwrap();
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let stage = format!("{}.{0}-billing.retry.1s", place.topic);
    let most = u32::MAX.to_string();
    let headers: [(&str, &[u8]); 6] = [
        ("original.topic", place.topic.as_bytes()),
        ("original.partition", b"0"),
        ("original.offset", b"5"),
        ("dlq.consumer", b"billing"),
        ("retry.count", most.as_bytes()),
        ("retry.attempts", most.as_bytes()),
    ];
    place.send(&stage, b"1", &headers).await;
    let (delivery, settle) = next(&mut source).await;
    assert_eq!((delivery.delivered_from(), delivery.attempt()), (DeliveredFrom::Retry, u32::MAX));
    enqueue(&queue, delivery).await;
    settle.settle(DONE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_nothing_is_lost_by_who_stops_waiting() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("cut-off", 1).await;
    let mut source = place.billing().without_retries().source(&place.brokers).await.unwrap();
    let publish = place.publish(1..=300);
    let mut seen = Vec::new();
    let take = async {
        while seen.len() < 300 {
            if let Ok(next) = timeout(Duration::from_micros(300), source.next()).await {
                let (delivery, settle) = next.unwrap().unwrap();
                seen.push(number(&delivery));
                settle.settle(DONE).await.unwrap();
            }
        }
    };
    timeout(PATIENCE, async { tokio::join!(publish, take) }).await.expect("all come");
    assert_eq!(seen, (1..=300).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_twice_and_on_one_thread_ends() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("closes", 1).await;
    place.publish(1..=3).await;
    let on_one_thread = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut source =
                place.billing().without_retries().source(&place.brokers).await.unwrap();
            let one = next(&mut source).await.1;
            let two = next(&mut source).await.1;
            source.close().await;
            source.close().await;
            assert!(source.next().await.unwrap().is_none(), "it has ended");
            one.settle(Disposition::Deferred { after: PATIENCE }).await.unwrap();
            two.settle(DONE).await.unwrap();
            source.close().await;
            drop(source);
            let mut source =
                place.billing().without_retries().source(&place.brokers).await.unwrap();
            let held = next(&mut source).await;
            assert_eq!((number(&held.0), held.0.deliveries()), (1, 1), "it left in good order");
            drop(source);
            held.1.settle(DONE).await.unwrap_err();
        });
    };
    let ended = tokio::task::spawn_blocking(on_one_thread);
    timeout(PATIENCE, ended).await.expect("it never hangs").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_what_a_stop_has_cut_off_is_no_death() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("stopped", 1).await;
    place.publish([1]).await;
    for _ in 0..3 {
        let mut source = place.billing().without_retries().source(&place.brokers).await.unwrap();
        let (delivery, settle) = next(&mut source).await;
        assert_eq!(delivery.deliveries(), 1, "nobody has died");
        source.close().await;
        // The deadline has passed.
        drop(settle);
        drop(source);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_hundreds_of_partitions_move_and_nothing_is_lost() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("hundreds", 200).await;
    let producer = place.producer();
    let send = async |from: u32| {
        let sent = (from..from + 600).map(|number| {
            let payload = number.to_string();
            let partition = i32::try_from(number % 200).unwrap();
            let record = FutureRecord::<[u8], _>::to(&place.topic).partition(partition);
            producer.send_result(record.payload(payload.as_bytes())).unwrap()
        });
        for sent in sent.collect::<Vec<_>>() {
            sent.await.unwrap().unwrap();
        }
    };
    let consumer = place.billing().without_retries().concurrency(Concurrency::Partition);
    let mut missing: BTreeSet<_> = (0..1_800).collect();
    let mut one = consumer.source(&place.brokers).await.unwrap();
    send(0).await;
    for _ in 0..300 {
        missing.remove(&number(&handle(&mut one).await));
    }
    let mut two = consumer.source(&place.brokers).await.unwrap();
    send(600).await;
    for _ in 0..300 {
        let (delivery, settle) = tokio::select! {
            next = next(&mut one) => next,
            next = next(&mut two) => next,
        };
        // What goes to the other meanwhile comes there.
        if settle.settle(DONE).await.is_ok() {
            missing.remove(&number(&delivery));
        }
    }
    one.close().await;
    send(1_200).await;
    while !missing.is_empty() {
        missing.remove(&number(&handle(&mut two).await));
    }
}

/// As where a deployment sets a session that the brokers do not take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_consumer_that_cannot_join_its_group_says_why_for_as_long_as_that_is_so() {
    if !available() {
        return;
    }
    let mut place = TestTopic::with_partitions("session", 1).await;
    place.publish([1]).await;
    // Half an hour is the most that brokers take unless told otherwise.
    let (session, poll) = ("3600000", "3700000");
    place.brokers =
        place.brokers.with("session.timeout.ms", session).with("max.poll.interval.ms", poll);
    let mut source = place.billing().without_retries().source(&place.brokers).await.unwrap();
    // A consumer takes its source for well again half a minute after it was told last.
    for _ in 0..3 {
        let told = tokio::time::timeout(crate::fixture::PATIENCE, source.next()).await;
        let error = told.expect("it is told").unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(error.to_string().contains("session.timeout.ms"), "{error}");
    }
    source.close().await;
}
