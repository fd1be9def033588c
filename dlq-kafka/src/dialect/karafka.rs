//! Karafka Pro.

use super::Dialect;
use super::fields::{Coordinates, Fields};
use super::story::Story;
use super::values;

const COORDINATES: Coordinates = Coordinates {
    topic: "source_topic",
    partition: "source_partition",
    offset: "source_offset",
    partition_as: values::decimal,
    offset_as: values::decimal,
};

/// Reads the headers, which say nothing of the error. Records that were merely piped have no attempts.
pub(super) fn read<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    let hops = fields.hops(&COORDINATES)?;
    let group = fields.get("source_consumer_group", values::text)?;
    let attempts = fields.get("source_attempts", values::decimal_count)?;
    let mut story = Story::new(Some(Dialect::Karafka), fields).at(&hops);
    story.consumer = Some(group);
    story.attempts = Some(attempts);
    Some(story)
}

pub(super) fn owns(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(b"source_") else { return false };
    matches!(
        rest,
        b"topic" | b"partition" | b"offset" | b"consumer_group" | b"attempts" | b"trace_id"
    )
}
