//! What is written to the topic of dead letters.

use dlq_core::{Filter, Reason, RetryQueue, Sink, StoreErrorKind};
use dlq_kafka::rdkafka::message::{Header, OwnedHeaders};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{DlqTopic, KafkaLetters, KafkaSink};
use dlq_testkit::fixtures::{hostile_messages, letter};
use tokio::time::timeout;

use crate::fixture::{PATIENCE, TestTopic, available, next};
use crate::fixture_reading::Look as _;

async fn sink(place: &TestTopic) -> (KafkaSink, KafkaLetters) {
    let topic = format!("{}.dlq", place.topic);
    let consumer = place.billing().dead_letter_topic(DlqTopic::new().name(&topic));
    let sink = consumer.sink(&place.brokers).await.unwrap();
    (sink, KafkaLetters::new(&place.brokers, &*topic))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_letters_come_back_byte_for_byte() {
    if !available() {
        return;
    }
    let place = TestTopic::fresh("bytes").await;
    let (sink, letters) = sink(&place).await;
    for (number, (what, message)) in (1..).zip(hostile_messages()) {
        let mut written = letter(number);
        written.message = message;
        sink.put(vec![written.clone()]).await.unwrap();
        let read = letters.get(written.id).await.unwrap().unwrap();
        // By its group the handler is found again.
        let group = format!("{}-billing", place.topic);
        written.attributes.insert("kafka.group".to_owned(), group);
        assert_eq!(read.message, written.message, "{what}");
        assert_eq!((read.origin, read.consumer), (written.origin, written.consumer), "{what}");
        assert_eq!(
            (read.history, read.attributes),
            (written.history, written.attributes),
            "{what}"
        );
        assert_eq!((read.died_at, read.reason), (written.died_at, written.reason), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_a_death_that_was_written_twice_is_one_letter() {
    if !available() {
        return;
    }
    let place = TestTopic::fresh("twice").await;
    let (sink, letters) = sink(&place).await;
    let mut again = letter(1);
    again.generation += 1;
    sink.put(vec![letter(1), letter(2), letter(1)]).await.unwrap();
    sink.put(vec![letter(1)]).await.unwrap();
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 2);
    sink.put(vec![again.clone(), letter(1)]).await.unwrap();
    let read = letters.get(again.id).await.unwrap().unwrap();
    assert_eq!(read.generation, again.generation);
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 2);
}

/// Headers of a producer may say where a message was born.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_letters_go_to_topics_that_the_sink_was_opened_for() {
    if !available() {
        return;
    }
    let place = TestTopic::fresh("opened").await;
    let second = format!("{}-second", place.topic);
    place.create(&second, 1, &[]).await;
    let sink = place.billing().topic(&second).sink(&place.brokers).await.unwrap();
    let born = |number, topic: &str, subject: &str| {
        let mut letter = letter(number);
        letter.message = dlq_core::Message::new(subject, "x");
        letter.origin = dlq_core::Origin::new("kafka", topic, dlq_core::Position::Offset(number))
            .with_partition(0);
        letter
    };
    let nosuch = format!("{}-nosuch", place.topic);
    // It is there, and would take what is written.
    let others = format!("{}-others", place.topic);
    place.create(&format!("{others}.dlq"), 1, &[]).await;
    let written = timeout(
        PATIENCE,
        sink.put(vec![
            born(1, &nosuch, &nosuch),
            born(2, &nosuch, &second),
            born(3, &second, &others),
            born(4, &others, &place.topic),
        ]),
    );
    written.await.expect("nobody waits for a topic that is not there").unwrap();
    let count = async |topic: &str| {
        let letters = KafkaLetters::new(&place.brokers, format!("{topic}.dlq"));
        letters.count(Filter::new()).await.unwrap()
    };
    assert_eq!(count(&place.topic).await, 2, "by its topic, or the first");
    assert_eq!(count(&second).await, 2, "by where it was born, and by where it was read");
    assert_eq!(count(&others).await, 0);
}

/// A consumer whose own topics take less than the messages that it reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_a_message_that_fits_nowhere_still_has_its_letter() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("large", 1).await;
    let consumer = place.billing();
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let queue = consumer.retry_queue(&place.brokers).await.unwrap();
    let sink = consumer.sink(&place.brokers).await.unwrap();
    let group = format!("{}-billing", place.topic);
    for topic in ["dlq", &format!("{group}.retry.3s")] {
        place.alter(&format!("{}.{topic}", place.topic), "max.message.bytes", "20000").await;
    }
    // Nor does its key fit.
    let (key, payload) = (vec![b'k'; 30_000], vec![b'x'; 100_000]);
    let header = Header { key: "trace", value: Some("t-1") };
    let record = FutureRecord::to(&place.topic).key(&key).payload(&payload);
    let record = record.headers(OwnedHeaders::new().insert(header));
    place.producer().send(record, PATIENCE).await.unwrap();
    let (delivery, settle) = next(&mut source).await;
    let refused = queue
        .enqueue(dlq_core::DelayedRetry {
            delivery: delivery.clone(),
            consumer: "billing".into(),
            due: dlq_core::Timestamp::EPOCH,
            history: dlq_core::History::new(),
            attempts: 1,
        })
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Refused);
    let text = refused.to_string();
    assert!(
        text.contains("retry.3s` takes no record that large; raise its `max.message.bytes`"),
        "{text}"
    );

    let mut dead = letter(1);
    dead.message = delivery.message().clone();
    dead.origin = delivery.origin().clone();
    dead.reason = Reason::Permanent;
    sink.put(vec![dead.clone()]).await.unwrap();
    drop(settle);
    let letters = KafkaLetters::new(&place.brokers, format!("{}.dlq", place.topic));
    let read = letters.get(dead.id).await.unwrap().unwrap();
    assert_eq!(read.message.payload().unwrap().len(), 100_000);
    assert_eq!(read.message.key().map(|key| &key[..]), Some(&key[..]));
    assert_eq!(read.id, dead.id);
    assert_eq!(read.message.headers().get("trace"), Some(&b"t-1"[..]));
    assert_eq!(read.attributes["kafka.pointer"], format!("{}/0/0", place.topic));
}

/// Of which the broker says something else than of one that is larger than the topic's records may be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_a_message_that_no_segment_holds_still_has_its_letter() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("segment", 1).await;
    let dead_letters = format!("{}.dlq", place.topic);
    let stage = format!("{0}.{0}-billing.retry.3s", place.topic);
    place.alter(&place.topic, "max.message.bytes", "4000000").await;
    let settings = [
        ("max.message.bytes", "5000000"),
        // The smallest that there are.
        ("segment.bytes", "1048576"),
        ("retention.ms", "2592000000"),
    ];
    for topic in [&dead_letters, &stage] {
        place.create(topic, 1, &settings).await;
    }
    let consumer = place.billing();
    let mut source = consumer.source(&place.brokers).await.unwrap();
    let (queue, sink) = (
        consumer.retry_queue(&place.brokers).await.unwrap(),
        consumer.sink(&place.brokers).await.unwrap(),
    );
    let payload = vec![b'x'; 2_000_000];
    let producer: FutureProducer =
        place.config().set("message.max.bytes", "4000000").create().unwrap();
    let record = FutureRecord::<[u8], _>::to(&place.topic).payload(&payload);
    producer.send(record, PATIENCE).await.unwrap();
    let (delivery, settle) = next(&mut source).await;
    let delayed_retry = dlq_core::DelayedRetry {
        delivery: delivery.clone(),
        consumer: "billing".into(),
        due: dlq_core::Timestamp::EPOCH,
        history: dlq_core::History::new(),
        attempts: 1,
    };
    let refused = queue.enqueue(delayed_retry).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Refused, "{refused}");
    let mut dead = letter(1);
    (dead.message, dead.origin) = (delivery.message().clone(), delivery.origin().clone());
    sink.put(vec![dead.clone()]).await.unwrap();
    drop(settle);
    let read = KafkaLetters::new(&place.brokers, dead_letters).get(dead.id).await.unwrap().unwrap();
    assert_eq!(read.message.payload().unwrap().len(), payload.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_letter_is_not_refused_for_those_beside_it() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("batch", 1).await;
    let topic = format!("{}.dlq", place.topic);
    let sink = place.billing().sink(&place.brokers).await.unwrap();
    place.alter(&topic, "max.message.bytes", "6000").await;
    let letters = (1..=50).map(|number| {
        let mut letter = letter(number);
        letter.message = letter.message.with_payload(Some(vec![b'x'; 1_000].into()));
        letter.origin =
            dlq_core::Origin::new("kafka", &*place.topic, dlq_core::Position::Offset(number));
        letter
    });
    sink.put(letters.collect()).await.unwrap();
    let read = KafkaLetters::new(&place.brokers, topic);
    assert_eq!(read.count(Filter::new()).await.unwrap(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_named() {
    if !available() {
        return;
    }
    let place = TestTopic::fresh("missing").await;
    let open =
        KafkaSink::open(&place.brokers, DlqTopic::new(), std::slice::from_ref(&place.topic)).await;
    let text = open.unwrap_err().to_string();
    assert!(text.contains(&format!("`{}.dlq` is not there", place.topic)), "{text}");
    let other = dlq_kafka::KafkaTransport::new("nowhere").name("billing");
    let text = other.source(&place.brokers).await.unwrap_err().to_string();
    assert!(text.contains("`nowhere` is not there"), "{text}");
    let text = other.without_retries().retry_queue(&place.brokers).await.unwrap_err().to_string();
    assert!(text.contains("without_retries"), "{text}");
}
