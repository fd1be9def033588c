//! [`Failure`]: why an attempt did not succeed, and the closed vocabularies around it.
//!
//! A [`Classifier`] judges the error of a handler, which becomes a [`Failure`]. A failure with its number is an
//! [`Attempt`]. The attempts of a message are its [`History`], which goes with it to the retry queue and into the dead
//! letter.

use std::error::Error;
use std::fmt;
use std::panic::Location;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Declares a closed set of words with one text form each, and other systems' names that are read as them.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident ($what:literal) { $($(#[$doc:meta])* $variant:ident = $text:literal $(| $alias:literal)*),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            /// Every value, in order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The text form, as it stands in headers, tables, metrics and commands.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            // `pad` respects the width that a caller asks for, as columns of a table need it.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.pad(self.as_str()) }
        }

        impl FromStr for $name {
            type Err = $crate::UnknownWord;

            /// Reads the text form, and the names that other systems use for it.
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($text $(| $alias)* => Ok(Self::$variant),)+
                    _ => Err($crate::UnknownWord::new($what, text, &[$($text),+])),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use words;

/// A word outside a closed vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not a {what}; expected one of: {}", .expected.join(", "))]
pub struct UnknownWord {
    what: &'static str,
    found: String,
    expected: &'static [&'static str],
}

impl UnknownWord {
    pub(crate) fn new(what: &'static str, found: &str, expected: &'static [&'static str]) -> Self {
        // The word comes from outside, in any length; the error stays readable.
        Self { what, found: found.chars().take(80).collect(), expected }
    }
}

words! {
    /// Class of an error: whether another attempt could succeed.
    ///
    /// An error that nobody has classified is `Transient`. A failure with the cause `decode`, `malformed` or `oversize`
    /// is given up whatever its class, since the bytes of a message never change.
    ErrorClass("class") {
        /// Another attempt may succeed: retry.
        Transient = "transient" | "retryable",
        /// No attempt will succeed: dead-letter now.
        Permanent = "permanent" | "terminal",
    }
}

words! {
    /// Kind of problem that made an attempt fail.
    ///
    /// The cause is of one attempt, and the [`Reason`] of the whole message: one that is `exhausted` may have failed of
    /// another cause each time.
    Cause("cause") {
        /// The handler returned an error.
        Error = "error",
        /// The handler panicked.
        Panic = "panic",
        /// The handler ran longer than its timeout.
        Timeout = "timeout",
        /// The payload could not be decoded; the handler did not run.
        Decode = "decode" | "decode_fail",
        /// The message lacks what the handler needs (a header, a key); the handler did not run.
        Malformed = "malformed",
        /// The message exceeds a size limit; the handler did not run.
        Oversize = "oversize",
    }
}

words! {
    /// Reason why a message was given up.
    ///
    /// A retry record has the reason that its message would die of, which is `exhausted`.
    Reason("reason") {
        /// The error was classified permanent.
        Permanent = "permanent" | "unrecoverable" | "terminal" | "panic" | "decode_fail",
        /// Every attempt that the policy grants was made.
        Exhausted = "exhausted" | "retries_exhausted" | "max_retries",
        /// The process died too often while the message was being handled.
        MaxCrashes = "max_crashes",
        /// The letter was sent back too often.
        MaxReplays = "max_replays" | "max_replay_attempts",
        /// Its error is one that an operator named as never to be retried.
        TerminalError = "terminal_error",
        /// A consumer that is not ours ran out of deliveries.
        MaxDeliveries = "max_deliveries" | "MaxDeliveryCountExceeded",
        /// The message was too old to be handled.
        Expired = "expired" | "TTLExpiredException",
        /// No handler takes the message.
        Rejected = "rejected",
        /// An operator or the application said so.
        Manual = "manual",
    }
}

impl Default for ErrorClass {
    /// Returns `Transient`: an unclassified error is retried rather than given up.
    fn default() -> Self {
        Self::Transient
    }
}

/// The judgement on an error: its class, and when the other side asked to be tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Classification {
    /// Class of the error.
    pub class: ErrorClass,
    /// Delay that the failing side asked for. Overrides the policy's own delay, up to the longest that the
    /// [policy](crate::RetryPolicy::with_max_retry_after) permits.
    pub retry_after: Option<Duration>,
}

impl Classification {
    /// Retry, by the policy's delay.
    pub const fn transient() -> Self {
        Self { class: ErrorClass::Transient, retry_after: None }
    }

    /// Do not retry.
    pub const fn permanent() -> Self {
        Self { class: ErrorClass::Permanent, retry_after: None }
    }

    /// Retry after the given time instead of the policy's delay.
    pub const fn after(mut self, retry_after: Duration) -> Self {
        self.retry_after = Some(retry_after);
        self
    }
}

/// Errors that know their own class; what `#[derive(Classify)]` implements.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not classified",
    note = "derive it with `#[derive(Classify)]`, or name a classifier: `ClassifyLayer::new(|error: &{Self}| …)`"
)]
pub trait Classify {
    /// Judges this error.
    fn classify(&self) -> Classification;

    /// An identity for grouping that the error claims for itself. Defaults to none.
    fn group(&self) -> Option<String> {
        None
    }
}

/// Judges errors of type `E`. Implemented by closures that return a [`Classification`] or an [`ErrorClass`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not judge errors of type `{E}`",
    label = "the errors of this handler are not classified",
    note = "derive it with `#[derive(Classify)]` on `{E}`, or name a classifier: `ClassifyLayer::new(|error: &{E}| …)`, which returns an `ErrorClass` or a `Classification`"
)]
pub trait Classifier<E: ?Sized> {
    /// Judges one error.
    fn classify(&self, error: &E) -> Classification;

    /// Returns the kind of problem. Defaults to [`Cause::Error`].
    fn cause(&self, error: &E) -> Cause {
        let _ = error;
        Cause::Error
    }

    /// The name of the error's type, for the record. Defaults to that of `E`.
    fn type_name(&self, error: &E) -> &'static str {
        let _ = error;
        std::any::type_name::<E>()
    }

    /// Returns the place where the error arose, as `file:line:column`, if known. Defaults to nothing.
    fn location(&self, error: &E) -> Option<String> {
        let _ = error;
        None
    }

    /// An identity for grouping that the error claims for itself. Defaults to none.
    fn group(&self, error: &E) -> Option<String> {
        let _ = error;
        None
    }

    /// The backtrace that the error carries, if it does. Defaults to none.
    fn backtrace(&self, error: &E) -> Option<String> {
        let _ = error;
        None
    }
}

impl<E: ?Sized, F, R> Classifier<E> for F
where
    F: Fn(&E) -> R,
    R: Into<Classification>,
{
    fn classify(&self, error: &E) -> Classification {
        self(error).into()
    }
}

impl From<ErrorClass> for Classification {
    fn from(class: ErrorClass) -> Self {
        Self { class, retry_after: None }
    }
}

/// Texts longer than this many bytes are cut in a [`Failure`], with a mark, so that no letter is refused for its
/// error (G8).
pub const MAX_TEXT: usize = 8 * 1024;
/// Source chains longer than this are cut in a [`Failure`], with a mark.
pub const MAX_CHAIN: usize = 16;

/// Failure of an attempt, complete enough to be read weeks later, without the process that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct Failure {
    /// Class of the failure: whether another attempt could succeed.
    pub class: ErrorClass,
    /// Kind of problem.
    pub cause: Cause,
    /// The type of the error value, as `std::any::type_name` gives it.
    pub error_type: String,
    /// The error's message, then the message of each of its sources. Never empty.
    pub messages: Vec<String>,
    /// Place where the error was turned into a failure: `file:line:column`.
    pub location: Option<String>,
    /// When the attempt ended. The epoch until [`timed`](Self::timed) sets it.
    pub at: Timestamp,
    /// Duration of the attempt. Zero until [`timed`](Self::timed) sets it.
    #[serde(with = "duration_nanos", rename = "duration_ns")]
    pub duration: Duration,
    /// Delay that the failing side asked for.
    #[serde(
        with = "option_duration_nanos",
        rename = "retry_after_ns",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub retry_after: Option<Duration>,
    /// An identity that the error itself claims, for grouping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The backtrace, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backtrace: Option<String>,
}

impl Failure {
    /// A failure with one message. Time and duration are set by [`Failure::timed`].
    pub fn new(
        class: impl Into<Classification>,
        cause: Cause,
        error_type: impl Into<String>,
        message: &str,
    ) -> Self {
        Self::with_messages(class.into(), cause, error_type.into(), vec![bounded(message)])
    }

    fn with_messages(
        judged: Classification,
        cause: Cause,
        error_type: String,
        messages: Vec<String>,
    ) -> Self {
        Self {
            class: judged.class,
            cause,
            // Names of generic types can be of any length.
            error_type: cut(error_type),
            messages,
            location: None,
            at: Timestamp::EPOCH,
            duration: Duration::ZERO,
            retry_after: judged.retry_after,
            group: None,
            backtrace: None,
        }
    }

    /// The failure that `error` is: its type, its message and those of its whole source chain, bounded.
    #[track_caller]
    pub fn from_error<E: Error + ?Sized>(class: impl Into<Classification>, error: &E) -> Self {
        let failure = Self::of_type(class, std::any::type_name::<E>(), error);
        // The location is asked for here and not in a closure, which would be its own caller.
        failure.with_location(Location::caller().to_string())
    }

    /// The same of an error whose type is known otherwise, as it is of an erased one, and without a location.
    pub fn of_type<E: Error + ?Sized>(
        class: impl Into<Classification>,
        error_type: impl Into<String>,
        error: &E,
    ) -> Self {
        let mut messages = vec![text_of(error)];
        let mut source = error.source();
        while let Some(cause) = source {
            // An error may be its own source, in which case only this bound ends the chain.
            if messages.len() == MAX_CHAIN {
                messages.push("… more sources were cut".to_owned());
                break;
            }
            messages.push(text_of(cause));
            source = cause.source();
        }
        Self::with_messages(class.into(), Cause::Error, error_type.into(), messages)
    }

    /// Sets the cause.
    pub fn with_cause(mut self, cause: Cause) -> Self {
        self.cause = cause;
        self
    }

    /// Sets where it happened.
    pub fn with_location(mut self, location: impl Into<String>) -> Self {
        self.location = Some(location.into());
        self
    }

    /// Sets when the attempt ended and how long it took.
    pub fn timed(mut self, at: Timestamp, duration: Duration) -> Self {
        self.at = at;
        self.duration = duration;
        self
    }

    /// The error's own message, without its sources.
    #[must_use]
    pub fn message(&self) -> &str {
        self.messages.first().map_or("", String::as_str)
    }

    /// Message and sources in one line each, joined by `: `.
    #[must_use]
    pub fn report(&self) -> String {
        self.messages.join(": ")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.class, self.cause, self.report())
    }
}

/// Formats an error; an error whose `Display` fails or writes without end still yields a bounded text.
fn text_of<E: fmt::Display + ?Sized>(error: &E) -> String {
    let mut text = Bounded(String::new());
    // The writer refuses once it is full, which `Display` reports as an error: what was written stands.
    let _ = fmt::write(&mut text, format_args!("{error}"));
    cut(text.0)
}

struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Four bytes above the bound: a text that is cut between two characters is still longer than the bound, so that the
        // function `cut` marks it.
        let room = (MAX_TEXT + 4).saturating_sub(self.0.len());
        let cut = floor_boundary(text, room);
        self.0.push_str(&text[..cut]);
        if cut < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

fn floor_boundary(text: &str, limit: usize) -> usize {
    let mut cut = limit.min(text.len());
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    cut
}

/// Cuts a text to [`MAX_TEXT`] bytes and marks the cut. The mark comes on top, so a text that was cut is a little
/// longer. Cuts between characters.
#[must_use]
pub fn bounded(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let cut = floor_boundary(text, MAX_TEXT);
    format!("{} … cut", &text[..cut])
}

/// The same of a text that is ours.
fn cut(text: String) -> String {
    if text.len() <= MAX_TEXT { text } else { bounded(&text) }
}

/// A run of the handler that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Number of the run, counted from 1 within its generation.
    pub number: u32,
    /// Number of times that the message had died before this run.
    pub generation: u32,
    /// Failure of the run.
    pub failure: Failure,
}

/// Every attempt at a message, oldest first, across delayed_retries, deaths and replays.
///
/// Bounded: past [`History::MAX`] attempts those in the middle are dropped and counted, so that the first and the
/// latest ones stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Shared with the copies, of which a message has many on its way; `None` when there are none.
    #[serde(with = "attempts")]
    attempts: Option<Arc<Vec<Attempt>>>,
    #[serde(default)]
    omitted: u64,
}

impl History {
    /// Number of attempts that are kept in full.
    pub const MAX: usize = 100;
    // The oldest attempts are never dropped, since they show how the trouble began.
    const FIRST: usize = 10;

    /// No attempt yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { attempts: None, omitted: 0 }
    }

    /// Adds the latest attempt. Adding an attempt that is already the latest changes nothing.
    ///
    /// If there are [`MAX`](Self::MAX) attempts, one is dropped and counted as [omitted](Self::omitted).
    pub fn push(&mut self, attempt: Attempt) {
        let Some(attempts) = &mut self.attempts else {
            self.attempts = Some(Arc::new(vec![attempt]));
            return;
        };
        if attempts.last() == Some(&attempt) {
            return;
        }
        let attempts = Arc::make_mut(attempts);
        if attempts.len() == Self::MAX {
            attempts.remove(Self::FIRST);
            self.omitted += 1;
        }
        attempts.push(attempt);
    }

    /// Drops backtraces and cuts every text to `limit` bytes, with a mark. The number of attempts stays.
    pub fn shorten(&mut self, limit: usize) {
        let is_short = |Attempt { failure, .. }: &Attempt| {
            let named = failure.group.iter().chain(&failure.location);
            let mut texts = failure.messages.iter().chain([&failure.error_type]).chain(named);
            failure.backtrace.is_none() && texts.all(|text| text.len() <= limit)
        };
        let Some(attempts) = &mut self.attempts else { return };
        // To cut is to copy a history that others share, so it is looked at before.
        if attempts.iter().all(is_short) {
            return;
        }
        for attempt in Arc::make_mut(attempts) {
            let failure = &mut attempt.failure;
            failure.backtrace = None;
            let named = failure.group.iter_mut().chain(&mut failure.location);
            for text in failure.messages.iter_mut().chain([&mut failure.error_type]).chain(named) {
                if text.len() > limit {
                    text.truncate(floor_boundary(text, limit));
                    text.push('…');
                }
            }
        }
    }

    /// Drops one attempt from the middle; `false` when only the first and the last are left.
    pub(crate) fn drop_middle(&mut self) -> bool {
        let Some(attempts) = self.attempts.as_mut().filter(|attempts| attempts.len() > 2) else {
            return false;
        };
        // The first attempt tells how it began and the last one why it ended, so both are kept longest.
        let middle = attempts.len() / 2;
        Arc::make_mut(attempts).remove(middle);
        self.omitted += 1;
        true
    }

    /// The attempts that are kept, oldest first.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        self.attempts.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Returns the number of attempts that were dropped from the middle.
    #[must_use]
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// Returns the number of attempts, including dropped ones.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.attempts().len() as u64 + self.omitted
    }

    /// Returns true if there was no attempt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.attempts().is_empty()
    }

    /// The latest failure.
    #[must_use]
    pub fn last(&self) -> Option<&Failure> {
        self.attempts().last().map(|attempt| &attempt.failure)
    }

    /// The first failure.
    #[must_use]
    pub fn first(&self) -> Option<&Failure> {
        self.attempts().first().map(|attempt| &attempt.failure)
    }
}

mod attempts {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Attempt;

    type Attempts = Option<Arc<Vec<Attempt>>>;

    pub(super) fn serialize<S: Serializer>(attempts: &Attempts, s: S) -> Result<S::Ok, S::Error> {
        attempts.as_deref().map_or(&[][..], Vec::as_slice).serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Attempts, D::Error> {
        let attempts = Vec::deserialize(d)?;
        // An empty history is `None` everywhere, so that two empty ones are equal.
        Ok((!attempts.is_empty()).then(|| Arc::new(attempts)))
    }
}

pub(crate) mod duration_nanos {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_nanos)
    }
}

pub(crate) mod option_duration_nanos {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(|d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(d)?.map(Duration::from_nanos))
    }
}
