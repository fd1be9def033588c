//! The dead-letter queue of Kafka Connect's sinks.

use dlq_core::{Cause, ErrorClass, Reason};

use super::Dialect;
use super::errors::{ErrorNames, Thrown};
use super::fields::{Coordinates, Fields};
use super::story::Story;
use super::values;

const COORDINATES: Coordinates = Coordinates {
    topic: "__connect.errors.topic",
    partition: "__connect.errors.partition",
    offset: "__connect.errors.offset",
    partition_as: values::decimal,
    offset_as: values::decimal,
};

const CLASS: &str = "__connect.errors.exception.class.name";

const ERRORS: ErrorNames = ErrorNames {
    start: &[CLASS],
    types: &[CLASS],
    messages: &["__connect.errors.exception.message"],
    traces: &["__connect.errors.exception.stacktrace"],
    thrown: Thrown::Stated,
};

/// Reads the headers, which are there only if the connector was told to write them.
pub(super) fn read<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    let hops = fields.hops(&COORDINATES)?;
    let mut story = Story::new(Some(Dialect::Connect), fields).at(&hops);
    let fields = &mut story.fields;
    story.generation = hops.before();
    // Connect writes the dead letter with the timestamp of the record that died.
    story.keeps_time = true;
    story.consumer = fields.get("__connect.errors.connector.name", values::text);
    // Stays unread, so that it is kept beside the letter.
    let stage = fields.peek("__connect.errors.stage");
    let is_undecoded = stage.is_some_and(|stage| stage.ends_with("_CONVERTER"));
    story.cause = is_undecoded.then_some(Cause::Decode);
    // Connect retries this class alone, until `errors.retry.timeout` is over.
    let is_retried =
        fields.peek(CLASS) == Some("org.apache.kafka.connect.errors.RetriableException");
    story.verdict = is_retried.then_some((ErrorClass::Transient, Reason::Exhausted));
    story.errors = fields.errors(&ERRORS);
    Some(story)
}

pub(super) fn owns(name: &[u8]) -> bool {
    name.starts_with(b"__connect.errors.")
}
