//! Encoding of a message and its facts as a message of NATS.
//!
//! Headers of NATS are text, one line each, and their order is not kept by every client. What cannot be said that way
//! (a key, a payload that is absent, a header that is not text) travels in one header of JSON, [`REST`]. Headers that
//! the server acts upon (`Nats-*`) are carried under [`KEPT`] and do nothing on the way.

use std::borrow::Cow;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use dlq_core::protocol::{self, Decoded, Facts, KEPT, Ours, split_text, split_without};
use dlq_core::{Death, Header, Headers, Message, Origin};
use serde::{Deserialize, Serialize};

use crate::client::lines::{Lines, is_name, is_value};

/// The header with what no other header says. Believed on our own streams only.
pub(crate) const REST: &str = "dlq.nats.rest";

/// Facts about a message on a stream of ours that no other header carries.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Rest {
    /// The message without its payload, and without its headers unless they are here.
    message: Message,
    /// True if the headers are here, because NATS could not carry them as they are.
    #[serde(default, skip_serializing_if = "is_default")]
    exact: bool,
    /// True if there is no payload, which differs from an empty one.
    #[serde(default, skip_serializing_if = "is_default")]
    absent: bool,
    pub(crate) origin: Origin,
    pub(crate) death: Death,
    /// Facts of a letter only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) facts: Option<Facts>,
    /// The sequences under which the payload stands, where it did not fit beside the headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) body: Vec<u64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Rest {
    pub(crate) fn of(message: &Message, origin: &Origin, death: Death) -> Self {
        let exact = !is_plain(message.headers());
        let mut bare = message.clone().with_payload(None);
        if !exact {
            bare = bare.with_headers(Headers::new());
        }
        let absent = message.payload().is_none();
        let origin = origin.clone();
        Self { message: bare, exact, absent, origin, death, facts: None, body: Vec::new() }
    }

    /// The same with all headers of `message`, which then need not be anywhere else.
    pub(crate) fn exactly(self, message: &Message) -> Self {
        Self { message: message.clone().with_payload(None), exact: true, ..self }
    }
}

/// Returns true if these headers come back from a server as they are. They come back sorted by name.
fn is_plain(headers: &Headers) -> bool {
    headers.iter().all(|header| carried(header).is_some())
        && headers.iter().zip(headers.iter().skip(1)).all(|(a, b)| a.name <= b.name)
}

/// Name and value of the header as NATS carries it; `None` where it cannot.
fn carried(header: &Header) -> Option<(Cow<'_, str>, &str)> {
    let value = text(header.value.as_deref()?)?;
    let name = std::str::from_utf8(&header.name).ok().filter(|name| is_name(name))?;
    let is_taken = is_the_servers(name) || name == REST;
    let name = if is_taken { format!("{KEPT}{name}").into() } else { Cow::Borrowed(name) };
    Some((name, value))
}

/// Returns true if a header can have this value, and comes back with it.
pub(crate) fn is_text(value: &[u8]) -> bool {
    text(value).is_some()
}

fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok().filter(|text| is_value(text))
}

/// Returns true if a server acts upon a header of this name, or writes it.
pub(crate) fn is_the_servers(name: impl AsRef<[u8]>) -> bool {
    name.as_ref().get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"nats-"))
}

/// True of a header that is neither the producer's nor of the protocol.
fn is_apart(name: &[u8]) -> bool {
    is_the_servers(name) || name == REST.as_bytes()
}

/// The headers that say all this. Those that NATS cannot carry are in `rest`.
pub(crate) fn pack(
    producers: &Headers,
    ours: &Ours,
    rest: &Rest,
) -> Result<Lines, serde_json::Error> {
    let mut lines = pack_ours(producers, ours);
    // JSON has no line breaks and begins and ends with a brace.
    lines.push(REST, &serde_json::to_string(rest)?);
    Ok(lines)
}

/// Names those of the producer's headers that NATS cannot carry, in words; `None` if it carries all.
pub(crate) fn uncarried(producers: &Headers) -> Option<String> {
    let lost = protocol::producers(producers).filter(|header| carried(header).is_none());
    let names: Vec<_> = lost.map(|one| format!("`{}`", one.name.escape_ascii())).collect();
    match &names[..] {
        [] => None,
        [name] => Some(format!("header {name}")),
        names => Some(format!("headers {}", names.join(", "))),
    }
}

/// The same without the rest, which leaves out the producer's headers that NATS cannot carry: [`uncarried`].
pub(crate) fn pack_ours(producers: &Headers, ours: &Ours) -> Lines {
    let mut lines = Lines::new();
    for header in protocol::producers(producers) {
        if let Some((name, value)) = carried(&header) {
            lines.push(&name, value);
        }
    }
    for (name, value) in ours.iter().filter(|(_, value)| is_value(value)) {
        lines.push(name, value);
    }
    lines
}

/// A message from a stream of ours.
#[derive(Debug)]
pub(crate) struct Unpacked {
    pub(crate) message: Message,
    pub(crate) decoded: Decoded,
    pub(crate) rest: Rest,
}

/// Reads what [`pack`] wrote; `None` when somebody else has written it.
pub(crate) fn unpack(headers: &HeaderMap, payload: Bytes) -> Option<Unpacked> {
    let rest: Rest = serde_json::from_str(headers.get_last(REST)?.as_str()).ok()?;
    Some(unpack_with(headers, rest, payload))
}

/// The same when what [`REST`] says was elsewhere.
pub(crate) fn unpack_with(headers: &HeaderMap, rest: Rest, payload: Bytes) -> Unpacked {
    let (producers, decoded) = split_map(headers);
    let mut message = rest.message.clone();
    if !rest.exact {
        message = message.with_headers(producers);
    }
    if !rest.absent {
        message = message.with_payload(Some(payload));
    }
    Unpacked { message, decoded, rest }
}

/// The producer's headers of a message that we wrote, and what ours say. The server's are neither.
pub(crate) fn split_ours(headers: &Headers) -> (Headers, Decoded) {
    let (producers, decoded) = split_without(headers, is_apart);
    (sorted(producers), decoded)
}

/// The same of headers as the client has them; ours are read where they stand.
fn split_map(headers: &HeaderMap) -> (Headers, Decoded) {
    let each = headers.iter().flat_map(|(name, values)| {
        let name: &str = name.as_ref();
        values.iter().map(move |value| (name, value.as_str()))
    });
    let said = each.filter(|(name, _)| !is_apart(name.as_bytes()));
    let (producers, mut decoded) = split_text(said);
    decoded.invalid.sort_by(|a, b| a.name.cmp(&b.name));
    (sorted(producers), decoded)
}

/// The headers of a message, in the order of their names: the client does not keep the order in which they came.
pub(crate) fn read(headers: &HeaderMap) -> Headers {
    let all = headers.iter().flat_map(|(name, values)| {
        values.iter().map(move |value| Header {
            name: Bytes::copy_from_slice(AsRef::<[u8]>::as_ref(name)),
            value: Some(Bytes::copy_from_slice(value.as_str().as_bytes())),
        })
    });
    sorted(all.collect())
}

/// Returns those of these headers that the client can represent.
pub(crate) fn map(headers: &Headers) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter().filter_map(held) {
        map.append(name, value);
    }
    map
}

/// Returns true if the client can represent all of them.
pub(crate) fn is_readable(headers: &Headers) -> bool {
    headers.iter().all(|header| held(header).is_some())
}

/// Names those of these headers that the client cannot have.
pub(crate) fn unreadable(headers: &Headers) -> String {
    let names = headers.iter().filter(|header| held(header).is_none());
    let names: Vec<String> = names.map(|one| format!("`{}`", one.name.escape_ascii())).collect();
    format!(
        "the client cannot read header {}: a name has white space or bytes that are not ASCII, a value has a line break or \
         bytes that are not UTF-8, or a line has no colon; mend the producer",
        names.join(", ")
    )
}

fn held(header: &Header) -> Option<(HeaderName, HeaderValue)> {
    let name = std::str::from_utf8(&header.name).ok()?.parse().ok()?;
    let value = std::str::from_utf8(header.value.as_deref()?).ok()?.parse().ok()?;
    Some((name, value))
}

/// The same in the order of their names; values of one name stay in theirs.
pub(crate) fn sorted(headers: Headers) -> Headers {
    let mut all: Vec<Header> = headers.iter().cloned().collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use dlq_core::{LetterId, Position};
    use dlq_testkit::fixtures::hostile_messages;

    use super::*;

    fn there_and_back(message: &Message) -> Message {
        let origin = Origin::new("nats", "ORDERS", Position::Offset(1));
        let death = Death { letter: LetterId::of(&origin, None, "c"), generation: 2 };
        let letter = dlq_testkit::fixtures::letter_of(message.clone(), 1);
        let rest = Rest::of(message, &origin, death);
        let headers =
            pack(message.headers(), &protocol::of_death(&letter), &rest).unwrap().one_by_one();
        for (name, _) in headers.iter() {
            assert!(!is_the_servers(name), "{name} would be acted upon");
        }
        let read = unpack(&headers, message.payload().cloned().unwrap_or_default()).unwrap();
        assert_eq!((read.rest.death, &read.rest.origin), (death, &origin));
        assert_eq!(read.decoded.consumer.as_deref(), Some(letter.consumer.as_str()));
        read.message
    }

    #[test]
    fn g8_every_message_comes_back_byte_for_byte() {
        for (what, message) in hostile_messages() {
            assert_eq!(there_and_back(&message), message, "{what}");
        }
    }

    #[test]
    fn headers_for_the_server_come_back_and_do_nothing_on_the_way() {
        let message = Message::new("orders.created", "x")
            .with_header("Nats-Msg-Id", "evt-1")
            .with_header("Nats-Rollup", "all")
            .with_header("nats-ttl", "1s")
            .with_header("trace", "t");
        assert_eq!(there_and_back(&message), message);
        let unsorted = Message::new("s", "x").with_header("b", "1").with_header("a", " 2 ");
        assert_eq!(there_and_back(&unsorted), unsorted);
        let claims = Message::new("s", "x").with_header(REST, "{}").with_header("dlq.id", "mine");
        assert_eq!(there_and_back(&claims), claims);
    }

    #[test]
    fn a_line_break_begins_no_header() {
        for value in ["1\r\nNats-Rollup: all", "1\nNats-Rollup: all", "1\r", "\r\n\r\n"] {
            let name = format!("a\r\n{value}: b");
            let message = Message::new("s", "x").with_header("a", value).with_header(name, "1");
            assert_eq!(there_and_back(&message), message, "{value:?}");
        }
    }

    #[test]
    fn what_others_wrote_is_not_taken_for_ours() {
        let mut headers = HeaderMap::new();
        assert!(unpack(&headers, Bytes::new()).is_none());
        headers.insert(REST, "no json");
        assert!(unpack(&headers, Bytes::new()).is_none());
    }
}
