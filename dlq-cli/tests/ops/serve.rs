//! `dlq serve` on a real store.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use dlq_core::store::{
    Actor, Maintenance as _, Mark, OperationSpec, Operations as _, Selection, Sink as _,
};
use dlq_core::{Clock as _, Filter, Message, RetryQueue as _, SystemClock, Timestamp};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::{delayed_retry, letter, letter_of};

use crate::common::{Ran, dlq};
use crate::documented::agree_serve;
use crate::page::Page;
use crate::served::Served;

/// A page of a store in which everything was seen.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_exported_is_what_the_table_says() {
    let (served, store) = Served::with((0..5).map(letter).collect(), "100ms").await;
    let spec = OperationSpec::replay(Filter::new()).limit(2);
    store.start(spec, Actor::new("ana")).await.unwrap();
    let one = Selection::matching(Filter::new().with_id(letter(4).id)).unwrap();
    store.mark(one, Mark::Quarantined, Actor::new("ana")).await.unwrap();
    let retry = delayed_retry(&letter(9), 1, Timestamp::EPOCH);
    store.enqueue(retry).await.unwrap();
    let looks = |page: &Page| page.value("dlq_store_looks_total{outcome=\"answered\"}");
    // One may have begun before all was written; it is shown whole by the second from now.
    let seen = looks(&served.scrape()).unwrap() + 2.0;
    let page = served.until("two looks", |page| looks(page) >= Some(seen));
    agree_serve(&page.families());
    for (series, wanted) in [
        ("dlq_store_up", 1.0),
        ("dlq_letters{status=\"pending\"}", 4.0),
        ("dlq_unresolved_letters{reason=\"exhausted\"}", 6.0),
        ("dlq_topic_letters{topic=\"orders.created\"}", 6.0),
        ("dlq_events_count{consumer=\"orders.handle\"}", 5.0),
        ("dlq_messages_quarantined{consumer=\"orders.handle\"}", 1.0),
        ("messages_in_dlq_total{topic=\"orders.created\",class=\"permanent\"}", 0.0),
        ("dlq_overdue_letters{consumer=\"orders.handle\"}", 1.0),
        ("dlq_max_age_seconds", 604_800.0),
        ("dlq_operation_letters{outcome=\"queued\"}", 2.0),
    ] {
        assert_eq!(page.value(series), Some(wanted), "{series}: {}", page.0);
    }
    let stats = Ran::from(dlq(&["stats", "-o", "json", "--from", &served.url()]).output().unwrap());
    let statuses = stats.ok().json()["by_status"].clone();
    for (status, count) in statuses.as_object().unwrap() {
        let series = format!("dlq_letters{{status=\"{status}\"}}");
        assert_eq!(page.value(&series), count.as_f64(), "{statuses}: {}", page.0);
    }
    let now = SystemClock.now().since(Timestamp::EPOCH);
    let answered = page.value("dlq_store_last_answer_seconds").unwrap();
    assert!((now.as_secs_f64() - answered).abs() < 60.0, "{answered}");
    assert!(page.value("dlq_oldest_unresolved_age_seconds").unwrap() < 60.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_that_come_are_seen_and_counted() {
    let (served, store) = Served::with((0..3).map(letter).collect(), "100ms").await;
    let waiting = "dlq_events_count{consumer=\"orders.handle\"}";
    let written = "messages_in_dlq_total{topic=\"orders.created\",class=\"transient\"}";
    served.until("three letters", |page| page.value(waiting) == Some(3.0));
    let mut before = 0.0;
    for n in 3..53 {
        store.put(vec![letter(n)]).await.unwrap();
        let counted = served.scrape().value(written).unwrap();
        assert!(counted >= before, "a counter goes up");
        before = counted;
    }
    // What is counted last may be seen a look before the rest.
    served.until("each is counted", |page| {
        page.value(written) == Some(50.0) && page.value(waiting) == Some(53.0)
    });
    let (status, body) = served.get("/health");
    let health: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &health["state"], &health["backlog"]),
        (200, &"healthy".into(), &53.into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_break_no_line() {
    let names = [
        "a\"} 1\ndlq_store_up 0\n#",
        "back\\slash\\",
        "line\r\nend",
        "nul\0 and esc\x1b[31m",
        "кракен.ü.💥",
        "",
        "other",
        &"long".repeat(1000),
    ];
    let letters = names.iter().enumerate().map(|(n, name)| {
        let mut letter = letter_of(Message::new(*name, "x"), n as u64);
        letter.consumer = (*name).to_owned();
        letter
    });
    let (served, _store) = Served::with(letters.collect(), "1h").await;
    let page = served.scrape();
    assert_eq!(page.series("dlq_store_up"), [("dlq_store_up", 1.0)], "{}", page.0);
    let groups = page.series("dlq_group_letters");
    assert_eq!(groups.len(), names.len() + 1, "one for the rest: {groups:?}");
    for name in ["dlq_topic_letters", "dlq_events_count", "dlq_messages_quarantined"] {
        let series = page.series(name);
        assert_eq!(series.len(), names.len(), "{series:?}");
    }
    assert_eq!(
        page.value("dlq_topic_letters{topic=\"back\\\\slash\\\\\"}"),
        Some(1.0),
        "{}",
        page.0
    );
    assert_eq!(page.value("dlq_topic_letters{topic=\"кракен.ü.💥\"}"), Some(1.0), "{}", page.0);
    assert!(page.0.lines().all(|line| line.len() < 400), "{}", page.0);
    read_by_prometheus(&page);
}

/// Has Prometheus' own parser read it; its remarks on names are not asked for.
fn read_by_prometheus(page: &Page) {
    let Ok(promtool) = dlq_services::require_promtool() else { return };
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(page.0.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{said}\n{}", page.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_who_ask_at_once_share_one_look() {
    let (served, _store) = Served::with((0..3).map(letter).collect(), "1h").await;
    let first = served.scrape();
    assert_eq!(first.value("dlq_store_looks_total{outcome=\"answered\"}"), Some(1.0));
    for _wave in 0..10 {
        std::thread::scope(|scope| {
            let asking: Vec<_> = (0..50).map(|_| scope.spawn(|| served.scrape())).collect();
            for asked in asking {
                assert_eq!(asked.join().unwrap().0, first.0);
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_say_nothing_or_nonsense_are_in_nobodys_way() {
    let (served, _store) = Served::with(vec![letter(0)], "1h").await;
    let silent: Vec<_> = (0..40).map(|_| served.connect()).collect();
    let mut half = served.connect();
    half.write_all(b"GET /metrics HT").unwrap();
    for (request, status) in [
        (&b"\x16\x03\x01\x02\x00\xff\r\n\r\n"[..], "400"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
        (b"GET /nothing HTTP/1.1\r\n\r\n", "404"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
        (&[b'x'; 100_000], "431"),
    ] {
        let answer = served.send(request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    drop(silent);
    served.scrape();
    half.write_all(b"TP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    half.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_goes_away_is_shown_and_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = Served::start(folder, "100ms");
    served.until("nothing", |page| page.value("dlq_store_up") == Some(0.0));
    let (status, body) = served.get("/health");
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("there is no file") && body.contains("\"unhealthy\""), "{body}");
    let store = SqliteStore::open(served.path()).await.unwrap();
    store.put(vec![letter(0)]).await.unwrap();
    drop(store);
    let is_up = |page: &Page| page.value("dlq_store_up") == Some(1.0);
    served.until("a store", is_up);
    let aside = served.folder.path().join("aside.db");
    std::fs::rename(served.path(), &aside).unwrap();
    let page = served.until("its absence", |page| page.value("dlq_store_up") == Some(0.0));
    assert!(page.series("dlq_letters").is_empty(), "what is not known is not shown: {}", page.0);
    // Another one in its place.
    let store = SqliteStore::open(served.path()).await.unwrap();
    store.put((0..7).map(letter).collect()).await.unwrap();
    drop(store);
    served.until("another store", |page| {
        is_up(page) && page.value("dlq_letters{status=\"pending\"}") == Some(7.0)
    });
    served.process.says("it is not reached");
    served.process.says("it answers again");
    served.process.signal("-TERM");
    served.process.end().ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_when_it_is_asked() {
    for signal in ["-INT", "-TERM"] {
        let (served, _store) = Served::with(vec![letter(0)], "1h").await;
        let waiting = served.connect();
        served.process.signal(signal);
        served.process.end().ok();
        drop(waiting);
    }
}

#[test]
fn what_cannot_be_served_is_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    let url = format!("sqlite://{}", file.path().display());
    for (args, code, text) in [
        (&["--from", "nats:///DLQ"][..], 2, "names no server"),
        (&["--from", "kafka://127.0.0.1"], 2, "does not end with the name of a topic"),
        (&["--from", &url, "--consumer", "orders/billing"], 2, "cover all consumers"),
        (&["--from", "nonsense"], 2, "`nonsense` does not name dead letters"),
        (&[], 2, "where are the dead letters?"),
        (&["--from", &url, "--metrics", ":80"], 2, "`:80` is not where one can listen"),
        (&["--from", &url, "--metrics", &taken], 1, "cannot listen at"),
        (&["--from", &url, "--every", "1ms"], 2, "--every 1ms is too often"),
        (&["--from", &url, "--group-metrics", "5000"], 2, "at most 1000"),
        (&["--from", &url, "--alert", "h/s3cret"], 2, "cannot use the URL of --alert"),
        (&["--from", &url, "--alert", "http://h", "--alert-every", "1ms"], 2, "1ms is too often"),
        (&["--from", &url, "--alert", "http://h", "--alert-ca", "/no"], 2, "in /no"),
        (
            &["--from", "nats://127.0.0.1:1/DLQ", "--alert", "http://h/s3cret"],
            2,
            "dlq ingest --from nats://127.0.0.1:1/DLQ",
        ),
    ] {
        let ran = Ran::from(dlq(&[&["serve"], args].concat()).output().unwrap());
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        assert_eq!(ran.out, "");
        assert!(ran.err.contains(text) && !ran.err.contains("s3cret"), "{args:?}: {}", ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_killed_begins_again() {
    let (served, store) = Served::with(vec![letter(0)], "100ms").await;
    store.put(vec![letter(1)]).await.unwrap();
    let written = "messages_in_dlq_total{topic=\"orders.created\",class=\"transient\"}";
    served.until("a letter", |page| page.value("dlq_letters{status=\"pending\"}") == Some(2.0));
    let Served { folder, process, .. } = served;
    assert!(process.kill().contains("is served at http://127.0.0.1:"));
    let served = Served::start(folder, "1h");
    let page = served.scrape();
    assert_eq!(page.value("dlq_letters{status=\"pending\"}"), Some(2.0));
    assert_eq!(page.value(written), Some(0.0), "counters begin at zero");
}

/// Prints what a look costs, with `--nocapture`; `DLQ_SERVE_LETTERS` sets how many there are (10,000).
#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_many_letters() {
    let asked = std::env::var("DLQ_SERVE_LETTERS").ok();
    let letters: u64 = asked.and_then(|text| text.parse().ok()).unwrap_or(10_000);
    let (served, store) = Served::with(Vec::new(), "100ms").await;
    served.until("a look", |page| page.value("dlq_letters{status=\"pending\"}") == Some(0.0));
    for first in (0..letters).step_by(5000) {
        let batch = (first..letters.min(first + 5000)).map(|n| {
            let subject = format!("orders.{}", n % 150);
            letter_of(Message::new(subject, format!("{{\"order\":{n}}}")), n)
        });
        store.put(batch.collect()).await.unwrap();
    }
    let written = |page: &Page| -> f64 {
        page.series("messages_in_dlq_total").iter().map(|(_, count)| count).sum()
    };
    let counting = served.until("all of them", |page| written(page) == letters as f64);
    // One that counts no new ones, and began after the last was written.
    let answered = "dlq_store_looks_total{outcome=\"answered\"}";
    let page = served.until("another look", |page| page.value(answered) > counting.value(answered));
    assert_eq!(page.series("dlq_topic_letters").len(), 101);
    assert_eq!(page.value("dlq_letters{status=\"pending\"}"), Some(letters as f64));
    let took = |page: &Page| page.value("dlq_store_look_seconds").unwrap() * 1e3;
    println!(
        "{letters} letters: a look takes {:.1} ms ({:.1} ms with thousands of new ones), a page has {} bytes",
        took(&page),
        took(&counting),
        page.0.len(),
    );
}
