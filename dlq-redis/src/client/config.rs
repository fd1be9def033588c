use std::time::Duration;

use super::{RedisClient, RedisError};

/// Settings of a [`RedisClient`].
///
/// ```no_run
/// # async fn open() -> Result<(), dlq_redis::RedisError> {
/// use std::time::Duration;
///
/// let config = dlq_redis::RedisConfig::new().response_timeout(Duration::from_secs(2));
/// let client = config.open("redis://localhost:6379").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a configuration does nothing until a client is opened with it"]
pub struct RedisConfig {
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    pub(super) retries: u32,
    pub(super) allow_eviction: bool,
    #[cfg(feature = "tls")]
    pub(super) root_certificate: Option<std::sync::Arc<[u8]>>,
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(5),
            retries: 1,
            allow_eviction: false,
            #[cfg(feature = "tls")]
            root_certificate: None,
        }
    }
}

impl RedisConfig {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time limit of one attempt to connect. Defaults to 5 seconds.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets the time limit of one response. Blocking reads have none. Defaults to 5 seconds.
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.response_timeout = limit;
        self
    }

    /// Sets the number of times that a call is repeated after its connection was lost. Every call of this crate may be
    /// repeated: it changes nothing the second time. Defaults to 1.
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Accepts a server that evicts keys when its memory is full. Such a server loses messages and letters in silence, so
    /// that it is refused otherwise. Defaults to false.
    pub fn allow_eviction(mut self, allow: bool) -> Self {
        self.allow_eviction = allow;
        self
    }

    /// Trusts servers whose certificates were issued by this authority, given in PEM, and no others. Defaults to the
    /// authorities of the web. Every URL has to begin with `rediss://` then.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.root_certificate = Some(pem.as_ref().into());
        self
    }

    /// Connects to one server: `redis://[user:password@]host:port[/database]`, or `rediss://` with the feature `tls`.
    ///
    /// # Errors
    ///
    /// As [`RedisClient::open`].
    pub async fn open(self, url: &str) -> Result<RedisClient, RedisError> {
        RedisClient::connect(super::endpoint::Endpoint::single(url, &self)?, self).await
    }

    /// Connects to a cluster, of which these are some nodes.
    ///
    /// # Errors
    ///
    /// As [`RedisClient::open`].
    #[cfg(feature = "cluster")]
    pub async fn cluster<U: AsRef<str>>(
        self,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<RedisClient, RedisError> {
        let urls: Vec<String> = urls.into_iter().map(|url| url.as_ref().to_owned()).collect();
        let endpoint = super::endpoint::Endpoint::cluster(&urls, &self)?;
        RedisClient::connect(endpoint, self).await
    }

    /// Connects to the master of this name, as these sentinels know it. User, password and database of the master are
    /// those of the first URL.
    ///
    /// # Errors
    ///
    /// As [`RedisClient::open`].
    #[cfg(feature = "sentinel")]
    pub async fn sentinel<U: AsRef<str>>(
        self,
        urls: impl IntoIterator<Item = U>,
        master: &str,
    ) -> Result<RedisClient, RedisError> {
        let urls: Vec<String> = urls.into_iter().map(|url| url.as_ref().to_owned()).collect();
        let endpoint = super::endpoint::Endpoint::sentinel(&urls, master, &self)?;
        RedisClient::connect(endpoint, self).await
    }
}
