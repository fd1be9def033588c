//! Marks of runs that began.

use dlq_core::{CrashMarks, LetterId, StoreError};

use super::RedisStore;
use super::fault::During;
use super::scripts::{self, number};

impl CrashMarks for RedisStore {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        let begin = async {
            let link = &self.inner.link;
            // The same token when the client repeats the call: a run is marked once.
            let call = link.call(&scripts::BEGIN).arg(&letter.as_bytes()[..]).arg(super::token());
            let (before, confirmed) = self.inner.durably(&call).await?;
            // A mark that the replicas lack may be forgotten in a fail-over, so that it does not count as written (G3).
            confirmed?;
            let before = number(before);
            Ok(u32::try_from(before).unwrap_or(u32::MAX))
        };
        begin.await.during("mark the beginning of a run")
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        let link = &self.inner.link;
        let call = link.call(&scripts::END).arg(&letter.as_bytes()[..]).arg(left);
        // Replicas are not waited for: a removal that a fail-over forgets leaves no more than a mark too many.
        link.run(&call).await.map(drop).during("mark the end of a run")
    }
}
