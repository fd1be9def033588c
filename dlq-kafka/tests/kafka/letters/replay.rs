//! Which letters are sent, how often, and what is said of it.

use std::future::pending;
use std::sync::{Arc, mpsc};

use dlq_core::{Filter, OperationId, Status, StoreErrorKind, Timestamp};
use dlq_kafka::rdkafka::message::{Header, OwnedHeaders};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{KafkaReplay, KafkaTarget, Ladder, ReplayOutcome, ScanRange, Skipped};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::fixture_reading::Look as _;
use crate::fixture_replay::{PARTITIONS, PATIENCE, Shop, broker, commit, replay, run, to_origin};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_says_by_whom_letters_were_sent_where_to_and_when() {
    let Some(shop) = Shop::open("sent-once").await else { return };
    let letters = shop.bury(&shop.dead(0..10)).await;
    assert_eq!(run(to_origin(&letters, 1)).await.sent, 10);
    let ledger = shop.read(&format!("{}.replays", shop.dlq)).await;
    let marks: Vec<_> =
        ledger.iter().filter(|read| read.key.as_deref() != Some(b"begun")).collect();
    assert_eq!(marks.len(), 10);
    let mark: serde_json::Value = serde_json::from_str(&marks[0].text()).unwrap();
    assert_eq!((&mark["to"], &mark["who"]), (&shop.topic.as_str().into(), &"ana".into()));
    assert!(mark["operation"].is_string() && mark["at"].is_string(), "{mark}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_who_was_taken_over_goes_on_with_the_rest() {
    let Some(shop) = Shop::open("taken-over").await else { return };
    let letters = shop.bury(&shop.dead(0..100)).await;
    let begun = Arc::new(Notify::new());
    let (sends, sent) = mpsc::channel();
    let mut others = JoinSet::new();
    others.spawn({
        let (begun, quick) = (Arc::clone(&begun), to_origin(&shop.letters(), 2).limit(50));
        async move {
            begun.notified().await;
            quick.run(pending(), move |_| _ = sends.send(())).await
        }
    });
    // It goes on once the other has sent something, however long that takes.
    let (slow, mut told) = (to_origin(&letters, 1).rate(30), 0);
    let slowly = slow.run(pending(), move |_| {
        told += 1;
        if told == 1 {
            begun.notify_one();
            sent.recv_timeout(PATIENCE).unwrap();
        }
    });
    let slowly = slowly.await;
    let quickly = others.join_next().await.unwrap().unwrap();
    let (slowly, quickly) = (slowly.unwrap(), quickly.unwrap());
    assert!(slowly.is_complete() && quickly.is_complete(), "{slowly}; {quickly}");
    assert!(slowly.sent > 0 && quickly.sent > 0, "{slowly}; {quickly}");
    assert_eq!(slowly.sent + quickly.sent, 100, "{slowly}; {quickly}");
    shop.assert_once(0..100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_says_which() {
    let Some(shop) = Shop::open("filters").await else { return };
    let letters = shop.bury(&shop.dead(0..20)).await;
    let there = letters.all().await.unwrap();
    let of_1: Vec<_> = there.iter().filter(|stored| stored.partition == 1).collect();
    assert!(!of_1.is_empty() && of_1.len() < 20);
    let range = ScanRange::new().partition(1);
    assert_eq!(run(to_origin(&shop.letters().range(range), 2)).await.failed, 0);
    let number = |text: &[u8]| std::str::from_utf8(text).unwrap().parse::<u32>().unwrap();
    let wanted = of_1.iter().map(|stored| number(stored.letter.message.payload().unwrap()));
    shop.assert_once(wanted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_letter_does_not_stop_the_others() {
    let Some(shop) = Shop::open("others").await else { return };
    shop.create("others-narrow", 3, &[("max.message.bytes", "6000")]).await;
    shop.create("others-compacted", 1, &[("cleanup.policy", "compact")]).await;
    let mut dead = shop.dead(0..30);
    let move_to = |letter: &mut dlq_core::DeadLetter, topic: &str| {
        letter.origin = dlq_core::Origin::new("kafka", topic, letter.origin.position().clone())
            .with_partition(0);
    };
    // Too large for their topic, beside others that are not.
    for (number, letter) in dead.iter_mut().enumerate().take(20).skip(10) {
        move_to(letter, "others-narrow");
        let size = if number == 15 { 8_000 } else { 700 };
        let payload = format!("{number:0size$}");
        letter.message = letter.message.clone().with_payload(Some(payload.into()));
    }
    // A compacted topic takes nothing without a key.
    move_to(&mut dead[1], "others-compacted");
    dead[1].message = dlq_core::Message::new("others-compacted", "1");
    move_to(&mut dead[2], "others-missing");
    let mut odd = dlq_core::Headers::default();
    odd.append(&b"\xff\xfe"[..], &b"x"[..]);
    dead[3].message = dead[3].message.clone().with_headers(odd);
    dead[4].origin = dlq_testkit::fixtures::origin(4);
    dead[5].origin = dead[5].origin.clone().with_cluster("elsewhere");
    let letters = shop.bury(&dead).await;
    let mut failed = std::collections::BTreeMap::new();
    let replay = to_origin(&letters, 1);
    let report = replay.run(pending(), |replayed| {
        if let ReplayOutcome::Failed(error) = &replayed.outcome {
            let number = dead.iter().position(|letter| letter.id == replayed.id).unwrap();
            failed.insert(number, error.to_string());
        }
    });
    let report = report.await.unwrap();
    assert!(report.is_complete(), "{report}; {failed:?}");
    assert_eq!(failed.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 15], "{failed:?}");
    assert_eq!((report.sent, report.skipped[&Skipped::NoOrigin]), (24, 2), "{report}");
    assert!(failed[&1].contains("others-compacted"), "{failed:?}");
    assert!(failed[&2].contains("no topic `others-missing`"), "{failed:?}");
    assert!(failed[&3].contains("UTF-8"), "{failed:?}");
    assert!(failed[&15].contains("max.message.bytes"), "{failed:?}");
    assert!(!shop.has_topic("others-missing"), "nothing is created by mistake");
    let narrow = shop.read("others-narrow").await;
    let mut numbers: Vec<u32> = narrow.iter().map(|read| read.text().parse().unwrap()).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq((10..20).filter(|number| *number != 15)));
    // What failed was not marked.
    let report = run(to_origin(&letters, 2)).await;
    assert_eq!((report.sent, report.failed), (0, 4), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_says_what_would_be_done_and_changes_nothing() {
    let Some(shop) = Shop::open("plan").await else { return };
    for group in ["billing", "shipping"] {
        commit(&shop, group, &shop.topic);
    }
    commit(&shop, "returns", &shop.dlq);
    let mut dead = shop.dead(0..12);
    dead[11].state.replays = 10;
    dead[10].origin = dead[10].origin.clone().with_cluster("elsewhere");
    let letters = shop.bury(&dead).await;
    let plan = to_origin(&letters, 1).plan().await.unwrap();
    assert_eq!((plan.letters, plan.sample.len()), (10, 10));
    assert_eq!(plan.sample[0].payload_size, Some(1));
    assert_eq!((plan.skipped[&Skipped::MaxReplays], plan.skipped[&Skipped::NoOrigin]), (1, 1));
    let subscribers: Vec<&str> =
        plan.subscribers.iter().map(|subscriber| subscriber.consumer.as_str()).collect();
    assert_eq!(subscribers, ["shipping"]);
    assert!(plan.notes.len() == 1 && plan.notes[0].contains("elsewhere"), "{:?}", plan.notes);
    assert!(shop.sent_back().await.is_empty());
    assert!(!shop.has_topic(&format!("{}.replays", shop.dlq)), "nothing was changed");
    let to_handler = replay(&letters, KafkaTarget::Handler(Ladder::new()), 1).plan().await.unwrap();
    assert!(to_handler.subscribers.is_empty(), "{:?}", to_handler.subscribers);
    assert!(to_handler.notes.iter().any(|note| note.contains("no retry topic")));
    // While somebody sends, a plan takes nothing from them.
    let slow = to_origin(&letters, 1).rate(4);
    let first = Notify::new();
    let running = slow.run(pending(), |_| first.notify_one());
    let planning = async {
        // Those that are skipped are told of before anything is sent.
        for _ in 0..4 {
            first.notified().await;
        }
        to_origin(&letters, 2).plan().await.unwrap()
    };
    let (report, meanwhile) = tokio::join!(running, planning);
    assert_eq!(report.unwrap().sent, plan.letters);
    assert!(meanwhile.letters < plan.letters, "{meanwhile:?}");
    assert_eq!(to_origin(&letters, 2).plan().await.unwrap().letters, 0);
}

/// Connect keeps the time of the message, and says none of the death.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_says_which_letters_bounds_of_time_have_left_out_though_nobody_knows_when_they_died()
{
    let Some(url) = broker() else { return };
    let shop = Shop::at(url, "undated");
    shop.create(&shop.topic, PARTITIONS, &[]).await;
    // Letters that are months old stay.
    shop.create(&shop.dlq, 2, &[("retention.ms", "-1")]).await;
    let producer: FutureProducer = shop.config().create().unwrap();
    for (offset, at) in [(1, 1_790_000_000_000), (2, 1_790_009_000_000)] {
        let header = |key, value| Header { key, value: Some(value) };
        let headers = OwnedHeaders::new()
            .insert(header("__connect.errors.topic", shop.topic.as_str()))
            .insert(header("__connect.errors.partition", "0"))
            .insert(header("__connect.errors.offset", &offset.to_string()));
        let record = FutureRecord::<[u8], _>::to(&shop.dlq).timestamp(at).headers(headers);
        producer.send(record.payload("message"), PATIENCE).await.unwrap();
    }
    let planned = async |filter| {
        let id = OperationId::of("ana", Timestamp::EPOCH, 1);
        let to = KafkaTarget::Origin { keep_partition: false };
        KafkaReplay::new(&shop.letters(), filter, to, id).plan().await.unwrap()
    };
    let since = |at| Filter::new().since(Timestamp::from_millis(at));
    let plan = planned(since(1_790_005_000_000)).await;
    assert_eq!(plan.letters, 1);
    assert!(plan.notes.iter().any(|note| note.starts_with("1 more letters")), "{:?}", plan.notes);
    let plan = planned(since(1_780_000_000_000)).await;
    assert_eq!((plan.letters, plan.notes), (2, Vec::new()), "nothing was left out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_begun_is_said() {
    let Some(shop) = Shop::open("begun").await else { return };
    let letters = shop.bury(&shop.dead(0..2)).await;
    let ledger = format!("{}.replays", shop.dlq);
    for topic in ["begun-mistyped", "no name", shop.dlq.as_str(), ledger.as_str()] {
        let to = replay(&letters, KafkaTarget::Topic(topic.to_owned()), 1);
        let refused = to.plan().await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Refused);
        assert!(refused.to_string().contains(topic), "{refused}");
        assert_eq!(to.run(pending(), |_| {}).await.unwrap_err().kind(), StoreErrorKind::Refused);
        assert!(topic == shop.dlq || !shop.has_topic(topic), "nothing is created by mistake");
    }
    // A ledger that forgets, and one of which nobody knows what is last.
    shop.create("begun-forgets", 1, &[("cleanup.policy", "compact,delete")]).await;
    shop.create("begun-wide", 2, &[("cleanup.policy", "compact")]).await;
    for (ledger, why) in [("begun-forgets", "cleanup.policy"), ("begun-wide", "2 partitions")] {
        let letters = shop.letters().ledger(ledger);
        let report = to_origin(&letters, 1).run(pending(), |_| {}).await;
        let error = match report {
            Ok(report) => report.stopped.unwrap(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains(ledger) && error.to_string().contains(why), "{error}");
    }
    assert!(shop.sent_back().await.is_empty());
    let absent = dlq_kafka::KafkaLetters::new(&shop.brokers(), "begun-absent");
    let absent = to_origin(&absent, 1).run(pending(), |_| {}).await.unwrap_err();
    assert_eq!(absent.kind(), StoreErrorKind::NotFound, "{absent}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_what_the_ledger_cannot_say_of_a_letter_is_for_somebody_to_say() {
    let Some(shop) = Shop::open("ledger").await else { return };
    let letters = shop.bury(&shop.dead(0..3)).await;
    assert_eq!(run(to_origin(&letters, 1).limit(2)).await.sent, 2);
    let ledger = format!("{}.replays", shop.dlq);
    let producer: FutureProducer = shop.config().create().unwrap();
    let write = async |key: &str, value: Option<&str>| {
        let mut record = FutureRecord::to(&ledger).key(key);
        record.payload = value;
        producer.send(record, PATIENCE).await.unwrap();
    };
    let all = letters.all().await.unwrap();
    let unsent = all.iter().find(|stored| stored.letter.state.status == Status::Pending).unwrap();
    let (death, number) = (unsent.letter.death().to_string(), &unsent.letter.message);
    write("a stranger's", Some("word")).await;
    write(&death, Some("{\"of\":\"another version\"}")).await;
    let report = run(to_origin(&letters, 2)).await;
    assert_eq!((report.sent, report.failed, report.skipped[&Skipped::Sent]), (0, 1, 2));
    assert_eq!(shop.sent_back().await.len(), 2);
    // Without a value it was not sent, on somebody's word; so is what was.
    write(&death, None).await;
    assert_eq!(run(to_origin(&letters, 3)).await.sent, 1);
    write(&death, None).await;
    assert_eq!(run(to_origin(&letters, 4)).await.sent, 1);
    let number = std::str::from_utf8(number.payload().unwrap()).unwrap();
    let times: Vec<u32> = shop.sent_back().await.into_values().collect();
    assert_eq!((times.iter().sum::<u32>(), shop.sent_back().await[number]), (4, 2));
}
