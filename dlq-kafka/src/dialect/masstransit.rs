//! The faults of MassTransit.

use super::Dialect;
use super::errors::{ErrorNames, Thrown};
use super::fields::Fields;
use super::story::Story;
use super::values;

const CLASS: &str = "MT-Fault-ExceptionType";

const ERRORS: ErrorNames = ErrorNames {
    start: &[CLASS],
    types: &[CLASS],
    messages: &["MT-Fault-Message"],
    traces: &["MT-Fault-StackTrace"],
    thrown: Thrown::Stated,
};

/// Reads the headers, which say neither partition nor offset. The address of the input ends in the topic.
pub(super) fn read<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    fields.peek(CLASS)?;
    let topic = fields.get("MT-Fault-InputAddress", values::last_segment)?;
    let mut story = Story::new(Some(Dialect::MassTransit), fields);
    let fields = &mut story.fields;
    story.topic = Some(topic);
    story.consumer = fields.get("MT-Fault-ConsumerType", values::text);
    let retries = fields.get("MT-Fault-RetryCount", values::decimal_count);
    // The header counts retries, and the first run is none.
    story.attempts = retries.map(|retries| retries.saturating_add(1));
    story.failed_at = fields.get("MT-Fault-Timestamp", values::time);
    story.errors = fields.errors(&ERRORS);
    Some(story)
}

pub(super) fn owns(name: &[u8]) -> bool {
    name.starts_with(b"MT-Fault-") || name == b"MT-Reason"
}
