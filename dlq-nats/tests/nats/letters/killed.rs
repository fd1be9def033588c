//! A replay that dies, wherever it is, and the next one.

use std::future::pending;
use std::time::{Duration, Instant};

use async_nats::jetstream::{kv, stream};
use dlq_core::ingest::{Incident, Ingest};
use dlq_core::log::Log as _;
use dlq_core::store::Letters;
use dlq_core::{
    DeadLetter, Filter, Message, OperationId, Origin, Status, StoreErrorKind, Timestamp,
};
use dlq_letters::memory::MemoryStore;
use dlq_nats::{DlqStream, NatsLetters, Skipped};
use tokio::time::timeout;

use super::{assert_once, bury, dead, forget_fast, replays, to_origin};
use crate::fixture::{PATIENCE, STREAM, Server, available, now};

const LEASE: Duration = Duration::from_secs(1);

/// A claim that was left by somebody, by whom this letter, the second, was sent as far as the stream shows.
pub(super) async fn left_claim(server: &Server, stream: &str, arrived: &DeadLetter) {
    left_claim_at(server, (stream, 0), arrived).await;
}

/// Sends a letter as a replay of somebody else.
async fn sent_by_bob(server: &Server, arrived: &DeadLetter) {
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Nats-Msg-Id", format!("replay.{}", arrived.death()).as_str());
    headers.insert("replay.id", OperationId::of("bob", Timestamp::EPOCH, 1).to_string().as_str());
    headers.insert("replay.from-dlq", "DLQ@2");
    let subject = arrived.message.subject().to_owned();
    let payload = arrived.message.payload().unwrap().clone();
    let sent = server.context.publish_with_headers(subject, headers, payload).await.unwrap();
    sent.await.unwrap();
}

/// The same of somebody who found the stream at this position.
async fn left_claim_at(server: &Server, (stream, at): (&str, u64), arrived: &DeadLetter) {
    sent_by_bob(server, arrived).await;
    let config = kv::Config { bucket: "DLQ_REPLAYS".to_owned(), ..kv::Config::default() };
    let bucket = server.context.create_key_value(config).await.unwrap();
    let claim = serde_json::json!({ "owner": "bob", "lease_ms": 300, "streams": { stream: at } });
    let record = serde_json::json!({ "claim": claim, "sent": [] });
    bucket.put("0", record.to_string().into()).await.unwrap();
}

/// Letters of three messages of a stream that does not keep what was consumed.
async fn at_work(server: &Server) -> Vec<DeadLetter> {
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
        letter.origin = Origin::new("nats", "WORK", letter.origin.position().clone());
        letter.message = Message::new("work", letter.message.payload().unwrap().clone());
    }
    dead
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_what_cannot_be_found_out_is_said() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let dead = at_work(&server).await;
    left_claim(&server, "WORK", &dead[1]).await;
    let letters = bury(&server, DlqStream::new(), dead).await;
    let report = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap();
    // One has not been consumed and is found. The others may have been.
    assert_eq!((report.sent, report.doubtful, report.skipped[&Skipped::Sent]), (2, 2, 1));
    assert!(report.to_string().contains("2 of them perhaps twice"), "{report}");
    assert_eq!(server.count("WORK").await, 3);
}

/// A stream that was made anew has lost what it had; what the dead replay sent to the new one is found, wherever it stands there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_stream_that_was_made_anew_since_cannot_say_what_had_arrived() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    forget_fast(&server).await;
    let dead = dead(0..3);
    // The position of the stream that is removed says nothing about the new one.
    left_claim_at(&server, (STREAM, 7), &dead[0]).await;
    let config = server.context.get_stream(STREAM).await.unwrap().cached_info().config.clone();
    server.context.delete_stream(STREAM).await.unwrap();
    server.context.create_stream(config).await.unwrap();
    sent_by_bob(&server, &dead[1]).await;
    let letters = bury(&server, DlqStream::new(), dead).await;
    let report = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.doubtful, report.skipped[&Skipped::Sent]), (2, 2, 1));
    assert_once(&server, 0..3).await;
}

/// Counts quarantined, pending and sent letters of a store that follows, with the reason of the first.
async fn followed(letters: &NatsLetters) -> ([u64; 3], Vec<String>) {
    let log = letters.clone().until_end();
    let feed = log.follow("store".to_owned(), Duration::from_secs(5)).await.unwrap();
    let (store, mut told) = (MemoryStore::new(), Vec::new());
    let mut ingest = Ingest::new(feed, store.clone());
    let tell = |incidents: &[Incident]| {
        told.extend(incidents.iter().filter_map(|incident| incident.detail.clone()));
        Ok(())
    };
    timeout(PATIENCE, ingest.run(pending(), tell)).await.expect("it ends").unwrap();
    let stats = store.stats(Filter::new()).await.unwrap();
    let count = |status| stats.with_status(status);
    ([Status::Quarantined, Status::Pending, Status::Sent].map(count), told)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_what_a_dead_replay_has_sent_is_found_out_for_a_store_that_comes_later() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let dead = dead(0..3);
    left_claim(&server, STREAM, &dead[1]).await;
    let letters = bury(&server, DlqStream::new(), dead.clone()).await;
    assert_eq!(followed(&letters).await, ([0, 2, 1], Vec::new()));
    let error = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("are kept in store"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_what_cannot_be_found_out_is_quarantined_in_a_store_that_comes_later() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let dead = at_work(&server).await;
    left_claim(&server, "WORK", &dead[1]).await;
    let letters = bury(&server, DlqStream::new(), dead).await;
    let (counts, told) = followed(&letters).await;
    // One has not been consumed and is found. The others may have been.
    assert_eq!((counts, told.len()), ([2, 0, 1], 2));
    assert!(told.iter().all(|why| why.contains("`DLQ_REPLAYS`")), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_an_ingest_and_a_replay_that_was_begun_before_it_see_each_other() {
    const MANY: u32 = 600;
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead(0..MANY)).await;
    // Three parts of the stream, of which four are sent at once: the rate has the last of them end late.
    let replay = to_origin(&letters, 1).rate(400).lease(Duration::from_secs(2));
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let replaying = replay.run(pending(), |_| {
        let _ = told.send(());
    });
    let following = async {
        heard.recv().await.unwrap();
        followed(&letters).await
    };
    let (report, (counts, why)) = tokio::join!(replaying, following);
    let report = report.unwrap();
    let sent = u64::try_from(replays(&server).await.len()).unwrap();
    assert_eq!((counts, why), ([0, u64::from(MANY) - sent, sent], Vec::new()), "{report}");
    assert_eq!(report.sent, sent, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_replay_that_claims_after_the_mark_is_there_sends_nothing_more() {
    const MANY: u32 = 2_000;
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead(0..MANY)).await;
    // Eight parts, of which four are sent at once.
    let replay = to_origin(&letters, 1).rate(1_000).lease(Duration::from_secs(4));
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let replaying = replay.run(pending(), |_| {
        let _ = told.send(());
    });
    let following = async {
        heard.recv().await.unwrap();
        followed(&letters).await
    };
    let (report, (counts, why)) = tokio::join!(replaying, following);
    let report = report.unwrap();
    let stopped = report.stopped.as_ref().expect("the mark is seen").to_string();
    assert!(stopped.contains("are kept in store"), "{stopped}");
    let sent = u64::try_from(replays(&server).await.len()).unwrap();
    assert!(sent < u64::from(MANY) && report.sent == sent, "{report}");
    assert_eq!((counts, why), ([0, u64::from(MANY) - sent, sent], Vec::new()), "{report}");
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
    let found = now(&letters).get(dead[1].id).await.unwrap().unwrap();
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
    let replay = to_origin(&letters, 1).lease(LEASE).rate(2_000);
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
    let replay = to_origin(&letters, 2).lease(LEASE);
    let report = replay.run(pending(), |_| {}).await.unwrap();
    assert!(report.is_complete(), "{report}");
    assert_once(&server, 0..MANY).await;
}
