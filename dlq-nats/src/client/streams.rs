//! The streams that are ours: [`DlqStream`] for the dead, [`RetryStream`] for those that wait for their next attempt.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, Info, PersistenceMode, RetentionPolicy, StorageType, SubjectTransform,
};
use dlq_core::policy::duration;
use serde::{Deserialize, Serialize};

use crate::client::bounds;
use crate::client::difference::{Differences, word};
use crate::client::error::SetupError;
use crate::client::names::{tail, token};
use crate::client::no_leader::asked;
use crate::client::permissions::unanswered;

/// Advisories of messages that were handed out as often as the consumer allows.
pub(crate) const MAX_DELIVERIES: &str = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>";
/// Advisories of messages that a consumer refused for good, or that were deleted before it acknowledged them.
pub(crate) const TERMINATED: &str = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The stream that keeps dead letters: a file-backed stream with limits retention, named `DLQ` unless told otherwise.
///
/// A letter for `orders.created` is published to `dlq.orders.created`. It is kept for 30 days and then removed by the
/// server, resolved or not: where that is too short, say so here or have a store beside it.
///
/// The stream is created when it is not there. One that exists with other settings is reported, never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[must_use]
pub struct DlqStream {
    pub(crate) name: String,
    pub(crate) prefix: String,
    #[serde(with = "duration")]
    pub(crate) max_age: Duration,
    pub(crate) replicas: usize,
    #[serde(with = "duration")]
    pub(crate) duplicate_window: Duration,
}

impl DlqStream {
    /// The stream `DLQ` of subjects `dlq.>`, one replica, 30 days, a duplicate window of 2 minutes.
    pub fn new() -> Self {
        Self {
            name: "DLQ".to_owned(),
            prefix: "dlq".to_owned(),
            max_age: 30 * DAY,
            replicas: 1,
            duplicate_window: Duration::from_secs(120),
        }
    }

    /// Sets its name. Defaults to `DLQ`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets what its subjects begin with. Defaults to `dlq`. What does not fit in one message stands under
    /// `PREFIX-aside`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets for how long letters are kept; zero is for ever. Defaults to 30 days.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = age;
        self
    }

    /// Sets how many servers keep it. Defaults to 1; production wants 3.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets for how long the server refuses a second copy of a letter. Defaults to 2 minutes. Copies beyond it are told
    /// apart by nobody and collapsed by readers. The server remembers every letter of that time, some 200 bytes each.
    pub fn duplicate_window(mut self, window: Duration) -> Self {
        self.duplicate_window = window;
        self
    }

    pub(crate) fn config(&self) -> Config {
        Config {
            name: self.name.clone(),
            subjects: vec![format!("{}.>", self.prefix), format!("{}-aside.>", self.prefix)],
            retention: RetentionPolicy::Limits,
            max_age: self.max_age,
            duplicate_window: within(self.duplicate_window, self.max_age),
            ..base(self.replicas)
        }
    }
}

impl Default for DlqStream {
    fn default() -> Self {
        Self::new()
    }
}

/// The stream in which messages wait for their next attempt: a file-backed work queue, named `DLQ_RETRY` unless told
/// otherwise. All consumers share it, and each hears its own part only.
///
/// Servers of version 2.12 and later hand a record out when it is due; whether they do is read from what the server
/// answers, since older ones ignore the setting in silence. With these the record is fetched at once and given back
/// until it is due, which costs the server memory for each that waits.
///
/// The stream is created when it is not there. One that exists with other settings is reported, never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[must_use]
pub struct RetryStream {
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) replicas: usize,
    #[serde(with = "duration")]
    pub(crate) duplicate_window: Duration,
    pub(crate) schedules: bool,
}

impl RetryStream {
    /// The stream `DLQ_RETRY` of subjects `retry.>`, one replica, a duplicate window of 10 minutes.
    pub fn new() -> Self {
        Self {
            name: "DLQ_RETRY".to_owned(),
            prefix: "retry".to_owned(),
            replicas: 1,
            duplicate_window: Duration::from_secs(600),
            schedules: true,
        }
    }

    /// Sets its name. Defaults to `DLQ_RETRY`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets what its subjects begin with. Defaults to `retry`. Records that wait stand under `PREFIX-at`,
    /// what does not fit in one message under `PREFIX-aside`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how many servers keep it. Defaults to 1; production wants 3.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets for how long the server knows that a hop was written. Defaults to 10 minutes; it should be well above the
    /// lease, since a process that dies after it wrote a record writes it again when the message comes again.
    pub fn duplicate_window(mut self, window: Duration) -> Self {
        self.duplicate_window = window;
        self
    }

    /// Does not use the server's schedules even if it has them.
    pub fn without_schedules(mut self) -> Self {
        self.schedules = false;
        self
    }

    pub(crate) fn config(&self) -> Config {
        Config {
            name: self.name.clone(),
            subjects: ["", "-at", "-aside"].map(|part| format!("{}{part}.>", self.prefix)).to_vec(),
            retention: RetentionPolicy::WorkQueue,
            duplicate_window: self.duplicate_window,
            allow_message_schedules: self.schedules,
            // Servers refuse schedules together with the other policy. It makes no difference without bounds.
            discard: DiscardPolicy::Old,
            ..base(self.replicas)
        }
    }

    /// Returns the subject at which the consumer of this name receives a message that was addressed to `subject`.
    pub(crate) fn subject_for(&self, consumer: &str, subject: &str) -> String {
        format!("{}.{}.{}", self.prefix, token(consumer), tail(subject))
    }

    /// The subjects of the consumer of this name.
    pub(crate) fn queue(&self, consumer: &str) -> [String; 3] {
        let consumer = token(consumer);
        ["", "-at", "-aside"].map(|part| format!("{}{part}.{consumer}.>", self.prefix))
    }

    /// Returns true if records can be left with the server until they are due.
    pub(crate) fn schedules(&self, info: &Info) -> bool {
        self.schedules && info.config.allow_message_schedules
    }
}

impl Default for RetryStream {
    fn default() -> Self {
        Self::new()
    }
}

/// The stream that keeps what servers say of messages they gave up, for the
/// [event router](crate::EventRouter): a file-backed stream with limits retention, named `DLQ_ADVISORY` unless told
/// otherwise.
///
/// The stream is created when it is not there. One that exists with other settings is reported, never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[must_use]
pub struct AdvisoryStream {
    pub(crate) name: String,
    #[serde(with = "duration")]
    pub(crate) max_age: Duration,
    pub(crate) replicas: usize,
}

impl AdvisoryStream {
    /// The stream `DLQ_ADVISORY`, one replica, 7 days.
    pub fn new() -> Self {
        Self { name: "DLQ_ADVISORY".to_owned(), max_age: 7 * DAY, replicas: 1 }
    }

    /// Sets its name. Defaults to `DLQ_ADVISORY`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets for how long advisories are kept for a router that does not run. Defaults to 7 days.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = age;
        self
    }

    /// Sets how many servers keep it. Defaults to 1; production wants 3.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    pub(crate) fn config(&self) -> Config {
        Config {
            name: self.name.clone(),
            subjects: vec![MAX_DELIVERIES.to_owned(), TERMINATED.to_owned()],
            retention: RetentionPolicy::Limits,
            max_age: self.max_age,
            duplicate_window: within(Duration::from_secs(120), self.max_age),
            ..base(self.replicas)
        }
    }
}

impl Default for AdvisoryStream {
    fn default() -> Self {
        Self::new()
    }
}

/// Nothing is bounded, so that nothing is evicted; and where an operator sets a bound, writing fails and nothing is lost.
pub(crate) fn base(replicas: usize) -> Config {
    Config {
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        num_replicas: replicas,
        allow_direct: true,
        max_messages: -1,
        max_bytes: -1,
        max_messages_per_subject: -1,
        max_consumers: -1,
        ..Config::default()
    }
}

/// Creates the stream, or sees that the one that is there will do.
pub(crate) async fn ensure(context: &Context, wanted: &Config) -> Result<Info, SetupError> {
    if let Some(info) = find(context, &wanted.name).await? {
        return check(context, info, wanted);
    }
    let what = format!("create stream `{}`", wanted.name);
    match context.create_stream(wanted.clone()).await {
        // The server's echo is checked: a server that does not know a setting ignores it.
        Ok(stream) => check(context, stream.cached_info().clone(), wanted),
        Err(error) => {
            // Another process may have been faster.
            if let Some(info) = find(context, &wanted.name).await? {
                return check(context, info, wanted);
            }
            Err(match error.kind() {
                CreateStreamErrorKind::JetStream(answer) => SetupError::answered(&what, answer),
                CreateStreamErrorKind::EmptyStreamName
                | CreateStreamErrorKind::InvalidStreamName => {
                    SetupError::Config(format!("{what}: {error}"))
                }
                _ => SetupError::unavailable(format!("{what}: {error}"), error),
            })
        }
    }
}

/// The same of a stream that was there before: where somebody has deleted it, it is said aloud that what it kept is lost.
pub(crate) async fn anew(context: &Context, wanted: &Config) -> Result<Info, SetupError> {
    if find(context, &wanted.name).await?.is_none() {
        tracing::error!(
            stream = wanted.name,
            "the stream was deleted, and with it all that it kept: it is created again, empty"
        );
    }
    ensure(context, wanted).await
}

/// The longest window that a server takes: none is longer than messages are kept, and an age of zero keeps them for ever.
fn within(window: Duration, max_age: Duration) -> Duration {
    if max_age.is_zero() { window } else { window.min(max_age) }
}

/// The stream of this name; `None` when there is none.
pub(crate) async fn find(context: &Context, name: &str) -> Result<Option<Info>, SetupError> {
    let what = format!("look for stream `{name}`");
    // The question is repeated, since a stream that another process is creating has no leader yet.
    match asked(|| context.get_stream(name)).await {
        Ok(stream) => Ok(Some(stream.cached_info().clone())),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(answer)
                if answer.error_code() == async_nats::jetstream::ErrorCode::STREAM_NOT_FOUND =>
            {
                Ok(None)
            }
            GetStreamErrorKind::JetStream(answer) => Err(SetupError::answered(&what, answer)),
            GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => {
                Err(SetupError::Config(format!("{what}: {error}")))
            }
            GetStreamErrorKind::Request => {
                let subject = format!("$JS.API.STREAM.INFO.{name}");
                let why = unanswered(&context.client(), &subject);
                Err(SetupError::unavailable(format!("{what}: {why}"), error))
            }
        },
    }
}

fn check(context: &Context, info: Info, wanted: &Config) -> Result<Info, SetupError> {
    let wrong = differences(&info.config, wanted, context.client().max_payload());
    if wrong.0.is_empty() {
        return Ok(info);
    }
    Err(SetupError::Config(format!(
        "stream `{}` exists with other settings: {wrong}; change the stream, or ask for what it has",
        wanted.name
    )))
}

/// Returns the differences that keep a stream from being one of ours, at servers that take messages as large as
/// `max_payload`.
pub(crate) fn differences(found: &Config, wanted: &Config, max_payload: usize) -> Differences {
    let mut wrong = settings(found, wanted);
    wrong.see("discard", word(&found.discard), word(&wanted.discard));
    // A stream that confirms nothing, takes nothing, or follows another one can keep no letters.
    wrong.see("no_ack", word(&found.no_ack), word(&false));
    wrong.see("sealed", word(&found.sealed), word(&false));
    wrong.see("mirror", word(&found.mirror.is_some()), word(&false));
    breaks_its_word(found, &mut wrong);
    for (setting, bound) in bounds::evicting(found) {
        let why = if found.discard == DiscardPolicy::Old {
            "with `discard` Old it would lose what it keeps"
        } else {
            "without `discard_new_per_subject` it would lose what it keeps, whatever `discard` says"
        };
        wrong.why(setting, bound.to_string(), "-1".to_owned(), why);
    }
    let most = usize::try_from(found.max_message_size).unwrap_or(0);
    // What the server itself writes is small.
    let is_of_letters = !wanted.subjects.iter().all(|subject| subject.starts_with("$JS."));
    if is_of_letters && (1..max_payload).contains(&most) {
        let why = "since letters have more headers than their messages, and parts of what is too large are as large as \
                   `max_payload`";
        wrong.why("max_msg_size", most.to_string(), "-1".to_owned(), why);
    }
    wrong
}

/// Adds settings by which a stream confirms messages that it may not keep, or keeps where nobody looks for them.
pub(crate) fn breaks_its_word(found: &Config, wrong: &mut Differences) {
    let mode = found.persist_mode.unwrap_or_default();
    let why = "since it confirms what it does not keep yet";
    wrong.why("persist_mode", word(&mode), word(&PersistenceMode::Default), why);
    let none = || "none".to_owned();
    let to = |by: &SubjectTransform| format!("{} to {}", by.source, by.destination);
    let transform = found.subject_transform.as_ref().map_or_else(none, to);
    let why = "since what is written would stand where nobody looks for it";
    wrong.why("subject_transform", transform, none(), why);
}

/// Returns the settings of a stream that differ from the wanted ones.
pub(crate) fn settings(found: &Config, wanted: &Config) -> Differences {
    let mut wrong = Differences::default();
    let sorted = |subjects: &[String]| {
        let mut subjects = subjects.to_vec();
        subjects.sort_unstable();
        subjects.join(", ")
    };
    wrong.see("subjects", sorted(&found.subjects), sorted(&wanted.subjects));
    wrong.see("retention", word(&found.retention), word(&wanted.retention));
    wrong.see("storage", word(&found.storage), word(&wanted.storage));
    let age = |age: Duration| if age.is_zero() { "none".to_owned() } else { duration::format(age) };
    wrong.see("max_age", age(found.max_age), age(wanted.max_age));
    wrong.see("num_replicas", word(&found.num_replicas), word(&wanted.num_replicas));
    wrong.see("duplicate_window", word(&found.duplicate_window), word(&wanted.duplicate_window));
    wrong
}
