//! [`ServerInfo`]: facts that a server says of itself when a client is opened, and servers that are refused.

use std::collections::HashMap;

use super::{RedisError, RedisErrorKind};

/// Facts that a server says of itself. Unknown where the user may not run `INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// Version, as `7.0.15`; of Valkey its own.
    pub version: Option<String>,
    /// True if the server is Valkey.
    pub is_valkey: bool,
    /// True if the server is a node of a cluster.
    pub is_cluster: bool,
    /// True if the append-only file is on; `None` for unknown.
    pub append_only: Option<bool>,
    /// Policy when the memory is full, as `noeviction`.
    pub maxmemory_policy: Option<String>,
    /// Memory limit in bytes; 0 for none.
    pub maxmemory: u64,
    /// Number of connected replicas.
    pub replicas: u32,
    is_replica: bool,
    /// Compatible version of Redis.
    redis: Option<(u32, u32)>,
}

impl ServerInfo {
    pub(super) fn read(text: &str) -> Self {
        let fields: HashMap<&str, &str> =
            text.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
        let get = |name: &str| fields.get(name).copied();
        let valkey = get("valkey_version");
        let redis = get("redis_version");
        let numbers = redis.and_then(|version| {
            let mut parts = version.split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        });
        Self {
            version: valkey.or(redis).map(str::to_owned),
            is_valkey: valkey.is_some(),
            is_cluster: get("cluster_enabled") == Some("1"),
            append_only: get("aof_enabled").map(|on| on == "1"),
            maxmemory_policy: get("maxmemory_policy").map(str::to_owned),
            maxmemory: get("maxmemory").and_then(|bytes| bytes.parse().ok()).unwrap_or(0),
            replicas: get("connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0),
            is_replica: get("role") == Some("slave"),
            redis: numbers,
        }
    }

    /// Refuses a server that cannot be used, and warns of one that may lose messages.
    pub(super) fn judge(
        &self,
        address: &str,
        through_cluster: bool,
        through_sentinel: bool,
        allow_eviction: bool,
    ) -> Result<(), RedisError> {
        // The compatible version counts, as Valkey tells its own version apart from that of Redis.
        if let Some((major, minor)) = self.redis
            && (major, minor) < (6, 2)
        {
            let version = self.version.as_deref().unwrap_or("unknown");
            return Err(RedisError::config(format!(
                "cannot use {address}: its version is {version}; version 6.2 or later is needed"
            )));
        }
        if self.is_replica {
            let text = format!(
                "cannot use {address}: it is a replica; give the URL of its master, or open by sentinels"
            );
            // Sentinels may still name a master that was demoted a moment ago; another attempt finds its successor.
            let kind = if through_sentinel {
                RedisErrorKind::Unavailable
            } else {
                RedisErrorKind::InvalidConfig
            };
            return Err(RedisError::new(kind, text));
        }
        if self.is_cluster && !through_cluster {
            return Err(RedisError::config(format!(
                "cannot use {address} alone: it is a node of a cluster; open it with `RedisClient::cluster` (feature \
                 `cluster`)"
            )));
        }
        // Where `INFO` is forbidden, nothing is known, and nothing is refused.
        if through_cluster && self.version.is_some() && !self.is_cluster {
            return Err(RedisError::config(format!(
                "cannot use {address} as a cluster: it is a single server; open it with `RedisClient::open`"
            )));
        }
        self.judge_memory(address, allow_eviction)?;
        if self.append_only == Some(false) {
            tracing::warn!(
                %address,
                "append-only file is off: what the server confirms is lost when it restarts; set `appendonly yes`"
            );
        }
        Ok(())
    }

    fn judge_memory(&self, address: &str, allow_eviction: bool) -> Result<(), RedisError> {
        let policy = self.maxmemory_policy.as_deref().unwrap_or("noeviction");
        // Other policies remove keys that expire anyway: of ours these are marks against a second letter.
        let evicts_streams = policy.starts_with("allkeys");
        if evicts_streams && self.maxmemory > 0 && !allow_eviction {
            return Err(RedisError::config(format!(
                "cannot use {address}: its `maxmemory-policy` is `{policy}`, so that it removes messages and letters when its \
                 memory is full; set `noeviction`, or allow eviction"
            )));
        }
        if policy != "noeviction" {
            tracing::warn!(
                %address, policy,
                "maxmemory-policy evicts keys: messages, letters or marks may be lost when memory is full; set `noeviction`"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str) -> Result<(), String> {
        let judged = ServerInfo::read(text).judge("host:1", false, false, false);
        judged.map_err(|error| error.to_string())
    }

    #[test]
    fn servers_that_lose_messages_are_refused() {
        assert_eq!(judge("redis_version:7.0.15\r\nrole:master\r\n"), Ok(()));
        assert_eq!(judge(""), Ok(()), "INFO may be forbidden");
        for (text, found) in [
            ("redis_version:6.0.20", "version is 6.0.20"),
            ("redis_version:7.0.15\nrole:slave", "it is a replica"),
            ("redis_version:7.0.15\ncluster_enabled:1", "node of a cluster"),
            ("redis_version:7.0.15\nmaxmemory:100\nmaxmemory_policy:allkeys-lru", "`allkeys-lru`"),
        ] {
            let error = judge(text).expect_err(text);
            assert!(error.contains(found), "{error}");
        }
        assert_eq!(
            judge("redis_version:7.0.15\nmaxmemory:0\nmaxmemory_policy:allkeys-lru"),
            Ok(())
        );
    }

    #[test]
    fn valkey_is_told_by_its_own_version() {
        let info =
            ServerInfo::read("redis_version:7.2.4\r\nvalkey_version:9.1.2\r\naof_enabled:1\r\n");
        assert_eq!((info.version.as_deref(), info.is_valkey), (Some("9.1.2"), true));
        assert_eq!(info.append_only, Some(true));
    }
}
