//! SmallRye Reactive Messaging, and with it Quarkus: dead-letter queue and delayed retry.
//!
//! Both put their headers before those of the record, so that the first ones are the latest.

use dlq_core::Cause;

use super::Dialect;
use super::errors::{ErrorNames, Thrown};
use super::fields::{Coordinates, Fields};
use super::story::Story;
use super::values;

const DEAD: Coordinates = Coordinates {
    topic: "dead-letter-topic",
    partition: "dead-letter-partition",
    offset: "dead-letter-offset",
    partition_as: values::decimal,
    offset_as: values::decimal,
};

const DEAD_ERRORS: ErrorNames = ErrorNames {
    start: &["dead-letter-exception-class-name"],
    types: &["dead-letter-exception-class-name", "dead-letter-cause-class-name"],
    messages: &["dead-letter-reason", "dead-letter-cause"],
    traces: &[],
    thrown: Thrown::Stated,
};

/// Reads what the dead-letter queue writes.
pub(super) fn dead<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    let hops = fields.hops(&DEAD)?;
    // Producers could use names like these themselves.
    fields.peek("dead-letter-reason")?;
    let mut story = Story::new(Some(Dialect::SmallRye), fields).at(&hops);
    let fields = &mut story.fields;
    story.generation = hops.before();
    story.errors = fields.errors(&DEAD_ERRORS);
    story.cause = is_undecoded(fields).then_some(Cause::Decode);
    Some(story)
}

const RETRIED: Coordinates = Coordinates {
    topic: "delayed-retry-topic",
    partition: "delayed-retry-partition",
    offset: "delayed-retry-offset",
    partition_as: values::decimal,
    offset_as: values::decimal,
};

const RETRIED_ERRORS: ErrorNames = ErrorNames {
    start: &["delayed-retry-exception-class-name"],
    types: &["delayed-retry-exception-class-name", "delayed-retry-cause-class-name"],
    messages: &["delayed-retry-reason", "delayed-retry-cause"],
    traces: &[],
    thrown: Thrown::Stated,
};

/// Reads what delayed retry writes, on its retry topics and on the dead-letter topic behind them. Its coordinates tell
/// of attempts, not of deaths. Count and times stand after the record's headers, and the last count is the latest.
pub(super) fn retried<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    let hops = fields.hops(&RETRIED)?;
    let mut story = Story::new(Some(Dialect::SmallRyeRetry), fields).at(&hops);
    let fields = &mut story.fields;
    // Oldest first means last first here.
    let counts = fields.series("delayed-retry-count", values::decimal_count);
    let retries = counts.first().copied().flatten();
    story.attempts = retries.map(|retries| retries.saturating_add(1));
    let created = fields.get("delayed-retry-original-timestamp", values::decimal);
    story.published_at = created.and_then(values::millis);
    story.errors = fields.errors(&RETRIED_ERRORS);
    story.cause = is_undecoded(fields).then_some(Cause::Decode);
    Some(story)
}

fn is_undecoded(fields: &Fields<'_>) -> bool {
    fields.has("deserialization-failure-reason")
        || fields.has("deserialization-failure-deserializer")
}

/// The names of [`dead`].
pub(super) fn owns_dead(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(b"dead-letter-") else {
        return name.starts_with(b"deserialization-failure-");
    };
    let names: [&[u8]; 7] = [
        b"exception-class-name",
        b"cause-class-name",
        b"reason",
        b"cause",
        b"topic",
        b"partition",
        b"offset",
    ];
    names.contains(&rest)
}

/// The names of [`retried`].
pub(super) fn owns_retried(name: &[u8]) -> bool {
    name.starts_with(b"delayed-retry-") || name.starts_with(b"deserialization-failure-")
}
