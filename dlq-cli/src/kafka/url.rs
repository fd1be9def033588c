//! `kafka://[USER:PASSWORD@]HOST[:PORT][,HOST…]/TOPIC`.

use crate::broker::percent_decode;
use crate::error::CliError;

/// Default port of a broker.
const PORT: u16 = 9092;

/// A URL that was understood.
pub(super) struct KafkaUrl {
    /// With ports.
    pub(super) bootstrap: String,
    /// User and password.
    pub(super) login: Option<(String, String)>,
    pub(super) topic: String,
}

impl KafkaUrl {
    /// `rest` is what comes after `kafka://`.
    pub(super) fn parse(rest: &str) -> Result<Self, CliError> {
        let (authority, topic) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let refused = |what: &str| {
            CliError::refused(format!(
                "`kafka://{hosts}/{topic}` {what}; write kafka://HOST:PORT[,HOST:PORT]/TOPIC, e.g. \
                 kafka://localhost:9092/orders.dlq"
            ))
        };
        let bootstrap: Option<Vec<String>> = hosts.split(',').map(address).collect();
        let bootstrap = bootstrap.ok_or_else(|| refused("names no broker that can be reached"))?;
        let topic = topic.trim_end_matches('/');
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        // These are Kafka's own rules; a name that breaks them would be reported as a topic that is not there.
        if topic.is_empty() || topic.len() > 249 || !topic.chars().all(is_plain) {
            return Err(refused("does not end with the name of a topic"));
        }
        let login = match login.map(|login| login.split_once(':')) {
            Some(Some((user, password))) => {
                Some((percent_decode(user)?, percent_decode(password)?))
            }
            Some(None) => return Err(refused("has a user without a password")),
            None => None,
        };
        Ok(Self { bootstrap: bootstrap.join(","), login, topic: topic.to_owned() })
    }
}

/// A host with its port; `None` for what is none.
fn address(host: &str) -> Option<String> {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || "/?#@".contains(c);
    if host.contains(is_odd) {
        return None;
    }
    // An address of version 6 has colons of its own within its brackets.
    let after_brackets = host.rsplit_once(']').map_or(host, |(_, after)| after);
    match after_brackets.rsplit_once(':') {
        Some((_, port)) => {
            let is_host = host.len() > port.len() + 1;
            let port = port.parse::<u16>().ok().filter(|port| *port > 0);
            (is_host && port.is_some()).then(|| host.to_owned())
        }
        None => (!host.is_empty()).then(|| format!("{host}:{PORT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<KafkaUrl, String> {
        KafkaUrl::parse(url).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn every_part_is_read() {
        let all = parse("ana:s%40c:ret@a:9093,b/orders.dlq").unwrap();
        assert_eq!((&*all.bootstrap, &*all.topic), ("a:9093,b:9092", "orders.dlq"));
        assert_eq!(all.login, Some(("ana".to_owned(), "s@c:ret".to_owned())));
        let least = parse("[::1]/orders.dlq/").unwrap();
        assert_eq!((&*least.bootstrap, &*least.topic), ("[::1]:9092", "orders.dlq"));
        assert_eq!(least.login, None);
    }

    #[test]
    fn what_is_wrong_is_refused_without_its_password() {
        for url in [
            "",
            "h",
            "h/",
            "/orders.dlq",
            "ana:s3cret@/orders.dlq",
            "ana:s3cret@h:port/orders.dlq",
            "ana:s3cret@h:0/orders.dlq",
            "ana:s3cret@h/orders/dlq",
            "ana:s3cret@h/orders dlq",
            "ana:s3cret@h,,g/orders.dlq",
            "ana:s3cret%zz@h/orders.dlq",
            "s3cret@h/orders.dlq",
            "ana:s3cret@h/orders.dlq?x=1",
        ] {
            let error = parse(url).err().expect(url);
            assert!(!error.contains("s3cret"), "{url}: {error}");
        }
    }
}
