//! The dead-letter queue of Kafka Streams.

use super::Dialect;
use super::errors::ErrorNames;
use super::fields::{Coordinates, Fields};
use super::story::Story;
use super::values;

const COORDINATES: Coordinates = Coordinates {
    topic: "__streams.errors.topic",
    partition: "__streams.errors.partition",
    offset: "__streams.errors.offset",
    partition_as: values::decimal,
    offset_as: values::decimal,
};

const CLASS: &str = "__streams.errors.exception";

const ERRORS: ErrorNames = ErrorNames {
    start: &[CLASS],
    types: &[CLASS],
    messages: &["__streams.errors.message"],
    traces: &["__streams.errors.stacktrace"],
};

/// Reads the headers. What failed in a punctuator came from nowhere: no topic, and -1 for partition and offset.
pub(super) fn read<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    let hops = fields.hops(&COORDINATES);
    let is_punctuator = || {
        let number = |name| fields.peek(name).and_then(|text| values::decimal(text.as_bytes()));
        number(COORDINATES.partition) == Some(-1) && number(COORDINATES.offset) == Some(-1)
    };
    if hops.is_none() && !is_punctuator() {
        return None;
    }
    let mut story = Story::new(Some(Dialect::Streams), fields);
    let fields = &mut story.fields;
    story.errors = fields.errors(&ERRORS);
    story.keeps_time = true;
    if let Some(hops) = hops {
        story.generation = hops.before();
        story = story.at(&hops);
    }
    Some(story)
}

pub(super) fn owns(name: &[u8]) -> bool {
    name.starts_with(b"__streams.errors.")
}
