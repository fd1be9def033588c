//! Redis: commands and their replies.

use std::time::Duration;

use super::stream::Stream;
use super::target::Target;
use crate::{Error, Service};

/// Runs one command, such as `["SET", "key", "value"]`, in the database that the URL names.
/// Numbers are returned as text, a missing value as `None`, the items of an array one a line.
///
/// # Errors
///
/// `NoAnswer` when there is none, or the server's own error.
pub fn command(url: &str, words: &[&str], patience: Duration) -> Result<Option<String>, Error> {
    let target = Target::parse(Service::Redis, url);
    let mut stream = Stream::connect(Service::Redis, &target.address, patience)?;
    if let Some(password) = &target.password {
        let user = target.user.as_deref().unwrap_or("default");
        call(&mut stream, &["AUTH", user, password])?;
    }
    if let Some(database) = target.path.as_deref().filter(|database| *database != "0") {
        call(&mut stream, &["SELECT", database])?;
    }
    call(&mut stream, words)
}

pub(super) fn ping(url: &str, patience: Duration) -> Result<(), Error> {
    match command(url, &["PING"], patience)?.as_deref() {
        Some("PONG") => Ok(()),
        other => Err(super::no_answer(Service::Redis, format!("PING was answered by {other:?}"))),
    }
}

fn call(stream: &mut Stream, words: &[&str]) -> Result<Option<String>, Error> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.send(request.as_bytes())?;
    reply(stream)
}

fn reply(stream: &mut Stream) -> Result<Option<String>, Error> {
    let line = stream.line()?;
    let Some(kind) = line.chars().next() else { return Err(stream.unexpected("an empty line")) };
    let rest = &line[kind.len_utf8()..];
    let count = rest.parse::<i64>().ok();
    match (kind, count) {
        ('+' | ':', _) => Ok(Some(rest.to_owned())),
        ('$' | '*', Some(-1)) => Ok(None),
        ('$', Some(count)) if count >= 0 => {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let mut bytes = stream.take(count.saturating_add(2))?;
            bytes.truncate(count);
            Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
        }
        ('*', Some(count)) if count >= 0 => {
            let mut items = Vec::new();
            for _ in 0..count {
                items.push(reply(stream)?.unwrap_or_default());
            }
            Ok(Some(items.join("\n")))
        }
        _ => Err(stream.unexpected(&line)),
    }
}
