//! [`Endpoint`]: the place where a client finds its server, and [`Link`]: a connection that many calls share.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Pipeline, Value};

use super::{RedisConfig, RedisError};

/// The place where a client finds its server.
pub(super) enum Endpoint {
    Single {
        client: Client,
        name: String,
    },
    #[cfg(feature = "cluster")]
    Cluster(super::cluster::ClusterEndpoint),
    #[cfg(feature = "sentinel")]
    Sentinel {
        client: tokio::sync::Mutex<redis::sentinel::SentinelClient>,
        name: String,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single { name, .. } => f.write_str(name),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => write!(f, "cluster of {}", cluster.name),
            #[cfg(feature = "sentinel")]
            Self::Sentinel { name, .. } => f.write_str(name),
        }
    }
}

/// Reads a URL without repeating it, since it may hold a password.
pub(super) fn read(
    url: &str,
    #[cfg_attr(not(feature = "tls"), allow(unused_variables))] config: &RedisConfig,
) -> Result<redis::ConnectionInfo, RedisError> {
    let info = url.into_connection_info().map_err(|error| {
        let form =
            "`redis://[user:password@]host:port[/database]`, or `rediss://` with the feature `tls`";
        let error = RedisError::from(error);
        RedisError::config(format!("cannot read the URL of Redis; give it as {form}"))
            .caused_by(error)
    })?;
    #[cfg(feature = "tls")]
    let info = super::tls::secured(info, config)?;
    Ok(info)
}

impl Endpoint {
    pub(super) fn single(url: &str, config: &RedisConfig) -> Result<Self, RedisError> {
        let info = read(url, config)?;
        let name = info.addr().to_string();
        Ok(Self::Single { client: Client::open(info)?, name })
    }

    #[cfg(feature = "cluster")]
    pub(super) fn cluster(urls: &[String], config: &RedisConfig) -> Result<Self, RedisError> {
        super::cluster::ClusterEndpoint::new(urls, config).map(Self::Cluster)
    }

    #[cfg(feature = "sentinel")]
    pub(super) fn sentinel(
        urls: &[String],
        master: &str,
        config: &RedisConfig,
    ) -> Result<Self, RedisError> {
        use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};

        let mut sentinels = Vec::with_capacity(urls.len());
        let mut names = Vec::with_capacity(urls.len());
        let mut node = SentinelNodeConnectionInfo::default();
        for (index, url) in urls.iter().enumerate() {
            let info = read(url, config)?;
            names.push(info.addr().to_string());
            // Sentinels do not tell how their master is logged in to, so the first URL says it for both.
            if index == 0 {
                node = node.set_redis_connection_info(info.redis_settings().clone());
                if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
                    node = node.set_tls_mode(redis::TlsMode::Secure);
                }
            }
            // A sentinel has no databases.
            let settings = info.redis_settings().clone().set_db(0);
            sentinels.push(info.set_redis_settings(settings));
        }
        if sentinels.is_empty() {
            return Err(RedisError::config("no sentinel was named; give at least one URL"));
        }
        let kind = SentinelServerType::Master;
        let name = format!("master {master} of sentinels {}", names.join(", "));
        #[cfg(feature = "tls")]
        if let Some(client) = super::tls::sentinels(urls, master, config)? {
            return Ok(Self::Sentinel { client: tokio::sync::Mutex::new(client), name });
        }
        #[allow(
            clippy::unnecessary_to_owned,
            reason = "only the client with TLS takes a reference"
        )]
        let client = SentinelClient::build(sentinels, master.to_owned(), Some(node), kind)?;
        Ok(Self::Sentinel { client: tokio::sync::Mutex::new(client), name })
    }

    /// Returns true if the nodes of a cluster divide the keys.
    pub(super) fn is_cluster(&self) -> bool {
        #[cfg(feature = "cluster")]
        if matches!(self, Self::Cluster(_)) {
            return true;
        }
        false
    }

    /// Connects for calls that share one connection.
    pub(super) async fn connect(&self, config: &RedisConfig) -> Result<Link, RedisError> {
        #[cfg(feature = "cluster")]
        if let Self::Cluster(cluster) = self {
            return Ok(Link::Cluster(cluster.connect(config).await?));
        }
        self.node("", config, Some(config.response_timeout)).await.map(Link::Node)
    }

    /// Connects to the node with this key, for whoever has the connection for itself.
    pub(super) async fn node(
        &self,
        key: &str,
        config: &RedisConfig,
        response: Option<Duration>,
    ) -> Result<MultiplexedConnection, RedisError> {
        // In a cluster and by sentinels the node is looked up for each connection, since a fail-over may have moved it.
        let client = match self {
            Self::Single { client, .. } => client.clone(),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.owner(key, config).await?,
            #[cfg(feature = "sentinel")]
            Self::Sentinel { client, .. } => {
                let asked = async { client.lock().await.async_get_client().await };
                within(config.connect_timeout, asked).await?
            }
        };
        // Without clusters there is one server, whatever the key.
        let _ = key;
        connect(&client, config, response).await
    }
}

impl Endpoint {
    /// Connects to each server that has keys.
    pub(super) async fn masters(
        &self,
        config: &RedisConfig,
    ) -> Result<Vec<MultiplexedConnection>, RedisError> {
        #[cfg(feature = "cluster")]
        if let Self::Cluster(cluster) = self {
            let mut masters = Vec::new();
            for client in cluster.masters(config).await? {
                masters.push(connect(&client, config, Some(config.response_timeout)).await?);
            }
            return Ok(masters);
        }
        Ok(vec![self.node("", config, Some(config.response_timeout)).await?])
    }
}

/// Connects to one node.
pub(super) async fn connect(
    client: &Client,
    config: &RedisConfig,
    response: Option<Duration>,
) -> Result<MultiplexedConnection, RedisError> {
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.connect_timeout))
        .set_response_timeout(response);
    within(config.connect_timeout, client.get_multiplexed_async_connection_with_config(&settings))
        .await
}

/// Waits for it no longer than this.
pub(super) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = redis::RedisResult<T>>,
) -> Result<T, RedisError> {
    match tokio::time::timeout(limit, call).await {
        Ok(outcome) => outcome.map_err(RedisError::from),
        Err(_) => Err(RedisError::timeout(limit)),
    }
}

/// A connection that many calls share.
#[derive(Clone)]
pub(super) enum Link {
    Node(MultiplexedConnection),
    #[cfg(feature = "cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
}

impl Link {
    pub(super) async fn run(&mut self, cmd: &Cmd, limit: Duration) -> Result<Value, RedisError> {
        match self {
            Self::Node(node) => within(limit, cmd.query_async(node)).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => within(limit, cmd.query_async(cluster)).await,
        }
    }

    pub(super) async fn run_all(
        &mut self,
        pipeline: &Pipeline,
        limit: Duration,
    ) -> Result<Vec<redis::RedisResult<Value>>, RedisError> {
        match self {
            Self::Node(node) => within(limit, pipeline.query_async(node)).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => within(limit, pipeline.query_async(cluster)).await,
        }
    }
}
