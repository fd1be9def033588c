//! Headers as they stand on the wire: [`Lines`] to write them, [`read`] for whatever others wrote.

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use dlq_core::{Header, Headers};
use serde::Deserialize;
use serde::de::value::{BorrowedStrDeserializer, Error};

use crate::client::wire::sorted;

/// End of a line, and separator between a name and its value.
const END: &str = "\r\n";
const BETWEEN: &str = ": ";

/// Headers one below the other, each looked at before it is taken.
///
/// The client's map takes them one by one: every name and value is copied, hashed and searched for line breaks, which for
/// the headers of a letter cost more than all else that was done for it. What it writes of a header is a line, and nothing
/// between the lines; so here they are one header, whose value goes on over the others.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    first: String,
    text: String,
}

impl Lines {
    pub(crate) fn new() -> Self {
        Self { first: String::new(), text: String::with_capacity(2048) }
    }

    /// Adds a header of which [`is_name`] and [`is_value`] are true.
    pub(crate) fn push(&mut self, name: &str, value: &str) {
        debug_assert!(is_name(name) && is_value(value), "{name:?}: {value:?}");
        if self.first.is_empty() {
            name.clone_into(&mut self.first);
        } else {
            for part in [END, name, BETWEEN] {
                self.text.push_str(part);
            }
        }
        self.text.push_str(value);
    }

    /// Returns the approximate number of bytes on the wire.
    pub(crate) fn len(&self) -> usize {
        self.first.len() + BETWEEN.len() + self.text.len()
    }

    pub(crate) fn into_map(self) -> HeaderMap {
        if self.first.is_empty() {
            return HeaderMap::new();
        }
        // Parsing refuses line breaks in a value. To deserialize it takes the text as it is.
        let whole = HeaderValue::deserialize(BorrowedStrDeserializer::<Error>::new(&self.text));
        match (self.first.parse::<HeaderName>(), whole) {
            (Ok(first), Ok(whole)) => HeaderMap::from_iter([(first, whole)]),
            // A client that does not take more than one line.
            _ => self.one_by_one(),
        }
    }

    /// The same headers, each by itself.
    pub(crate) fn one_by_one(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        let mut add = |name: &str, value: &str| {
            if let (Ok(name), Ok(value)) = (name.parse(), value.parse()) {
                let (name, value): (HeaderName, HeaderValue) = (name, value);
                map.append(name, value);
            }
        };
        let mut lines = self.text.split(END);
        if let Some(value) = lines.next().filter(|_| !self.first.is_empty()) {
            add(&self.first, value);
        }
        lines
            .filter_map(|line| line.split_once(BETWEEN))
            .for_each(|(name, value)| add(name, value));
        map
    }
}

/// The headers of a message in the order of their names: as the client reads them where it can, and byte for byte where
/// it cannot. Servers look at no header that is not for them, so that a producer may have written names with spaces,
/// bytes that are no text, and values of several lines. A line without a name goes on with the value before it.
pub(crate) fn read(block: &[u8]) -> Headers {
    let mut all: Vec<(&[u8], Option<Vec<u8>>)> = Vec::new();
    // By what a line is parted from the last that said something.
    let mut gap: Vec<u8> = Vec::new();
    // The first one names the version.
    for whole in block.split_inclusive(|byte| *byte == b'\n').skip(1) {
        let line = whole.strip_suffix(b"\n").unwrap_or(whole);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let end = &whole[line.len()..];
        if line.is_empty() {
            gap.extend_from_slice(end);
            continue;
        }
        let goes_on = start(line).len() < line.len();
        let colon = line.iter().position(|byte| *byte == b':');
        match (all.last_mut(), colon) {
            // The client reads it like this: a line that begins with white space belongs to the value before, without the
            // break.
            (Some((_, Some(value))), _) if goes_on => value.extend_from_slice(line),
            (_, Some(colon)) => {
                all.push((&line[..colon], Some(start(&line[colon + 1..]).to_vec())));
            }
            (Some((_, Some(value))), None) => {
                value.extend_from_slice(&gap);
                value.extend_from_slice(line);
            }
            (_, None) => all.push((line, None)),
        }
        gap = end.to_vec();
    }
    let header = |(name, value): (&[u8], Option<Vec<u8>>)| Header {
        name: name.to_vec().into(),
        value: value.map(|value| trimmed(&value).to_vec().into()),
    };
    sorted(all.into_iter().map(header).collect())
}

/// Without the white space at its start.
fn start(line: &[u8]) -> &[u8] {
    std::str::from_utf8(line).map_or(line.trim_ascii_start(), |text| text.trim_start().as_bytes())
}

/// Without that at its end.
fn trimmed(value: &[u8]) -> &[u8] {
    std::str::from_utf8(value).map_or(value.trim_ascii_end(), |text| text.trim_end().as_bytes())
}

/// Returns true if a header can have this name.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && !any(name, |byte| !byte.is_ascii_graphic() || byte == b':')
}

/// Returns true if a header can have this value, and comes back with it.
pub(crate) fn is_value(value: &str) -> bool {
    value.trim() == value && !any(value, |byte| byte == b'\r' || byte == b'\n')
}

/// Looks at all of them: to stop at the first would take longer than to look at many at once.
fn any(text: &str, is: impl Fn(u8) -> bool) -> bool {
    text.bytes().fold(false, |found, byte| found | is(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_the_same_one_by_one() {
        let mut lines = Lines::new();
        assert_eq!(lines.one_by_one(), lines.into_map(), "none");
        lines = Lines::new();
        let headers = [("a", "x: y"), ("b", ""), ("a", "ä"), ("Nats-Msg-Id", "{\"c\": \": \"}")];
        for (name, value) in headers {
            lines.push(name, value);
        }
        let mut expected = HeaderMap::new();
        headers.iter().for_each(|(name, value)| expected.append(*name, *value));
        assert_eq!(lines.one_by_one(), expected);
        assert_eq!(lines.into_map().len(), 1, "the client takes them as one");
    }

    #[test]
    fn g8_whatever_stands_in_headers_is_read() {
        let read = |lines: &[u8]| -> Vec<(String, Option<Vec<u8>>)> {
            let block = [b"NATS/1.0\r\n", lines, b"\r\n"].concat();
            let name = |header: &Header| String::from_utf8_lossy(&header.name).into_owned();
            let one = |header: &Header| (name(header), header.value.clone().map(Vec::from));
            super::read(&block).iter().map(one).collect()
        };
        let is = |name: &str, value: &[u8]| (name.to_owned(), Some(value.to_vec()));
        assert_eq!(
            read(b"b: 2\r\nvia: x\r\na:1 \r\nvia:  y\r\n"),
            [is("a", b"1"), is("b", b"2"), is("via", b"x"), is("via", b"y")]
        );
        assert_eq!(read(b"a: \xff \r\n"), [is("a", b"\xff")]);
        assert_eq!(
            read(b"a: x: 1\ny\r\n\r\nz\r\nb: 2\r\n"),
            [is("a", b"x: 1\ny\r\n\r\nz"), is("b", b"2")]
        );
        assert_eq!(read(b"a: 50 %\r100 %\r\n"), [is("a", b"50 %\r100 %")]);
        assert_eq!(read(b"my name: 1\r\n"), [is("my name", b"1")]);
        assert_eq!(read(b"a: 1\r\n 2\r\n"), [is("a", b"1 2")], "as the client has it");
        assert_eq!(read(b"nothing\r\na: 1\r\n"), [is("a", b"1"), ("nothing".to_owned(), None)]);
        assert!(read(b"").is_empty() && super::read(b"").is_empty());
    }

    #[test]
    fn what_would_be_another_header_is_no_value() {
        for value in ["a\r\nb: c", "a\nb", "a\rb", " a", "a ", "\u{85}a"] {
            assert!(!is_value(value), "{value:?}");
        }
        for name in ["", "a:b", "a b", "a\r", "ä", "\u{7f}"] {
            assert!(!is_name(name) && (name.is_empty() || name.parse::<HeaderName>().is_err()));
        }
        assert!(is_name("dlq.id!~") && is_value("") && is_value("a: b"));
    }
}
