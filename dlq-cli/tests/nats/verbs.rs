//! The verbs that look, for people and for programs.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlq_core::store::Letters as _;
use dlq_core::{DeadLetter, Filter, Message, OperationId, Sink as _, Timestamp};
use dlq_letters::memory::MemoryStore;
use dlq_nats::async_nats::{self, jetstream};
use dlq_nats::{DlqStream, NatsSink};
use dlq_testkit::fixtures::{letter, letter_of, varied};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::common::{Ran, dlq};
use crate::fixture::{Bench, server_in};

#[tokio::test(flavor = "multi_thread")]
async fn they_say_what_a_store_with_the_same_letters_says() {
    let written: Vec<DeadLetter> = (0..60).map(varied).collect();
    let Some(bench) = Bench::with("verbs", written.clone()).await else { return };
    let store = MemoryStore::new();
    store.put(written.clone()).await.unwrap();
    let expect = async |filter: Filter, args: &[&str]| {
        let count = store.count(filter.clone()).await.unwrap();
        let ran = bench.run(&[&["count"], args].concat()).ok();
        assert_eq!(ran.out, format!("{count}\n"), "{args:?}");
        let ran = bench.run(&[&["list", "--count", "-o", "json"], args].concat()).ok();
        assert_eq!(ran.json()["count"], count, "{args:?}");
        let lines = bench.run(&[&["list", "--limit", "0", "-o", "jsonl"], args].concat()).ok().out;
        assert_eq!(lines.lines().count() as u64, count, "{args:?}");
    };
    expect(Filter::new(), &[]).await;
    expect(Filter::new().with_subject("orders.>".parse().unwrap()), &["--topic", "orders.>"]).await;
    expect(
        Filter::new().with_consumer("payments.charge".to_owned()),
        &["--consumer", "payments.charge"],
    )
    .await;
    expect(Filter::new().error("time out".to_owned()), &["--error", "time out"]).await;

    let groups = bench.run(&["groups", "-o", "json", "--limit", "100"]).ok().json();
    let expected = store.groups(Filter::new(), 100).await.unwrap();
    let counts = |groups: &Value| -> Vec<u64> {
        groups.as_array().unwrap().iter().map(|group| group["count"].as_u64().unwrap()).collect()
    };
    assert_eq!(counts(&groups["groups"]), expected.iter().map(|g| g.count).collect::<Vec<_>>());
    let stats = bench.run(&["stats", "-o", "json"]).ok().json();
    let expected = serde_json::to_value(store.stats(Filter::new()).await.unwrap()).unwrap();
    for part in
        ["total", "by_status", "by_reason", "by_cause", "by_class", "by_consumer", "by_subject"]
    {
        assert_eq!(stats[part], expected[part], "{part}");
    }
    for args in [&["groups"] as &[&str], &["stats"], &["peek"], &["list"]] {
        let ran = bench.run(args).ok();
        assert!(ran.out.lines().count() > 5, "{args:?}: {}", ran.out);
    }
    let peek = bench.run(&["peek", "--limit", "2", "-o", "json"]).ok().json();
    assert_eq!(peek["latest"].as_array().unwrap().len(), 2);

    // Page by page every letter comes once.
    let mut seen = BTreeSet::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut args = vec!["list", "--limit", "7", "-o", "json"];
        args.extend(cursor.iter().flat_map(|cursor| ["--cursor", cursor.as_str()]));
        let page = bench.run(&args).ok().json();
        for letter in page["letters"].as_array().unwrap() {
            assert!(seen.insert(letter["id"].as_str().unwrap().to_owned()), "{letter}");
        }
        match page["next"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(seen.len(), 60);

    let exported = bench.run(&["export"]).ok();
    let exported: Vec<DeadLetter> =
        exported.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(exported.len(), 60);
    for letter in &exported {
        let original = written.iter().find(|original| original.id == letter.id).unwrap();
        assert_eq!(letter.message, original.message);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_letter_is_shown_whole() {
    let Some(bench) = Bench::with("show", (0..3).map(letter).collect()).await else { return };
    let id = letter(1).id.to_string();
    let shown = bench.run(&["show", &id[..12]]).ok().out;
    for expected in
        [id.as_str(), "orders.created", "evt-1", "customer-1", "\"order\": 1", "attempts (3)"]
    {
        assert!(shown.contains(expected), "{expected} is not in\n{shown}");
    }
    assert_eq!(bench.run(&["show", &id, "--payload"]).ok().out, "{\"order\":1}");
    let read: DeadLetter =
        serde_json::from_value(bench.run(&["show", &id, "-o", "json"]).ok().json()).unwrap();
    assert_eq!((read.message, read.history), (letter(1).message, letter(1).history));
    let missing = bench.run(&["show", "00000000000000000000000000000000"]);
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("no letter has the id 0000"), "{}", missing.err);
    assert_eq!(bench.run(&["show", "xyz"]).code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_letters_is_no_error() {
    let Some(bench) = Bench::with("empty", Vec::new()).await else { return };
    assert_eq!(bench.run(&["count"]).ok().out, "0\n");
    for verb in ["list", "groups", "peek"] {
        let ran = bench.run(&[verb]).ok();
        assert!(ran.out.is_empty() && ran.err.contains("no letters match"), "{verb}: {}", ran.err);
    }
    bench.run(&["stats"]).ok();
    bench.run(&["export"]).ok();
    let into = bench.store_url();
    assert_eq!(bench.run(&["ingest", "--once", "--into", &into]).ok().out, "0 letters stored\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_that_an_operation_holds_are_not_asked_of_a_broker() {
    let Some(bench) = Bench::with("held", vec![letter(1)]).await else { return };
    let id = OperationId::of("ana", Timestamp::EPOCH, 1).to_string();
    for verb in ["list", "count", "export", "replay"] {
        let ran = bench.run(&[verb, "--operation", &id]);
        assert_eq!(ran.code, 2, "{verb}: {}", ran.err);
        assert!(ran.err.contains("--status sent"), "{verb}: {}", ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_is_not_an_error() {
    let Some(bench) = Bench::with("pipe", (0..2000).map(letter).collect()).await else { return };
    for args in [&["list", "--limit", "0", "-o", "jsonl"] as &[&str], &["export"]] {
        let mut command = bench.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        tokio::task::block_in_place(|| {
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line)
        })
        .unwrap();
        assert!(!line.is_empty());
        let ran = Ran::from(tokio::task::block_in_place(|| child.wait_with_output()).unwrap());
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_of_another_domain_are_found() {
    let store = tempfile::tempdir().unwrap();
    let domain = format!("{{ store_dir: \"{}\", domain: hub }}", store.path().display());
    let started = tokio::task::block_in_place(|| server_in("jetstream", &domain));
    let Some(server) = started else { return };
    let client = async_nats::connect(server.url()).await.unwrap();
    let hub = jetstream::with_domain(client, "hub");
    let sink = NatsSink::open(&hub, DlqStream::new()).await.unwrap();
    sink.put(vec![letter(1)]).await.unwrap();
    let count = |domain: &str| -> Ran {
        let args = ["count", "--from", server.url(), "--js-domain", domain];
        tokio::task::block_in_place(|| dlq(&args).output().unwrap().into())
    };
    assert_eq!(count("hub").ok().out, "1\n");
    let ran = count("elsewhere");
    assert_eq!(ran.code, 1, "{}", ran.err);
}

/// Prints what an export costs, beside a list; `DLQ_EXPORT_LETTERS` sets how many letters there are (2,000).
#[tokio::test(flavor = "multi_thread")]
async fn a_large_export() {
    let asked = std::env::var("DLQ_EXPORT_LETTERS").ok();
    let letters: u64 = asked.and_then(|text| text.parse().ok()).unwrap_or(2_000);
    let Some(bench) = Bench::with("export", Vec::new()).await else { return };
    for first in (0..letters).step_by(1000) {
        bench.put((first..letters.min(first + 1000)).map(letter).collect()).await;
    }
    for args in [&["list", "--limit", "0", "-o", "jsonl"] as &[&str], &["export"]] {
        let began = std::time::Instant::now();
        let ran = bench.run(args).ok();
        assert_eq!(ran.out.lines().count() as u64, letters);
        println!("{letters} letters: {} takes {:.2} s", args[0], began.elapsed().as_secs_f64());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_costly_read_says_what_to_type_instead_and_since_is_sought() {
    let Some(bench) = Bench::with("costly", Vec::new()).await else { return };
    // More than 64 MiB.
    for _ in 0..70 {
        let large = vec![b'x'; 1_000_000].into();
        let sent = bench.context.publish("dlq-costly.orders", large).await.unwrap();
        sent.await.unwrap();
    }
    bench.put(vec![letter(1)]).await;
    let ran = bench.run(&["export"]).ok();
    assert_eq!(ran.out.lines().count(), 1);
    for part in ["all 71 messages", "MiB", "--since 1h", "dlq ingest --from nats://", "passed over"]
    {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    // What lists reads headers only, which is not much of 71 messages.
    let ran = bench.run(&["count"]).ok();
    assert_eq!(ran.out, "1\n");
    assert!(!ran.err.contains("are read for this"), "{}", ran.err);
    let stream = bench.context.get_stream(&bench.name).await.unwrap();
    let since = stream.get_raw_message(71).await.unwrap().time.unix_timestamp_nanos();
    let since = Timestamp::from_nanos(since.try_into().unwrap()).to_string();
    let ran = bench.run(&["list", "--since", &since, "-o", "json"]).ok();
    assert_eq!(ran.json()["letters"].as_array().unwrap().len(), 1);
    assert!(ran.err.starts_with("only what was written since"), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "nothing else is read: {}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_that_list_read_no_payloads() {
    const LETTERS: u64 = 200;
    const SIZE: usize = 10 * 1024;
    let Some(bench) = Bench::with("outlines", Vec::new()).await else { return };
    let large = |n| letter_of(Message::new("orders.created", vec![b'x'; SIZE]), n);
    bench.put((0..LETTERS).map(large).collect()).await;
    let proxy = Proxy::before(bench.host()).await;
    let from = format!("{}/{}", proxy.url, bench.name);
    let costs = |args: &[&str]| {
        let before = proxy.bytes();
        let args = [args, &["--from", &from]].concat();
        let ran: Ran = tokio::task::block_in_place(|| dlq(&args).output().unwrap().into());
        (ran.ok(), proxy.bytes() - before)
    };
    let (exported, whole) = costs(&["export"]);
    assert_eq!(exported.out.lines().count() as u64, LETTERS);
    assert!(whole >= LETTERS * SIZE as u64, "{whole}");
    for args in [&["list"] as &[&str], &["count"], &["groups"], &["stats"], &["peek"]] {
        let (_, bytes) = costs(args);
        println!("{args:?}: {bytes} bytes, and {whole} to export");
        assert!(bytes < whole / 4, "{args:?}: {bytes} of {whole}");
    }
    let (listed, _) = costs(&["list", "--limit", "1", "-o", "json"]);
    assert_eq!(listed.json()["letters"][0]["payload_size"], SIZE);
}

/// Stands before a server, and counts what that says.
struct Proxy {
    url: String,
    bytes: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    async fn before(url: &str) -> Self {
        let server = url.strip_prefix("nats://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let (bytes, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        let counter = Arc::clone(&bytes);
        tasks.spawn(async move {
            let mut carried = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (server, counter) = (server.clone(), Arc::clone(&counter));
                carried.spawn(async move {
                    let server = TcpStream::connect(server).await.unwrap();
                    let (mut asks, mut hears) = client.into_split();
                    let (mut says, mut listens) = server.into_split();
                    let up = tokio::io::copy(&mut asks, &mut listens);
                    let down = async {
                        let mut buffer = vec![0; 64 * 1024];
                        while let Ok(read @ 1..) = says.read(&mut buffer).await {
                            counter.fetch_add(read as u64, Ordering::Relaxed);
                            if hears.write_all(&buffer[..read]).await.is_err() {
                                return;
                            }
                        }
                    };
                    tokio::select! { _ = up => {}, () = down => {} }
                });
            }
        });
        Self { url, bytes, _tasks: tasks }
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
