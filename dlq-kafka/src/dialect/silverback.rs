//! Silverback.

use super::Dialect;
use super::errors::{ErrorNames, Thrown};
use super::fields::{Coordinates, Fields};
use super::story::Story;
use super::values;

const COORDINATES: Coordinates = Coordinates {
    topic: "x-source-topic",
    partition: "x-source-partition",
    offset: "x-source-offset",
    partition_as: values::decimal,
    offset_as: values::decimal,
};

const ATTEMPTS: &str = "x-failed-attempts";
const FAILURE: &str = "x-failure-reason";
const ERRORS: ErrorNames = ErrorNames {
    start: &[FAILURE],
    types: &[],
    messages: &[FAILURE],
    traces: &[],
    thrown: Thrown::Stated,
};

/// Reads the headers, which replace those of an earlier death.
pub(super) fn read<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    if !fields.has(ATTEMPTS) && !fields.has(FAILURE) {
        return None;
    }
    let hops = fields.hops(&COORDINATES)?;
    let mut story = Story::new(Some(Dialect::Silverback), fields).at(&hops);
    let fields = &mut story.fields;
    story.consumer = fields.get("x-source-consumer-group-id", values::text);
    story.attempts = fields.get(ATTEMPTS, values::decimal_count);
    story.published_at = fields.get("x-source-timestamp", values::time);
    story.errors = fields.errors(&ERRORS);
    Some(story)
}

pub(super) fn owns(name: &[u8]) -> bool {
    let names: [&[u8]; 8] = [
        b"x-failed-attempts",
        b"x-failure-reason",
        b"x-source-consumer-group-id",
        b"x-source-topic",
        b"x-source-partition",
        b"x-source-offset",
        b"x-source-timestamp",
        b"x-kafka-message-timestamp",
    ];
    names.contains(&name)
}
