//! `kill -9` of a consumer on Redis, of its server, and of the master under sentinels: every message succeeded or has exactly
//! one letter.

use std::path::Path;
use std::time::Duration;

use dlq_letters::log::Reading;
use dlq_redis::{RedisLetters, redis};
use dlq_services::Service;
use dlq_tests::redis::{LETTERS, TOPIC};
use dlq_tower::core::log::Range;
use dlq_tower::core::{DeadLetter, Filter};
use tokio::time::{sleep, timeout};

use crate::random::number;
use crate::servers::Servers;
use crate::victim::Victim;
use crate::world::{World, kill_consumer, kill_servers};

/// Time limit for servers until letters can be read.
const PATIENCE: Duration = Duration::from_secs(60);

/// The servers, and the messages on them.
struct Redis {
    servers: Servers,
    messages: u64,
}

impl Redis {
    async fn new(servers: Option<Servers>) -> Option<Self> {
        let servers = servers?;
        let messages = number("DLQ_REDIS_MESSAGES", 10_000);
        let mut raw = dlq_tests::redis::Servers::new(servers.urls()).raw().await.unwrap();
        for begin in (0..messages).step_by(1_000) {
            let mut adds = redis::pipe();
            for n in begin..messages.min(begin + 1_000) {
                adds.cmd("XADD").arg(TOPIC).arg("*").arg("d").arg(n).ignore();
            }
            adds.query_async::<()>(&mut raw).await.unwrap();
        }
        // Replicas have what they are going to be asked for.
        let replicas = servers.replicas() - 1;
        let passed_on: usize =
            redis::cmd("WAIT").arg(replicas).arg(0).query_async(&mut raw).await.unwrap();
        assert_eq!(passed_on, replicas);
        Some(Self { servers, messages })
    }
}

impl World for Redis {
    fn servers(&mut self) -> &mut Servers {
        &mut self.servers
    }

    fn messages(&self) -> u64 {
        self.messages
    }

    fn victim(&self, folder: &Path) -> Victim {
        let urls = self.servers.urls();
        let args: Vec<&str> = urls.iter().map(String::as_str).collect();
        Victim::of(env!("CARGO_BIN_EXE_redis-victim"), folder, &args)
    }

    async fn letters(&self) -> Vec<(u64, DeadLetter)> {
        let servers = dlq_tests::redis::Servers::new(self.servers.urls());
        let read = async {
            loop {
                // A server may have been started again a moment ago.
                if let Ok(client) = servers.client().await {
                    let letters = RedisLetters::new(&client, LETTERS).unwrap();
                    if let Ok(reading) = Reading::of(letters, Range::all()).await {
                        return reading.rows(&Filter::new()).await.unwrap();
                    }
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        let rows = timeout(PATIENCE, read).await.expect("they can be read in the end");
        let numbered = rows.into_iter().map(|row| {
            let payload = row.letter.message.payload().unwrap();
            (std::str::from_utf8(payload).unwrap().parse().unwrap(), row.letter)
        });
        numbered.collect()
    }
}

/// Confirms nothing before it is in the file.
const DURABLE: &[(&str, &str)] = &[("appendfsync", "always")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_redis_a_killed_consumer_loses_nothing() {
    let servers = tokio::task::block_in_place(|| Servers::one(Service::Redis, DURABLE));
    let Some(world) = Redis::new(servers).await else { return };
    println!("{}", kill_consumer(world, number("DLQ_REDIS_KILLS", 50)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_redis_a_killed_server_loses_nothing() {
    let servers = tokio::task::block_in_place(|| Servers::one(Service::Redis, DURABLE));
    let Some(world) = Redis::new(servers).await else { return };
    println!("one server: {}", kill_servers(world, kills()).await);
}

/// Acknowledgements and letters that the new master does not have are forgotten together: their messages come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_redis_a_failover_under_load_loses_nothing() {
    let servers = tokio::task::block_in_place(|| Servers::sentinels(DURABLE));
    let Some(world) = Redis::new(servers).await else { return };
    println!("a master under sentinels: {}", kill_servers(world, kills()).await);
}

fn kills() -> u64 {
    number("DLQ_REDIS_SERVER_KILLS", 3)
}
