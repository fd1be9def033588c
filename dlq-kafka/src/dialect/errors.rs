//! Errors of each death, according to headers.

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
    /// The place where the class that was thrown stands.
    pub(super) thrown: Thrown,
}

/// The place where a dialect tells the class that was thrown, as opposed to the wrappers around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thrown {
    /// In the first header of a class that is no wrapper; else in the first such class of the messages or the trace.
    Stated,
    /// In the last cause of the trace: the headers have a wrapper only, and so may causes in between.
    LastCause,
}

/// An error.
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
    "org.springframework.kafka.listener.TimestampedException",
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
    /// Returns true if the error says that bytes could not be decoded.
    pub(super) fn is_decode(&self) -> bool {
        is_one_of(self.error_type, UNDECODED)
    }
}

/// Returns true if a class has one of these names, whatever its package.
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
        // One error has all the headers, also those that stand before the one that begins it.
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
        let types = names.types.iter().filter_map(|name| self.peek_within(name, &part));
        let types: Vec<&'a str> = types.collect();
        let trace = names.traces.iter().find_map(|name| self.within(name, &part));
        let texts = names.messages.iter().filter_map(|name| self.within(name, &part));
        let texts: Vec<&'a str> = texts.collect();
        let mut messages: Vec<String> = Vec::new();
        for text in &texts {
            // A wrapper often repeats the text of its cause, and the group of the letter is made of these texts.
            if !messages.iter().any(|known| known == text) {
                messages.push(bounded(text));
            }
        }
        if types.is_empty() && trace.is_none() && messages.is_empty() {
            return None;
        }
        let is_thrown = |class: &&str| !WRAPPERS.contains(class);
        // A wrapper without a message of its own repeats the class and the message of its cause.
        let told = || texts.iter().filter_map(|text| leading_class(text)).find(is_thrown);
        let caused = || trace.into_iter().flat_map(causes).map(|(class, _)| class);
        let error_type = match names.thrown {
            Thrown::Stated if types.is_empty() => None,
            Thrown::Stated => types.iter().copied().find(is_thrown).or_else(told),
            Thrown::LastCause => caused().last(),
        };
        let error_type = error_type.or_else(|| caused().find(is_thrown));
        let error_type = error_type.or_else(|| caused().last());
        let error_type = error_type.or_else(|| types.first().copied()).unwrap_or_default();
        // The others stay unread, so that they are kept beside the letter.
        let is_stated = |name: &&&str| self.peek_within(name, &part) == Some(error_type);
        if let Some(name) = names.types.iter().find(is_stated) {
            self.within(name, &part);
        }
        for (class, text) in trace.into_iter().flat_map(causes).take(MAX_CHAIN - messages.len()) {
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
        // Those of a suppressed error are indented.
        let cause = line.strip_prefix("Caused by: ")?;
        let (class, text) = cause.split_once(": ").unwrap_or((cause, ""));
        is_class(class).then_some((class, text))
    })
}

fn is_class(text: &str) -> bool {
    let belongs = |char: char| char.is_alphanumeric() || matches!(char, '.' | '_' | '$' | '/');
    !text.is_empty() && text.chars().all(belongs)
}

/// The class, with its package, that a text begins with, as the text of an error does that is made of its cause; behind the
/// names of wrappers.
fn leading_class(text: &str) -> Option<&str> {
    let (class, rest) = text.split_once(": ").unwrap_or((text, ""));
    let name = class.rsplit_once('.').map(|(_, name)| name)?;
    if !is_class(class) || !name.starts_with(|first: char| first.is_ascii_uppercase()) {
        return None;
    }
    let behind = || leading_class(rest.lines().next().unwrap_or_default());
    if WRAPPERS.contains(&class) { behind().or(Some(class)) } else { Some(class) }
}

/// A text without what differs from one message to the next although the error is the same: identity hashes of objects
/// (`Order@1a2b3c`), short ids (`r17`), and the dump of a message that Spring appends (`failedMessage=…`, `headers={…}`).
pub(super) fn without_identities(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        let is_inside = out.ends_with(|before: char| before.is_alphanumeric() || before == '_');
        let dump = ["failedMessage=", "headers={"].iter().find(|start| rest.starts_with(**start));
        if let Some(start) = dump.filter(|_| !is_inside) {
            out.push_str(start.trim_end_matches('{'));
            rest = behind_brackets(&rest[start.trim_end_matches('{').len()..]);
            continue;
        }
        if char == '@' {
            let after = &rest[1..];
            let digits = hex_digits(after);
            let ends =
                !after[digits..].starts_with(|char: char| char.is_alphanumeric() || char == '.');
            // An address of mail is no hash: behind its `@` the word goes on with other letters or a dot.
            let names = out.ends_with(|char: char| char.is_alphanumeric() || char == ';');
            if names && ends && (1..=8).contains(&digits) {
                rest = &after[digits..];
                continue;
            }
        }
        if let Some(letters) = short_id(rest).filter(|_| !is_inside) {
            out.push_str(letters);
            rest = rest[letters.len()..].trim_start_matches(|char: char| char.is_ascii_digit());
            continue;
        }
        out.push(char);
        rest = &rest[char.len_utf8()..];
    }
    out
}

fn hex_digits(text: &str) -> usize {
    text.bytes().take_while(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).count()
}

/// The letters of a short id that the text begins with: one or two, and digits up to the end of the word.
fn short_id(text: &str) -> Option<&str> {
    let letters = text.bytes().take_while(u8::is_ascii_alphabetic).count();
    let rest = text[letters..].trim_start_matches(|char: char| char.is_ascii_digit());
    let has_digits = rest.len() < text.len() - letters;
    let ends = !rest.starts_with(|char: char| char.is_alphanumeric() || char == '_');
    ((1..=2).contains(&letters) && has_digits && ends).then(|| &text[..letters])
}

/// Returns what stands behind the brackets that open first, whatever is nested in them. All of it is skipped where none opens in
/// the same line, and where they are not closed, since the text was cut.
fn behind_brackets(text: &str) -> &str {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return &text[at + 1..];
                }
            }
            b'\n' if depth == 0 => return &text[at..],
            _ => {}
        }
    }
    ""
}
