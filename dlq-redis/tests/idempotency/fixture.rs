//! Servers that are shared, or one's own, and shorthands.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::StoreError;
use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim, IdempotencyToken};
use dlq_redis::{IdempotencyConfig, RedisClient, RedisConfig, RedisIdempotency};
use dlq_services::{Redis, Running, Service, ensure_installed, or_skip, wire};

/// Time that a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// A version of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Redis 7.0, or the one at the URL in the environment.
    Usual,
    Redis6,
    Valkey9,
}

impl Version {
    pub(crate) const ALL: [Self; 3] = [Self::Usual, Self::Redis6, Self::Valkey9];

    /// Its program; `None`, said aloud, where it cannot be had.
    pub(crate) fn program(self) -> Option<PathBuf> {
        let installed = match self {
            Self::Usual => ensure_installed(Service::Redis),
            Self::Redis6 => Redis::installed("6.2"),
            Self::Valkey9 => Redis::installed("valkey-9"),
        };
        or_skip(Service::Redis, installed).ok()
    }

    /// The server of this version that all tests share which break nothing.
    pub(crate) fn url(self) -> &'static str {
        static SERVERS: [OnceLock<Running>; 3] = [const { OnceLock::new() }; 3];
        let start = || {
            let builder = Redis::builder();
            let builder = match self {
                Self::Usual => builder,
                _ => builder.program(self.program().unwrap()).ours(),
            };
            builder.start().unwrap()
        };
        SERVERS[self as usize].get_or_init(start).url()
    }
}

/// A server that the test may kill; `None` where there is none.
pub(crate) fn own(version: Version) -> Option<Running> {
    let program = version.program()?;
    or_skip(Service::Redis, Redis::builder().program(program).ours().start()).ok()
}

/// A prefix that nobody else has, also where a given server has keys of an earlier run.
pub(crate) fn fresh_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// With the patience of a test: a disk may stand still for longer than a user would wait.
pub(crate) async fn client(url: &str) -> RedisClient {
    patient().open(url).await.unwrap()
}

pub(crate) fn patient() -> RedisConfig {
    RedisConfig::new().connect_timeout(PATIENCE).response_timeout(PATIENCE)
}

pub(crate) async fn open(url: &str) -> RedisIdempotency {
    RedisIdempotency::open(&client(url).await, IdempotencyConfig::new()).await.unwrap()
}

/// Claims a key of the consumer `billing` for an hour.
pub(crate) async fn try_claim(
    keys: &RedisIdempotency,
    key: &str,
) -> Result<IdempotencyClaim, StoreError> {
    keys.claim("billing".into(), Bytes::copy_from_slice(key.as_bytes()), HOUR).await
}

pub(crate) async fn claim(keys: &RedisIdempotency, key: &str) -> IdempotencyClaim {
    try_claim(keys, key).await.unwrap()
}

/// Claims a key that must be new; returns the token, the attempts and the crashes.
#[track_caller]
pub(crate) fn new(claim: IdempotencyClaim) -> (IdempotencyToken, u32, u32) {
    match claim {
        IdempotencyClaim::New { token, attempts, crashes } => (token, attempts, crashes),
        other => panic!("the key is not new: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn is_done(claim: &IdempotencyClaim) {
    assert!(matches!(claim, IdempotencyClaim::Done { .. }), "{claim:?}");
}

/// A command of an operator.
pub(crate) fn command(url: &str, words: &[&str]) -> Option<String> {
    wire::redis::command(url, words, PATIENCE).unwrap()
}

/// Claims until the server answers.
pub(crate) async fn until_claimed(keys: &RedisIdempotency, key: &str) -> IdempotencyClaim {
    let claimed = async {
        loop {
            match try_claim(keys, key).await {
                Ok(claim) => return claim,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, claimed).await.expect("the server answers again")
}
