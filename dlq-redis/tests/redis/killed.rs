//! G1 with a process that is killed at random: the test binary starts itself as the consumer.
//!
//! `DLQ_KILL_RUNS` sets how often it is killed (6; the long form is 500), `DLQ_KILL_SEED` the random numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use dlq_core::policy::{Backoff, RetryPolicy};
use dlq_core::{Delivery, ErrorClass};
use dlq_redis::{RedisClient, RedisTransport};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::handler;
use redis::Value;
use tokio::time::sleep;

use crate::fixture::{PATIENCE, STREAM, Server, available, eventually, number};

const URL: &str = "DLQ_KILLED_URL";
const JOURNAL: &str = "DLQ_KILLED_JOURNAL";
/// The message that kills its process.
const POISON: &str = "DLQ_KILLED_POISON";
const DEAD: &str = "{orders}:dlq";

fn transport() -> RedisTransport {
    RedisTransport::new(STREAM).name("billing").lease(Duration::from_secs(2)).prefetch(8)
}

#[derive(Debug)]
struct Refused(ErrorClass);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: {}", self.0)
    }
}

impl std::error::Error for Refused {}

/// Every seventh message can never be handled; every fifth fails on its first attempt.
fn outcome(delivery: &Delivery) -> Result<(), Refused> {
    match number(delivery) {
        number if number % 7 == 0 => Err(Refused(ErrorClass::Permanent)),
        number if number % 5 == 0 && delivery.attempt() == 1 => Err(Refused(ErrorClass::Transient)),
        _ => Ok(()),
    }
}

/// The consumer that is killed. Runs only where the test below has started it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let (Ok(url), Ok(journal)) = (std::env::var(URL), std::env::var(JOURNAL)) else { return };
    let journal = std::fs::OpenOptions::new().append(true).create(true).open(journal).unwrap();
    let journal = Arc::new(journal);
    let client = RedisClient::open(&url).await.unwrap();
    let poison: Option<u32> = std::env::var(POISON).ok().and_then(|text| text.parse().ok());
    let crashes = if poison.is_some() { 2 } else { 1000 };
    let handler = handler("billing", move |delivery: Delivery| {
        let journal = Arc::clone(&journal);
        async move {
            if poison == Some(number(&delivery)) {
                std::process::abort();
            }
            sleep(Duration::from_millis(3)).await;
            let outcome = outcome(&delivery);
            if outcome.is_ok() {
                // In one write: a process that is killed has noted all of it or nothing.
                (&*journal).write_all(format!("{}\n", number(&delivery)).as_bytes()).unwrap();
            }
            outcome
        }
    })
    .classify(|refused: &Refused| refused.0)
    .policy(
        RetryPolicy::new()
            .with_max_crashes(crashes)
            .with_hold_limit(Duration::ZERO)
            .with_backoff(Backoff::constant(Duration::from_millis(200))),
    )
    .build()
    .unwrap();
    let consumer = Consumer::on(transport(), &client).handler(handler).open().await.unwrap();
    let report = consumer.run(std::future::pending()).await;
    panic!("the consumer has ended: {report:?}");
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(url: &str, journal: &std::path::Path, poison: Option<u32>) -> Killed {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if let Some(poison) = poison {
        command.env(POISON, poison.to_string());
    }
    let child = command
        .args(["--exact", "killed::child", "--nocapture"])
        .env(URL, url)
        .env(JOURNAL, journal)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Killed(child.unwrap())
}

fn lines(journal: &std::path::Path) -> usize {
    std::fs::read_to_string(journal).map_or(0, |text| text.lines().count())
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_process_that_is_killed_loses_nothing() {
    if !available() || std::env::var(URL).is_ok() {
        return;
    }
    let (runs, mut seed) = (setting("DLQ_KILL_RUNS", 6), setting("DLQ_KILL_SEED", 7).max(1));
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let mut published = 0;
    for _ in 0..runs {
        server.publish(published + 1..=published + 100).await;
        published += 100;
        let process = start(&server.url(), &journal, None);
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        // In the middle of its work: after so many more messages.
        let until = lines(&journal) + 1 + usize::try_from(seed % 70).unwrap();
        let begun = tokio::time::Instant::now();
        while lines(&journal) < until {
            assert!(begun.elapsed() < PATIENCE, "the consumer works");
            sleep(Duration::from_millis(1)).await;
        }
        drop(process);
    }
    let _last = start(&server.url(), &journal, None);
    eventually("every message is settled", || async {
        let lag: i64 = {
            let Value::Array(groups) = server.run("XINFO GROUPS orders").await else { panic!() };
            let group: BTreeMap<String, Value> =
                redis::from_redis_value(groups[0].clone()).unwrap();
            redis::from_redis_value(group["lag"].clone()).unwrap()
        };
        let due = server.int("ZCARD {orders}:retry:billing:due").await;
        lag == 0 && due == 0 && server.pending().await == 0
    })
    .await;
    let noted = std::fs::read_to_string(&journal).unwrap();
    let runs_of: Vec<u32> = noted.lines().map(|line| line.parse().unwrap()).collect();
    let handled: BTreeSet<u32> = runs_of.iter().copied().collect();
    let mut dead: BTreeMap<u32, u32> = BTreeMap::new();
    for (number, _) in letters(&server).await {
        *dead.entry(number).or_default() += 1;
    }
    let all: BTreeSet<u32> = (1..=published).collect();
    let hopeless: BTreeSet<u32> = all.iter().copied().filter(|number| number % 7 == 0).collect();
    assert_eq!(
        dead.keys().copied().collect::<BTreeSet<_>>(),
        hopeless,
        "each of these has a letter"
    );
    assert!(dead.values().all(|copies| *copies == 1), "one letter per death: {dead:?}");
    assert_eq!(handled, &all - &hopeless, "each of the others was handled");
    println!(
        "{runs} kills, {published} messages, {} handled, {} of them again, {} letters",
        handled.len(),
        runs_of.len() - handled.len(),
        dead.len()
    );
}

/// Number and reason of every letter.
async fn letters(server: &Server) -> Vec<(u32, String)> {
    let Value::Array(entries) = server.run(&format!("XRANGE {DEAD} - +")).await else { panic!() };
    let read = entries.into_iter().map(|entry| {
        let (_, fields): (String, Vec<Vec<u8>>) = redis::from_redis_value(entry).unwrap();
        let field = |name: &[u8]| {
            let at = fields.iter().step_by(2).position(|field| field == name).unwrap();
            String::from_utf8(fields[at * 2 + 1].clone()).unwrap()
        };
        (field(b"d").parse().unwrap(), field(b"h:error.reason"))
    });
    read.collect()
}

/// A message that kills its process is found by its marks and dies; nothing that was beside it does (G3).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_a_message_that_kills_its_process_dies_alone() {
    if !available() || std::env::var(URL).is_ok() {
        return;
    }
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    server.publish([1, 2, 3, 4, 11, 13]).await;
    let begun = tokio::time::Instant::now();
    let mut crashes = 0;
    let mut process = start(&server.url(), &journal, Some(3));
    while letters(&server).await.is_empty() || server.pending().await > 0 {
        assert!(begun.elapsed() < PATIENCE * 2, "it goes on killing: {crashes}");
        if process.0.try_wait().unwrap().is_some() {
            crashes += 1;
            process = start(&server.url(), &journal, Some(3));
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(letters(&server).await, [(3, "max_crashes".to_owned())], "after {crashes} crashes");
    assert!(crashes >= 2, "{crashes}");
    let noted = std::fs::read_to_string(&journal).unwrap();
    let handled: BTreeSet<&str> = noted.lines().collect();
    assert_eq!(handled, BTreeSet::from(["1", "2", "4", "11", "13"]));
}
