//! A replay that dies, wherever it is, and the next one.

use std::collections::BTreeSet;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use async_nats::jetstream::{kv, stream};
use dlq_core::ingest::{Incident, Ingest};
use dlq_core::store::Letters;
use dlq_core::{DeadLetter, Filter, Message, OperationId, Origin, Status, Timestamp};
use dlq_letters::memory::MemoryStore;
use dlq_nats::{DlqStream, NatsFeed, NatsLetters, Skipped};
use futures_util::FutureExt;
use futures_util::future::join_all;

use super::{assert_once, bury, dead, forget_fast, sent_back, to_origin, window_passed};
use crate::fixture::{PATIENCE, STREAM, Server, available};

const LETTERS: u32 = 5;
const LEASE: Duration = Duration::from_secs(1);

/// Runs it for so many steps; its result, if it has ended by then.
async fn run_for<F: Future + Unpin>(steps: u32, work: &mut F) -> Option<F::Output> {
    let mut left = steps;
    poll_fn(|context| {
        left -= 1;
        match work.poll_unpin(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Where a replay was killed, as the ledger and the stream show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Killed {
    /// Before its first write.
    Early,
    /// With a claim, and nothing sent that has arrived.
    Claimed,
    /// With a claim and letters that have arrived.
    Sent,
    /// After its last write.
    Marked,
}

async fn killed(server: &Server, round: u32) -> Killed {
    let Ok(bucket) = server.context.get_key_value(format!("D{round}_REPLAYS")).await else {
        return Killed::Early;
    };
    let Some(record) = bucket.entry("0").await.unwrap() else {
        return Killed::Early;
    };
    let record: serde_json::Value = serde_json::from_slice(&record.value).unwrap();
    let marks = record["sent"].as_array().unwrap().len();
    if record.get("claim").is_none() {
        assert!(marks > 0, "nobody lets go without marks");
        return Killed::Marked;
    }
    assert_eq!(marks, 0, "all marks are written at once");
    let arrived = sent_back(server).await;
    let arrived = arrived.contains_key(&round_of(round).to_string());
    if arrived { Killed::Sent } else { Killed::Claimed }
}

/// The first letter of a round.
const fn round_of(round: u32) -> u32 {
    round * LETTERS
}

/// The letters of a round, in a stream of its own.
async fn begin(server: &Server, round: u32) -> NatsLetters {
    let stream = DlqStream::new().with_name(format!("D{round}"));
    let stream = stream.with_prefix(format!("d{round}"));
    bury(server, stream, dead(round_of(round)..round_of(round + 1))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_killed_at_any_step_each_letter_arrives_once() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    forget_fast(&server).await;
    let mut rounds: Vec<NatsLetters> = Vec::new();
    let mut seen: BTreeSet<Killed> = BTreeSet::new();
    let mut steps = 0;
    let begun = Instant::now();
    loop {
        let round = u32::try_from(rounds.len()).unwrap();
        let letters = begin(&server, round).await;
        let replay = to_origin(&letters, 1).with_lease(LEASE);
        steps += 1;
        let done = run_for(steps, &mut pin!(replay.run(pending(), |_| {}))).await;
        seen.insert(killed(&server, round).await);
        rounds.push(letters);
        if let Some(report) = done {
            assert_eq!(report.unwrap().sent, u64::from(LETTERS));
            // How many steps there are differs from time to time: once more, if one was missed.
            if seen.len() == 4 {
                break;
            }
            assert!(begun.elapsed() < PATIENCE * 5, "it was killed nowhere but at {seen:?}");
            steps = 0;
        }
    }
    let again = rounds.iter().map(|letters| async {
        let replay = to_origin(letters, 2).with_lease(LEASE);
        replay.run(pending(), |_| {}).await.unwrap()
    });
    for report in join_all(again).await {
        assert!(report.is_complete(), "{report}");
        assert_eq!((report.failed, report.doubtful), (0, 0));
    }
    let all = u32::try_from(rounds.len()).unwrap();
    assert_once(&server, 0..round_of(all)).await;
    for (round, letters) in (0..).zip(&rounds) {
        let report = to_origin(letters, 3).run(pending(), |_| {}).await.unwrap();
        assert_eq!((report.sent, killed(&server, round).await), (0, Killed::Marked));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_stopped_at_any_step_until_its_lease_has_ended_it_sends_nothing_twice() {
    if !available() {
        return;
    }
    const ROUNDS: u32 = 36;
    let server = Server::start().await;
    forget_fast(&server).await;
    let rounds = (0..ROUNDS).map(|round| {
        let server = &server;
        async move {
            let letters = begin(server, round).await;
            // Of another process, which waits for nothing that this one holds.
            let stream = DlqStream::new().with_name(format!("D{round}"));
            let others = NatsLetters::new(&server.client, stream.with_prefix(format!("d{round}")));
            let (first, second) = (to_origin(&letters, 1), to_origin(&others, 2));
            let (first, second) = (first.with_lease(LEASE), second.with_lease(LEASE));
            let mut first = pin!(first.run(pending(), |_| {}));
            let ended = run_for(round + 1, &mut first).await;
            let second = second.run(pending(), |_| {}).await.unwrap();
            assert!(second.is_complete(), "{second}");
            window_passed(server).await;
            let first = match ended {
                Some(first) => first.unwrap(),
                None => first.await.unwrap(),
            };
            assert!(first.is_complete(), "{first}");
            second.sent
        }
    });
    let sent: u64 = join_all(rounds).await.into_iter().sum();
    assert!(sent > 0, "some were taken over");
    assert_once(&server, 0..round_of(ROUNDS)).await;
}

/// A claim that was left by somebody, by whom this letter, the second, was sent as far as the stream shows.
pub(super) async fn left_claim(server: &Server, stream: &str, arrived: &DeadLetter) {
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Nats-Msg-Id", format!("replay.{}", arrived.death()).as_str());
    headers.insert("replay.id", OperationId::of("bob", Timestamp::EPOCH, 1).to_string().as_str());
    headers.insert("replay.from-dlq", "DLQ@2");
    let subject = arrived.message.subject().to_owned();
    let payload = arrived.message.payload().unwrap().clone();
    let sent = server.context.publish_with_headers(subject, headers, payload).await.unwrap();
    sent.await.unwrap();
    let config = kv::Config { bucket: "DLQ_REPLAYS".to_owned(), ..kv::Config::default() };
    let bucket = server.context.create_key_value(config).await.unwrap();
    let claim = serde_json::json!({ "owner": "bob", "lease_ms": 300, "streams": { stream: 0 } });
    let record = serde_json::json!({ "claim": claim, "sent": [] });
    bucket.put("0", record.to_string().into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_what_cannot_be_found_out_is_said() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let config = stream::Config {
        name: "WORK".to_owned(),
        subjects: vec!["work".to_owned()],
        retention: stream::RetentionPolicy::WorkQueue,
        duplicate_window: Duration::from_millis(100),
        ..stream::Config::default()
    };
    server.context.create_stream(config).await.unwrap();
    let mut dead = dead(0..3);
    for letter in &mut dead {
        letter.origin = Origin::new("nats", "WORK", letter.origin.position());
        letter.message = Message::new("work", letter.message.payload().unwrap().clone());
    }
    left_claim(&server, "WORK", &dead[1]).await;
    let letters = bury(&server, DlqStream::new(), dead).await;
    let report = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap();
    // One has not been consumed and is found. The others may have been.
    assert_eq!((report.sent, report.doubtful, report.skipped[&Skipped::Sent]), (2, 2, 1));
    assert!(report.to_string().contains("2 of them perhaps twice"), "{report}");
    assert_eq!(server.count("WORK").await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_what_may_have_been_sent_is_quarantined_in_a_store_that_comes_later() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let dead = dead(0..3);
    left_claim(&server, STREAM, &dead[1]).await;
    let letters = bury(&server, DlqStream::new(), dead.clone()).await;
    let ingested = async |consumer: &str| {
        let (client, stream) = (&server.client, DlqStream::new());
        let feed = NatsFeed::open(client, &stream, consumer, consumer, Duration::from_secs(5));
        let (store, feed) = (MemoryStore::new(), feed.await.unwrap().until_end());
        let mut told = Vec::new();
        let mut ingest = Ingest::new(feed, store.clone());
        let tell = |incidents: &[Incident]| {
            told.extend(incidents.iter().filter_map(|incident| incident.detail.clone()));
            Ok(())
        };
        ingest.run(pending(), tell).await.unwrap();
        let stats = store.stats(Filter::new()).await.unwrap();
        let count = |status| stats.with_status(status);
        ([Status::Quarantined, Status::Pending, Status::Sent].map(count), told)
    };
    let (counts, told) = ingested("before").await;
    assert_eq!((counts, told.len()), ([3, 0, 0], 3));
    assert!(told.iter().all(|why| why.contains("`DLQ_REPLAYS`")), "{told:?}");
    // One of them had arrived. Once that is found out, a store hears it.
    assert_eq!(to_origin(&letters, 1).with_limit(1).run(pending(), |_| {}).await.unwrap().sent, 1);
    assert_eq!(ingested("after").await, ([0, 1, 2], Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_lease_is_waited_for_and_what_has_arrived_is_found() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    forget_fast(&server).await;
    let dead = dead(0..3);
    left_claim(&server, STREAM, &dead[1]).await;
    let letters = bury(&server, DlqStream::new(), dead.clone()).await;
    let begun = Instant::now();
    let report = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(300), "it was not waited for");
    assert_eq!((report.sent, report.doubtful, report.skipped[&Skipped::Sent]), (2, 0, 1));
    assert_once(&server, 0..3).await;
    let found = letters.get(dead[1].id).await.unwrap().unwrap();
    assert_eq!((found.state.status, found.state.replays), (Status::Sent, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_server_that_dies_stops_it_and_it_goes_on_later() {
    if !available() {
        return;
    }
    const MANY: u32 = 1_000;
    let server = Server::start().await;
    forget_fast(&server).await;
    let letters = bury(&server, DlqStream::new(), dead(0..MANY)).await;
    let replay = to_origin(&letters, 1).with_lease(LEASE).with_rate(2_000);
    let mut sent = 0;
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let running = replay.run(pending(), |_| {
        sent += 1;
        if sent == 300 {
            told.send(()).unwrap();
        }
    });
    let killing = async {
        heard.recv().await.unwrap();
        tokio::task::block_in_place(|| server.running().kill().unwrap());
    };
    let (report, ()) = tokio::join!(running, killing);
    let report = report.unwrap();
    assert!(report.stopped.is_some() && report.left > 0 && report.sent >= 300, "{report}");
    assert!(report.sent + report.left == u64::from(MANY), "{report}");
    server.kill_and_restart().await;
    let replay = to_origin(&letters, 2).with_lease(LEASE);
    let report = replay.run(pending(), |_| {}).await.unwrap();
    assert!(report.is_complete(), "{report}");
    assert_once(&server, 0..MANY).await;
}
