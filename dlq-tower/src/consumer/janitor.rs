//! Maintenance of the idempotency keys of a consumer's handlers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::health::{Reporter, report};
use crate::idempotency::KeyJanitor;

/// Interval of requests to forget keys. Each process sends them, so that it is done as long as one runs.
const EVERY: Duration = Duration::from_secs(60);
/// Number of keys that are forgotten at once. Others have their turn then, for as long as that took and at least so
/// long: so half of a store's capacity at most is spent on it, and handlers do not make keys faster than they are
/// forgotten.
const BATCH: u32 = 1_000;
const BETWEEN: Duration = Duration::from_millis(1);
/// Time limit for giving back abandoned claims when everything else has ended.
const GIVING_BACK: Duration = Duration::from_secs(1);

/// Forgets keys that have been kept long enough.
pub(super) struct Purging {
    pub(super) keys: Vec<KeyJanitor>,
    pub(super) stop: CancellationToken,
}

impl Purging {
    /// Runs until it is stopped.
    pub(super) async fn run(self) {
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                // The wait comes first, so that a program which restarts often is not busy with old keys at each start.
                () = sleep(EVERY) => {}
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.once() => {}
            }
        }
    }

    /// Each store in turn, until there is nothing left to forget.
    async fn once(&self) {
        let mut left: Vec<&KeyJanitor> = self.keys.iter().collect();
        while !left.is_empty() {
            let mut again = Vec::new();
            for keys in left {
                let began = Instant::now();
                match keys.purge(BATCH).await {
                    // A full batch means that there may be more.
                    Ok(purged) if purged >= u64::from(BATCH) => again.push(keys),
                    Ok(_) => {}
                    Err(error) => tracing::warn!(
                        error = report(&error),
                        "idempotency keys that were kept long enough could not be removed"
                    ),
                }
                // Handlers have the store to themselves for as long as this took.
                sleep(began.elapsed().max(BETWEEN)).await;
            }
            left = again;
        }
    }
}

/// Says in the health which stores of keys do not answer.
pub(super) fn watch(all: &[KeyJanitor], health: &Reporter) {
    let errors: Arc<Mutex<Vec<Option<String>>>> = Arc::new(Mutex::new(vec![None; all.len()]));
    for (at, keys) in all.iter().enumerate() {
        let (errors, health) = (Arc::clone(&errors), health.clone());
        keys.told_to(move |error| {
            let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
            errors[at] = error.map(|error| report(error));
            // One store that answers does not clear the error of another.
            health.keys_failing(errors.iter().flatten().next().cloned());
        });
    }
}

/// Waits until the claims of handlers that were cut off are given back: they did not crash (G3).
pub(super) async fn give_back(keys: &[KeyJanitor]) {
    let drained = async {
        for keys in keys {
            keys.drained().await;
        }
    };
    if timeout(GIVING_BACK, drained).await.is_err() {
        tracing::error!(
            "claims of idempotency keys could not be given back in time: they end with their leases, and count as crashes"
        );
    }
}
