//! The streams of the consumer on Redis, and its servers.

use dlq_redis::redis::aio::MultiplexedConnection;
use dlq_redis::redis::sentinel::{SentinelClient, SentinelServerType};
use dlq_redis::redis::{self, RedisResult};
use dlq_redis::{RedisClient, RedisError};

/// Stream of messages.
pub const TOPIC: &str = "work";
/// Stream of letters.
pub const LETTERS: &str = "{work}:dlq";
/// Due times of delayed retries.
pub const RETRIES: &str = "{work}:retry:tests.work:due";
/// Name under which sentinels know the master.
pub const MASTER: &str = "dlq";

/// Addresses of a single server, or of sentinels.
#[derive(Clone, Debug)]
pub struct Servers(Vec<String>);

impl Servers {
    /// Makes servers of these URLs: a single server, or several sentinels.
    #[must_use]
    pub const fn new(urls: Vec<String>) -> Self {
        Self(urls)
    }

    /// Returns true if these are sentinels.
    fn are_sentinels(&self) -> bool {
        self.0.len() > 1
    }

    /// Connects a client.
    ///
    /// # Errors
    ///
    /// When no server responds.
    pub async fn client(&self) -> Result<RedisClient, RedisError> {
        if self.are_sentinels() {
            return RedisClient::sentinel(self.0.iter().map(String::as_str), MASTER).await;
        }
        RedisClient::open(&self.0.concat()).await
    }

    /// Connects to the master without the crate under test.
    ///
    /// # Errors
    ///
    /// When no server responds.
    pub async fn raw(&self) -> RedisResult<MultiplexedConnection> {
        if !self.are_sentinels() {
            return redis::Client::open(self.0.concat())?.get_multiplexed_async_connection().await;
        }
        // Without its feature for TLS, the client takes nothing but a `String`.
        let (urls, name) = (self.0.clone(), String::from(MASTER));
        let mut sentinels = SentinelClient::build(urls, name, None, SentinelServerType::Master)?;
        sentinels.get_async_connection().await
    }
}
