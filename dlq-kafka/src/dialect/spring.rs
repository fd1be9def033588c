//! Spring Kafka: the recoverer that writes dead letters, alone and behind retry topics.

use dlq_core::{ErrorClass, Reason};

use super::Dialect;
use super::errors::{Error, ErrorNames, Thrown, is_one_of};
use super::fields::{Coordinates, Fields};
use super::story::Story;
use super::values;

/// Classes that Spring does not retry unless told otherwise.
const FATAL: &[&str] = &[
    "ClassCastException",
    "ConversionException",
    "DeserializationException",
    "MessageConversionException",
    "MethodArgumentResolutionException",
    "NoSuchMethodException",
];

/// The group has this name in both of Spring's dialects.
const GROUP: &str = "kafka_dlt-original-consumer-group";

const RECOVERED: Coordinates = Coordinates {
    topic: "kafka_dlt-original-topic",
    partition: "kafka_dlt-original-partition",
    offset: "kafka_dlt-original-offset",
    partition_as: values::i32,
    offset_as: values::i64,
};

const RECOVERED_ERRORS: ErrorNames = ErrorNames {
    start: &[
        "kafka_dlt-exception-fqcn",
        "kafka_dlt-exception-cause-fqcn",
        "kafka_dlt-key-exception-fqcn",
    ],
    types: &[
        "kafka_dlt-exception-cause-fqcn",
        "kafka_dlt-exception-fqcn",
        "kafka_dlt-key-exception-fqcn",
    ],
    messages: &["kafka_dlt-exception-message", "kafka_dlt-key-exception-message"],
    traces: &["kafka_dlt-exception-stacktrace", "kafka_dlt-key-exception-stacktrace"],
    thrown: Thrown::Stated,
};

/// Reads what `DeadLetterPublishingRecoverer` writes by itself: coordinates pile up, the last ones are the latest.
pub(super) fn recovered<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    let hops = fields.hops(&RECOVERED)?;
    let mut story = Story::new(Some(Dialect::Spring), fields).at(&hops);
    let fields = &mut story.fields;
    story.generation = hops.before();
    story.published_at = fields.birth_time("kafka_dlt-original-timestamp", &hops, values::i64);
    story.consumer = fields.get(GROUP, values::text);
    story.attempts = fields.get("kafka_deliveryAttempt", values::count);
    story.errors = fields.errors(&RECOVERED_ERRORS);
    story.verdict = story.errors.last().and_then(verdict);
    Some(story)
}

const RETRIED: Coordinates = Coordinates {
    topic: "kafka_original-topic",
    partition: "kafka_original-partition",
    offset: "kafka_original-offset",
    partition_as: values::i32,
    offset_as: values::i64,
};

const RETRIED_ERRORS: ErrorNames = ErrorNames {
    start: &["kafka_exception-fqcn", "kafka_exception-cause-fqcn", "kafka_key-exception-fqcn"],
    types: &["kafka_exception-cause-fqcn", "kafka_exception-fqcn", "kafka_key-exception-fqcn"],
    messages: &["kafka_exception-message", "kafka_key-exception-message"],
    traces: &["kafka_exception-stacktrace", "kafka_key-exception-stacktrace"],
    thrown: Thrown::Stated,
};

/// Reads what `@RetryableTopic` writes: coordinates once, retry state piling up. How often it died is not told.
pub(super) fn retried<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    let hops = fields.hops(&RETRIED)?;
    let mut story = Story::new(Some(Dialect::SpringRetry), fields).at(&hops);
    let fields = &mut story.fields;
    // The retry state has the time of the birth as well, and stands in where there is no time for every hop.
    let created = fields.birth_time("kafka_original-timestamp", &hops, values::i64);
    let noted = fields.get("retry_topic-original-timestamp", values::minimal);
    story.published_at = created.or(noted.and_then(values::millis));
    // This reading makes it count as known, so no attribute repeats it.
    fields.get("retry_topic-backoff-timestamp", values::minimal);
    story.consumer = fields.get(GROUP, values::text);
    // The header counts the attempt to come.
    let next = fields.get("retry_topic-attempts", values::count);
    story.attempts = next.map(|next| next.saturating_sub(1));
    story.errors = fields.errors(&RETRIED_ERRORS);
    story.verdict = story.errors.last().and_then(verdict);
    Some(story)
}

fn verdict(error: &Error<'_>) -> Option<(ErrorClass, Reason)> {
    let is_fatal = is_one_of(error.error_type, FATAL);
    is_fatal.then_some((ErrorClass::Permanent, Reason::Permanent))
}

/// The names of [`recovered`].
pub(super) fn owns_recovered(name: &[u8]) -> bool {
    name.starts_with(b"kafka_dlt-")
}

/// The names of [`retried`].
pub(super) fn owns_retried(name: &[u8]) -> bool {
    [&b"kafka_original-"[..], b"kafka_exception-", b"kafka_key-exception-", b"retry_topic-"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || name == GROUP.as_bytes()
}
