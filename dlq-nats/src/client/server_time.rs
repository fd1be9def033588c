use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::Context;
use dlq_core::{Clock as _, StoreError, StoreErrorKind, SystemClock, Timestamp};
use serde::Deserialize;
use tokio::time::Instant;

/// For how long a time that the server told is carried forward.
const FRESH: Duration = Duration::from_secs(10);
const ASKING: &str = "ask the server for the time";

/// The time of the server that leads a stream.
#[derive(Debug)]
pub(crate) struct ServerTime {
    context: Context,
    stream: String,
    told: Mutex<Option<(Timestamp, Instant)>>,
}

#[derive(Debug, Deserialize)]
struct TimeReply {
    ts: Option<Timestamp>,
    error: Option<async_nats::jetstream::Error>,
}

impl ServerTime {
    pub(crate) fn new(context: Context, stream: &str) -> Self {
        Self { context, stream: stream.to_owned(), told: Mutex::new(None) }
    }

    /// As the server told it not long ago. Never ahead of it, except by what the clocks drift in [`FRESH`].
    pub(crate) async fn now(&self) -> Result<Timestamp, StoreError> {
        let told = *self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match told {
            Some((told, at)) if at.elapsed() < FRESH => Ok(told.after(at.elapsed())),
            _ => self.fresh().await,
        }
    }

    /// As the server tells it now.
    pub(crate) async fn fresh(&self) -> Result<Timestamp, StoreError> {
        let unavailable = |why: String| {
            let text = format!("stream `{}`: {why}", self.stream);
            StoreError::new(StoreErrorKind::Unavailable, ASKING).with_detail(text)
        };
        let subject = format!("STREAM.INFO.{}", self.stream);
        let answer = self.context.request(subject, &serde_json::json!({})).await;
        let answer: TimeReply = answer.map_err(|error| unavailable(error.to_string()))?;
        if let Some(error) = answer.error {
            return Err(unavailable(error.to_string()));
        }
        // Servers before 2.10 do not tell the time; the clock of this process stands in for theirs.
        let Some(told) = answer.ts else { return Ok(SystemClock.now()) };
        // The time is carried forward from when the answer is here, which is later than it was told: it is never ahead.
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some((told, Instant::now()));
        Ok(told)
    }
}
