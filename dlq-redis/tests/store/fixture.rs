//! A server for all tests that break nothing, and a prefix for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlq_redis::store::{RedisStore, RedisStoreBuilder};
use dlq_redis::{RedisClient, RedisConfig};
use dlq_services::{Redis, Running, Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::ManualClock;
use dlq_testkit::store::StoreFixture;

/// Time that a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns true if there is a server to be had; says so if not.
pub(crate) fn available() -> bool {
    or_skip(Service::Redis, ensure_installed(Service::Redis)).is_ok()
}

/// Name of the variable that says which server is used: one of [`Redis::OTHERS`], or `cluster`. The tests that go through
/// all of them start this program again with it.
pub(crate) const SERVER: &str = "DLQ_REDIS_SERVER";

fn wanted() -> Option<String> {
    std::env::var(SERVER).ok()
}

/// The server that all tests share which break nothing.
pub(crate) fn url() -> &'static str {
    static RUNNING: OnceLock<Running> = OnceLock::new();
    let start = || {
        let builder = Redis::builder();
        match wanted() {
            Some(version) => builder.program(Redis::installed(&version).unwrap()).ours(),
            None => builder,
        }
        .start()
        .unwrap()
    };
    RUNNING.get_or_init(start).url()
}

#[cfg(feature = "cluster")]
async fn cluster() -> RedisClient {
    use dlq_services::{Cluster, RedisCluster};
    static RUNNING: OnceLock<Cluster> = OnceLock::new();
    let urls = RUNNING.get_or_init(|| RedisCluster::start().unwrap()).url();
    RedisConfig::new().response_timeout(PATIENCE).cluster(urls.split(',')).await.unwrap()
}

/// A client of the server, or of the cluster, that all tests share.
pub(crate) async fn shared() -> RedisClient {
    #[cfg(feature = "cluster")]
    if wanted().as_deref() == Some("cluster") {
        return cluster().await;
    }
    client(url()).await
}

/// A prefix that nobody else has.
pub(crate) fn prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{{dlq-test-{}-{number}}}", std::process::id())
}

/// A client with the patience of a test: a machine may stand still for longer than a user would wait.
pub(crate) async fn client(url: &str) -> RedisClient {
    RedisConfig::new().response_timeout(PATIENCE).open(url).await.unwrap()
}

pub(crate) async fn builder(url: &str, prefix: &str) -> RedisStoreBuilder {
    RedisStore::builder(&client(url).await).prefix(prefix)
}

/// A store by the clock of the test.
#[derive(Debug)]
pub(crate) struct RedisFixture {
    prefix: String,
    clock: ManualClock,
}

impl StoreFixture for RedisFixture {
    type Store = RedisStore;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(_check: &'static str) -> Self {
        Self { prefix: prefix(), clock: ManualClock::new() }
    }

    async fn open(&self, dedup: bool) -> RedisStore {
        let builder = RedisStore::builder(&shared().await).prefix(&self.prefix);
        builder.clock(self.clock.shared()).dedup(dedup).open().await.unwrap()
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}
