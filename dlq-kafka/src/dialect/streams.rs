//! The dead-letter queue of Kafka Streams.

use super::Dialect;
use super::errors::{ErrorNames, Thrown};
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

/// End of the names of the topics by which Streams hands records from one part of a topology to the next.
const REPARTITION: &str = "-repartition";

const CLASS: &str = "__streams.errors.exception";

const ERRORS: ErrorNames = ErrorNames {
    start: &[CLASS],
    types: &[CLASS],
    messages: &["__streams.errors.message"],
    traces: &["__streams.errors.stacktrace"],
    thrown: Thrown::Stated,
};

/// Reads the headers. What failed in a punctuator came from nowhere: no topic, and -1 for partition and offset. What failed
/// behind a repartition topic stood in that internal topic, with another key, and where it was born is not known.
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
    // Streams writes the dead letter with the timestamp of the record that died.
    story.keeps_time = true;
    if let Some(hops) = hops {
        story.generation = hops.before();
        story = story.at(&hops);
        // An internal topic is no birth: a letter that is sent back there would skip the first part of the topology.
        story.birth = story.birth.filter(|birth| !birth.topic.ends_with(REPARTITION));
    }
    Some(story)
}

pub(super) fn owns(name: &[u8]) -> bool {
    name.starts_with(b"__streams.errors.")
}
