//! Forgetting what has ended before the server does it.

use dlq_core::StoreError;
use dlq_core::idempotency::KEEP_FREE;
use redis::Value;

use super::answer::Reply;
use super::{RedisIdempotency, micros, scripts};
use crate::RedisError;
use crate::client::{as_array, as_bytes, as_text};

const PURGING: &str = "purge keys";

/// Number of keys that are looked at in one round trip.
const PAGE: usize = 500;

impl RedisIdempotency {
    /// Walks all keys of every server that has some.
    pub(super) async fn purge_ended(&self, limit: u32) -> Result<u64, StoreError> {
        if limit == 0 {
            return Ok(0);
        }
        let failed = |error: RedisError| error.for_running_store(PURGING);
        let mut purged = 0;
        // `SCAN` knows the keys of its own node only.
        for mut node in self.client.masters().await.map_err(failed)? {
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(&cursor).arg("MATCH").arg(self.names.pattern()).arg("COUNT").arg(PAGE);
                let page: Value =
                    scan.query_async(&mut node).await.map_err(|error| failed(error.into()))?;
                let [next, found] = as_array(&page) else { break };
                cursor = as_text(next).unwrap_or_default();
                purged += self.purge_some(as_array(found), u64::from(limit) - purged).await?;
                if purged >= u64::from(limit) {
                    return Ok(purged);
                }
                if cursor == "0" || cursor.is_empty() {
                    break;
                }
            }
        }
        Ok(purged)
    }

    /// Forgets those of these keys that have ended, at most so many.
    async fn purge_some(&self, names: &[Value], limit: u64) -> Result<u64, StoreError> {
        let mut purged = 0;
        // No more at once than may go, since each may be one that goes.
        let mut names =
            names.iter().filter_map(as_bytes).filter(|name| *name != self.names.identity());
        while purged < limit {
            let most = usize::try_from(limit - purged).unwrap_or(PAGE);
            let calls = names.by_ref().take(most.min(PAGE)).map(|name| async move {
                // The script looks once more, in the step that deletes: a key that was claimed since it was found is
                // kept.
                let call = scripts::PURGE.keys(&[name]).arg(micros(KEEP_FREE));
                self.client.script(&call).await.map(|answer| Reply(answer).word() == "purged")
            });
            let calls: Vec<_> = calls.collect();
            if calls.is_empty() {
                break;
            }
            for is_purged in futures_util::future::join_all(calls).await {
                let is_purged = is_purged.map_err(|error| error.for_running_store(PURGING))?;
                purged += u64::from(is_purged);
            }
        }
        Ok(purged)
    }
}
