//! Draining a stream into a store.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::store::{Actor, Letters as _, Maintenance as _, Selection};
use dlq_core::{DeadLetter, Filter, LetterId, Order, PageRequest};
use dlq_nats::async_nats::jetstream::stream;
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::{died_again, letter, varied};
use serde_json::Value;

use crate::common::{Ran, dlq};
use crate::fixture::{Bench, PATIENCE};
#[cfg(feature = "postgres")]
use crate::schema::Schema;
use crate::scrape::{agree, has, served, until};

fn letters(count: u64) -> Vec<DeadLetter> {
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
    let written: Vec<DeadLetter> = (0..30).map(varied).collect();
    let Some(bench) = Bench::with("drain", written.clone()).await else { return };
    let again = died_again(&written[3]);
    bench.put(vec![again.clone()]).await;
    let foreign = bench.context.publish("dlq-drain.orders", "no letter".into()).await.unwrap();
    foreign.await.unwrap();
    let (into, file) = (bench.store_url(), bench.file("incidents.jsonl"));
    let args = ["ingest", "--into", &into, "--once", "--audit", "--incidents", &file, "-o", "json"];
    let ran = bench.run(&args).ok();
    let report = ran.json();
    let expected = serde_json::json!({ "stored": 30, "reopened": 1, "foreign": 1 });
    assert_eq!(report["by_outcome"], expected, "{}", ran.err);
    assert!(ran.err.contains("something else than a letter"), "{}", ran.err);

    let store = SqliteStore::open(bench.file("dlq.db")).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), 30);
    assert_eq!(store.processed(100).await.unwrap().len(), 31, "a row for each death");
    let first = again.id;
    for mut letter in written.into_iter().filter(|letter| letter.id != first).chain([again]) {
        let mut kept = store.get(letter.id).await.unwrap().unwrap();
        // The store's own.
        letter.state = kept.state.clone();
        if letter.cause.is_none() {
            // What nobody tried has no attempts to tell of.
            kept.history = letter.history.clone();
        }
        assert_eq!(kept.message, letter.message);
        assert_eq!(
            (kept.death(), kept.reason, &kept.history),
            (letter.death(), letter.reason, &letter.history)
        );
    }
    let told = std::fs::read_to_string(&file).unwrap();
    let told = incidents(&told);
    assert_eq!(told.len(), 31);
    assert_eq!((&told[0]["topic"], &told[0]["offset"]), (&bench.name.as_str().into(), &"1".into()));
    assert!(told.iter().all(|incident| incident.get("payload").is_none()));

    // There is nothing more.
    let ran = bench.run(&args).ok();
    assert_eq!(ran.json()["by_outcome"], serde_json::json!({}));
    // What an operator did in the store meanwhile stays.
    store.delete(Selection::all(), Actor::new("ana")).await.unwrap();
    bench.put(letters(5)).await;
    assert!(
        bench.run(&["ingest", "--into", &into, "--once"]).ok().out.starts_with("5 letters stored")
    );
    let listed = store.list(Filter::new(), PageRequest::new().order(Order::OldestFirst)).await;
    assert_eq!(listed.unwrap().letters.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_it_loses_no_letter_and_no_incident() {
    const COUNT: u64 = 900;
    let written = letters(COUNT);
    let Some(bench) = Bench::with("kill", written.clone()).await else { return };
    let into = bench.store_url();
    let args = ["ingest", "--into", &into, "--once", "--batch", "8", "--lease", "1s"];
    let (mut said, mut kills) = (String::new(), 0);
    for round in 0..16 {
        let mut process = bench.start(&args);
        process.says("go into");
        for _ in 0..round * 7 % 40 {
            process.line();
        }
        // In the middle of whatever it does then.
        std::thread::sleep(Duration::from_micros(round * 300));
        said.push_str(&process.kill());
        // It may have died in the middle of a line.
        said.push('\n');
        kills += u32::from((told(&said).len() as u64) < COUNT);
    }
    assert!(kills > 2, "it was killed {kills} times before the end");
    let last = bench.run(&args).ok();
    said.push_str(&last.err);
    let store = SqliteStore::open(bench.file("dlq.db")).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), COUNT, "{}", last.out);
    assert_eq!(told(&said), ids(&written), "every incident was told");
    for letter in &written[..20] {
        assert_eq!(store.get(letter.id).await.unwrap().unwrap().message, letter.message);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_until_it_is_asked_to_end() {
    for (signal, name) in [("-INT", "follow-int"), ("-TERM", "follow-term")] {
        let Some(bench) = Bench::with(name, letters(3)).await else { return };
        let into = bench.store_url();
        let mut process = bench.start(&["ingest", "--into", &into]);
        process.says(&letter(2).id.to_string());
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
    let args = ["ingest", "--into", &into, "--once", "--batch", "16", "--lease", "2s"];
    let both = [bench.start(&args), bench.start(&args)].map(|process| process.end().ok());
    let said: String = both.into_iter().map(|ran| ran.err).collect();
    let store = SqliteStore::open(bench.file("dlq.db")).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), 300);
    assert_eq!(told(&said), ids(&written));
}

#[tokio::test(flavor = "multi_thread")]
async fn asked_twice_it_ends_at_once_and_nothing_is_lost() {
    let Some(bench) = Bench::with("twice", letters(3)).await else { return };
    let into = bench.store_url();
    drop(SqliteStore::open(bench.file("dlq.db")).await.unwrap());
    let holder = rusqlite::Connection::open(bench.file("dlq.db")).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut turns = 1..20;
    let ran = loop {
        let mut process = bench.start(&["ingest", "--into", &into, "--lease", "1s"]);
        process.says("go into");
        // It has them in flight, and waits for the store: a moment later, which nothing tells of.
        let in_flight = async {
            loop {
                let stream = bench.context.get_stream(&bench.name).await.unwrap();
                match stream.consumer_info("dlq-ingest").await {
                    Ok(info) if info.num_ack_pending == 3 => return,
                    _ => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        tokio::time::timeout(crate::fixture::PATIENCE, in_flight).await.unwrap();
        let turn = turns.next().expect("it waits for the store in one of the turns");
        tokio::time::sleep(Duration::from_millis(50) * turn).await;
        process.signal("-INT");
        process.says("once more");
        process.signal("-INT");
        let ran = process.end();
        if ran.code != 0 {
            break ran;
        }
    };
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("comes again"), "{}", ran.err);
    drop(holder);
    assert_eq!(bench.run(&["ingest", "--into", &into, "--once"]).ok().out, "3 letters stored\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_one_store() {
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
    drop(SqliteStore::open(bench.file("other.db")).await.unwrap());
    let refused = bench.run(&["ingest", "--into", &other, "--once"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(
        refused.err.contains("dlq.db") && refused.err.contains("delete the consumer"),
        "{}",
        refused.err
    );
    // A second store has a consumer of its own.
    bench.run(&["ingest", "--into", &other, "--once", "--durable", "other"]).ok();

    std::fs::remove_file(bench.file("dlq.db")).unwrap();
    let refused = bench.run(&["ingest", "--into", &into, "--once"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("If it is lost"), "{}", refused.err);
    assert!(!std::path::Path::new(&bench.file("dlq.db")).exists());
    bench
        .context
        .get_stream(&bench.name)
        .await
        .unwrap()
        .delete_consumer("dlq-ingest")
        .await
        .unwrap();
    assert_eq!(bench.run(&["ingest", "--into", &into, "--once"]).ok().out, "3 letters stored\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn incidents_go_on_after_half_a_line() {
    let Some(bench) = Bench::with("half", letters(2)).await else { return };
    let (into, file) = (bench.store_url(), bench.file("incidents.jsonl"));
    std::fs::write(&file, "{\"letter\":\"0").unwrap();
    bench.run(&["ingest", "--into", &into, "--once", "--incidents", &file]).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!((text.lines().count(), incidents(&text).len()), (3, 2), "{text}");
    let folder = bench.folder.path().display().to_string();
    let refused = bench.run(&["ingest", "--into", &into, "--once", "--incidents", &folder]);
    assert_eq!(refused.code, 1, "{}", refused.err);
}

/// Contexts name both where letters come from and where they go.
#[tokio::test(flavor = "multi_thread")]
async fn contexts_say_from_where_and_into_what() {
    let Some(bench) = Bench::with("named", letters(3)).await else { return };
    let config = bench.file("config.toml");
    let text = format!(
        "default = \"letters\"\n[contexts.letters]\nfrom = \"{}\"\n[contexts.kept]\nfrom = \"{}\"\n",
        bench.url(),
        bench.store_url(),
    );
    std::fs::write(&config, text).unwrap();
    let run = |args: &[&str]| -> Ran {
        let mut command = dlq(args);
        command.env("DLQ_CONFIG", &config).output().unwrap().into()
    };
    run(&["ingest", "--into", "kept", "--once"]).ok();
    assert_eq!(run(&["count", "--context", "kept"]).ok().out, "3\n");
    assert_eq!(run(&["count"]).ok().out, "3\n");
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
    let args = ["ingest", "--into", &into, "--once", "--batch", "8", "--lease", "1s"];
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

/// Letters that the server removed before they were read are told of, since nobody has them; what was read is no loss.
#[tokio::test(flavor = "multi_thread")]
async fn letters_that_expired_before_they_were_read_are_told_of() {
    let Some(bench) = Bench::new("expired").await else { return };
    bench.put((0..3).map(letter).collect()).await;
    let into = bench.store_url();
    let args = ["ingest", "--once", "--into", &into];
    let ran = bench.run(&args).ok();
    assert_eq!(ran.out, "3 letters stored\n");
    let stream = bench.context.get_stream(&bench.name).await.unwrap();
    let kept = stream.get_info().await.unwrap().config;
    let is_empty = async || stream.get_info().await.unwrap().state.messages == 0;
    // What it holds expires, and what comes later does not.
    let removed = async || {
        let second = Duration::from_secs(1);
        let brief = stream::Config { max_age: second, duplicate_window: second, ..kept.clone() };
        bench.context.update_stream(brief).await.unwrap();
        let emptied = async {
            while !is_empty().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, emptied).await.expect("the server removes them");
        bench.context.update_stream(kept.clone()).await.unwrap();
    };
    removed().await;
    let ran = bench.run(&args).ok();
    assert!(!ran.err.contains("warning"), "all of them were read: {}", ran.err);
    bench.put((3..7).map(letter).collect()).await;
    removed().await;
    bench.put(vec![letter(7)]).await;
    let ran = bench.run(&args).ok();
    assert!(
        ran.err.contains("up to 4 letters were removed from stream `DLQ_expired`"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("`max_age`"), "{}", ran.err);
    assert_eq!(ran.out, "1 letters stored\n");
    let ran = bench.run(&args).ok();
    assert!(!ran.err.contains("warning"), "it is told once: {}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_counts_is_served_while_it_runs() {
    let Some(bench) = Bench::with("counted", letters(7)).await else { return };
    let into = bench.store_url();
    let args = ["ingest", "--into", &into, "--metrics", "127.0.0.1:0"];
    let (process, address) = served(bench.command(&args));
    tokio::task::block_in_place(|| {
        let line = ["dlq_ingested_letters_total{outcome=\"stored\"} 7"];
        agree(&until(&address, "/metrics", has(&line)), &["dlq_ingested_letters_total"]);
    });
    // Nobody else can be there.
    let ran = bench.run(&["ingest", "--once", "--into", &into, "--metrics", &address]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains(&format!("cannot listen at {address}")), "{}", ran.err);
    process.signal("-TERM");
    process.end().ok();
}
