//! The verbs that look, for people and for programs.

use std::time::Duration;

use dlq_core::{Clock as _, DeadLetter, SystemClock};
use dlq_kafka::rdkafka::message::{Header, OwnedHeaders};
use dlq_testkit::fixtures::{died_again, letter};

use crate::fixture::Bench;

fn letters(count: u64) -> Vec<DeadLetter> {
    (0..count).map(letter).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_has_a_table_and_documents() {
    let written = letters(12);
    let Some(bench) = Bench::with("verbs", written.clone()).await else { return };
    assert_eq!(bench.run(&["count"]).ok().out, "12\n");
    assert_eq!(bench.run(&["list", "--count", "-o", "json"]).ok().json()["count"], 12);
    assert_eq!(bench.run(&["list", "--limit", "5", "-o", "jsonl"]).ok().out.lines().count(), 5);
    let page = bench.run(&["list", "--limit", "5", "-o", "json"]).ok().json();
    let next = page["next"].as_str().unwrap();
    let rest = bench.run(&["list", "--cursor", next, "-o", "jsonl"]).ok();
    assert_eq!(rest.out.lines().count(), 7, "{}", rest.out);
    for (args, expected) in [
        (&["list"] as &[&str], "orders.created"),
        (&["groups"], "COUNT"),
        (&["stats"], "12 letters"),
        (&["peek"], "█"),
    ] {
        let ran = bench.run(args).ok();
        assert!(ran.out.contains(expected), "{args:?}: {}", ran.out);
        let json = bench.run(&[args, &["-o", "json"]].concat()).ok().json();
        assert!(json.is_object(), "{args:?}: {json}");
    }
    assert_eq!(bench.run(&["stats", "-o", "json"]).ok().json()["total"], 12);

    let id = letter(1).id.to_string();
    let shown = bench.run(&["show", &id[..12]]).ok().out;
    for expected in [id.as_str(), "orders.created", "evt-1", "\"order\": 1", "attempts (3)"] {
        assert!(shown.contains(expected), "{expected} is not in\n{shown}");
    }
    assert_eq!(bench.run(&["show", &id, "--payload"]).ok().out, "{\"order\":1}");
    let exported = bench.run(&["export"]).ok();
    assert_eq!(exported.out.lines().count(), 12);
    for line in exported.out.lines() {
        let read: DeadLetter = serde_json::from_str(line).unwrap();
        let original = written.iter().find(|original| original.id == read.id).unwrap();
        assert_eq!((&read.message, &read.history), (&original.message, &original.history));
    }
    let missing = bench.run(&["show", "00000000000000000000000000000000"]);
    assert_eq!(missing.code, 1, "{}", missing.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_told_by_place_key_and_header() {
    let mut written = letters(9);
    for (n, letter) in (0..).zip(&mut written) {
        let tenant = if n < 2 { "acme" } else { "other" };
        letter.message =
            letter.message.clone().with_key(format!("k-{n}")).with_header("tenant", tenant);
    }
    // The producer's headers and the binding of a letter go together.
    let Some(bench) = Bench::with("places", written).await else { return };
    for (args, count) in [
        (&["--partition", "0"] as &[&str], 3),
        (&["--partition", "0", "--partition", "2"], 6),
        (&["--offsets", "1..2"], 3),
        (&["--offsets", "1..", "--partition", "1"], 2),
        (&["--offsets", "..1"], 3),
        (&["--key", "k-4"], 1),
        (&["--key", "k-4", "--key", "k-5"], 2),
        (&["--header", "tenant=acme"], 2),
        (&["--header", "tenant=acme", "--key", "k-4"], 0),
        (&["--since", "1h", "--partition", "1"], 3),
    ] {
        let ran = bench.run(&[&["count"], args].concat()).ok();
        assert_eq!(ran.out, format!("{count}\n"), "{args:?}");
    }
    for (args, expected) in [
        (&["count", "--partition", "9"] as &[&str], "partition 9"),
        (&["count", "--offsets", "5..5"], "empty"),
        (&["count", "--offsets", "5"], "FROM..TO"),
        (&["count", "--header", "tenant"], "NAME=VALUE"),
    ] {
        let ran = bench.run(args);
        assert_ne!(ran.code, 0, "{args:?}");
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    }
    let into = bench.store_url();
    bench.run(&["ingest", "--once", "--into", &into]).ok();
    let refused = bench.run(&["count", "--from", &into, "--partition", "0"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("are of a topic of Kafka"), "{}", refused.err);
    // Where letters are stored, each is read for its key.
    let found = bench.run(&["count", "--from", &into, "--key", "k-4", "--header", "tenant=other"]);
    assert_eq!(found.ok().out, "1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn since_is_sought() {
    let Some(bench) = Bench::with("since", Vec::new()).await else { return };
    let before = SystemClock.now().before(Duration::from_secs(2 * 60 * 60)).as_millis();
    bench.put_at(Some(before), letters(2)).await;
    // Of one of them the later death alone is read.
    bench.put(vec![died_again(&letters(1)[0])]).await;
    assert_eq!(bench.run(&["count"]).ok().out, "2\n");
    assert_eq!(bench.run(&["count", "--since", "1h"]).ok().out, "1\n");
    assert_eq!(bench.run(&["count", "--until", "1h"]).ok().out, "2\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_in_the_topic_is_shown_and_stored() {
    let Some(bench) = Bench::with("foreign", letters(1)).await else { return };
    let hostile = "\u{1b}[2J\u{202e}";
    let headers = OwnedHeaders::new()
        .insert(Header { key: hostile, value: Some(&[0xff_u8, 0, 27][..]) })
        .insert(Header { key: "dlq.kafka.rest", value: Some(b"{") })
        .insert(Header::<&[u8]> { key: "kafka_dlt-original-partition", value: None });
    bench.put_foreign(&[0xff, 0x1b, 0x00], headers).await;
    bench.put_foreign(b"", OwnedHeaders::new()).await;
    assert_eq!(bench.run(&["count"]).ok().out, "3\n");
    let lines = bench.run(&["list", "-o", "jsonl"]).ok().out;
    for line in lines.lines() {
        let summary: serde_json::Value = serde_json::from_str(line).unwrap();
        let shown = bench.run(&["show", summary["id"].as_str().unwrap()]).ok();
        let mut odd =
            shown.out.chars().filter(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
        assert_eq!(odd.next(), None, "{:?}", shown.out);
    }
    let into = bench.store_url();
    let ran = bench.run(&["ingest", "--once", "--into", &into]).ok();
    assert_eq!(ran.out, "3 letters stored\n");
    assert_eq!(bench.run(&["count", "--from", &into]).ok().out, "3\n");
}
