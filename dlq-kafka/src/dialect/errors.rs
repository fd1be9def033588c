//! What went wrong, death by death, as headers tell it.

use dlq_core::{MAX_CHAIN, bounded};

use super::fields::{Fields, Newest};

/// The names under which a dialect tells of errors.
pub(super) struct ErrorNames {
    /// The first one of these that is there starts each error.
    pub(super) start: &'static [&'static str],
    /// The type: the first one of these that an error has.
    pub(super) types: &'static [&'static str],
    /// The message, and those of its sources.
    pub(super) messages: &'static [&'static str],
    /// The stack trace: the first one of these that an error has.
    pub(super) traces: &'static [&'static str],
}

/// One error.
#[derive(Debug, Default)]
pub(super) struct Error<'a> {
    pub(super) error_type: &'a str,
    pub(super) messages: Vec<String>,
    pub(super) trace: Option<&'a str>,
}

/// Classes that say nothing but that something below them went wrong.
const WRAPPERS: &[&str] = &[
    "io.smallrye.reactive.messaging.ProcessingException",
    "java.lang.reflect.InvocationTargetException",
    "java.lang.reflect.UndeclaredThrowableException",
    "java.util.concurrent.CompletionException",
    "java.util.concurrent.ExecutionException",
    "org.apache.kafka.connect.errors.ConnectException",
    "org.apache.kafka.streams.errors.StreamsException",
    "org.springframework.kafka.listener.ListenerExecutionFailedException",
    "org.springframework.messaging.MessageHandlingException",
    "org.springframework.messaging.MessagingException",
];

/// Classes, without their packages, that say that bytes could not be decoded.
const UNDECODED: &[&str] = &[
    "ConversionException",
    "DeserializationException",
    "MessageConversionException",
    "RecordDeserializationException",
    "SerializationException",
];

impl Error<'_> {
    /// Whether the bytes could not be decoded.
    pub(super) fn is_decode(&self) -> bool {
        is_one_of(self.error_type, UNDECODED)
    }
}

/// Whether a class is one of these, whatever its package.
pub(super) fn is_one_of(class: &str, names: &[&str]) -> bool {
    names.contains(&class.rsplit(['.', '$']).next().unwrap_or(class))
}

impl<'a> Fields<'a> {
    /// Every error that the headers tell of, oldest first.
    ///
    /// Some headers of an error may be missing (an error without a message, or without a cause), so those of one error
    /// are told by where they stand: from its first header up to that of the next error.
    pub(super) fn errors(&mut self, names: &ErrorNames) -> Vec<Error<'a>> {
        let start = names.start.iter().copied().find(|name| self.has(name));
        let mut starts = start.map_or_else(Vec::new, |name| self.indices(name));
        let end = self.record.headers.len();
        if starts.len() < 2 {
            return self.error(names, 0..end).into_iter().collect();
        }
        if self.newest == Newest::First {
            starts.reverse();
        }
        let ends = starts.iter().copied().skip(1).chain([end]);
        let parts: Vec<_> = starts.iter().copied().zip(ends).collect();
        let errors = parts.into_iter().map(|(from, to)| self.error(names, from..to));
        let mut errors: Vec<_> = errors.map(Option::unwrap_or_default).collect();
        if self.newest == Newest::First {
            errors.reverse();
        }
        errors
    }

    fn error(&mut self, names: &ErrorNames, part: std::ops::Range<usize>) -> Option<Error<'a>> {
        let mut first = |of: &[&'static str]| of.iter().find_map(|name| self.within(name, &part));
        let stated = first(names.types);
        let trace = first(names.traces);
        let mut messages: Vec<String> = Vec::new();
        for text in names.messages.iter().filter_map(|name| self.within(name, &part)) {
            if !messages.iter().any(|known| known == text) {
                messages.push(bounded(text));
            }
        }
        if stated.is_none() && trace.is_none() && messages.is_empty() {
            return None;
        }
        let mut error_type = stated.unwrap_or_default();
        for (class, text) in trace.into_iter().flat_map(causes).take(MAX_CHAIN - messages.len()) {
            if error_type.is_empty() || WRAPPERS.contains(&error_type) {
                error_type = class;
            }
            if class == error_type && messages.iter().any(|known| known.contains(text)) {
                continue;
            }
            messages.push(bounded(&if text.is_empty() {
                class.to_owned()
            } else {
                format!("{class}: {text}")
            }));
        }
        Some(Error { error_type, messages, trace })
    }
}

/// The classes and messages of the causes in a stack trace of Java, outermost first; of a message its first line.
fn causes(trace: &str) -> impl Iterator<Item = (&str, &str)> {
    trace.lines().filter_map(|line| {
        let cause = line.strip_prefix("Caused by: ")?;
        let (class, text) = cause.split_once(": ").unwrap_or((cause, ""));
        let is_class = |char: char| char.is_alphanumeric() || matches!(char, '.' | '_' | '$' | '/');
        (!class.is_empty() && class.chars().all(is_class)).then_some((class, text))
    })
}

/// A text without the identity hashes of objects (`Order@1a2b3c`), which differ in every process.
pub(super) fn without_identities(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('@') {
        let (before, after) = rest.split_at(at);
        let after = &after[1..];
        let digits = after.bytes().take_while(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')).count();
        let ends = !after[digits..].starts_with(|char: char| char.is_alphanumeric() || char == '.');
        let names = before.ends_with(|char: char| char.is_alphanumeric() || char == ';');
        out.push_str(before);
        if names && ends && (1..=8).contains(&digits) {
            rest = &after[digits..];
        } else {
            out.push('@');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}
