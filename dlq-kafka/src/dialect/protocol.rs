//! The header protocol of this crate without an identity, as other programs write it and as our retry records have it.

use std::sync::Arc;

use dlq_core::protocol::{TABLE, names};
use dlq_core::{ErrorClass, Reason};

use super::Dialect;
use super::errors::Error;
use super::fields::{Coordinates, Fields};
use super::story::{Story, Told};
use super::values;
use crate::client::wire::{self, REST, Unpacked};

const COORDINATES: Coordinates = Coordinates {
    topic: names::ORIGINAL_TOPIC,
    partition: names::ORIGINAL_PARTITION,
    offset: names::ORIGINAL_OFFSET,
    partition_as: values::decimal,
    offset_as: values::decimal,
};

/// Reads the headers. A record with an identity is a letter of ours, carries headers that were copied from one, or was sent
/// back by us and died again.
pub(super) fn read<'a>(mut fields: Fields<'a>) -> Option<Story<'a>> {
    let is_error = fields.has(names::ERROR_CLASS) || fields.has(names::ERROR_MESSAGE);
    if !is_error {
        return None;
    }
    let unpacked = wire::unpack(fields.record, &Arc::from("default"));
    // Handlers copy headers onto new messages. An identity is read only where its binding fits the bytes (G2).
    if fields.has(names::DLQ_ID) && (unpacked.is_letter() || !is_replayed(&unpacked)) {
        return None;
    }
    let hops = fields.hops(&COORDINATES)?;
    let said = unpacked.decoded;
    for field in TABLE {
        if !said.invalid.iter().any(|header| header.name == field.name) {
            // This reading makes it count as known, so no attribute repeats it.
            fields.series(field.name, values::text);
        }
    }
    let mut story = Story::new(Some(Dialect::Protocol), fields).at(&hops);
    let fields = &mut story.fields;
    fields.get(REST, values::text);
    story.published_at = said.original.timestamp;
    story.consumer = fields.peek(names::DLQ_CONSUMER);
    if said.error_type.is_some() || said.message.is_some() {
        let error_type = fields.peek(names::ERROR_TYPE).unwrap_or_default();
        let messages = said.message.into_iter().collect();
        story.errors = vec![Error { error_type, messages, trace: None }];
    }
    story.failed_at = said.error_at;
    story.cause = said.cause;
    let usual = |class| match class {
        ErrorClass::Transient => Reason::Exhausted,
        _ => Reason::Permanent,
    };
    story.verdict = said.class.map(|class| (class, said.reason.unwrap_or_else(|| usual(class))));
    // Who counts only retries makes one attempt at each stage.
    let stages = said.delayed_retries.map(|retries| retries.saturating_add(1));
    story.attempts = said.attempts.or(stages);
    story.told = Some(Told {
        message: unpacked.message,
        history: said.history,
        fingerprint: said.fingerprint,
        delayed_retries: said.delayed_retries,
        service: said.service,
    });
    Some(story)
}

/// Returns true if our headers belong to a letter that was sent back as this very message.
fn is_replayed(unpacked: &Unpacked) -> bool {
    let said = &unpacked.decoded;
    said.replays.is_some() && said.consumer.is_some() && said.is_bound(&unpacked.message)
}

pub(super) fn owns(name: &[u8]) -> bool {
    TABLE.iter().any(|field| field.name.as_bytes() == name)
}
