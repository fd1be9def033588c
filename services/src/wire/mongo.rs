//! MongoDB: commands and their answers, without logging in.

use std::time::Duration;

use serde_json::{Value, json};

use super::bson;
use super::stream::Stream;
use super::target::Target;
use crate::{Error, ErrorKind, Service};

/// The oldest protocol of the drivers that the project uses: that of MongoDB 4.4.
const OLDEST: i64 = 9;

/// `OP_MSG`, the one kind of message that there is now.
const MESSAGE: i32 = 2013;

/// Runs a command, such as `find` of a collection, in a database. `rest` is an object with its other fields. In the answer
/// bytes and ids are hexadecimal text, times are milliseconds.
///
/// # Errors
///
/// `NoAnswer` when there is none, or the server's own error; `Unsupported` for a URL that asks for TLS or names no host.
pub fn command(
    url: &str,
    database: &str,
    name: &str,
    subject: &Value,
    rest: &Value,
    patience: Duration,
) -> Result<Value, Error> {
    if let Some(what) = beyond_us(url) {
        let text = format!("it cannot be asked here, since its URL asks for {what}");
        return Err(Error::new(ErrorKind::Unsupported, Service::Mongo, text));
    }
    let target = Target::parse(Service::Mongo, url);
    let mut stream = Stream::connect(Service::Mongo, &target.address, patience)?;
    let database = json!(database);
    // The name of the command comes first.
    let rest = rest.as_object().into_iter().flatten();
    let fields = std::iter::once((name, subject))
        .chain(rest.map(|(name, value)| (name.as_str(), value)))
        .chain([("$db", &database)]);
    let document = bson::document(fields);
    let length = i32::try_from(21 + document.len()).unwrap_or(i32::MAX);
    let mut request = Vec::new();
    // Length, id of the request, of what it answers to, kind; flags, kind of section.
    for number in [length, 1, 0, MESSAGE, 0] {
        request.extend(number.to_le_bytes());
    }
    request.push(0);
    request.extend(document);
    stream.send(&request)?;
    let answer = answer(&mut stream)?;
    if answer["ok"].as_f64() == Some(1.0) {
        return Ok(answer);
    }
    Err(stream.unexpected(&answer.to_string()))
}

pub(super) fn ping(url: &str, patience: Duration) -> Result<(), Error> {
    // The older name of `hello`, which every server knows.
    let answer = command(url, "admin", "isMaster", &json!(1), &json!({}), patience)?;
    match answer["maxWireVersion"].as_i64() {
        Some(version) if version >= OLDEST => Ok(()),
        version => Err(super::no_answer(
            Service::Mongo,
            format!("its protocol has version {version:?}; MongoDB 4.4 has {OLDEST}"),
        )),
    }
}

fn answer(stream: &mut Stream) -> Result<Value, Error> {
    let head = stream.take(16)?;
    let number = |at: usize| {
        let bytes = head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(-1, i32::from_le_bytes)
    };
    let length = usize::try_from(number(0)).ok().and_then(|length| length.checked_sub(16));
    let Some(length) = length.filter(|_| number(12) == MESSAGE) else {
        return Err(stream.unexpected(&format!("{head:?}")));
    };
    let body = stream.take(length)?;
    let document = body.get(5..).and_then(bson::parse);
    document.ok_or_else(|| stream.unexpected("a document that cannot be read"))
}

/// What the URL asks for that is not spoken here.
fn beyond_us(url: &str) -> Option<&'static str> {
    let options = url.split_once('?').map_or("", |(_, options)| options).to_lowercase();
    let mut options = options.split('&');
    if url.starts_with("mongodb+srv:") {
        Some("a look-up of its hosts")
    } else if options.any(|option| option == "tls=true" || option == "ssl=true") {
        Some("TLS")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::beyond_us;

    #[test]
    fn urls_that_cannot_be_asked_are_known() {
        assert_eq!(beyond_us("mongodb://h:1/d?replicaSet=r"), None);
        assert_eq!(beyond_us("mongodb://h:1/d?w=1&TLS=true"), Some("TLS"));
        assert_eq!(beyond_us("mongodb+srv://h/d"), Some("a look-up of its hosts"));
    }
}
