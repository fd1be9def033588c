//! The ledger: a record for each letter that was sent, in the transaction that sent it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dlq_core::outbox::{Once, Outgoing};
use dlq_core::{Clock, OperationId, StoreError, SystemClock, Timestamp};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::OwnedHeaders;
use rdkafka::{Message as _, Offset, TopicPartitionList};
use serde::Serialize;

use crate::client::brokers::Brokers;
use crate::client::error::{SetupError, is_refusal};
use crate::dead::dispatch::{OutgoingRecord, refused};
use crate::dead::{BEGUN, PATIENCE, config};

/// A record as it is written, for people: what counts is its key.
#[derive(Debug, Serialize)]
struct Written<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<OperationId>,
    to: &'a str,
    at: Timestamp,
    who: &'a str,
}

/// The record of a letter that is sent.
pub(super) fn entry(
    ledger: &Arc<str>,
    who: &str,
    one: &Outgoing,
) -> Result<OutgoingRecord, StoreError> {
    let operation = Some(one.replay.operation);
    let to = one.to.to_string();
    record(ledger, one.once.to_string().into(), &Written { operation, to: &to, at: now(), who })
}

/// A record by which one is known to have read everything before it.
pub(super) fn marker(ledger: &Arc<str>, who: &str) -> Result<OutgoingRecord, StoreError> {
    let written = Written { operation: None, to: "", at: now(), who };
    record(ledger, Bytes::from_static(BEGUN), &written)
}

fn record(
    ledger: &Arc<str>,
    key: Bytes,
    written: &Written<'_>,
) -> Result<OutgoingRecord, StoreError> {
    let json = serde_json::to_vec(written).map_err(|error| refused(error.to_string()))?;
    Ok(OutgoingRecord {
        topic: Arc::clone(ledger),
        partition: Some(0),
        key: Some(key),
        value: Some(json.into()),
        headers: OwnedHeaders::new(),
    })
}

fn now() -> Timestamp {
    SystemClock.now()
}

/// The content of a part of the ledger.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Letters that were sent, and the time at which each was written.
    pub(super) arrived: HashMap<Once, Timestamp>,
    /// The time of the first record.
    pub(super) first: Option<Timestamp>,
}

/// Reads the ledger from this offset to that of a record that is there. Blocks.
pub(super) fn read(brokers: &Brokers, topic: &str, from: u64, to: i64) -> Result<Said, SetupError> {
    let what = format!("read topic `{topic}`");
    let answered = |error| SetupError::answered(&what, error);
    let mut config = config(brokers)?;
    // An assignment by hand wants a name of a group, which never comes to be.
    config.set("group.id", "dlq.outbox");
    // Another than the leader may not have its end yet.
    config.set("client.rack", "");
    let consumer: BaseConsumer = config.create().map_err(answered)?;
    let mut all = TopicPartitionList::new();
    let from = Offset::Offset(i64::try_from(from).unwrap_or(i64::MAX));
    all.add_partition_offset(topic, 0, from).map_err(answered)?;
    consumer.assign(&all).map_err(answered)?;
    let (mut said, mut until) = (Said::default(), Instant::now() + PATIENCE);
    loop {
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                until = Instant::now() + PATIENCE;
                let at = message
                    .timestamp()
                    .to_millis()
                    .map_or(Timestamp::EPOCH, Timestamp::from_millis);
                // The first record shows how far back the ledger goes.
                said.first.get_or_insert(at);
                let key = message.key().and_then(|key| std::str::from_utf8(key).ok());
                if let Some(once) = key.and_then(|key| key.parse().ok()) {
                    // The first record counts: that is when the letter arrived, should it stand there twice.
                    said.arrived.entry(once).or_insert(at);
                }
                if message.offset() >= to {
                    return Ok(said);
                }
            }
            // Others are of a broker that is away, of which the client looks for another.
            Some(Err(error)) if error.rdkafka_error_code().is_some_and(is_refusal) => {
                return Err(answered(error));
            }
            Some(Err(_)) | None if Instant::now() < until => {}
            Some(Err(error)) => return Err(answered(error)),
            None => {
                let timed_out = RDKafkaErrorCode::OperationTimedOut;
                return Err(answered(KafkaError::MessageConsumption(timed_out)));
            }
        }
    }
}
