//! [`Lines`]: headers as they stand on the wire.

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde::de::value::{BorrowedStrDeserializer, Error};

/// What ends a line, and what stands between a name and its value.
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

    pub(crate) fn into_map(self) -> HeaderMap {
        if self.first.is_empty() {
            return HeaderMap::new();
        }
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

/// Whether a header can have this name.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && !any(name, |byte| !byte.is_ascii_graphic() || byte == b':')
}

/// Whether a header can have this value, and comes back with it.
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
