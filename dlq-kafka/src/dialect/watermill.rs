//! The poison queue of Watermill.

use super::Dialect;
use super::errors::{ErrorNames, Thrown};
use super::fields::Fields;
use super::story::Story;
use super::values;

const REASON: &str = "reason_poisoned";
const ERRORS: ErrorNames = ErrorNames {
    start: &[REASON],
    types: &[],
    messages: &[REASON],
    traces: &[],
    thrown: Thrown::Stated,
};

/// Reads the headers, which say neither partition nor offset, nor when the message was published. The key is lost on the way, and so are repeated headers.
pub(super) fn read<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    if !fields.has(REASON) || !fields.has("subscriber_poisoned") {
        return None;
    }
    let topic = fields.get("topic_poisoned", values::topic)?;
    let handler = fields.get("handler_poisoned", values::text)?;
    let mut story = Story::new(Some(Dialect::Watermill), fields);
    story.topic = Some(topic);
    // Stays with the message, since whoever gets that back reads its id there.
    story.message_id = story.fields.peek("_watermill_message_uuid");
    story.consumer = Some(handler);
    story.errors = story.fields.errors(&ERRORS);
    Some(story)
}

pub(super) fn owns(name: &[u8]) -> bool {
    let names: [&[u8]; 7] = [
        b"reason_poisoned",
        b"topic_poisoned",
        b"handler_poisoned",
        b"subscriber_poisoned",
        b"_watermill_requeuer_retries",
        b"_watermill_delayed_until",
        b"_watermill_delayed_for",
    ];
    names.contains(&name)
}
