//! [`ClusterEndpoint`]: a cluster whose nodes divide the keys.

use std::ops::RangeInclusive;

use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::{Client, ConnectionAddr, ConnectionInfo, Value};

use super::endpoint::{connect, read, within};
use super::value::{as_array, as_int, as_text};
use super::{RedisConfig, RedisError, RedisErrorKind};

/// A cluster whose nodes divide the keys.
pub(super) struct ClusterEndpoint {
    client: ClusterClient,
    nodes: Vec<ConnectionInfo>,
    pub(super) name: String,
}

impl ClusterEndpoint {
    pub(super) fn new(urls: &[String], config: &RedisConfig) -> Result<Self, RedisError> {
        let nodes = urls.iter().map(|url| read(url, config)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = nodes.first() else {
            return Err(RedisError::config(
                "no node of the cluster was named; give at least one URL",
            ));
        };
        if let Some(node) = nodes.iter().find(|node| node.redis_settings().db() != 0) {
            let database = node.redis_settings().db();
            return Err(RedisError::config(format!(
                "a cluster has no database {database}; leave it out of the URL and use key prefixes"
            )));
        }
        let name = first.addr().to_string();
        // A call that is repeated here may have been carried out: the crate decides what it repeats.
        let builder = ClusterClientBuilder::new(nodes.clone());
        #[cfg(feature = "tls")]
        let builder = match super::tls::certificates(config) {
            Some(certificates) => builder.certs(certificates),
            None => builder,
        };
        let client = builder
            .retries(3)
            .connection_timeout(config.connect_timeout)
            .response_timeout(config.response_timeout)
            .overall_response_timeout(Some(config.response_timeout))
            .build()?;
        Ok(Self { client, nodes, name })
    }

    pub(super) async fn connect(
        &self,
        config: &RedisConfig,
    ) -> Result<ClusterConnection, RedisError> {
        within(config.connect_timeout, self.client.get_async_connection()).await
    }

    /// Returns a client of the node that has this key.
    pub(super) async fn owner(
        &self,
        key: &str,
        config: &RedisConfig,
    ) -> Result<Client, RedisError> {
        let slot = i64::from(slot(key.as_bytes()));
        let ranges = self.ranges(config).await?;
        let owner = ranges.into_iter().find(|(range, _)| range.contains(&slot));
        owner.map(|(_, client)| client).ok_or_else(|| {
            let text = format!("no node of the cluster has slot {slot}");
            RedisError::new(RedisErrorKind::Unavailable, text)
        })
    }

    /// Returns a client of each master that has slots.
    pub(super) async fn masters(&self, config: &RedisConfig) -> Result<Vec<Client>, RedisError> {
        let mut masters: Vec<Client> = Vec::new();
        // A master that has several ranges comes once for each.
        for (_, client) in self.ranges(config).await? {
            let addr = client.get_connection_info().addr();
            if masters.iter().all(|known| known.get_connection_info().addr() != addr) {
                masters.push(client);
            }
        }
        Ok(masters)
    }

    /// Asks one node after another for the owners of all slots.
    async fn ranges(&self, config: &RedisConfig) -> Result<Ranges, RedisError> {
        let mut last = None;
        // Any node knows the owners of all slots, so that one that is down costs no more than its time limit.
        for node in &self.nodes {
            match ranges_by(node, config).await {
                Ok(ranges) => return Ok(ranges),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| {
            RedisError::new(RedisErrorKind::Unavailable, "no node can be reached")
        }))
    }
}

/// Slots with the master that has them.
type Ranges = Vec<(RangeInclusive<i64>, Client)>;

/// Asks one node for the owners of all slots.
async fn ranges_by(node: &ConnectionInfo, config: &RedisConfig) -> Result<Ranges, RedisError> {
    let client = Client::open(node.clone())?;
    let mut connection = connect(&client, config, Some(config.response_timeout)).await?;
    let mut cmd = redis::cmd("CLUSTER");
    cmd.arg("SLOTS");
    let answer: Value = within(config.response_timeout, cmd.query_async(&mut connection)).await?;
    let mut ranges = Vec::new();
    for range in as_array(&answer) {
        let [from, to, master, ..] = as_array(range) else { continue };
        let [host, port, ..] = as_array(master) else { continue };
        // An empty host stands for that of the node that was asked.
        let host = as_text(host).filter(|host| !host.is_empty());
        let Ok(port) = u16::try_from(as_int(port)) else { continue };
        let addr = match node.addr() {
            ConnectionAddr::Tcp(known, _) => {
                ConnectionAddr::Tcp(host.unwrap_or_else(|| known.clone()), port)
            }
            ConnectionAddr::TcpTls { host: known, insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls {
                    host: host.unwrap_or_else(|| known.clone()),
                    port,
                    insecure: *insecure,
                    tls_params: tls_params.clone(),
                }
            }
            other => other.clone(),
        };
        // With user, password and TLS of the node that was asked, since this answer has addresses only.
        let owner = Client::open(node.clone().set_addr(addr))?;
        ranges.push((as_int(from)..=as_int(to), owner));
    }
    Ok(ranges)
}

/// The slot of a key: of its hash tag where it has one.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % 16384
}

/// The checksum that clusters use (polynomial 0x1021, no reflection, initial value 0).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum: u16, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| {
            if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_tag_decides_the_slot() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"{foo}:dlq"), slot(b"foo"));
        assert_ne!(slot(b"{}:dlq"), slot(b""));
    }
}
