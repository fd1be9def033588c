//! Wolverine.

use super::Dialect;
use super::errors::{ErrorNames, Thrown};
use super::fields::{Fields, place};
use super::story::Story;
use super::values;

const DESTINATION: &str = "original-destination";
const CLASS: &str = "exception-type";

const ERRORS: ErrorNames = ErrorNames {
    start: &[CLASS],
    types: &[CLASS],
    messages: &["exception-message"],
    traces: &["exception-stack"],
    thrown: Thrown::Stated,
};

/// Reads the headers. The destination is an address that ends in the topic.
pub(super) fn read<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    fields.peek(CLASS)?;
    let partition = fields.get("original-partition", values::decimal);
    let offset = fields.get("original-offset", values::decimal);
    let birth = place(fields.get(DESTINATION, values::last_segment), partition, offset)?;
    let mut story = Story::new(Some(Dialect::Wolverine), fields);
    let fields = &mut story.fields;
    story.birth = Some(birth);
    story.newest = Some(birth);
    story.attempts = fields.get("attempts", values::decimal_count);
    story.failed_at = fields.get("failed-at", values::time);
    story.errors = fields.errors(&ERRORS);
    Some(story)
}

pub(super) fn owns(name: &[u8]) -> bool {
    let names: [&[u8]; 8] = [
        b"exception-type",
        b"exception-message",
        b"exception-stack",
        b"failed-at",
        b"original-destination",
        b"original-partition",
        b"original-offset",
        b"attempts",
    ];
    names.contains(&name)
}
