//! Processes that race for keys and die, while the server is killed and restarted.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim};
use tokio::time::{Instant, sleep, timeout};

use crate::fixture::{HOUR, PATIENCE, Version, open, own, until_claimed};

/// Variables that make this binary the other process of the test below.
const URL: &str = "DLQ_REDIS_TEST_IDEMPOTENCY_URL";
const ROUND: &str = "DLQ_REDIS_TEST_IDEMPOTENCY_ROUND";

const ROUNDS: u32 = 3;
/// Keys of a round.
const KEYS: u32 = 100;
/// A process dies with this one of its keys in flight. Of two that share the keys of a round at least one gets so many.
const LAST: u32 = 40;
const LEASE: Duration = Duration::from_secs(2);

/// Claims the keys of a round and completes what it got, through outages; dies with one in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_another_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let round: u32 = std::env::var(ROUND).unwrap().parse().unwrap();
    let keys = open(&url).await;
    let mut ours = 0;
    for number in round * KEYS..(round + 1) * KEYS {
        let claim = loop {
            match keys.claim("billing".into(), Bytes::from(number.to_string()), LEASE).await {
                Ok(claim) => break claim,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
            sleep(Duration::from_millis(10)).await;
        };
        let IdempotencyClaim::New { token, .. } = claim else { continue };
        println!("claimed {number} {}", token.fence);
        ours += 1;
        // The other one meets a key that is held now and then.
        sleep(Duration::from_millis(10)).await;
        if ours == LAST {
            std::process::abort();
        }
        let is_completed = loop {
            match keys.complete(token.clone(), HOUR).await {
                Ok(is_completed) => break is_completed,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
            sleep(Duration::from_millis(10)).await;
        };
        if is_completed {
            println!("completed {number} {}", token.fence);
        }
    }
    println!("through");
}

fn start(url: &str, round: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "racing::as_another_process", "--nocapture"])
        .env(URL, url)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A key is completed by one claim only, whatever dies, and what was completed stays so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_processes_handle_every_key_once_while_the_server_restarts() {
    let Some(mut server) = own(Version::Usual) else { return };
    let url = server.url().to_owned();
    let mut completed = BTreeMap::<u32, Vec<u64>>::new();
    let (mut claimed, mut fences) = (BTreeSet::<u32>::new(), BTreeSet::<(u32, u64)>::new());
    let mut deaths = 0;
    for round in 0..ROUNDS {
        let children = [start(&url, round), start(&url, round)];
        let waiting = tokio::task::spawn_blocking(move || {
            children.map(|child| child.wait_with_output().unwrap())
        });
        let deadline = Instant::now() + 2 * PATIENCE;
        while !waiting.is_finished() {
            assert!(Instant::now() < deadline, "they end");
            sleep(Duration::from_millis(80)).await;
            server.kill().unwrap();
            server.restart().unwrap();
        }
        for output in waiting.await.unwrap() {
            let text = String::from_utf8(output.stdout).unwrap();
            let died = !output.status.success();
            assert!(died || text.contains("through"), "{text}");
            deaths += u32::from(died);
            for line in text.lines() {
                // The harness begins the first line with the name of the test.
                let line = line.rsplit("... ").next().unwrap_or(line);
                let words: Vec<_> = line.split(' ').collect();
                let [word, number, fence] = words[..] else { continue };
                let (Ok(number), Ok(fence)) = (number.parse(), fence.parse()) else { continue };
                if word == "claimed" {
                    claimed.insert(number);
                    assert!(
                        fences.insert((number, fence)),
                        "two claims of {number} have one fence"
                    );
                } else {
                    completed.entry(number).or_default().push(fence);
                }
            }
        }
    }
    // Without these a run in which nothing died would count as passed.
    assert!(deaths >= ROUNDS, "processes really died: {deaths}");
    assert!(server.starts() > 2 * ROUNDS, "the server really died: {}", server.starts());
    for (number, fences) in &completed {
        assert_eq!(fences.len(), 1, "key {number} was completed by the claims {fences:?}");
    }
    let keys = open(&url).await;
    let mut crashed = 0;
    for number in 0..ROUNDS * KEYS {
        let found = async {
            loop {
                match until_claimed(&keys, &number.to_string()).await {
                    IdempotencyClaim::InFlight { remaining } => sleep(remaining).await,
                    other => return other,
                }
            }
        };
        match timeout(PATIENCE, found).await.expect("every lease ends") {
            IdempotencyClaim::New { token, crashes, .. } => {
                assert!(!completed.contains_key(&number), "key {number} was completed and is not");
                // Of what a dead process had in flight the crash is counted. (A claim whose answer was lost, so that its
                // process never heard of it, counts as one, too.)
                assert!(crashes > 0 || !claimed.contains(&number), "key {number}");
                crashed += crashes;
                assert!(keys.complete(token, HOUR).await.unwrap());
            }
            // Who was killed after the server had completed a key had no time to say so.
            other => assert!(matches!(other, IdempotencyClaim::Done { .. })),
        }
    }
    println!(
        "{} keys, {} starts of the server, {deaths} deaths, {} completed, {crashed} crashes counted at the end",
        ROUNDS * KEYS,
        server.starts(),
        completed.len()
    );
}
