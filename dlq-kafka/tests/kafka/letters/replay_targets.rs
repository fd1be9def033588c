//! Letters arrive at their origin, elsewhere, or at their handler, as they were.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use dlq_core::{LetterId, Timestamp};
use dlq_kafka::rdkafka::message::{Header, OwnedHeaders};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{KafkaTarget, KafkaTransport, Ladder, ReplayOutcome, Skipped};

use crate::fixture::{handle, number};
use crate::fixture_reading::Look as _;
use crate::fixture_replay::{PARTITIONS, PATIENCE, Read, Shop, replay, run, to_origin};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_letter_is_sent_to_its_origin_by_its_key() {
    let Some(shop) = Shop::open("origin").await else { return };
    // As a producer of Java places them.
    let producer: FutureProducer =
        shop.config().set("partitioner", "murmur2_random").create().unwrap();
    for number in 0..20 {
        let (key, payload) = (format!("customer-{}", number % 7), number.to_string());
        let record = FutureRecord::to(&shop.topic).key(&key).payload(&payload);
        producer.send(record, PATIENCE).await.unwrap();
    }
    let letters = shop.bury(&shop.dead(0..20)).await;
    assert_eq!(run(to_origin(&letters, 1)).await.sent, 20);
    let mut places: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    let all = shop.read(&shop.topic).await;
    for read in &all {
        places.entry(read.text()).or_default().push(read.partition);
    }
    assert!(places.values().all(|places| places.len() == 2 && places[0] == places[1]));
    let sent = all.iter().find(|read| read.text() == "4" && read.header("replay.id").is_some());
    let sent = sent.unwrap();
    assert_eq!(sent.key.as_deref(), Some(&b"customer-4"[..]));
    assert_eq!(sent.headers[0], ("traceparent".to_owned(), Some(b"00-1-2-01".to_vec())));
    let letter = &shop.dead([4])[0];
    let wanted = [
        ("retry.count", "0".to_owned()),
        ("replay.count", "1".to_owned()),
        ("original.topic", shop.topic.clone()),
        ("original.partition", "1".to_owned()),
        ("original.offset", "4".to_owned()),
        ("dlq.id", letter.id.to_string()),
        ("dlq.consumer", "billing".to_owned()),
        ("replay.id", crate::fixture_replay::operation(1).to_string()),
    ];
    for (name, value) in &wanted {
        assert_eq!(sent.header(name), Some(value.as_str()), "{name}");
    }
    let all = letters.all().await.unwrap();
    let stored = all.iter().find(|stored| stored.letter.id == letter.id).unwrap();
    let from = format!("{}/{}/{}", shop.dlq, stored.partition, stored.offset);
    assert_eq!(sent.header("replay.from-dlq"), Some(from.as_str()));
    let at: Timestamp = sent.header("replay.timestamp").unwrap().parse().unwrap();
    assert!(at > Timestamp::EPOCH);
    assert!(sent.header("dlq.kafka.rest").is_none() && sent.header("retry.due").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_keeps_its_partition_on_request() {
    let Some(shop) = Shop::open("keep").await else { return };
    let mut dead = shop.dead(0..9);
    let partitions = u32::try_from(PARTITIONS).unwrap();
    dead[8].origin = dead[8].origin.clone().with_partition(partitions);
    let letters = shop.bury(&dead).await;
    let mut why = String::new();
    let target = KafkaTarget::Origin { keep_partition: true };
    let replay = replay(&letters, target, 1);
    let report = replay.run(pending(), |replayed| {
        if let ReplayOutcome::Failed(error) = &replayed.outcome {
            why = error.to_string();
        }
    });
    let report = report.await.unwrap();
    assert_eq!((report.sent, report.failed), (8, 1));
    assert!(why.contains("partition 3") && why.contains("has 3 now"), "{why}");
    for read in shop.read(&shop.topic).await {
        assert_eq!(read.partition, read.text().parse::<i32>().unwrap() % PARTITIONS);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_is_sent_elsewhere_also_when_nothing_is_known_of_it() {
    let Some(shop) = Shop::open("elsewhere").await else { return };
    shop.create("elsewhere-repair", 1, &[]).await;
    let letters = shop.bury(&shop.dead(0..3)).await;
    let producer: FutureProducer = shop.config().create().unwrap();
    let foreign = FutureRecord::to(&shop.dlq).key("k").payload("foreign");
    producer.send(foreign, PATIENCE).await.unwrap();
    let plan = to_origin(&letters, 1).plan().await.unwrap();
    assert_eq!((plan.letters, plan.skipped[&Skipped::NoOrigin]), (3, 1));
    let to_repair = || KafkaTarget::Topic("elsewhere-repair".to_owned());
    assert_eq!(run(replay(&letters, to_repair(), 1)).await.sent, 4);
    assert_eq!(run(replay(&letters, to_repair(), 2)).await.sent, 0);
    assert_eq!(run(to_origin(&letters, 2)).await.sent, 0, "wherever it was sent");
    let mut there: Vec<_> = shop.read("elsewhere-repair").await;
    there.sort_by_key(|read| read.text());
    let texts: Vec<String> = there.iter().map(|read| read.text()).collect();
    assert_eq!(texts, ["0", "1", "2", "foreign"]);
    assert_eq!(there[0].header("original.topic"), Some(shop.topic.as_str()));
    assert!(shop.read(&shop.topic).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_letter_is_sent_to_its_handler_and_to_nobody_else() {
    let Some(shop) = Shop::open("handler").await else { return };
    let ladder = || Ladder::of([30, 300].map(Duration::from_secs));
    let stages = ladder().stages(&shop.topic, "billing").unwrap();
    let letters = shop.bury(&shop.dead(0..3)).await;
    // Nobody would hear it.
    let target = || KafkaTarget::Handler(ladder());
    let mut why = Vec::new();
    let deaf = replay(&letters, target(), 1);
    let report = deaf.run(pending(), |replayed| {
        if let ReplayOutcome::Failed(error) = &replayed.outcome {
            why.push(error.to_string());
        }
    });
    let report = report.await.unwrap();
    assert_eq!((report.sent, report.failed), (0, 3));
    assert!(why[0].contains(&stages[0].topic), "{why:?}");
    for stage in &stages {
        shop.create(&stage.topic, 1, &[]).await;
    }
    assert_eq!(run(replay(&letters, target(), 1)).await.sent, 3);
    assert_eq!(run(replay(&letters, target(), 2)).await.sent, 0);
    let there = shop.read(&stages[0].topic).await;
    assert_eq!(there.len(), 3);
    assert!(
        shop.read(&stages[1].topic).await.is_empty() && shop.read(&shop.topic).await.is_empty()
    );
    let dead = shop.dead(0..3);
    for (read, letter) in there.iter().zip(&dead) {
        assert_eq!(read.header("dlq.consumer"), Some("billing"));
        assert_eq!(read.header("dlq.id"), Some(letter.id.to_string().as_str()));
        assert_eq!(
            (read.header("retry.count"), read.header("retry.attempts")),
            (Some("0"), Some("0"))
        );
        assert_eq!(read.header("retry.due"), read.header("replay.timestamp"), "it is due");
        let history = serde_json::to_value(&letter.history).unwrap();
        let told: serde_json::Value =
            serde_json::from_str(read.header("error.history").unwrap()).unwrap();
        assert_eq!(told, history);
        // What no header says.
        let rest: serde_json::Value =
            serde_json::from_str(read.header("dlq.kafka.rest").unwrap_or("{}")).unwrap();
        assert!(rest.get("facts").is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_runs_again_when_that_is_asked_for_and_not_for_a_copy() {
    let Some(shop) = Shop::open("handler-again").await else { return };
    let mut dead = shop.dead(0..1);
    dead[0].consumer = "shipping".to_owned();
    dead[0].id = LetterId::of(&dead[0].origin, dead[0].message.published_at(), &dead[0].consumer);
    let ladder = Ladder::of([Duration::from_secs(30)]);
    let stage = &ladder.stages(&shop.topic, "shipping").unwrap()[0].topic;
    // One assignment of it, from the first to the last.
    let consumer = KafkaTransport::new(&*shop.topic)
        .name("shipping")
        .ladder(ladder.clone())
        .create_missing_topics();
    let mut source = consumer.source(&shop.brokers()).await.unwrap();
    let letters = shop.bury(&dead).await;
    let again = async |n: u32| {
        let replay = replay(&letters, KafkaTarget::Handler(ladder.clone()), n.into()).again();
        assert_eq!(run(replay).await.sent, 1);
    };
    for n in 1..=2 {
        again(n).await;
        let delivery = tokio::time::timeout(PATIENCE, handle(&mut source)).await.unwrap();
        assert_eq!((number(&delivery), delivery.replays()), (0, n));
    }
    let producer: FutureProducer = shop.config().create().unwrap();
    for read in shop.read(stage).await {
        let headers = read.headers.iter().fold(OwnedHeaders::new(), |all, (key, value)| {
            all.insert(Header { key, value: value.as_ref() })
        });
        let mut copy = FutureRecord::<[u8], [u8]>::to(stage).partition(read.partition);
        (copy.key, copy.payload) = (read.key.as_deref(), read.payload.as_deref());
        producer.send(copy.headers(headers), PATIENCE).await.unwrap();
    }
    again(3).await;
    assert_eq!(handle(&mut source).await.replays(), 3, "copies are passed over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_operations_send_to_the_handler_is_counted_on() {
    let Some(shop) = Shop::open("counted-on").await else { return };
    let ladder = Ladder::of([Duration::from_secs(30)]);
    let stage = &ladder.stages(&shop.topic, "billing").unwrap()[0].topic;
    shop.create(stage, 1, &[]).await;
    let letters = shop.bury(&shop.dead(0..2)).await;
    let of = |n| replay(&letters, KafkaTarget::Handler(ladder.clone()), n).again();
    // One letter at a time; after the first one somebody else sends both.
    let mut told = 0;
    let slow = of(1).rate(4);
    let report = slow.run(pending(), |_| {
        told += 1;
        if told == 1 {
            let other = run(of(2));
            let runtime = tokio::runtime::Handle::current();
            let other = tokio::task::block_in_place(|| runtime.block_on(other));
            assert_eq!(other.sent, 2);
        }
    });
    let report = report.await.unwrap();
    assert_eq!(report.sent, 2, "{report}");
    let there = shop.read(stage).await;
    let count = |read: &Read| (read.text(), read.header("replay.count").unwrap().to_owned());
    let mut counts: Vec<_> = there.iter().map(count).collect();
    counts.sort_unstable();
    let wanted = [("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")];
    assert_eq!(counts, wanted.map(|(letter, count)| (letter.to_owned(), count.to_owned())));
}
