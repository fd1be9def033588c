//! G3 with a process that a message kills: the test binary starts itself as the consumer.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use dlq_core::Delivery;
use dlq_core::policy::RetryPolicy;
use dlq_redis::{RedisClient, RedisTransport};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::handler;
use redis::Value;
use tokio::time::sleep;

use crate::fixture::{PATIENCE, STREAM, Server, available, number};

const URL: &str = "DLQ_KILLED_URL";
const JOURNAL: &str = "DLQ_KILLED_JOURNAL";
/// The message that kills its process.
const POISON: &str = "DLQ_KILLED_POISON";
const DEAD: &str = "{orders}:dlq";

fn transport() -> RedisTransport {
    RedisTransport::new(STREAM).name("billing").lease(Duration::from_secs(2)).prefetch(8)
}

/// The consumer that is killed. Runs only where the test below has started it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let (Ok(url), Ok(journal)) = (std::env::var(URL), std::env::var(JOURNAL)) else { return };
    let journal = std::fs::OpenOptions::new().append(true).create(true).open(journal).unwrap();
    let journal = Arc::new(journal);
    let client = RedisClient::open(&url).await.unwrap();
    let poison: u32 = std::env::var(POISON).unwrap().parse().unwrap();
    let handler = handler("billing", move |delivery: Delivery| {
        let journal = Arc::clone(&journal);
        async move {
            if number(&delivery) == poison {
                std::process::abort();
            }
            // In one write: a process that dies has noted all of it or nothing.
            (&*journal).write_all(format!("{}\n", number(&delivery)).as_bytes())
        }
    })
    .policy(RetryPolicy::new().with_max_crashes(2))
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

fn start(url: &str, journal: &std::path::Path, poison: u32) -> Killed {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child", "--nocapture"])
        .env(URL, url)
        .env(JOURNAL, journal)
        .env(POISON, poison.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Killed(child.unwrap())
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
    let mut process = start(&server.url(), &journal, 3);
    while letters(&server).await.is_empty() || server.pending().await > 0 {
        assert!(begun.elapsed() < PATIENCE * 2, "it goes on killing: {crashes}");
        if process.0.try_wait().unwrap().is_some() {
            crashes += 1;
            process = start(&server.url(), &journal, 3);
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(letters(&server).await, [(3, "max_crashes".to_owned())], "after {crashes} crashes");
    assert!(crashes >= 2, "{crashes}");
    let noted = std::fs::read_to_string(&journal).unwrap();
    let handled: BTreeSet<&str> = noted.lines().collect();
    assert_eq!(handled, BTreeSet::from(["1", "2", "4", "11", "13"]));
}
