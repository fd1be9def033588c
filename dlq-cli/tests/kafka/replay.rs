//! Sending letters back.

use std::time::Duration;

use dlq_core::{
    BindingKey, Clock as _, DeadLetter, Disposition, ErrorClass, LetterId, Message, Origin,
    Position, Reason, Settle as _, Source as _, SystemClock,
};
use dlq_kafka::{Brokers, KafkaTransport, Ladder};
use dlq_testkit::fixtures::letter;
use tokio::time::timeout;

use crate::common::Ran;
use crate::fixture::{Bench, PATIENCE};

const TO_ORIGIN: [&str; 7] = ["replay", "--all", "--yes", "--to", "origin", "-o", "json"];

#[tokio::test(flavor = "multi_thread")]
async fn sent_once_however_often_it_is_asked() {
    let Some(bench) = Bench::born("once", 30).await else { return };
    let before = bench.records("once");
    let dry = bench.run(&["replay", "--all", "--to", "origin", "--dry-run", "-o", "json"]).ok();
    assert_eq!(dry.json()["plan"]["count"], 30);
    assert!(dry.err.contains("nothing was sent"), "{}", dry.err);
    assert_eq!(bench.records("once").len(), 30);

    let ran = bench.run(&TO_ORIGIN).ok();
    assert_eq!(
        (&ran.json()["sent"], &ran.json()["failed"]),
        (&30.into(), &0.into()),
        "{}",
        ran.err
    );
    assert_eq!(bench.records("once").len(), 60);
    let ran = bench.run(&TO_ORIGIN).ok();
    assert_eq!(ran.json()["sent"], 0);
    assert!(ran.err.contains("30 more match and will be skipped: sent before"), "{}", ran.err);
    assert_eq!(bench.run(&["count", "--status", "sent"]).ok().out, "30\n");

    let again = [&TO_ORIGIN[..], &["--again", "--limit", "5", "--keep-partition"]].concat();
    let ran = bench.run(&again).ok();
    assert_eq!(ran.json()["sent"], 5);
    let resume = format!("--resume {}", ran.json()["operation"].as_str().unwrap());
    assert!(ran.err.contains(&resume), "it is known before it is killed: {}", ran.err);
    let after = bench.records("once");
    assert_eq!(after.len(), 65);
    assert!(before.iter().all(|record| after.contains(record)));
}

#[tokio::test(flavor = "multi_thread")]
async fn g6_what_was_sent_back_is_not_sent_again_from_a_store_that_comes_later() {
    let Some(bench) = Bench::born("later", 5).await else { return };
    let args = ["replay", "--yes", "--to", "origin", "--key", "k-4", "-o", "json"];
    assert_eq!(bench.run(&args).ok().json()["sent"], 1);
    let into = bench.store_url();
    let ran = bench.run(&["ingest", "--once", "--into", &into]).ok();
    assert_eq!(ran.out, "5 letters stored\n");
    let count = |status: &str| {
        bench.run(&["count", "--from", &into, "--status", status]).ok().out.trim().to_owned()
    };
    assert_eq!((&*count("pending"), &*count("sent")), ("4", "1"));
    let ran = bench.run(&["replay", "--all", "--yes", "--from", &into, "-o", "json"]).ok();
    assert_eq!(count("sent"), "1", "{}", ran.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_no_letter_has_is_an_error() {
    let Some(bench) = Bench::born("wrong-id", 2).await else { return };
    let wrong = "0".repeat(32);
    let ran = bench.run(&["replay", "--id", &wrong, "--yes", "--to", "origin"]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.err.contains(&wrong), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn some_of_them_by_place_and_key() {
    let Some(bench) = Bench::born("some", 9).await else { return };
    let args = ["replay", "--yes", "--to", "origin", "--key", "k-4", "-o", "json"];
    assert_eq!(bench.run(&args).ok().json()["sent"], 1);
    let sent = bench.records("some").into_iter().filter(|(key, _)| key == "k-4").count();
    assert_eq!(sent, 2);
    let args = ["replay", "--yes", "--to", "origin", "--partition", "0", "--offsets", "0..2"];
    let ran = bench.run(&args).ok();
    assert!(ran.out.starts_with("1 sent") || ran.out.starts_with("2 sent"), "{}", ran.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_handler_that_failed_hears_it_and_nobody_else() {
    let Some(bench) = Bench::born("handler", 3).await else { return };
    let refused = bench.run(&["replay", "--all", "--yes"]);
    assert_ne!(refused.code, 0, "{}", refused.out);
    assert!(refused.err.contains("handler.billing.retry.30s"), "{}", refused.err);
    bench.create("handler.retry.10s", 2).await;
    let args =
        ["replay", "--all", "--yes", "--ladder", "10s", "--ladder-names", "{topic}.retry.{delay}"];
    // Groups that share retry topics pass over what is of another.
    let refused = bench.run(&args);
    assert_ne!(refused.code, 0, "{}", refused.out);
    assert!(refused.err.contains("group `billing` is not there"), "{}", refused.err);
    assert!(bench.records("handler.retry.10s").is_empty());
    let ladder = Ladder::of([Duration::from_secs(10)]).names("{topic}.retry.{delay}");
    let consumer = KafkaTransport::new(&*bench.source).name("pay");
    let mut source = consumer.ladder(ladder).source(&Brokers::at(bench.host)).await.unwrap();
    let first = timeout(PATIENCE, source.next()).await.expect("a message comes").unwrap();
    let args = [&args[..], &["--handler-group", "pay"]].concat();
    assert_eq!(bench.run(&args).ok().out, "3 sent\n");
    drop((first, source));
    assert_eq!(bench.records("handler.retry.10s").len(), 3);
    assert_eq!(bench.records("handler").len(), 3);
}

/// A letter of a topic that has waited in a retry topic, and the name of that.
pub(crate) fn waited(topic: &str) -> (DeadLetter, String) {
    let origin = Origin::new("kafka", topic, Position::Offset(4)).with_partition(0);
    let mut waited = letter(1);
    waited.id = LetterId::of(&origin, None, "billing");
    waited.message = Message::new(topic, "1");
    (waited.origin, waited.consumer) = (origin, "billing".to_owned());
    let stage = format!("{topic}.billing.retry.10s");
    waited.attributes.insert("previous.topic".to_owned(), stage.clone());
    (waited, stage)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ladder_in_which_letters_waited_is_said() {
    let (waited, stage) = waited("waited");
    let Some(bench) = Bench::with("waited", vec![waited]).await else { return };
    let ran = bench.run(&["replay", "--all", "--yes"]);
    assert_ne!(ran.code, 0, "{}", ran.out);
    assert!(ran.err.contains("--ladder 10s"), "{}", ran.err);
    bench.create(&stage, 1).await;
    let ran = bench.run(&["replay", "--all", "--yes", "--ladder", "10s"]).ok();
    assert_eq!(ran.out, "1 sent\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_or_killed_it_goes_on_where_it_was() {
    const COUNT: usize = 200;
    let Some(bench) = Bench::born("stop", COUNT as u64).await else { return };
    let slowly = [&TO_ORIGIN[..], &["--rate", "25/s"]].concat();
    // Until so many more are there, the marks of transactions among them.
    let until = |more: i64| {
        let (begun, before) = (std::time::Instant::now(), bench.written("stop"));
        while bench.written("stop") < before + more {
            assert!(begun.elapsed() < crate::fixture::PATIENCE, "messages are sent");
        }
    };
    let process = bench.start(&slowly);
    until(10);
    process.signal("-INT");
    let ran = process.end();
    assert_eq!(ran.code, 3, "{}", ran.err);
    let sent = usize::try_from(ran.json()["sent"].as_u64().unwrap()).unwrap();
    assert!(ran.err.contains("to go on: the same command"), "{}", ran.err);
    assert_eq!(bench.records("stop").len(), COUNT + sent, "what it says was sent");

    let process = bench.start(&slowly);
    until(10);
    process.kill();
    bench.run(&TO_ORIGIN).ok();
    assert_eq!(bench.records("stop").len(), 2 * COUNT, "each was sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_will_not_do_is_refused_before_anything_is_sent() {
    let Some(bench) = Bench::born("refused", 2).await else { return };
    for (args, expected) in [
        (&["--yes"] as &[&str], "--all"),
        (&["--all", "--to", "origin"], "--yes"),
        (&["--all", "--yes", "--to", "nobody.keeps.this"], "nobody.keeps.this"),
        (&["--all", "--yes", "--keep-partition"], "--keep-partition"),
        (&["--all", "--yes", "--to", "origin", "--canary", "5"], "--canary"),
        (&["--all", "--yes", "--to", "origin", "--wait"], "--wait"),
        (&["--all", "--yes", "--to", "origin", "--rate", "1/h"], "1/s"),
        (&["--all", "--yes", "--to", "handler", "--ladder", "soon"], "soon"),
        (&["--all", "--yes", "--to", "origin", "--via", "kafka://127.0.0.1:1"], "leave it out"),
    ] {
        let ran = bench.run(&[&["replay"], args].concat());
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    }
    assert_eq!(bench.written("refused"), 2);
    bench.create("elsewhere", 1).await;
    let other = ["replay", "--all", "--yes", "--to", "elsewhere", "-o", "json"];
    assert_eq!(bench.run(&other).ok().json()["sent"], 2);
    assert_eq!(bench.records("elsewhere").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_of_a_cluster_with_an_alias_go_back_by_that() {
    let Some(bench) = Bench::born_in("prod", "alias", 3).await else { return };
    let ran = bench.run(&TO_ORIGIN);
    assert_eq!((ran.code, &ran.json()["sent"]), (3, &0.into()), "{}", ran.err);
    for said in ["the cluster `prod`", "`--kafka-cluster NAME`"] {
        assert!(ran.err.contains(said), "{said} is not in {}", ran.err);
    }
    assert_eq!(bench.written("alias"), 3);
    let mut command = bench.command(&["stats"]);
    command.env("DLQ_KAFKA_CLUSTER", "");
    Ran::from(tokio::task::block_in_place(|| command.output()).unwrap()).ok();
    let named = [&TO_ORIGIN[..], &["--kafka-cluster", "prod", "--limit", "2"]].concat();
    assert_eq!(bench.run(&named).ok().json()["sent"], 2);
    let mut command = bench.command(&TO_ORIGIN);
    command.env("DLQ_KAFKA_CLUSTER", "prod");
    let ran = Ran::from(tokio::task::block_in_place(|| command.output()).unwrap()).ok();
    assert_eq!(ran.json()["sent"], 1, "{}", ran.err);
    assert_eq!(bench.records("alias").len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_a_letter_is_bound_by_the_secret_of_its_consumer() {
    let Some(bench) = Bench::born("secret", 1).await else { return };
    let (file, empty) = (bench.file("secret"), bench.file("empty"));
    std::fs::write(&file, "a secret\n").unwrap();
    std::fs::write(&empty, "\n").unwrap();
    let nowhere = bench.file("nowhere");
    for (file, expected) in [(&empty, "it is empty"), (&nowhere, "cannot read")] {
        let ran = bench.run(&[&TO_ORIGIN[..], &["--binding-key-file", file]].concat());
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains(expected), "{}", ran.err);
    }
    // Once with the secret and once without it.
    let mut command = bench.command(&TO_ORIGIN);
    command.env("DLQ_BINDING_KEY_FILE", &file);
    let ran = Ran::from(tokio::task::block_in_place(|| command.output()).unwrap()).ok();
    assert_eq!(ran.json()["sent"], 1, "{}", ran.err);
    let again = [&TO_ORIGIN[..], &["--again"]].concat();
    assert_eq!(bench.run(&again).ok().json()["sent"], 1);
    let brokers = Brokers::at(bench.host).with_binding_key(BindingKey::new("a secret"));
    let consumer = KafkaTransport::new(&*bench.source).name("billing").without_retries();
    let mut source = consumer.source(&brokers).await.unwrap();
    let mut generations = Vec::new();
    for _ in 0..3 {
        let (delivery, settle) = timeout(PATIENCE, source.next()).await.unwrap().unwrap().unwrap();
        generations.push((delivery.generation(), delivery.replays()));
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    generations.sort_unstable();
    assert_eq!(generations, [(0, 0), (0, 0), (1, 1)]);
}

/// The milliseconds of the clock so long ago.
fn ago(hours: i64) -> Option<i64> {
    Some(SystemClock.now().as_nanos() / 1_000_000 - hours * 3_600_000)
}

/// Letters of two topics, groups and classes, of now and of two hours ago: each differs from the first in one thing.
async fn various(bench: &Bench) {
    let of = |n: u64, topic: &str, consumer: &str, is_permanent: bool| {
        let origin = Origin::new("kafka", topic, Position::Offset(n)).with_partition(0);
        let message = Message::new(topic, n.to_string()).with_key(format!("k-{n}"));
        let mut letter = letter(n).with_message(message).with_consumer(consumer);
        letter.id = LetterId::of(&origin, None, consumer);
        letter.origin = origin;
        if is_permanent {
            (letter.class, letter.reason) = (ErrorClass::Permanent, Reason::Permanent);
        }
        letter
    };
    let (topic, other) = (bench.source.as_str(), format!("{}.other", bench.source));
    let now = vec![
        of(0, topic, "billing", false),
        of(1, topic, "billing", true),
        of(2, topic, "shipping", false),
        of(3, &other, "billing", false),
    ];
    bench.put_at(ago(0), now).await;
    bench.put_at(ago(2), vec![of(4, topic, "billing", false)]).await;
    for topic in [topic, &other] {
        bench.create(topic, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn class_reason_topic_group_and_time_say_which() {
    let Some(bench) = Bench::new("which").await else { return };
    various(&bench).await;
    for (args, keys) in [
        (&["--class", "permanent"] as &[&str], &[1_u64] as &[u64]),
        (&["--class", "transient"], &[0, 2, 3, 4]),
        (&["--reason", "permanent"], &[1]),
        (&["--reason", "exhausted", "--since", "1h"], &[0, 2, 3]),
        (&["--topic", "which.other"], &[3]),
        (&["--consumer", "shipping"], &[2]),
        (&["--until", "1h"], &[4]),
        (&["--since", "3h", "--until", "1h"], &[4]),
        (&["--since", "1h"], &[0, 1, 2, 3]),
        (
            &["--topic", "which", "--consumer", "billing", "--since", "1h", "--class", "transient"],
            &[0],
        ),
        (&["--until", "3h"], &[]),
    ] {
        let exported = bench.run(&[&["export"], args].concat()).ok().out;
        let letters =
            exported.lines().map(|line| serde_json::from_str::<DeadLetter>(line).unwrap());
        let mut found: Vec<u64> = letters
            .map(|letter| {
                std::str::from_utf8(letter.message.payload().unwrap()).unwrap().parse().unwrap()
            })
            .collect();
        found.sort_unstable();
        assert_eq!(found, keys, "{args:?}");
        let counted = bench.run(&[&["count"], args].concat()).ok();
        assert_eq!(counted.out, format!("{}\n", keys.len()), "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_says_which_of_them_and_the_same_command_without_it_sends_these() {
    let Some(bench) = Bench::new("dry").await else { return };
    various(&bench).await;
    let which = ["replay", "--since", "1h", "--class", "transient", "--to", "origin", "-o", "json"];
    let ran = bench.run(&[&which[..], &["--dry-run"]].concat()).ok();
    let plan = &ran.json()["plan"];
    assert_eq!(plan["count"], 3, "{plan}");
    let sample = plan["sample"].as_array().unwrap().iter();
    assert!(sample.clone().all(|letter| letter["class"] == "transient"), "{plan}");
    assert_eq!(sample.len(), 3, "{plan}");
    assert!(ran.err.contains("dry run: nothing was sent"), "{}", ran.err);
    assert_eq!((bench.written("dry"), bench.written("dry.other")), (0, 0));
    assert_eq!(bench.run(&[&which[..], &["--yes"]].concat()).ok().json()["sent"], 3);
    let keys = |topic| bench.records(topic).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(
        (keys("dry"), keys("dry.other")),
        (vec!["k-0".into(), "k-2".into()], vec!["k-3".into()])
    );

    // To the handler, where nothing else was said.
    bench.create("dry.billing.retry.30s", 1).await;
    let to_handler = ["replay", "--until", "1h", "--dry-run", "-o", "json"];
    assert_eq!(bench.run(&to_handler).ok().json()["plan"]["count"], 1);
    assert_eq!(bench.written("dry.billing.retry.30s"), 0);
}
