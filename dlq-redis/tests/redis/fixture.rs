//! A server of its own for each test, so that each can kill it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::{
    Delivery, Disposition, Message, Settle, SharedClock, Source, SystemClock, TransportError,
};
use dlq_redis::{RedisClient, RedisRetryQueue, RedisSettle, RedisSource, RedisTransport};
use dlq_services::{Builder, Redis, Running, Service, ensure_installed, or_skip};
use dlq_testkit::transport::{TransportFixture, is_quick};
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::time::{sleep, timeout};

/// Time for which a test waits for something that must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const STREAM: &str = "orders";

/// Returns true if there is a server to be had; says so if not.
pub(crate) fn available() -> bool {
    or_skip(Service::Redis, ensure_installed(Service::Redis)).is_ok()
}

/// A server and clients of it.
#[derive(Debug)]
pub(crate) struct Server {
    running: Mutex<Running>,
    pub(crate) client: RedisClient,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::of(Redis::builder()).await
    }

    /// Another version, by the name that the services know.
    pub(crate) async fn version(version: &str) -> Self {
        let program = tokio::task::block_in_place(|| Redis::installed(version).unwrap());
        Self::of(Redis::builder().program(program)).await
    }

    pub(crate) async fn of(builder: Builder) -> Self {
        let running = tokio::task::block_in_place(|| builder.ours().start().unwrap());
        let client = RedisClient::open(running.url()).await.unwrap();
        Self { running: Mutex::new(running), client }
    }

    pub(crate) fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn url(&self) -> String {
        self.running().url().to_owned()
    }

    pub(crate) async fn raw(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    /// Runs one command, written as words.
    pub(crate) async fn run(&self, words: &str) -> Value {
        run(&mut self.raw().await, words).await
    }

    pub(crate) async fn int(&self, words: &str) -> i64 {
        redis::from_redis_value(self.run(words).await).unwrap()
    }

    /// Publishes messages of which each is its number.
    pub(crate) async fn publish(&self, numbers: impl IntoIterator<Item = u32>) {
        let mut raw = self.raw().await;
        for number in numbers {
            run(&mut raw, &format!("XADD {STREAM} * d {number}")).await;
        }
    }

    pub(crate) async fn source(&self) -> RedisSource {
        billing().source(&self.client).await.unwrap()
    }

    /// Number of entries that are pending in the group.
    pub(crate) async fn pending(&self) -> i64 {
        let Value::Array(summary) = self.run(&format!("XPENDING {STREAM} billing")).await else {
            panic!("no summary");
        };
        redis::from_redis_value(summary[0].clone()).unwrap()
    }
}

pub(crate) async fn run(raw: &mut MultiplexedConnection, words: &str) -> Value {
    let mut words = words.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        cmd.arg(word);
    });
    cmd.query_async(raw).await.unwrap()
}

/// The transport that most tests are about.
pub(crate) fn billing() -> RedisTransport {
    RedisTransport::new(STREAM).name("billing").lease(LEASE).prefetch(4)
}

/// The next delivery; errors that pass are waited out, as a consumer does.
pub(crate) async fn next(source: &mut RedisSource) -> (Delivery, RedisSettle) {
    let next = async {
        loop {
            match source.next().await {
                Ok(next) => return next.expect("the source has not ended"),
                Err(error) if error.is_transient() => sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("the source failed: {error}"),
            }
        }
    };
    timeout(PATIENCE, next).await.expect("a delivery comes")
}

/// The next error.
pub(crate) async fn next_error(source: &mut RedisSource) -> TransportError {
    let next = async {
        loop {
            match source.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the source has ended"),
                Err(error) => return error,
            }
        }
    };
    timeout(PATIENCE, next).await.expect("an error is told")
}

pub(crate) async fn handle(source: &mut RedisSource) -> Delivery {
    let (delivery, settle) = next(source).await;
    settle.settle(Disposition::Succeeded).await.unwrap();
    delivery
}

pub(crate) fn number(delivery: &Delivery) -> u32 {
    std::str::from_utf8(delivery.message().payload().unwrap()).unwrap().parse().unwrap()
}

/// Waits until it is so.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let wait = async {
        while !is_so().await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// As the conformance suite wants it.
#[derive(Debug)]
pub(crate) struct RedisFixture {
    server: Server,
    lease: Duration,
}

impl RedisFixture {
    pub(crate) async fn on(server: Server, check: &'static str) -> Self {
        let lease = if is_quick(check) { PATIENCE } else { LEASE };
        Self { server, lease }
    }

    fn transport(&self, group: &str) -> RedisTransport {
        billing().name(group).lease(self.lease)
    }
}

impl TransportFixture for RedisFixture {
    type Source = RedisSource;
    type DeliveredFrom = RedisRetryQueue;

    const PAUSED: bool = false;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(check: &'static str) -> Self {
        Self::on(Server::start().await, check).await
    }

    async fn publish(&self, message: Message) -> bool {
        let mut cmd = redis::cmd("XADD");
        cmd.arg(STREAM).arg("*").arg(self.transport("billing").entry(&message));
        cmd.query_async::<Value>(&mut self.server.raw().await).await.unwrap();
        true
    }

    async fn source(&self, consumer: &str) -> RedisSource {
        self.transport(consumer).source(&self.server.client).await.unwrap()
    }

    async fn retry_queue(&self) -> Option<RedisRetryQueue> {
        Some(self.transport("billing").retry_queue(&self.server.client).await.unwrap())
    }

    async fn restart(&self) -> bool {
        let starts = self.server.running().starts();
        tokio::task::block_in_place(|| self.server.running().restart().unwrap());
        assert_eq!(self.server.running().starts(), starts + 1, "it was really killed");
        true
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    fn clock(&self) -> SharedClock {
        SystemClock::shared()
    }
}

macro_rules! version {
    ($name:ident: $version:literal) => {
        /// The same on another version.
        #[derive(Debug)]
        pub(crate) struct $name(RedisFixture);

        impl TransportFixture for $name {
            type Source = RedisSource;
            type DeliveredFrom = RedisRetryQueue;

            const PAUSED: bool = false;

            fn is_available() -> bool {
                or_skip(Service::Redis, Redis::installed($version).map(drop)).is_ok()
            }

            async fn fresh(check: &'static str) -> Self {
                Self(RedisFixture::on(Server::version($version).await, check).await)
            }

            async fn publish(&self, message: Message) -> bool {
                self.0.publish(message).await
            }

            async fn source(&self, consumer: &str) -> RedisSource {
                self.0.source(consumer).await
            }

            async fn retry_queue(&self) -> Option<RedisRetryQueue> {
                self.0.retry_queue().await
            }

            async fn restart(&self) -> bool {
                self.0.restart().await
            }

            fn lease(&self) -> Duration {
                self.0.lease()
            }

            fn clock(&self) -> SharedClock {
                self.0.clock()
            }
        }
    };
}

version!(Redis62: "6.2");
version!(Valkey9: "valkey-9");

/// The same on a cluster of three, which all checks share; each has a stream of its own.
#[cfg(feature = "cluster")]
#[derive(Debug)]
pub(crate) struct OnCluster {
    client: RedisClient,
    stream: String,
    lease: Duration,
}

#[cfg(feature = "cluster")]
pub(crate) fn cluster_urls() -> Vec<String> {
    use std::sync::OnceLock;

    static CLUSTER: OnceLock<dlq_services::Cluster> = OnceLock::new();
    let start = || dlq_services::RedisCluster::builder().ours().start_cluster().unwrap();
    let cluster = tokio::task::block_in_place(|| CLUSTER.get_or_init(start));
    cluster.nodes().iter().map(|node| node.url().to_owned()).collect()
}

#[cfg(feature = "cluster")]
impl OnCluster {
    fn transport(&self, group: &str) -> RedisTransport {
        RedisTransport::new(&*self.stream).name(group).lease(self.lease).prefetch(4)
    }
}

#[cfg(feature = "cluster")]
impl TransportFixture for OnCluster {
    type Source = RedisSource;
    type DeliveredFrom = RedisRetryQueue;

    const PAUSED: bool = false;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(check: &'static str) -> Self {
        let client = RedisClient::cluster(cluster_urls()).await.unwrap();
        let lease = if is_quick(check) { PATIENCE } else { LEASE };
        Self { client, stream: check.to_owned(), lease }
    }

    async fn publish(&self, message: Message) -> bool {
        let client = redis::cluster::ClusterClient::new(cluster_urls()).unwrap();
        let mut connection = client.get_async_connection().await.unwrap();
        let mut cmd = redis::cmd("XADD");
        cmd.arg(&self.stream).arg("*").arg(self.transport("billing").entry(&message));
        cmd.query_async::<Value>(&mut connection).await.unwrap();
        true
    }

    async fn source(&self, consumer: &str) -> RedisSource {
        self.transport(consumer).source(&self.client).await.unwrap()
    }

    async fn retry_queue(&self) -> Option<RedisRetryQueue> {
        Some(self.transport("billing").retry_queue(&self.client).await.unwrap())
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    fn clock(&self) -> SharedClock {
        SystemClock::shared()
    }
}
