//! `nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT][,HOST…][/STREAM]`, and the same with `tls://`.

use std::fmt;

use dlq_nats::async_nats::ServerAddr;

use crate::broker::percent_decode;
use crate::error::CliError;

/// The stream that is meant when none is named.
const STREAM: &str = "DLQ";

/// A URL that was understood.
pub(crate) struct NatsUrl {
    pub(crate) servers: Vec<ServerAddr>,
    pub(crate) login: Option<Login>,
    pub(crate) stream: String,
}

#[derive(PartialEq, Eq)]
pub(crate) enum Login {
    Password(String, String),
    Token(String),
}

/// Without what is secret.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Password(..) => "Password",
            Self::Token(_) => "Token",
        })
    }
}

impl NatsUrl {
    pub(crate) fn parse(scheme: &str, rest: &str) -> Result<Self, CliError> {
        let (authority, stream) = rest.split_once('/').unwrap_or((rest, ""));
        // The last one: a password may have an `@` that nobody has escaped.
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(Login::parse(login)?), hosts),
            None => (None, authority),
        };
        let refused = |what: &str| {
            CliError::refused(format!(
                "`{scheme}://{hosts}/{stream}` {what}; write {scheme}://HOST:PORT/STREAM, e.g. \
                 nats://localhost:4222/DLQ"
            ))
        };
        if hosts.is_empty() {
            return Err(refused("names no server"));
        }
        let stream = stream.trim_end_matches('/');
        // The server allows most of these in no name of a stream; `?` and `#` would begin a query or a fragment, which
        // mean nothing here.
        let odd = |c: char| c.is_whitespace() || c.is_control() || "./\\*>?#".contains(c);
        if stream.contains(odd) {
            return Err(refused("does not end with the name of a stream"));
        }
        let server = |host: &str| {
            let parsed = format!("{scheme}://{host}").parse::<ServerAddr>();
            parsed.ok().filter(|_| !host.is_empty() && !host.contains(['?', '#']))
        };
        let servers: Option<Vec<_>> = hosts.split(',').map(server).collect();
        let servers = servers.ok_or_else(|| refused("names no server that can be reached"))?;
        let stream = if stream.is_empty() { STREAM } else { stream };
        Ok(Self { servers, login, stream: stream.to_owned() })
    }
}

impl Login {
    fn parse(text: &str) -> Result<Self, CliError> {
        match text.split_once(':') {
            Some((user, password)) => {
                Ok(Self::Password(percent_decode(user)?, percent_decode(password)?))
            }
            // Without a colon it is a token, as other clients of NATS read it.
            None => percent_decode(text).map(Self::Token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<NatsUrl, String> {
        let (scheme, rest) = url.split_once("://").unwrap();
        NatsUrl::parse(scheme, rest).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn every_part_is_read() {
        let all = parse("nats://ana:s%40c:ret@a:4222,b:4223/LETTERS").unwrap();
        assert_eq!((all.servers.len(), all.stream.as_str()), (2, "LETTERS"));
        assert_eq!(all.login, Some(Login::Password("ana".to_owned(), "s@c:ret".to_owned())));
        let least = parse("nats://localhost").unwrap();
        assert_eq!((least.stream.as_str(), least.servers[0].port()), ("DLQ", 4222));
        assert_eq!(least.login, None);
        let token = parse("tls://t0ken@[::1]:4333/").unwrap();
        assert_eq!(token.login, Some(Login::Token("t0ken".to_owned())));
        assert!(token.servers[0].tls_required());
    }

    #[test]
    fn what_is_wrong_is_refused_without_its_password() {
        for url in [
            "nats://",
            "nats:///DLQ",
            "nats://ana:s3cret@/DLQ",
            "nats://ana:s3cret@h:port/DLQ",
            "nats://ana:s3cret@h/D.LQ",
            "nats://ana:s3cret@h/a/b",
            "nats://ana:s3cret@h,,g/DLQ",
            "nats://ana:s3cret%zz@h/DLQ",
            "nats://ana:s3cret@h/DLQ?x=1",
        ] {
            let error = parse(url).err().expect(url);
            assert!(!error.contains("s3cret"), "{url}: {error}");
        }
    }
}
