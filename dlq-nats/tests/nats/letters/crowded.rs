//! A replay that died, and all that others have sent since.

use std::future::pending;
use std::time::Duration;

use async_nats::HeaderMap;
use dlq_core::{LetterId, OperationId, Origin, Position, Timestamp};
use dlq_nats::{DlqStream, Skipped};
use futures_util::StreamExt;

use super::killed::left_claim;
use super::{bury, dead, forget_fast, sent_back, to_origin};
use crate::fixture::{STREAM, Server, available};

/// More than a record could name.
const OTHERS: u64 = 8_000;

/// A message as a replay would have sent it back that found its letter at this place.
async fn sent_from(server: &Server, number: u64, place: String) {
    let origin = Origin::new("nats", STREAM, Position::Offset(number + 1_000));
    let letter = LetterId::of(&origin, None, "billing");
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", format!("replay.{letter}.0").as_str());
    headers.insert("replay.id", OperationId::of("eve", Timestamp::EPOCH, 2).to_string().as_str());
    headers.insert("replay.from-dlq", place.as_str());
    let sent = server.context.publish_with_headers("orders.other", headers, "".into()).await;
    sent.unwrap().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_what_others_have_sent_does_not_keep_a_replay_from_going_on() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    forget_fast(&server).await;
    let dead = dead(0..3);
    let letters = bury(&server, DlqStream::new(), dead.clone()).await;
    left_claim(&server, STREAM, &dead[1]).await;
    // Letters of another chunk, which have died again or gone since, and of another stream of dead letters.
    let others = (0..OTHERS).map(|number| {
        let place = if number % 2 == 0 { format!("DLQ@{}", 256 + number) } else { "TEAM@2".into() };
        sent_from(&server, number, place)
    });
    futures_util::stream::iter(others).buffer_unordered(256).collect::<Vec<_>>().await;
    // One of this chunk, of which nothing else is left.
    sent_from(&server, OTHERS, "DLQ@200".into()).await;
    let replay = to_origin(&letters, 1).lease(Duration::from_secs(1));
    let report = replay.run(pending(), |_| {}).await.unwrap();
    assert!(report.is_complete(), "{report}");
    assert_eq!((report.sent, report.doubtful, report.skipped[&Skipped::Sent]), (2, 0, 1));
    let bucket = server.context.get_key_value("DLQ_REPLAYS").await.unwrap();
    let record = bucket.get("0").await.unwrap().unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let deaths = record["sent"].as_array().unwrap().iter();
    let deaths: usize = deaths.map(|sent| sent["deaths"].as_array().unwrap().len()).sum();
    assert_eq!(deaths, 4, "the three, and the one that has gone: {record}");
    let again = to_origin(&letters, 2).run(pending(), |_| {}).await.unwrap();
    assert_eq!(again.sent, 0);
    let mut sent = sent_back(&server).await;
    assert_eq!(sent.remove(""), Some(u32::try_from(OTHERS).unwrap() + 1));
    assert_eq!(sent.into_values().collect::<Vec<_>>(), [1, 1, 1], "each of them once");
}
