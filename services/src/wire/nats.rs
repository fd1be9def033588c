//! NATS: what a server says of itself, requests, and its monitoring pages.

use std::time::Duration;

use serde_json::{Value, json};

use super::stream::Stream;
use super::target::Target;
use crate::{Error, Service};

/// Returns the information that a server sends when one connects.
///
/// # Errors
///
/// `NoAnswer` when there is none, or none of a NATS server.
pub fn info(url: &str, patience: Duration) -> Result<Value, Error> {
    let target = Target::parse(Service::Nats, url);
    read_info(&mut Stream::connect(Service::Nats, &target.address, patience)?)
}

/// Sends a request and returns the first reply. JetStream's own API answers on `$JS.API.>`.
///
/// # Errors
///
/// `NoAnswer` when there is none, or when nobody listens on the subject.
pub fn request(
    url: &str,
    subject: &str,
    payload: &str,
    patience: Duration,
) -> Result<String, Error> {
    const INBOX: &str = "_INBOX.dlq-services";
    let (mut stream, _) = connect(url, patience)?;
    // A server may have many of us; each inbox is known to its own port alone.
    let inbox = format!("{INBOX}.{}", stream.own_port());
    let length = payload.len();
    let text = format!("SUB {inbox} 1\r\nPUB {subject} {inbox} {length}\r\n{payload}\r\n");
    stream.send(text.as_bytes())?;
    loop {
        let line = next_line(&mut stream)?;
        let words: Vec<_> = line.split_whitespace().collect();
        let number = |word: Option<&&str>| word.and_then(|word| word.parse::<usize>().ok());
        let (headers, total) = match words.as_slice() {
            ["MSG", .., total] => (Some(0), number(Some(total))),
            ["HMSG", .., headers, total] => (number(Some(headers)), number(Some(total))),
            _ => continue,
        };
        let (Some(headers), Some(total)) = (headers, total) else {
            return Err(stream.unexpected(&line));
        };
        let bytes = stream.take(total)?;
        let (headers, body) = bytes.split_at_checked(headers).unwrap_or((&[], &bytes));
        if headers.starts_with(b"NATS/1.0 503") {
            return Err(stream.unexpected(&format!("nobody listens on `{subject}`")));
        }
        return Ok(String::from_utf8_lossy(body).into_owned());
    }
}

/// A monitoring page, such as `/jsz`, of the server whose monitoring listens on `address`.
///
/// # Errors
///
/// `NoAnswer` when there is none.
pub fn monitor(address: &str, path: &str, patience: Duration) -> Result<Value, Error> {
    let mut stream = Stream::connect(Service::Nats, address, patience)?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.send(request.as_bytes())?;
    let status = stream.line()?;
    if status.split_whitespace().nth(1) != Some("200") {
        return Err(stream.unexpected(&status));
    }
    let body = stream.http_body()?;
    serde_json::from_slice(&body).map_err(|error| stream.unexpected(&error.to_string()))
}

pub(super) fn ping(url: &str, patience: Duration) -> Result<(), Error> {
    let (stream, info) = connect(url, patience)?;
    if info["jetstream"] == json!(true) {
        return Ok(());
    }
    Err(stream.unexpected("it has no JetStream, which must be enabled"))
}

/// Connects as the user of the URL and waits for the server to agree.
fn connect(url: &str, patience: Duration) -> Result<(Stream, Value), Error> {
    let target = Target::parse(Service::Nats, url);
    let mut stream = Stream::connect(Service::Nats, &target.address, patience)?;
    let info = read_info(&mut stream)?;
    let mut options = json!({
        "verbose": false, "pedantic": false, "lang": "rust", "version": env!("CARGO_PKG_VERSION"),
        "protocol": 1, "headers": true, "no_responders": true,
    });
    match (target.user, target.password) {
        (Some(user), Some(password)) => {
            options["user"] = user.into();
            options["pass"] = password.into();
        }
        (Some(token), None) => options["auth_token"] = token.into(),
        (None, _) => {}
    }
    stream.send(format!("CONNECT {options}\r\nPING\r\n").as_bytes())?;
    while next_line(&mut stream)? != "PONG" {}
    Ok((stream, info))
}

fn read_info(stream: &mut Stream) -> Result<Value, Error> {
    let line = stream.line()?;
    let text = line.strip_prefix("INFO ").ok_or_else(|| stream.unexpected(&line))?;
    serde_json::from_str(text).map_err(|error| stream.unexpected(&error.to_string()))
}

/// The next line that is not the protocol's own business; an error of the server is an error.
fn next_line(stream: &mut Stream) -> Result<String, Error> {
    loop {
        let line = stream.line()?;
        if line == "PING" {
            stream.send(b"PONG\r\n")?;
        } else if line.starts_with("-ERR") {
            return Err(stream.unexpected(&line));
        } else if !line.is_empty() {
            return Ok(line);
        }
    }
}
