//! `redis://[USER:PASSWORD@]HOST[:PORT][,HOST…]/[DATABASE/]KEY[?sentinel=MASTER&tls-ca=FILE]`; `rediss://` for
//! TLS.
//!
//! Several hosts are nodes of a cluster, or sentinels where `sentinel` names their master. FILE has the certificate of an
//! authority of one's own. A slash in KEY is `%2F`.

use dlq_redis::{RedisClient, RedisConfig};

use dlq_core::StoreError;

use crate::broker::percent_decode;
use crate::error::CliError;

/// A URL taken apart.
#[derive(PartialEq, Eq)]
pub(super) struct RedisUrl {
    /// The URL of each node, as the client reads it.
    pub(super) nodes: Vec<String>,
    pub(super) master: Option<String>,
    /// The file with the certificate of the authority that the servers are trusted by.
    pub(super) authority: Option<String>,
    /// The key of the stream; empty where none is named.
    pub(super) key: String,
}

impl RedisUrl {
    pub(super) fn parse(scheme: &str, rest: &str) -> Result<Self, CliError> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let refused = |what: &str| {
            CliError::refused(format!(
                "cannot read `{scheme}://{hosts}/{path}`: {what}; write {scheme}://HOST:PORT/KEY or \
                 {scheme}://HOST:PORT/DATABASE/KEY, e.g. 'redis://localhost:6379/{{payments}}:dlq'"
            ))
        };
        if hosts.is_empty() || hosts.split(',').any(str::is_empty) {
            return Err(refused("it names no server"));
        }
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        // Digits before the slash are a database. A key writes its own slashes as %2F.
        let (database, key) = match path.split_once('/') {
            Some((database, key)) if is_number(database) => (database, key),
            Some(_) => return Err(refused("a slash in the key is written as %2F")),
            None => ("", path),
        };
        if key.contains('/') {
            return Err(refused("a slash in the key is written as %2F"));
        }
        let (mut master, mut authority) = (None, None);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("sentinel", name)) => master = Some(name.to_owned()),
                Some(("tls-ca", file)) => authority = Some(file.to_owned()),
                _ => {
                    return Err(refused("its query has more than sentinel=MASTER and tls-ca=FILE"));
                }
            }
        }
        let node = |host: &str| format!("{scheme}://{login}{host}/{database}");
        let nodes = hosts.split(',').map(node).collect();
        // The login is left encoded, since the client decodes it from the URL of each node.
        let key = percent_decode(key).map_err(|_| refused("the key is not percent-encoded"))?;
        Ok(Self { nodes, master, authority, key })
    }

    pub(super) async fn connect(&self) -> Result<RedisClient, CliError> {
        connect(&self.nodes, self.master.as_deref(), self.authority.as_deref()).await
    }
}

/// Connects to a server, the nodes of a cluster, or the master that sentinels name.
pub(super) async fn connect(
    nodes: &[String],
    master: Option<&str>,
    authority: Option<&str>,
) -> Result<RedisClient, CliError> {
    let mut config = RedisConfig::new();
    if let Some(file) = authority {
        let pem = std::fs::read(file)
            .map_err(|error| CliError::failed(format!("cannot read {file}: {error}")))?;
        config = config.root_certificate(pem);
    }
    let client = match (master, nodes) {
        (Some(master), nodes) => config.sentinel(nodes, master).await,
        (None, [node]) => config.open(node).await,
        (None, nodes) => config.cluster(nodes).await,
    };
    client.map_err(|error| translated(CliError::from(StoreError::from(error))))
}

/// The error with what the library advises as it is said in a URL.
fn translated(error: CliError) -> CliError {
    const ADVICE: &str = "with `RedisConfig::root_certificate`";
    match error {
        CliError::Failed(text) => CliError::Failed(text.replace(ADVICE, "as ?tls-ca=FILE")),
        CliError::Refused(text) => CliError::Refused(text.replace(ADVICE, "as ?tls-ca=FILE")),
        other @ CliError::Closed => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<RedisUrl, String> {
        let (scheme, rest) = url.split_once("://").unwrap();
        RedisUrl::parse(scheme, rest).map_err(CliError::into_message)
    }

    #[test]
    fn every_part_is_read() {
        let all = parse("rediss://ana:s%40c@h:1,g:2/0/%7Ba%7D:x%2Fdlq?sentinel=m").unwrap();
        assert_eq!(all.nodes, ["rediss://ana:s%40c@h:1/0", "rediss://ana:s%40c@g:2/0"]);
        assert_eq!((all.master.as_deref(), all.key.as_str()), (Some("m"), "{a}:x/dlq"));
        let own = parse("rediss://h/key?tls-ca=/etc/ca.pem").unwrap();
        assert_eq!(own.authority.as_deref(), Some("/etc/ca.pem"));
        let least = parse("redis://h/{orders}:dlq").unwrap();
        assert_eq!(
            (least.nodes, least.key),
            (vec!["redis://h/".to_owned()], "{orders}:dlq".to_owned())
        );
        let numbers = parse("redis://h/3/12").unwrap();
        assert_eq!((numbers.nodes, numbers.key), (vec!["redis://h/3".to_owned()], "12".to_owned()));
        assert_eq!(parse("redis://h/12").unwrap().key, "12", "a key, not a database");
        assert_eq!(parse("redis://h").unwrap().key, "");
    }

    #[test]
    fn what_is_wrong_is_refused_without_its_password() {
        for url in [
            "redis://",
            "redis:///key",
            "redis://ana:s3cret@/key",
            "redis://ana:s3cret@h,,g/key",
            "redis://ana:s3cret@h/a/b",
            "redis://ana:s3cret@h/0/a/b",
            "redis://ana:s3cret@h/key?prefix=a",
            "redis://ana:s3cret@h/%zz",
        ] {
            let error = parse(url).err().expect(url);
            assert!(!error.contains("s3cret"), "{url}: {error}");
        }
    }
}
