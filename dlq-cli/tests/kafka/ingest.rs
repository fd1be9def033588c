//! Draining a topic into a store.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::store::{Letters as _, Maintenance as _};
use dlq_core::{DeadLetter, Filter, LetterId};
use dlq_kafka::rdkafka::admin::{NewTopic, TopicReplication};
#[cfg(not(feature = "kafka-zstd"))]
use dlq_kafka::rdkafka::message::OwnedHeaders;
use dlq_services::{Service, or_skip};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::{died_again, letter};
use serde_json::Value;

use crate::fixture::Bench;
#[cfg(feature = "postgres")]
use crate::schema::Schema;
use crate::scrape::{agree, has, served, until};

/// After how long the group goes on without a process that was killed. The client beats once a second, whatever it is told:
/// shorter ones are lost by processes that live.
const LEASE: &str = "3s";

pub(crate) fn letters(count: u64) -> Vec<DeadLetter> {
    (0..count).map(letter).collect()
}

fn ids(letters: &[DeadLetter]) -> BTreeSet<LetterId> {
    letters.iter().map(|letter| letter.id).collect()
}

/// The incidents among the lines.
fn incidents(lines: &str) -> Vec<Value> {
    lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn told(lines: &str) -> BTreeSet<LetterId> {
    let id = |incident: &Value| incident["letter"].as_str().unwrap().parse().unwrap();
    incidents(lines).iter().map(id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_letter_goes_into_the_store_with_everything() {
    let written = letters(30);
    let Some(bench) = Bench::with("drain", written.clone()).await else { return };
    let again = died_again(&written[3]);
    bench.put(vec![again.clone()]).await;
    let (into, file) = (bench.store_url(), bench.file("incidents.jsonl"));
    let args = ["ingest", "--into", &into, "--once", "--audit", "--incidents", &file, "-o", "json"];
    let ran = bench.run(&args).ok();
    let report = ran.json();
    let deaths = |name: &str| report["by_outcome"][name].as_u64().unwrap_or(0);
    assert_eq!(deaths("stored"), 30, "{report}{}", ran.err);
    // Which of two deaths comes first is not said of two partitions.
    assert_eq!(deaths("reopened") + deaths("superseded"), 1, "{report}");
    let store = SqliteStore::open(bench.file("dlq.db")).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), 30);
    assert!(store.processed(100).await.unwrap().len() >= 30, "a row for each death");
    for letter in &written {
        let kept = store.get(letter.id).await.unwrap().unwrap();
        assert_eq!(kept.message, letter.message);
        assert_eq!((kept.reason, &kept.consumer), (letter.reason, &letter.consumer));
    }
    assert_eq!(store.get(again.id).await.unwrap().unwrap().generation, again.generation);
    let told = std::fs::read_to_string(&file).unwrap();
    let told = incidents(&told);
    assert!(told.iter().all(|told| told["topic"] == "drain.dlq" && told["partition"].is_u64()));
    assert!(told.iter().all(|incident| incident.get("payload").is_none()));
    // There is nothing more.
    assert_eq!(bench.run(&args).ok().json()["by_outcome"], serde_json::json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_it_loses_no_letter_and_no_incident() {
    const COUNT: u64 = 600;
    let written = letters(COUNT);
    let Some(bench) = Bench::with("kill", written.clone()).await else { return };
    let into = bench.store_url();
    let args = ["ingest", "--into", &into, "--once", "--batch", "8", "--lease", LEASE];
    let (mut said, mut kills) = (String::new(), 0);
    for round in 0..6 {
        let mut process = bench.start(&args);
        process.says("go into");
        for _ in 0..round * 11 % 40 {
            process.line();
        }
        // In the middle of whatever it does then.
        std::thread::sleep(Duration::from_micros(round * 300));
        said.push_str(&process.kill());
        // It may have died in the middle of a line.
        said.push('\n');
        kills += u32::from((told(&said).len() as u64) < COUNT);
    }
    assert!(!told(&said).is_empty() && kills > 2, "it was killed {kills} times before the end");
    let last = bench.run(&args).ok();
    said.push_str(&last.err);
    let store = SqliteStore::open(bench.file("dlq.db")).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), COUNT, "{}", last.out);
    assert_eq!(told(&said), ids(&written), "every incident was told");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn incidents_that_were_not_told_are_told_the_next_time() {
    let written = letters(5);
    let Some(bench) = Bench::with("untold", written.clone()).await else { return };
    let into = bench.store_url();
    // The letters are in the store when it ends.
    let full = bench.run(&["ingest", "--into", &into, "--once", "--incidents", "/dev/full"]);
    assert_eq!(full.code, 1, "{}", full.err);
    assert_ne!(bench.run(&["count", "--from", &into]).ok().out, "0\n");
    let ran = bench.run(&["ingest", "--into", &into, "--once"]).ok();
    assert_eq!(told(&ran.err), ids(&written), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_until_it_is_asked_to_end() {
    for (signal, name) in [("-INT", "follow-int"), ("-TERM", "follow-term")] {
        let Some(bench) = Bench::with(name, letters(3)).await else { return };
        let into = bench.store_url();
        let mut process = bench.start(&["ingest", "--into", &into]);
        let mut left = ids(&letters(3));
        while !left.is_empty() {
            let line = process.line().expect("letters are told");
            told(&line).iter().for_each(|id| _ = left.remove(id));
        }
        bench.put(vec![letter(7)]).await;
        process.says(&letter(7).id.to_string());
        process.signal(signal);
        let ran = process.end().ok();
        assert_eq!(ran.out, "4 letters stored\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_at_once_share_the_work() {
    let written = letters(300);
    let Some(bench) = Bench::with("two", written.clone()).await else { return };
    let into = bench.store_url();
    let args = ["ingest", "--into", &into, "--once", "--batch", "16", "--lease", LEASE];
    let both = [bench.start(&args), bench.start(&args)];
    // Who cannot say what it has to say holds its partitions, and the other one waits for it.
    let [one, two] = both.map(|process| std::thread::spawn(|| process.end().ok().err));
    let said = format!("{}{}", one.join().unwrap(), two.join().unwrap());
    let store = SqliteStore::open(bench.file("dlq.db")).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), 300);
    assert_eq!(told(&said), ids(&written));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_has_one_store() {
    let Some(bench) = Bench::with("mark", letters(3)).await else { return };
    let refused = bench.run(&["mark", "resolved", "--all", "--yes"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("ingest first: dlq ingest --once --from"), "{}", refused.err);
    let into = bench.store_url();
    bench.run(&["ingest", "--into", &into, "--once"]).ok();
    for args in [
        &["mark", "resolved", "--all", "--yes"] as &[&str],
        &["delete", "--all"],
        &["op", "list"],
        &["edit", "00", "--no-payload"],
        &["cleanup", "--older-than", "1d"],
        &["import", "-"],
    ] {
        let refused = bench.run(args);
        assert_eq!(refused.code, 2, "{args:?}");
        assert!(
            refused.err.contains("use the store") && refused.err.contains("dlq.db"),
            "{args:?}: {}",
            refused.err
        );
    }
    let refused = bench.run(&["replay", "--all", "--yes", "--to", "origin"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("use the store"), "{}", refused.err);
    let other = format!("sqlite://{}", bench.file("other.db"));
    let refused = bench.run(&["ingest", "--into", &other, "--once"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("dlq.db"), "{}", refused.err);
    drop(SqliteStore::open(bench.file("other.db")).await.unwrap());
    let refused = bench.run(&["ingest", "--into", &other, "--once"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("delete the group"), "{}", refused.err);
    // A second store has a group of its own.
    let second = ["ingest", "--into", &other, "--once", "--group", "dlq-ingest.mark.dlq.other"];
    assert_eq!(bench.run(&second).ok().out, "3 letters stored\n");

    std::fs::remove_file(bench.file("dlq.db")).unwrap();
    let refused = bench.run(&["ingest", "--into", &into, "--once"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    for text in ["If it is lost", "3 letters", "--delete --group dlq-ingest.mark.dlq"] {
        assert!(refused.err.contains(text), "{text} is not in {}", refused.err);
    }
    assert!(!std::path::Path::new(&bench.file("dlq.db")).exists());
}

/// Whatever its group is called.
#[tokio::test(flavor = "multi_thread")]
async fn g1_a_store_is_known_by_every_group() {
    let Some(bench) = Bench::with("sink", letters(3)).await else { return };
    let into = bench.store_url();
    let by = |group| bench.run(&["ingest", "--into", &into, "--once", "--group", group]);
    let refused = by("orders-sink");
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("`dlq-ingest.sink.dlq.orders-sink`"), "{}", refused.err);
    assert!(!std::path::Path::new(&bench.file("dlq.db")).exists());

    assert_eq!(by("dlq-ingest.sink.dlq.orders-sink").ok().out, "3 letters stored\n");
    let refused = bench.run(&["replay", "--all", "--yes", "--to", "origin"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("use the store"), "{}", refused.err);
    std::fs::remove_file(bench.file("dlq.db")).unwrap();
    let refused = by("dlq-ingest.sink.dlq.orders-sink");
    assert_eq!(refused.code, 2, "{}", refused.err);
    for text in ["If it is lost", "3 letters", "--delete --group dlq-ingest.sink.dlq.orders-sink"] {
        assert!(refused.err.contains(text), "{text} is not in {}", refused.err);
    }
    assert!(!std::path::Path::new(&bench.file("dlq.db")).exists());
}

/// At every moment it is killed at, a letter is at its broker or in the store.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn killed_on_the_way_to_postgres_it_loses_no_letter() {
    const COUNT: u64 = 300;
    let Some(schema) = tokio::task::block_in_place(|| Schema::new("drained")) else { return };
    let written = letters(COUNT);
    let Some(bench) = Bench::with("to-postgres", written.clone()).await else { return };
    let into = schema.url_of("postgres:s3cret");
    let args = ["ingest", "--into", &into, "--once", "--batch", "8", "--lease", LEASE];
    let (mut said, mut cut_off) = (String::new(), 0);
    for round in 0..4 {
        let mut process = bench.start(&args);
        process.says("go into");
        for _ in 0..round * 11 {
            process.line();
        }
        said.push_str(&process.kill());
        // It may have died in the middle of a line.
        said.push('\n');
        cut_off += u32::from((told(&said).len() as u64) < COUNT);
    }
    assert!(cut_off > 1, "it came to its end before it was killed");
    let last = bench.run(&args).ok();
    said.push_str(&last.err);
    let store = schema.store().await;
    assert_eq!(store.count(Filter::new()).await.unwrap(), COUNT, "{}", last.out);
    assert_eq!(told(&said), ids(&written), "every incident was told");
    for letter in &written {
        let kept = store.get(letter.id).await.unwrap().unwrap();
        assert_eq!((&kept.message, kept.reason), (&letter.message, letter.reason));
    }
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
    // The broker knows where they went, and no password of it.
    let elsewhere = bench.run(&["ingest", "--into", &bench.store_url(), "--once"]);
    assert_ne!(elsewhere.code, 0, "{}", elsewhere.out);
    let place = schema.url().replacen("postgres@", "", 1);
    assert!(elsewhere.err.contains(&place), "{place} is not in {}", elsewhere.err);
    schema.clear();
    let lost = bench.run(&args);
    assert_ne!(lost.code, 0, "{}", lost.out);
    assert!(lost.err.contains("is not there") && lost.err.contains(&place), "{}", lost.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_counts_is_served_while_it_runs() {
    let Some(bench) = Bench::with("counted", letters(7)).await else { return };
    let args = ["ingest", "--into", &bench.store_url(), "--metrics", "127.0.0.1:0"];
    let (process, address) = served(bench.command(&args));
    tokio::task::block_in_place(|| {
        let line = ["dlq_ingested_letters_total{outcome=\"stored\"} 7"];
        agree(&until(&address, "/metrics", has(&line)), &["dlq_ingested_letters_total"]);
    });
    process.signal("-TERM");
    process.end().ok();
}

/// As in a topic that the user may not read: it says so, and everything else goes on.
#[cfg(not(feature = "kafka-zstd"))]
#[tokio::test(flavor = "multi_thread")]
async fn a_letter_whose_message_cannot_be_read_holds_up_no_other() {
    let Some(bench) = Bench::born("unread", 3).await else { return };
    bench.create_with("unread.packed", 1, &[("compression.type", "zstd")]).await;
    bench.write("unread.packed", b"message", OwnedHeaders::new()).await;
    let mut pointing = letter(9);
    pointing.origin =
        dlq_core::Origin::new("kafka", "unread", dlq_core::Position::Offset(9)).with_partition(0);
    pointing.consumer = "billing".to_owned();
    pointing.id = LetterId::of(&pointing.origin, None, "billing");
    pointing.message = dlq_core::Message::tombstone("unread").with_key("k-9");
    pointing.attributes.insert("kafka.pointer".to_owned(), "unread.packed/0/0".to_owned());
    let id = pointing.id.to_string();
    bench.put(vec![pointing]).await;
    bench.put(letters(1)).await;

    let file = bench.folder.path().join("letters.jsonl").display().to_string();
    let written = bench.run(&["export", "--to", &file]);
    assert_eq!(written.code, 3, "{}", written.err);
    assert!(written.err.contains("exported 5 letters\n1 of them without"), "{}", written.err);
    let shown = bench.run(&["show", &id]).ok().out;
    assert!(shown.contains("kafka.pointer.unread") && shown.contains("zstd"), "{shown}");
    let args = ["replay", "--consumer", "billing", "--yes", "--to", "origin", "-o", "json"];
    let ran = bench.run(&args);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert_eq!((&ran.json()["sent"], &ran.json()["failed"]), (&3.into(), &1.into()), "{}", ran.err);
    assert!(ran.err.contains("zstd"), "{}", ran.err);
    let into = bench.store_url();
    let ran = bench.run(&["ingest", "--once", "--into", &into]);
    assert_eq!((ran.code, &*ran.out), (3, "4 letters stored, 1 set aside\n"), "{}", ran.err);
    assert!(ran.err.contains("zstd"), "{}", ran.err);
    // Without its message it would be another letter than with it.
    let ran = bench.run(&["import", &file, "--from", &into]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert_eq!(ran.out, "imported: 4 letters, 4 unchanged, 1 bad lines\n");
    assert!(ran.err.contains("without its message") && ran.err.contains("zstd"), "{}", ran.err);
    assert_ne!(bench.run(&["show", &id, "--from", &into]).code, 0);
}

/// Without its message it is no tombstone, which would tell a handler to delete something.
#[tokio::test(flavor = "multi_thread")]
async fn g8_a_letter_whose_message_has_gone_goes_into_no_store() {
    let Some(bench) = Bench::born("gone", 2).await else { return };
    let mut pointing = letter(9);
    pointing.message = dlq_core::Message::tombstone("gone").with_key("k-9");
    pointing.attributes.insert("kafka.pointer".to_owned(), "gone/0/4711".to_owned());
    let id = pointing.id.to_string();
    bench.put(vec![pointing]).await;
    let file = bench.file("letters.jsonl");
    let written = bench.run(&["export", "--to", &file]);
    assert_eq!(written.code, 3, "{}", written.err);
    assert!(written.err.contains("1 of them without their messages"), "{}", written.err);
    let shown = bench.run(&["show", &id]).ok().out;
    assert!(shown.contains("has gone") && !shown.contains("tombstone"), "{shown}");
    let payload = bench.run(&["show", &id, "--payload"]);
    assert_eq!(payload.code, 1, "{}", payload.err);
    let into = bench.store_url();
    let ran = bench.run(&["ingest", "--once", "--into", &into]);
    assert_eq!((ran.code, &*ran.out), (3, "2 letters stored, 1 set aside\n"), "{}", ran.err);
    let ran = bench.run(&["import", &file, "--from", &into]);
    assert_eq!((ran.code, &*ran.out), (3, "imported: 2 letters, 2 unchanged, 1 bad lines\n"));
    assert_ne!(bench.run(&["show", &id, "--from", &into]).code, 0);
}

/// Also where it does not follow, and gives up sooner: what it knew of the partition is gone with the process.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_away_holds_up_no_other_letter_for_long() {
    let start = || or_skip(Service::Kafka, Service::Kafka.builder().ours().start_cluster()).ok();
    let Some(mut cluster) = tokio::task::block_in_place(start) else { return };
    let bench = Bench::at(cluster.url().leak(), "away");
    let (on_the_last, on_all) = (TopicReplication::Variable(&[&[3]]), TopicReplication::Fixed(3));
    bench.make(&NewTopic::new(&bench.source, 1, on_the_last)).await;
    bench.make(&NewTopic::new(&bench.dlq, 3, on_all)).await;
    let mut dead = letters(4);
    dead[0].attributes.insert("kafka.pointer".to_owned(), "away/0/0".to_owned());
    dead[0].message = dead[0].message.clone().with_payload(None);
    bench.put(dead).await;
    tokio::task::block_in_place(|| cluster.kill(2).unwrap());
    bench.await_leaderless(&bench.source);
    let ran = bench.run(&["ingest", "--once", "--into", &bench.store_url()]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.out.starts_with("3 letters stored, 1 set aside; "), "{}", ran.out);
}
