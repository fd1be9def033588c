//! The Kafka binder of Spring Cloud Stream.

use super::Dialect;
use super::errors::{ErrorNames, Thrown};
use super::fields::{Coordinates, Fields};
use super::story::Story;
use super::values;

const COORDINATES: Coordinates = Coordinates {
    topic: "x-original-topic",
    partition: "x-original-partition",
    offset: "x-original-offset",
    partition_as: values::i32,
    offset_as: values::i64,
};

const CLASS: &str = "x-exception-fqcn";

const ERRORS: ErrorNames = ErrorNames {
    start: &[CLASS],
    types: &[CLASS],
    messages: &["x-exception-message"],
    traces: &["x-exception-stacktrace"],
    thrown: Thrown::LastCause,
};

/// Reads the headers. The class is that of a wrapper; what was thrown is in the stack trace only, and the group in
/// nothing but the name of the topic, where that is the default one.
pub(super) fn read<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    // Producers use names like these themselves.
    fields.peek(CLASS)?;
    let hops = fields.hops(&COORDINATES)?;
    let mut story = Story::new(Some(Dialect::SpringCloudStream), fields).at(&hops);
    let fields = &mut story.fields;
    story.generation = hops.before();
    story.published_at = fields.birth_time("x-original-timestamp", &hops, values::i64);
    // The binder names the topic `error.<destination>.<group>` unless told otherwise.
    let dead = fields.record.topic.strip_prefix("error.");
    let group = dead.and_then(|rest| rest.strip_prefix(hops.newest().topic)?.strip_prefix('.'));
    story.consumer = group.filter(|group| !group.is_empty());
    story.errors = fields.errors(&ERRORS);
    Some(story)
}

pub(super) fn owns(name: &[u8]) -> bool {
    name.starts_with(b"x-original-") && {
        matches!(
            &name[11..],
            b"topic" | b"partition" | b"offset" | b"timestamp" | b"timestamp-type"
        )
    } || name.starts_with(b"x-exception-")
        && matches!(&name[12..], b"fqcn" | b"message" | b"stacktrace")
}
