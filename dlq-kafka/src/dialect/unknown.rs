//! A record that says nothing of how it died.

use std::collections::BTreeMap;
use std::sync::Arc;

use dlq_core::store::rules::born;
use dlq_core::{
    DeadLetter, ErrorClass, Fingerprint, History, LetterId, Message, Reason, Timestamp,
};

use crate::record::Record;

/// The letter: it stands where its record stands, and whose death it was is not known.
pub(super) fn letter(record: &Record, cluster: &Arc<str>) -> DeadLetter {
    let origin = record.origin(cluster);
    let died_at = record.timestamp.unwrap_or(Timestamp::EPOCH);
    let mut message = Message::tombstone(Arc::clone(&record.topic))
        .with_payload(record.value.clone())
        .with_headers(record.headers.clone());
    if let Some(key) = &record.key {
        message = message.with_key(key.clone());
    }
    if let Some(at) = record.timestamp {
        message = message.with_published_at(at);
    }
    DeadLetter {
        id: LetterId::of(&origin, record.timestamp, ""),
        generation: 0,
        message,
        origin,
        consumer: String::new(),
        service: None,
        reason: Reason::Manual,
        class: ErrorClass::Permanent,
        cause: None,
        history: History::new(),
        attempts: 0,
        deliveries: 0,
        crashes: 0,
        escalations: 0,
        fingerprint: Fingerprint::of("", Reason::Manual, None),
        died_at,
        confirmed: true,
        attributes: BTreeMap::new(),
        state: born(died_at),
    }
}
