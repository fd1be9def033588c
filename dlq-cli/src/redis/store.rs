//! `redis-store://…`: a store in Redis or Valkey.
//!
//! `redis-store://[USER:PASSWORD@]HOST[:PORT][,HOST…][/DATABASE][?prefix=NAME&durability=memory|aof|replicas:N&sentinel=MASTER&tls-ca=FILE]`;
//! `rediss-store://` for TLS. Several hosts are nodes of a cluster, or sentinels where `sentinel` names their master.

use dlq_core::StoreError;
use dlq_redis::RedisClient;
use dlq_redis::store::{Durability, RedisStore, RedisStoreBuilder};

use super::url::connect;
use crate::error::CliError;
use crate::secret::without_password;

/// Returns true if a URL of this scheme is a store in Redis.
pub(crate) fn is_store(scheme: &str) -> bool {
    matches!(scheme, "redis-store" | "rediss-store")
}

/// A URL taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
struct Address {
    /// The URL of each node, as the client reads it.
    nodes: Vec<String>,
    master: Option<String>,
    authority: Option<String>,
    prefix: Option<String>,
    durability: Option<Durability>,
}

impl Address {
    fn read(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let scheme = scheme.trim_end_matches("-store");
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) =
            hosts.rsplit_once('@').map_or(("", hosts), |(login, hosts)| (login, hosts));
        let at = if login.is_empty() { "" } else { "@" };
        let node = |host: &str| format!("{scheme}://{login}{at}{host}/{database}");
        let mut address = Self::default();
        // Each node has the login, since a cluster or a sentinel may lead to any of them.
        address.nodes.extend(hosts.split(',').filter(|host| !host.is_empty()).map(node));
        if address.nodes.is_empty() {
            return Err("it names no host".to_owned());
        }
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("prefix", name)) if name.contains('{') => {
                    address.prefix = Some(name.to_owned())
                }
                // All keys of a store need one hash tag; a plain name becomes one.
                Some(("prefix", name)) => address.prefix = Some(format!("{{{name}}}")),
                Some(("sentinel", master)) => address.master = Some(master.to_owned()),
                Some(("tls-ca", file)) => address.authority = Some(file.to_owned()),
                Some(("durability", text)) => address.durability = Some(durability(text)?),
                _ => {
                    let name = part.split('=').next().unwrap_or_default();
                    return Err(format!(
                        "`{name}` is unknown; known are prefix, durability, sentinel and tls-ca"
                    ));
                }
            }
        }
        Ok(address)
    }

    async fn connect(&self) -> Result<RedisClient, CliError> {
        connect(&self.nodes, self.master.as_deref(), self.authority.as_deref()).await
    }
}

fn durability(text: &str) -> Result<Durability, String> {
    match (text, text.strip_prefix("replicas:").map(str::parse)) {
        ("memory", _) => Ok(Durability::Memory),
        ("aof", _) => Ok(Durability::Aof),
        (_, Some(Ok(count))) => Ok(Durability::Replicas(count)),
        _ => Err(format!("`{text}` is no durability; write memory, aof or replicas:N")),
    }
}

/// An error of opening a store, with what the library advises as it is said in a URL.
pub(crate) fn not_opened(url: &str, error: StoreError) -> CliError {
    const ADVICE: &str = "open the store with `Durability::Memory`";
    let shown = without_password(url);
    let joined = if url.contains('?') { '&' } else { '?' };
    let advice = format!(
        "say that letters may be lost with the server's memory: --from '{shown}{joined}durability=memory'"
    );
    // Libraries name their own items in an error, which nobody can type at a prompt.
    let translated = |text: String| text.replace(ADVICE, &advice);
    let error = match CliError::from(error) {
        CliError::Failed(text) => CliError::Failed(translated(text)),
        CliError::Refused(text) => CliError::Refused(translated(text)),
        other @ CliError::Closed => other,
    };
    error.about(&shown)
}

/// Connects to the server of a store.
pub(crate) async fn builder(url: &str) -> Result<RedisStoreBuilder, CliError> {
    let shown = without_password(url);
    let address = Address::read(url)
        .map_err(|why| CliError::refused(format!("cannot read {shown}: {why}")))?;
    let client = address.connect().await.map_err(|error| error.about(&shown))?;
    let mut builder = RedisStore::builder(&client);
    if let Some(prefix) = address.prefix {
        builder = builder.prefix(prefix);
    }
    if let Some(durability) = address.durability {
        builder = builder.durability(durability);
    }
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_nodes_and_what_is_ours() {
        let url = "redis-store://ana:p@h:1,g:2/0?prefix=shop&durability=replicas:2";
        let address = Address::read(url).unwrap();
        assert_eq!(address.nodes, ["redis://ana:p@h:1/0", "redis://ana:p@g:2/0"]);
        assert_eq!(address.prefix.as_deref(), Some("{shop}"));
        assert_eq!(address.durability, Some(Durability::Replicas(2)));
        let address = Address::read("rediss-store://h?prefix=a:{b}&sentinel=m").unwrap();
        assert_eq!(address.nodes, ["rediss://h/"]);
        assert_eq!(address.prefix.as_deref(), Some("a:{b}"));
        assert_eq!(address.master.as_deref(), Some("m"));
        for url in ["redis-store://", "redis-store://h?prefx=a", "redis-store://h?durability=disk"]
        {
            assert!(Address::read(url).is_err(), "{url}");
        }
    }
}
