//! The dead-letter queue that brokers keep for share groups.

use dlq_core::{ErrorClass, Reason};

use super::Dialect;
use super::errors::{ErrorNames, Thrown};
use super::fields::{Coordinates, Fields};
use super::story::Story;
use super::values;

const COORDINATES: Coordinates = Coordinates {
    topic: "__dlq.errors.topic",
    partition: "__dlq.errors.partition",
    offset: "__dlq.errors.offset",
    partition_as: values::decimal,
    offset_as: values::decimal,
};

const MESSAGE: &str = "__dlq.errors.message";
const ERRORS: ErrorNames = ErrorNames {
    start: &[MESSAGE],
    types: &[],
    messages: &[MESSAGE],
    traces: &[],
    thrown: Thrown::Stated,
};

/// Reads the headers. Without key and value the record is not a tombstone but points to the one that died: brokers copy
/// only when they are told to, and never the producer's headers.
pub(super) fn read<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    let hops = fields.hops(&COORDINATES)?;
    let group = fields.get("__dlq.errors.group", values::text)?;
    let mut story = Story::new(Some(Dialect::ShareGroup), fields).at(&hops);
    let fields = &mut story.fields;
    story.generation = hops.before();
    story.consumer = Some(group);
    let deliveries = fields.get("__dlq.errors.delivery.count", values::decimal_count);
    story.deliveries = deliveries.unwrap_or(0);
    // The brokers say the reason by one of these two texts and by nothing else.
    story.verdict = match fields.peek(MESSAGE) {
        Some("Offset rejected by client.") => Some((ErrorClass::Permanent, Reason::Permanent)),
        Some("Offset delivery count exceeded the threshold.") => {
            Some((ErrorClass::Transient, Reason::MaxDeliveries))
        }
        _ => None,
    };
    story.errors = fields.errors(&ERRORS);
    story.is_pointer = fields.record.value.is_none() && fields.record.key.is_none();
    Some(story)
}

pub(super) fn owns(name: &[u8]) -> bool {
    name.starts_with(b"__dlq.errors.")
}
