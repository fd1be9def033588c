//! A POST by HTTP/1.1, which is all that a webhook needs.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Refusal;
use crate::error::CliError;

/// Number of bytes of an answer that are read.
const ANSWER: u64 = 4096;

/// Webhook that alerts are posted to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Webhook {
    /// As it stands in the URL, with the port if there is one.
    host: String,
    /// With a port.
    address: String,
    path: String,
}

impl Webhook {
    pub(super) fn parse(url: &str) -> Result<Self, CliError> {
        let refused = |why: &str| {
            Err(CliError::refused(format!("--alert-url: {why}; write http://HOST[:PORT]/PATH")))
        };
        let Some(rest) = url.strip_prefix("http://") else {
            if url.starts_with("https://") {
                return refused(
                    "https:// is not spoken; put a relay before it, or use --alert-command, e.g. with curl",
                );
            }
            return refused("it is no URL of HTTP");
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, path) = rest.split_at(end);
        if host.contains('@') {
            return refused(
                "users and passwords are not sent; use --alert-command, e.g. with curl",
            );
        }
        // A blank or a line break in the URL would end the request line, and what follows would be headers.
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || !c.is_ascii() || c == '#';
        if host.is_empty() || url.contains(is_odd) {
            return refused("it holds a character that no URL holds, or no host");
        }
        // Colons inside the brackets belong to an IPv6 address.
        let after_brackets = host.rsplit_once(']').map_or(host, |(_, after)| after);
        let port = after_brackets.rsplit_once(':').map(|(_, port)| port);
        if port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return refused("its port is none");
        }
        let address = if port.is_some() { host.to_owned() } else { format!("{host}:80") };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { host: host.to_owned(), address, path })
    }

    /// Posts a JSON document; done when the answer is one of success.
    pub(super) async fn post(&self, json: &[u8]) -> Result<(), Refusal> {
        let failed = |error: std::io::Error| Refusal {
            why: format!("{}: {error}", self.address),
            is_transient: true,
        };
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: dlq/{}\r\nContent-Type: application/json\r\nContent-Length: \
             {}\r\nConnection: close\r\n\r\n",
            self.path,
            self.host,
            env!("CARGO_PKG_VERSION"),
            json.len()
        );
        let mut stream = TcpStream::connect(&self.address).await.map_err(failed)?;
        stream.write_all(&[head.as_bytes(), json].concat()).await.map_err(failed)?;
        let mut answer = Vec::new();
        let mut stream = stream.take(ANSWER);
        // The first line has the status, and nothing else decides.
        while !answer.contains(&b'\n') {
            if stream.read_buf(&mut answer).await.map_err(failed)? == 0 {
                break;
            }
        }
        let line = String::from_utf8_lossy(&answer);
        let line = line.lines().next().unwrap_or_default();
        let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
        match status.and_then(|status| status.parse::<u16>().ok()) {
            Some(200..300) => Ok(()),
            status => Err(Refusal {
                why: format!("{} answered `{line}`", self.address),
                // What the caller does wrong he does again.
                is_transient: !matches!(status, Some(300..=407 | 409..=428 | 430..500)),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_url_is_read() {
        let hook = |url: &str| Webhook::parse(url).map_err(|error| format!("{error:?}"));
        let all = hook("http://h:8080/a/b?c=d").unwrap();
        assert_eq!((&*all.host, &*all.address, &*all.path), ("h:8080", "h:8080", "/a/b?c=d"));
        let least = hook("http://h").unwrap();
        assert_eq!((&*least.host, &*least.address, &*least.path), ("h", "h:80", "/"));
        let six = hook("http://[::1]/x").unwrap();
        assert_eq!((&*six.host, &*six.address), ("[::1]", "[::1]:80"));
        assert_eq!(hook("http://[::1]:81?x").unwrap().path, "/?x");
        assert!(hook("https://h/x").unwrap_err().contains("--alert-command"));
        for wrong in
            ["h/x", "http://", "http:///x", "http://h:x/", "http://h/a b", "http://h/\r\nX: y"]
        {
            assert!(hook(wrong).is_err(), "{wrong}");
        }
        let error = hook("http://ana:s3cret@h/").unwrap_err();
        assert!(!error.contains("s3cret"), "{error}");
    }
}
