use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::{CrashMarks, LetterId, StoreError};

use super::calls::millis;
use super::keys::Keys;
use super::place::random;
use super::scripts::{BEGIN_MARK, END_MARK};
use crate::client::{RedisClient, as_int};

const MARKING: &str = "write a crash mark";
const REMOVING: &str = "remove a crash mark";

/// Time for which a mark is kept after it was last written.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Crash marks: one hash per suspect in the slot of its stream, with a token for each run that began and did not end.
///
/// A token makes a mark that is written twice, since an answer was lost, one mark. One of which it is not known whether it
/// was written counts no run: it is removed before the next mark is written here.
#[derive(Clone, Debug)]
pub struct RedisCrashMarks {
    client: RedisClient,
    keys: Keys,
    doubtful: Arc<Mutex<Vec<Mark>>>,
}

impl RedisCrashMarks {
    pub(super) fn new(client: RedisClient, keys: Keys) -> Self {
        Self { client, keys, doubtful: Arc::default() }
    }

    fn doubts(&self) -> MutexGuard<'_, Vec<Mark>> {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what is not known to be written.
    async fn settle_doubts(&self) -> Result<(), StoreError> {
        loop {
            // It is cloned so that the lock is not held while the server is asked, and removed only once the server has
            // answered.
            let Some(mark) = self.doubts().last().cloned() else { return Ok(()) };
            let mut cmd = redis::cmd("HDEL");
            let removed = self.client.command(cmd.arg(&mark.key).arg(&mark.token)).await;
            removed.map_err(|error| error.for_running_store(MARKING))?;
            self.doubts().retain(|other| *other != mark);
        }
    }
}

/// A mark that was or may have been written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    key: String,
    token: String,
}

/// Notes a mark as doubtful unless it is known to be written, also where the caller is dropped.
struct Doubt<'a>(&'a RedisCrashMarks, Option<Mark>);

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if let Some(mark) = self.1.take() {
            self.0.doubts().push(mark);
        }
    }
}

impl CrashMarks for RedisCrashMarks {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        // A mark that may have been written for a run that never began would count as a crash (G3).
        self.settle_doubts().await?;
        let key = self.keys.marks(&letter.to_string());
        let token = format!("{:016x}{:016x}", random(), random());
        let call = BEGIN_MARK.keys(&[&key]).arg(&token).arg(millis(KEPT));
        // The doubt is armed before the call: after an error, or where the caller is dropped, it is open whether the mark
        // is there.
        let mut doubt = Doubt(self, Some(Mark { key, token }));
        let earlier = self.client.script(&call).await;
        let earlier = earlier.map_err(|error| error.for_running_store(MARKING))?;
        doubt.1 = None;
        Ok(u32::try_from(as_int(&earlier)).unwrap_or(0))
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        let call = END_MARK.keys(&[self.keys.marks(&letter.to_string())]).arg(left);
        let ended = self.client.script(&call).await;
        ended.map(drop).map_err(|error| error.for_running_store(REMOVING))
    }
}
