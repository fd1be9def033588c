//! The task that claims retry records when they are due, and the format of a record.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::protocol::{Ours, RetryRecord, split_text};
use dlq_core::{Death, Message, Origin};
use redis::Value;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::calls::millis;
use super::ready::{Fetched, What};
use super::scripts::CLAIM_RECORDS;
use super::shared::SourceState;
use super::wire;
use crate::client::{RedisError, as_int, as_text};

/// Number of records that one call claims.
const AT_ONCE: usize = 100;
/// Pause between two looks where nothing is known to be due sooner.
const LOOK: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(2);

/// A record without its payload.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Body {
    /// The message without its payload.
    message: Message,
    /// True if there is no payload, which differs from an empty one.
    #[serde(default)]
    absent: bool,
    origin: Origin,
    death: Death,
    /// Our headers.
    ours: Vec<(String, String)>,
}

impl Body {
    pub(super) fn new(message: &Message, origin: &Origin, death: Death, ours: &Ours) -> Self {
        Self {
            message: message.clone().with_payload(None),
            absent: message.payload().is_none(),
            origin: origin.clone(),
            death,
            ours: ours.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }
    }

    /// Reads a record; `None` for one that this version did not write.
    pub(super) fn read(body: &[u8], payload: Bytes, stage: Arc<str>) -> Option<RetryRecord> {
        let body: Self = serde_json::from_slice(body).ok()?;
        let (_, decoded) = split_text(body.ours.iter().map(|(name, value)| (&**name, &**value)));
        let message = body.message.with_payload((!body.absent).then_some(payload));
        Some(RetryRecord { message, decoded, origin: body.origin, death: Some(body.death), stage })
    }
}

/// Claims records until it is stopped.
pub(super) async fn claim(shared: Arc<SourceState>, stop: CancellationToken) {
    loop {
        // A consumer that does not ask would let the leases of what is claimed for it run out.
        if !shared.is_wanted() {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(LOOK) => continue,
            }
        }
        // A record is claimed only where there is room: one that waits here would use up its lease.
        let first = tokio::select! {
            () = stop.cancelled() => return,
            first = Arc::clone(&shared.more_room).acquire_owned() => first,
        };
        let Ok(first) = first else { return };
        let mut room = vec![first];
        while room.len() < AT_ONCE
            && let Ok(permit) = Arc::clone(&shared.more_room).try_acquire_owned()
        {
            room.push(permit);
        }
        let wait = match take(&shared, room).await {
            Ok(wait) => wait,
            Err(error) => {
                shared.ready.fail(error.for_running_transport("claim retry records"));
                LOOK
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            // The pause is at most `LOOK`, since other processes write records without telling, and at least `AGAIN`, so
            // that a full set is no busy loop.
            () = sleep(wait.clamp(AGAIN, LOOK)) => {}
        }
    }
}

/// Claims as many as there is room for, and returns the time until the next one is due.
async fn take(
    shared: &SourceState,
    room: Vec<tokio::sync::OwnedSemaphorePermit>,
) -> Result<Duration, RedisError> {
    let place = &shared.place;
    // Leases begin while the script runs, so they end no earlier than reckoned from here.
    let since = Instant::now();
    let call = CLAIM_RECORDS
        .keys(&[place.keys.due(&place.group)])
        .arg(place.keys.records(&place.group))
        .arg(millis(place.lease))
        .arg(room.len());
    let Value::Array(mut parts) = shared.client.script(&call).await? else { return Ok(LOOK) };
    let Some(Value::Array(records)) = parts.pop() else { return Ok(LOOK) };
    let wait = parts.pop().map_or(-1, |wait| as_int(&wait));
    let mut ready = Vec::with_capacity(records.len());
    for (record, permit) in records.into_iter().zip(room) {
        let Value::Array(parts) = record else { continue };
        let Ok([name, fence, count, body, payload]) = <[Value; 5]>::try_from(parts) else {
            continue;
        };
        let (Some(name), Some(fence)) = (as_text(&name), as_text(&fence)) else { continue };
        let what = What::Record {
            name: name.into(),
            fence: fence.into(),
            count: u64::try_from(as_int(&count)).unwrap_or(1),
            body: wire::bytes(body),
            payload: wire::bytes(payload),
        };
        ready.push(Fetched { what, since, _permit: permit });
    }
    shared.ready.push(ready);
    Ok(u64::try_from(wait).map_or(LOOK, Duration::from_millis))
}
