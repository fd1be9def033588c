use std::fmt;

use dlq_core::{Header, Headers};

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
const BAGGAGE: &str = "baggage";
/// Longer states and baggage are dropped, as the recommendations allow.
const MAX_LENGTH: usize = 8192;

/// Span in which a message was published: the `traceparent` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace: u128,
    span: u64,
    flags: u8,
}

impl TraceParent {
    /// The span `span` of the trace `trace`. `None` when either is zero, which the recommendation forbids.
    #[must_use]
    pub const fn new(trace: u128, span: u64, sampled: bool) -> Option<Self> {
        if trace == 0 || span == 0 {
            return None;
        }
        Some(Self { trace, span, flags: sampled as u8 })
    }

    /// Reads the header: version, trace, span and flags in hexadecimal. Versions to come are read as far as they are
    /// known.
    fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(text).ok()?.trim().splitn(5, '-');
        let mut next = |digits| hex(parts.next()?, digits);
        let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        // The recommendation forbids version ff, and version 00 has exactly four parts.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let parent = Self::new(trace, u64::try_from(span).ok()?, false)?;
        Some(Self { flags: u8::try_from(flags).ok()?, ..parent })
    }

    /// The trace, as 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }

    /// The span, as 16 hexadecimal digits.
    #[must_use]
    pub fn parent_id(&self) -> String {
        format!("{:016x}", self.span)
    }

    /// Returns true if the publisher recorded its span.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    // The recommendation permits lower case only.
    let lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if text.len() == digits && lower { u128::from_str_radix(text, 16).ok() } else { None }
}

impl fmt::Display for TraceParent {
    /// The form of the header, in version 00.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// The W3C trace context of a message: `traceparent`, `tracestate` and `baggage`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct TraceContext {
    parent: Option<TraceParent>,
    state: Option<String>,
    baggage: Option<String>,
}

impl TraceContext {
    /// The context in `headers`, whose names are found in any case. What is malformed is left out; a state without a
    /// parent means nothing and is left out as well.
    pub fn from_headers(headers: &Headers) -> Self {
        let parent = the_only(headers, TRACEPARENT).and_then(TraceParent::parse);
        let state = parent.and_then(|_| joined(headers, TRACESTATE));
        Self { parent, state, baggage: joined(headers, BAGGAGE) }
    }

    /// A context with this parent, without state and baggage.
    pub const fn new(parent: TraceParent) -> Self {
        Self { parent: Some(parent), state: None, baggage: None }
    }

    /// Replaces the parent: a message published in a span of our own names that one.
    pub const fn with_parent(mut self, parent: TraceParent) -> Self {
        self.parent = Some(parent);
        self
    }

    /// The span the message was published in.
    #[must_use]
    pub const fn parent(&self) -> Option<&TraceParent> {
        self.parent.as_ref()
    }

    /// Returns the state of tracing systems, as it stood in the header.
    #[must_use]
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Returns the baggage of the application, as it stood in the header.
    #[must_use]
    pub fn baggage(&self) -> Option<&str> {
        self.baggage.as_deref()
    }

    /// Writes the context onto `headers`, in place of what they say of it.
    pub fn write_to(&self, headers: &mut Headers) {
        let ours = [TRACEPARENT, TRACESTATE, BAGGAGE];
        // A context that is replaced in part would join the parent of one trace to the state of another.
        headers.retain(|header| !ours.iter().any(|name| is(header, name)));
        if let Some(parent) = self.parent {
            headers.append(TRACEPARENT, parent.to_string());
        }
        for (name, value) in [(TRACESTATE, &self.state), (BAGGAGE, &self.baggage)] {
            if let Some(value) = value {
                headers.append(name, value.clone());
            }
        }
    }
}

fn is(header: &Header, name: &str) -> bool {
    header.name.eq_ignore_ascii_case(name.as_bytes())
}

fn all<'a>(headers: &'a Headers, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    headers.iter().filter(move |header| is(header, name)).filter_map(|h| h.value.as_deref())
}

/// The value of a header that may stand only once.
fn the_only<'a>(headers: &'a Headers, name: &'a str) -> Option<&'a [u8]> {
    let mut values = all(headers, name);
    // Of two parents nobody can tell which one is right, so neither is believed.
    values.next().filter(|_| values.next().is_none())
}

/// The values of a header that is a list, joined.
fn joined(headers: &Headers, name: &str) -> Option<String> {
    let values: Option<Vec<_>> =
        all(headers, name).map(|value| std::str::from_utf8(value).ok()).collect();
    let joined = values?.join(",");
    // A control character could break the header of the next message.
    let fits = !joined.is_empty() && joined.len() <= MAX_LENGTH;
    (fits && !joined.contains(|c: char| c.is_control() && c != '\t')).then_some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn read(pairs: &[(&'static str, &'static str)]) -> TraceContext {
        let mut headers = Headers::new();
        for (name, value) in pairs {
            headers.append(*name, *value);
        }
        TraceContext::from_headers(&headers)
    }

    #[test]
    fn malformed_parents_are_ignored() {
        for text in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c-+7ad6b7169203331-01",
        ] {
            assert_eq!(
                read(&[("traceparent", text), ("tracestate", "a=1")]),
                TraceContext::default()
            );
        }
        assert_eq!(read(&[("traceparent", PARENT), ("traceparent", PARENT)]).parent(), None);
    }

    #[test]
    fn later_versions_are_read_as_far_as_known() {
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-holds";
        assert_eq!(read(&[("traceparent", later)]).parent().unwrap().to_string(), PARENT);
    }

    #[test]
    fn a_context_round_trips_and_replaces() {
        let context = read(&[
            ("Traceparent", PARENT),
            ("tracestate", "a=1"),
            ("TRACESTATE", "b=2"),
            ("baggage", "user=7"),
        ]);
        assert_eq!((context.state(), context.baggage()), (Some("a=1,b=2"), Some("user=7")));
        let mut headers = Headers::new();
        headers.append("TraceParent", "old");
        headers.append("kept", "yes");
        context.write_to(&mut headers);
        assert_eq!(headers.len(), 4);
        assert_eq!(TraceContext::from_headers(&headers), context);
    }

    #[test]
    fn baggage_needs_no_parent_and_cannot_break_headers() {
        assert_eq!(read(&[("baggage", "user=7")]).baggage(), Some("user=7"));
        assert_eq!(read(&[("baggage", "user=7\r\nevil: 1")]).baggage(), None);
    }
}
