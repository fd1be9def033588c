//! A replay that dies, wherever it is, and the next one.

use std::collections::BTreeSet;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use dlq_nats::{DlqStream, NatsLetters};
use futures_util::future::join_all;

use super::{assert_once, bury, dead, forget_fast, sent_back, to_origin};
use crate::fixture::{PATIENCE, Server, available};

const LETTERS: u32 = 5;
const LEASE: Duration = Duration::from_secs(1);

/// Runs it for so many steps and then kills it; its result, if it had ended by then.
async fn killed_after<T>(steps: u32, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut left = steps;
    poll_fn(|context| {
        left -= 1;
        match work.as_mut().poll(context) {
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
        let stream = DlqStream::new().with_name(format!("D{round}"));
        let stream = stream.with_prefix(format!("d{round}"));
        let letters = bury(&server, stream, dead(round_of(round)..round_of(round + 1))).await;
        let replay = to_origin(&letters, 1).with_lease(LEASE);
        steps += 1;
        let done = killed_after(steps, replay.run(pending(), |_| {})).await;
        seen.insert(killed(&server, round).await);
        rounds.push(letters);
        if let Some(report) = done {
            assert_eq!(report.unwrap().sent, u64::from(LETTERS));
            // How many steps there are differs from time to time: once more, if one was missed.
            if seen.len() == 4 {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "it was killed nowhere but at {seen:?}");
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
