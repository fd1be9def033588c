//! Dead letters of other libraries. The files beside this one are commands that make what the libraries wrote: chasquimq 1.3.0,
//! BullMQ 6.7.0, RQ 3.0.0, dramatiq 2.2.1 and event-dlq 0.7.4 ran against a server, and their keys were read.

mod hostile;
mod imported;
mod reading;
mod sending;

use std::collections::BTreeMap;

use dlq_core::log::{Content, Entries as _, Entry, Log as _, Range};
use dlq_core::{DeadLetter, Filter};
use dlq_letters::log::Reading;
use dlq_redis::RedisClient;
use dlq_redis::foreign::ForeignLetters;
use dlq_services::{Redis, Running, Service, ensure_installed, or_skip};
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::task::block_in_place;

pub(crate) const CHASQUIMQ: &str = include_str!("chasquimq.jsonl");
pub(crate) const BULLMQ: &str = include_str!("bullmq.jsonl");
pub(crate) const RQ: &str = include_str!("rq.jsonl");
pub(crate) const DRAMATIQ: &str = include_str!("dramatiq.jsonl");
pub(crate) const EVENT_DLQ: &str = include_str!("event_dlq.jsonl");

/// A server of its own, with what a library wrote.
pub(crate) struct ForeignServer {
    server: Running,
    pub(crate) client: RedisClient,
    raw: MultiplexedConnection,
}

impl ForeignServer {
    pub(crate) async fn with(fixture: &str) -> Option<Self> {
        let server = block_in_place(|| {
            or_skip(Service::Redis, ensure_installed(Service::Redis)).ok()?;
            Some(Redis::builder().ours().start().unwrap())
        })?;
        let client = RedisClient::open(server.url()).await.unwrap();
        let raw = redis::Client::open(server.url()).unwrap();
        let raw = raw.get_multiplexed_async_connection().await.unwrap();
        let place = Self { server, client, raw };
        for line in fixture.lines() {
            let words: Vec<serde_json::Value> = serde_json::from_str(line).unwrap();
            place.command(&words.iter().map(bytes).collect::<Vec<_>>()).await;
        }
        Some(place)
    }

    pub(crate) async fn command<W: AsRef<[u8]>>(&self, words: &[W]) -> Value {
        self.try_command(words).await.unwrap()
    }

    pub(crate) async fn try_command<W: AsRef<[u8]>>(
        &self,
        words: &[W],
    ) -> redis::RedisResult<Value> {
        let mut cmd = redis::Cmd::new();
        words.iter().for_each(|word| {
            cmd.arg(word.as_ref());
        });
        cmd.query_async(&mut self.raw.clone()).await
    }

    pub(crate) async fn words(&self, words: &str) -> Value {
        self.command(&words.split(' ').collect::<Vec<_>>()).await
    }

    pub(crate) async fn count(&self, words: &str) -> i64 {
        redis::from_redis_value(self.words(words).await).unwrap()
    }

    pub(crate) fn letters(&self, key: &str) -> ForeignLetters {
        ForeignLetters::of(&self.client, key).unwrap()
    }

    pub(crate) fn restart(&mut self) {
        block_in_place(|| self.server.restart().unwrap());
    }

    /// Every key with its serialized value. Fields of a hash come in an order that changes when it is read, so that they are
    /// sorted here.
    pub(crate) async fn dump(&self) -> Dump {
        let keys: Vec<Vec<u8>> = redis::from_redis_value(self.words("KEYS *").await).unwrap();
        let mut dump = BTreeMap::new();
        for key in keys {
            let kind = self.command(&[b"TYPE", &key[..]]).await;
            let value = match redis::from_redis_value::<String>(kind).unwrap().as_str() {
                "hash" => {
                    let all = self.command(&[b"HGETALL" as &[u8], &key]).await;
                    let all: BTreeMap<Vec<u8>, Vec<u8>> = redis::from_redis_value(all).unwrap();
                    all.into_iter().flat_map(|(name, value)| [name, value]).collect()
                }
                _ => {
                    let value = self.command(&[b"DUMP", &key[..]]).await;
                    vec![redis::from_redis_value(value).unwrap()]
                }
            };
            dump.insert(key, value);
        }
        Dump(dump)
    }
}

/// Keys and what they hold; shown by their names alone.
#[derive(PartialEq, Eq)]
pub(crate) struct Dump(pub(crate) BTreeMap<Vec<u8>, Vec<Vec<u8>>>);

impl std::fmt::Debug for Dump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys().map(|key| String::from_utf8_lossy(key))).finish()
    }
}

fn bytes(word: &serde_json::Value) -> Vec<u8> {
    match word {
        serde_json::Value::String(text) => text.clone().into_bytes(),
        other => {
            let digits = other["hex"].as_str().unwrap();
            let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
            (0..digits.len()).step_by(2).map(byte).collect()
        }
    }
}

/// All entries, as they stand.
pub(crate) async fn entries(letters: &ForeignLetters, range: Range) -> Vec<Entry> {
    let mut entries = letters.read(range).await.unwrap();
    let mut all = Vec::new();
    loop {
        let batch = entries.next(64).await.unwrap();
        if batch.is_empty() {
            return all;
        }
        all.extend(batch);
        entries.confirm().await.unwrap();
    }
}

/// All letters, in the order of their entries; what is none fails.
pub(crate) async fn all(letters: &ForeignLetters) -> Vec<DeadLetter> {
    let letter = |entry: Entry| match entry.content {
        Content::Letter(letter) => *letter,
        other => panic!("{other:?}"),
    };
    entries(letters, Range::all()).await.into_iter().map(letter).collect()
}

pub(crate) async fn reading(letters: &ForeignLetters) -> Reading<ForeignLetters> {
    Reading::of(letters.clone(), Range::all()).await.unwrap()
}

pub(crate) fn everything() -> Filter {
    Filter::new()
}
