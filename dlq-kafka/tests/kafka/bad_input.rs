//! What must not stop a consumer, or must stop it with a word: what it cannot read, what is gone, what it may not do.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlq_core::log::Entries as _;
use dlq_core::protocol::on_death;
use dlq_core::{
    Classification, Clock as _, DeadLetter, DelayedRetry, DeliveredFrom, Delivery, Disposition,
    Filter, History, LetterId, Message, Origin, Position, RetryQueue as _, Settle as _, Sink as _,
    Source as _, StoreErrorKind, SystemClock, TransportError, TransportErrorKind,
};
use dlq_kafka::dialect::UNREADABLE_HEADERS;
use dlq_kafka::rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use dlq_kafka::rdkafka::{Offset, TopicPartitionList};
use dlq_kafka::{Brokers, DlqTopic, KafkaLetters, KafkaSink, KafkaSource, KafkaTransport, Ladder};
use dlq_testkit::fixtures::{letter, letter_of};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::handler;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::access::{DESCRIBE, GROUP, READ, TOPIC, WRITE, allow_only, guarded};
use crate::fixture::{PATIENCE, TestTopic, available, handle, next, number};
use crate::fixture_bad_input::{Warnings, produce_raw};
use crate::fixture_feed::{confirm, follow};
use crate::fixture_reading::Look as _;
use crate::topic;

/// What a source says next. A delivery that was in flight when its partition was taken away comes again.
async fn error(source: &mut KafkaSource) -> TransportError {
    let failed = async {
        loop {
            if let Err(error) = source.next().await {
                break error;
            }
        }
    };
    timeout(PATIENCE, failed).await.expect("it says something")
}

/// Handles what comes up to this message. What was handled just before may not have been committed, and comes again.
async fn came(source: &mut KafkaSource, expected: u32) {
    loop {
        let came = number(&handle(source).await);
        assert!(came <= expected, "{came} came before {expected}");
        if came == expected {
            return;
        }
    }
}

/// The error that says this, of several.
async fn told(source: &mut KafkaSource, what: &str) -> TransportError {
    let until = Instant::now() + PATIENCE;
    loop {
        let error = error(source).await;
        println!("{error}");
        if error.to_string().contains(what) {
            return error;
        }
        assert!(Instant::now() < until, "`{what}` is not said");
    }
}

/// The same, quicker to give a record up that is not confirmed.
fn quick(place: &TestTopic) -> Brokers {
    let brokers = place.brokers.clone();
    brokers.with("topic.metadata.propagation.max.ms", "1000").with("delivery.timeout.ms", "4000")
}

fn consumer(place: &TestTopic) -> KafkaTransport {
    KafkaTransport::new(&*place.topic)
        .name("billing")
        .group(format!("{}-billing", place.topic))
        .ladder(Ladder::of([Duration::from_secs(1)]))
        .dead_letter_topic(DlqTopic::new().name(format!("{}.dlq", place.topic)))
        .create_missing_topics()
}

/// What the group has committed of the first partition.
fn committed(place: &TestTopic) -> Offset {
    let group = format!("{}-billing", place.topic);
    let client: BaseConsumer = place.config().set("group.id", group).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition(&place.topic, 0);
    client.committed_offsets(list, PATIENCE).unwrap().elements()[0].offset()
}

/// With the feature they are read: that is a test of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_a_codec_that_this_build_lacks_wait_and_hold_nobody_up() {
    if !available() || cfg!(feature = "zstd") {
        return;
    }
    let place = TestTopic::with_partitions("zstd", 1).await;
    let other = format!("{}.other", place.topic);
    place.create(&other, 1, &[]).await;
    produce_raw(&place, b"1", &[]);
    // The broker compresses what comes from now on.
    place.alter(&place.topic, "compression.type", "zstd").await;
    place.publish([2, 3]).await;
    let mut source = consumer(&place).topic(&other).source(&quick(&place)).await.unwrap();
    assert_eq!(number(&handle(&mut source).await), 1);
    let error = told(&mut source, "zstd").await;
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    let text = error.to_string();
    let topic = format!("topic `{}`, partition 0, cannot be read from offset 1 on", place.topic);
    assert!(text.contains(&topic) && text.contains("the feature `zstd`"), "{text}");
    // It is not told all the time, and the other topic goes on.
    let (mut errors, mut others, begun) = (0, Vec::new(), Instant::now());
    place.send(&other, b"7", &[]).await;
    loop {
        // Until it has come, and for four seconds.
        let left = Duration::from_secs(4).saturating_sub(begun.elapsed());
        let patience = if others.is_empty() { PATIENCE } else { left };
        let Ok(next) = timeout(patience, source.next()).await else { break };
        match next {
            Ok(next) => {
                let (delivery, settle) = next.unwrap();
                others.push(number(&delivery));
                settle.settle(Disposition::Succeeded).await.unwrap();
            }
            Err(_) => errors += 1,
        }
    }
    assert_eq!(others, [7], "{errors} errors");
    let seconds = begun.elapsed().as_secs();
    assert!(errors <= 1 + seconds / 20, "{errors} errors in {seconds} s");
    source.close().await;
    assert_eq!(committed(&place), Offset::Offset(1), "it is not passed over");

    // A whole consumer says so of itself.
    let consumer = consumer(&place);
    let stack = handler("billing", async |_: Delivery| {}).build().unwrap();
    let running = Consumer::builder(consumer.source(&quick(&place)).await.unwrap())
        .handler(stack)
        .sink(consumer.sink(&quick(&place)).await.unwrap())
        .build()
        .unwrap();
    let (stop, mut health) = (running.handle(), running.health());
    let watching = async {
        let said = |error: &Option<String>| error.as_ref().is_some_and(|e| e.contains("zstd"));
        let seen = timeout(PATIENCE, health.wait_for(|health| said(&health.source_error))).await;
        stop.stop();
        seen.unwrap().unwrap()
    };
    let seen = tokio::join!(running.run(pending()), watching).1;
    assert!(!seen.is_healthy());
}

/// Headers of a letter that was sent back, which a producer has written itself: everything fits, and the topic where it says
/// that it was born is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_a_forged_birth_keeps_no_other_record_waiting() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("forged", 1).await;
    let nosuch = format!("{}-nosuch", place.topic);
    let born = |consistent: bool| {
        let mut forged = letter_of(Message::new(&*nosuch, "bad"), 1);
        forged.origin = Origin::new("kafka", &*nosuch, Position::Offset(1)).with_partition(0);
        forged.consumer = "billing".to_owned();
        let real = Origin::new("kafka", &*place.topic, Position::Offset(1)).with_partition(0);
        let of = if consistent { &forged.origin } else { &real };
        forged.id = LetterId::of(of, None, "billing");
        forged
    };
    for forged in [born(true), born(false)] {
        let headers = on_death(&forged);
        let headers = headers
            .iter()
            .map(|one| (std::str::from_utf8(&one.name).unwrap(), one.value.as_deref().unwrap()));
        place.send(&place.topic, b"bad", &headers.collect::<Vec<_>>()).await;
    }
    place.publish(1..=100).await;
    let consumer = place.billing();
    let (done, mut seen) = watch::channel(0);
    let stack = handler("billing", move |delivery: Delivery| {
        let is_bad = delivery.message().payload().is_some_and(|payload| payload == "bad");
        if !is_bad {
            done.send_modify(|done| *done += 1);
        }
        async move { if is_bad { Err("it is bad".to_owned()) } else { Ok(()) } }
    })
    .classify(|_: &String| Classification::permanent())
    .build()
    .unwrap();
    let running = Consumer::builder(consumer.source(&quick(&place)).await.unwrap())
        .handler(stack)
        .sink(consumer.sink(&quick(&place)).await.unwrap())
        .build()
        .unwrap();
    let letters = KafkaLetters::new(&place.brokers, format!("{}.dlq", place.topic));
    let all = async {
        let all = timeout(PATIENCE, seen.wait_for(|done| *done == 100)).await;
        all.expect("the others are handled").unwrap();
        let dead = async {
            while letters.count(Filter::new()).await.unwrap() < 2 {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(PATIENCE, dead).await.expect("these have their letters");
    };
    let report = running.run(all).await;
    assert_eq!((report.handled, report.dead, report.deferred), (100, 2, 0), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_is_told_and_waited_for() {
    if available() {
        tokio::join!(away_from_the_start(), away_for_a_while());
    }
}

async fn away_from_the_start() {
    let begun = Instant::now();
    let nowhere = KafkaTransport::new("orders").name("billing");
    let error =
        timeout(PATIENCE, nowhere.source(&Brokers::at("127.0.0.1:1"))).await.unwrap().unwrap_err();
    println!("after {:.1} s: {error}", begun.elapsed().as_secs_f64());
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

async fn away_for_a_while() {
    let place = TestTopic::own("away").await;
    let consumer = consumer(&place);
    let mut source = consumer.source(&quick(&place)).await.unwrap();
    let sink = consumer.sink(&quick(&place)).await.unwrap();
    place.publish([1]).await;
    let (_, settle) = next(&mut source).await;
    tokio::task::block_in_place(|| place.running().stop().unwrap());
    let error = told(&mut source, "rokers").await;
    assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{error}");
    let begun = Instant::now();
    let unwritten = sink.put(vec![letter(1)]).await.unwrap_err();
    println!("after {:.1} s: {unwritten}", begun.elapsed().as_secs_f64());
    assert_eq!(unwritten.kind(), StoreErrorKind::Unavailable);
    assert!(unwritten.to_string().contains(".dlq`"), "{unwritten}");
    // After four seconds it is given up; by itself the writer has more patience.
    assert!(begun.elapsed() < PATIENCE);
    tokio::task::block_in_place(|| place.running().restart().unwrap());
    sink.put(vec![letter(1)]).await.unwrap();
    drop(settle);
    place.publish([2]).await;
    let mut seen = [handle(&mut source).await, handle(&mut source).await].map(|d| number(&d));
    seen.sort_unstable();
    assert_eq!(seen, [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_deleted_is_named_until_it_is_there_again() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("deleted", 1).await;
    let other = format!("{}.other", place.topic);
    place.create(&other, 1, &[]).await;
    let mut source = consumer(&place).topic(&other).source(&quick(&place)).await.unwrap();
    place.publish([1, 2]).await;
    assert_eq!(number(&handle(&mut source).await), 1);
    assert_eq!(number(&handle(&mut source).await), 2);
    topic::delete(place.brokers.bootstrap(), &place.topic).await;
    let error = told(&mut source, &format!("topic `{}` is not there", place.topic)).await;
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    place.send(&other, b"7", &[]).await;
    assert_eq!(number(&handle(&mut source).await), 7);
    place.create(&place.topic, 1, &[]).await;
    place.publish([3]).await;
    assert_eq!(number(&handle(&mut source).await), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_to_a_topic_that_was_deleted_until_it_is_there_again() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("unwritten", 3).await;
    let consumer = consumer(&place);
    let mut source = consumer.source(&quick(&place)).await.unwrap();
    let queue = consumer.retry_queue(&quick(&place)).await.unwrap();
    let dead = format!("{}.dlq", place.topic);
    consumer.sink(&quick(&place)).await.unwrap();
    // This one creates nothing.
    let named = DlqTopic::new().name(&dead);
    let brokers = quick(&place);
    let sink = KafkaSink::open(&brokers, named, std::slice::from_ref(&place.topic)).await;
    let sink = sink.unwrap();
    let retry = format!("{}.{0}-billing.retry.1s", place.topic);
    place.publish([1]).await;
    let (delivery, settle) = next(&mut source).await;
    // It writes before, so that it has seen the topics as they were.
    sink.put(vec![letter(1)]).await.unwrap();
    topic::delete(place.brokers.bootstrap(), &dead).await;
    topic::delete(place.brokers.bootstrap(), &retry).await;
    let delayed_retry = || DelayedRetry {
        delivery: delivery.clone(),
        consumer: "billing".into(),
        due: SystemClock.now(),
        history: History::new(),
        attempts: 1,
    };
    let begun = Instant::now();
    // The client may first say that it has given up a connection.
    let refused = async {
        loop {
            let error = sink.put(vec![letter(2)]).await.unwrap_err();
            println!("after {:.1} s: {error}", begun.elapsed().as_secs_f64());
            assert!(error.to_string().contains(&format!("topic `{dead}`")), "{error}");
            if error.kind() != StoreErrorKind::Unavailable {
                break error.kind();
            }
        }
    };
    let kind = timeout(PATIENCE, refused).await.unwrap();
    assert_eq!(kind, StoreErrorKind::NotFound, "other topics can be written");
    let error = queue.enqueue(delayed_retry()).await.unwrap_err();
    println!("after {:.1} s: {error}", begun.elapsed().as_secs_f64());
    assert!(error.to_string().contains(&format!("topic `{retry}`")), "{error}");
    told(&mut source, &format!("topic `{retry}` is not there")).await;
    // They come back smaller than they were.
    place.create(&dead, 1, &[]).await;
    place.create(&retry, 1, &[]).await;
    let written = async {
        while sink.put(vec![letter(2)]).await.is_err() {}
        while queue.enqueue(delayed_retry()).await.is_err() {}
    };
    let begun = Instant::now();
    timeout(PATIENCE, written).await.unwrap();
    println!("written {:.1} s after they were created again", begun.elapsed().as_secs_f64());
    drop(settle);
    while handle(&mut source).await.delivered_from() != DeliveredFrom::Retry {}
    let letters = KafkaLetters::new(&place.brokers, dead);
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_of_letters_that_was_deleted_is_created_again_where_that_was_asked_for() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("again", 3).await;
    let sink = consumer(&place).sink(&quick(&place)).await.unwrap();
    let dead = format!("{}.dlq", place.topic);
    sink.put(vec![letter(1)]).await.unwrap();
    topic::delete(place.brokers.bootstrap(), &dead).await;
    let written = async {
        while let Err(error) = sink.put((2..12).map(letter).collect()).await {
            println!("not yet: {error}");
        }
    };
    timeout(PATIENCE, written).await.unwrap();
    let letters = KafkaLetters::new(&place.brokers, dead);
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permission_that_is_taken_away_is_named_and_may_be_given_back() {
    if !available() {
        return;
    }
    let place = TestTopic::at(Arc::new(Mutex::new(guarded())), "taken", 1).await;
    let consumer = consumer(&place);
    let mut source = consumer.source(&quick(&place)).await.unwrap();
    let sink = consumer.sink(&quick(&place)).await.unwrap();
    place.publish([1]).await;
    assert_eq!(number(&handle(&mut source).await), 1);
    sink.put(vec![letter(1)]).await.unwrap();

    let dead = format!("{}.dlq", place.topic);
    allow_only(&place.running(), TOPIC, &dead, DESCRIBE);
    let refused = async {
        loop {
            match sink.put(vec![letter(2)]).await {
                Err(error) if error.kind() == StoreErrorKind::InvalidConfig => break error,
                // It is not in force yet, or the broker is slow.
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}"),
                Ok(_) => {}
            }
        }
    };
    let error = timeout(PATIENCE, refused).await.unwrap();
    println!("{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("topic `{dead}`")) && text.contains("allow `Write`"), "{text}");

    allow_only(&place.running(), TOPIC, &place.topic, DESCRIBE);
    allow_only(&place.running(), TOPIC, &place.topic, WRITE);
    let text = format!("topic `{}` may not be read", place.topic);
    let error = told(&mut source, &text).await;
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    allow_only(&place.running(), TOPIC, &place.topic, READ);
    place.publish([2]).await;
    came(&mut source, 2).await;

    let group = format!("{}-billing", place.topic);
    allow_only(&place.running(), GROUP, &group, DESCRIBE);
    let error = told(&mut source, &format!("group `{group}`")).await;
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    assert!(error.to_string().contains("allow `Read`"), "{error}");
    allow_only(&place.running(), GROUP, &group, READ);
    place.publish([3]).await;
    came(&mut source, 3).await;
}

/// With no record after it that would be committed anyway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_commit_that_is_refused_is_made_again() {
    if !available() {
        return;
    }
    let place = TestTopic::at(Arc::new(Mutex::new(guarded())), "refused", 1).await;
    let mut source = consumer(&place).source(&quick(&place)).await.unwrap();
    place.publish([1]).await;
    let (_, settle) = next(&mut source).await;
    allow_only(&place.running(), TOPIC, &place.topic, DESCRIBE);
    told(&mut source, &format!("topic `{}` may not be read", place.topic)).await;
    settle.settle(Disposition::Succeeded).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let now = || tokio::task::block_in_place(|| committed(&place));
    assert_eq!(now(), Offset::Offset(0), "it is refused");
    allow_only(&place.running(), TOPIC, &place.topic, READ);
    let again = async {
        while now() != Offset::Offset(1) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, again).await.expect("what is done is committed");
}

/// The broker refuses what would be committed of one topic, and takes the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_a_topic_that_may_not_be_committed_keeps_no_other_from_opening() {
    if !available() {
        return;
    }
    let place = TestTopic::at(Arc::new(Mutex::new(guarded())), "beside", 1).await;
    let closed = format!("{}.closed", place.topic);
    place.create(&closed, 1, &[]).await;
    let consumer = consumer(&place).topic(&closed);
    let mut source = consumer.source(&quick(&place)).await.unwrap();
    place.publish([1]).await;
    place.send(&closed, b"2", &[]).await;
    for _ in 0..2 {
        let _ = handle(&mut source).await;
    }
    source.close().await;
    allow_only(&place.running(), TOPIC, &closed, DESCRIBE);
    // Until the rule is in force.
    let client: BaseConsumer = place.config().set("group.id", "other").create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&closed, 0, Offset::Offset(1)).unwrap();
    let is_refused =
        async || tokio::task::block_in_place(|| client.commit(&list, CommitMode::Sync)).is_err();
    while !is_refused().await {
        sleep(Duration::from_millis(20)).await;
    }
    let mut source = consumer.source(&quick(&place)).await.unwrap();
    place.publish([3]).await;
    came(&mut source, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_with_one_instance_id_the_first_ends_with_a_word() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("fenced", 1).await;
    let brokers = quick(&place).with("group.instance.id", "billing-1");
    let consumer = KafkaTransport::new(&*place.topic).name("billing").without_retries();
    let mut first = consumer.source(&brokers).await.unwrap();
    place.publish([1]).await;
    let (_, settle) = next(&mut first).await;
    let mut second = consumer.source(&brokers).await.unwrap();
    let fenced = async {
        loop {
            let error = error(&mut first).await;
            println!("{error}");
            if !error.is_transient() {
                break error;
            }
        }
    };
    let error = timeout(PATIENCE, fenced).await.unwrap();
    assert_eq!(error.kind(), TransportErrorKind::Unexpected);
    assert!(error.to_string().contains("the same `group.instance.id`"), "{error}");
    assert_eq!(number(&handle(&mut second).await), 1, "what the first had in flight");
    drop(settle);
    timeout(PATIENCE, first.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_a_header_whose_name_is_not_text_stops_nobody_and_is_told_once() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("names", 1).await;
    let headers: [(&[u8], &[u8]); 3] = [(b"a", b"1"), (b"\xff\xfe", b"2"), (b"b", b"\xff")];
    produce_raw(&place, b"1", &headers);
    produce_raw(&place, b"2", &headers);
    place.publish([3]).await;
    let warnings = Warnings::default();
    let _hears = tracing::subscriber::set_default(warnings.clone());
    let mut source = consumer(&place).source(&quick(&place)).await.unwrap();
    for expected in 1..=3 {
        let delivery = handle(&mut source).await;
        assert_eq!(number(&delivery), expected);
        let headers = delivery.message().headers();
        let readable = [headers.get("a"), headers.get("b")];
        let written = if expected < 3 { [Some(&b"1"[..]), Some(&b"\xff"[..])] } else { [None; 2] };
        assert_eq!((headers.len(), readable), (written.iter().flatten().count(), written));
    }
    // Nor does it stop who reads the same as letters, at once or as they come.
    let letters = KafkaLetters::new(&place.brokers, &*place.topic);
    let read = letters.all().await;
    let unreadable: Vec<_> = read.unwrap().into_iter().map(|read| read.letter).collect();
    let of = |letter: &DeadLetter| letter.attributes.get(UNREADABLE_HEADERS).cloned();
    let one = || Some("1".to_owned());
    assert_eq!(unreadable.iter().map(of).collect::<Vec<_>>(), [one(), one(), None]);
    let mut feed = follow(&letters, "sqlite:///dlq.db", Duration::from_secs(10)).await.unwrap();
    let mut fed = 0;
    while fed < 3 {
        fed += timeout(PATIENCE, feed.next(3)).await.unwrap().unwrap().len();
        confirm(&mut feed).await;
    }
    let said = warnings.with("not UTF-8");
    assert_eq!(said.len(), 1, "{said:?}");
    for part in [&*format!("topic=\"{}\"", place.topic), "partition=0", "offset=0", "headers=1"] {
        assert!(said[0].contains(part), "{part} in {}", said[0]);
    }
}
