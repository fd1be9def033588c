use crate::Service;

/// Parts of a URL that we need; of a list of servers, the first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// `host:port`.
    pub(crate) address: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// After the first slash: a database.
    pub(crate) path: Option<String>,
}

impl Target {
    pub(crate) fn parse(service: Service, url: &str) -> Self {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        // A list may repeat the scheme before each server; the first ends at the comma before it.
        let rest = rest
            .split_once("://")
            .map_or(rest, |(first, _)| first.rsplit_once(',').map_or(first, |(first, _)| first));
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let host = hosts.split(',').next().unwrap_or_default();
        // An IPv6 address has colons of its own, inside brackets.
        let has_port = host.rfind(':') > host.rfind(']');
        let port = service.default_port();
        let some = |text: &str| Some(decode(text)).filter(|text| !text.is_empty());
        Self {
            address: if has_port { host.to_owned() } else { format!("{host}:{port}") },
            user: some(user),
            password: some(password),
            path: some(path),
        }
    }
}

/// Resolves `%40` and the like.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::Target;
    use crate::Service;

    #[test]
    fn urls_are_taken_apart() {
        let parse = |service, url| {
            let Target { address, user, password, path } = Target::parse(service, url);
            let text = |part: Option<String>| part.unwrap_or_else(|| "-".to_owned());
            format!("{address} {} {} {}", text(user), text(password), text(path))
        };
        for (service, url, expected) in [
            (Service::Nats, "nats://127.0.0.1:4555", "127.0.0.1:4555 - - -"),
            (Service::Nats, "nats://a:1,nats://b:2", "a:1 - - -"),
            (Service::Kafka, "a:1,b:2", "a:1 - - -"),
            (Service::Postgres, "postgres://me:s%40e@db/x?y=z", "db:5432 me s@e x"),
            (Service::Postgres, "postgres://me@[::1]/x", "[::1]:5432 me - x"),
            (Service::Redis, "redis://:key@[::1]:7/3", "[::1]:7 - key 3"),
            (Service::Redis, "redis://h/100%", "h:6379 - - 100%"),
        ] {
            assert_eq!(parse(service, url), expected, "{url}");
        }
    }
}
