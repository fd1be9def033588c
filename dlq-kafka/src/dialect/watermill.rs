//! The poison queue of Watermill.

use super::Dialect;
use super::errors::ErrorNames;
use super::fields::Fields;
use super::story::Story;
use super::values;

const REASON: &str = "reason_poisoned";
const ERRORS: ErrorNames =
    ErrorNames { start: &[REASON], types: &[], messages: &[REASON], traces: &[] };

/// Reads the headers, which say neither partition nor offset. The key is lost on the way, and so are repeated headers.
pub(super) fn read<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    if !fields.has(REASON) || !fields.has("subscriber_poisoned") {
        return None;
    }
    let topic = fields.get("topic_poisoned", values::topic)?;
    let handler = fields.get("handler_poisoned", values::text)?;
    let mut story = Story::new(Some(Dialect::Watermill), fields);
    story.topic = Some(topic);
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
