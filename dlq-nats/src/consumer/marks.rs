use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::kv::{Config, Store};
use async_nats::jetstream::stream::StorageType;
use bytes::Bytes;
use dlq_core::{CrashMarks, LetterId, StoreError, StoreErrorKind};
use tokio::sync::Mutex;

use crate::client::buckets;
use crate::client::jetstream::JetStream;

const OPENING: &str = "open the bucket of crash marks";
const MARKING: &str = "write a crash mark";
const REMOVING: &str = "remove a crash mark";

/// For how long a bucket that is made here keeps a mark, and for how long one that is there has to.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const LEAST: Duration = Duration::from_secs(24 * 60 * 60);

/// Crash marks in a key-value bucket: one key per suspect, whose value counts runs that began.
///
/// A mark of which it is not known whether it was written counts no run, since the message is not run. It is taken back
/// when the bucket answers again and somebody begins or ends a run here, unless another process has counted on by then.
#[derive(Clone, Debug)]
pub struct NatsCrashMarks {
    client: Client,
    bucket: Store,
    doubtful: Arc<Mutex<BTreeMap<String, Doubt>>>,
}

/// A mark of which it is not known whether it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Doubt {
    /// Revision that the write was to replace.
    revision: u64,
    begun: u32,
    mark: Mark,
}

/// Number of runs that began, and the process that has counted the last of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    begun: u32,
    by: String,
}

impl Mark {
    fn read(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (begun, by) = text.split_once(' ').unwrap_or((text, ""));
        Some(Self { begun: begun.parse().ok()?, by: by.to_owned() })
    }

    fn to_bytes(&self) -> Bytes {
        format!("{} {}", self.begun, self.by).into()
    }
}

impl NatsCrashMarks {
    /// Opens the bucket of this name, which is created with so many replicas when it is not there. It then keeps a mark
    /// for 30 days after it was last written, so that what is left of suspects does not stay for ever.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when it exists and would forget marks: it is in memory, evicts them, or keeps them for less than a
    /// day; `Unavailable` when it can neither be opened nor created. A user who may not read or write it is told at the
    /// first mark, and by [`admin`](crate::admin) beforehand.
    pub async fn open(
        jetstream: &impl JetStream,
        bucket: impl Into<String>,
        replicas: usize,
    ) -> Result<Self, StoreError> {
        let config = Config {
            bucket: bucket.into(),
            description: "Marks of suspects: runs that began and did not end".to_owned(),
            // One value is enough: the count is in it, and each write names the revision that it replaces.
            history: 1,
            max_age: KEPT,
            storage: StorageType::File,
            num_replicas: replicas,
            ..Config::default()
        };
        let wrong = |found: &_| buckets::forgets(found, Some(LEAST));
        let context = jetstream.context();
        let bucket = buckets::ensure(&context, config, wrong).await;
        let client = context.client();
        let bucket = bucket.map_err(|error| error.for_store(OPENING))?;
        Ok(Self { client, bucket, doubtful: Arc::default() })
    }
}

impl NatsCrashMarks {
    /// Reads the revision of a key, 0 for none, and its mark; a removed mark leaves its revision.
    async fn read(&self, key: &str) -> Result<(u64, Option<Mark>), StoreError> {
        let entry = buckets::read(&self.client, &self.bucket, key, MARKING).await?;
        // The revision of a removed mark is kept, since the bucket takes the next write only against it.
        let revision = entry.as_ref().map_or(0, |entry| entry.sequence);
        let Some(entry) = entry.filter(|entry| !buckets::is_removed(entry)) else {
            return Ok((revision, None));
        };
        let mark = Mark::read(&entry.payload).ok_or_else(|| {
            let text = format!("the mark `{key}` is none of this version; remove it");
            StoreError::new(StoreErrorKind::Corrupt, MARKING).with_detail(text)
        })?;
        Ok((revision, Some(mark)))
    }

    async fn write(
        &self,
        key: &str,
        mark: &Mark,
        revision: u64,
    ) -> Result<Option<u64>, StoreError> {
        let (client, bucket) = (&self.client, &self.bucket);
        buckets::replace(client, bucket, key, mark.to_bytes(), revision, MARKING).await
    }

    /// Takes away all but so many.
    async fn leave(&self, key: &str, left: u32) -> Result<(), StoreError> {
        loop {
            let (revision, found) = self.read(key).await?;
            let Some(mark) = found.filter(|mark| mark.begun > left) else { return Ok(()) };
            let mark = Mark { begun: left, ..mark };
            if self.write(key, &mark, revision).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Takes back what is not known to be written, so that it cannot be written later either.
    async fn settle_doubts(&self) -> Result<(), StoreError> {
        let mut doubtful = self.doubtful.lock().await;
        // The lock is held across the requests, so that two tasks do not take the same doubt back twice.
        while let Some((key, Doubt { revision, begun, mark })) = doubtful.first_key_value() {
            let before = Mark { begun: *begun, by: String::new() };
            let is_settled = match self.read(key).await {
                Ok((stands, found)) if stands == *revision || found.as_ref() == Some(mark) => {
                    // Whether the mark has arrived or not, this one takes its place, and a late one fails on the
                    // revision.
                    self.write(key, &before, stands).await?.is_some()
                }
                // The doubt stays for the next time. Until it is settled no suspect begins a run here.
                Err(error) if error.is_transient() => return Err(error),
                // Somebody else has counted on.
                _ => true,
                // A write that was refused leaves the doubt in place: the loop reads the key again and decides anew.
            };
            if is_settled {
                doubtful.pop_first();
            }
        }
        Ok(())
    }
}

impl CrashMarks for NatsCrashMarks {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        self.settle_doubts().await?;
        let key = letter.to_string();
        loop {
            let (revision, found) = self.read(&key).await?;
            let begun = found.map_or(0, |mark| mark.begun);
            // The name is one that no other run has: it tells this mark from another's with the same count.
            let mark = Mark { begun: begun.saturating_add(1), by: self.client.new_inbox() };
            match self.write(&key, &mark, revision).await {
                Ok(Some(_)) => return Ok(begun),
                // Another process was faster: its mark is read, and counted on from (G3).
                Ok(None) => {}
                Err(error) => {
                    // The error may hide a mark that was written. No run begins, so that it must not count as one.
                    let doubt = Doubt { revision, begun, mark };
                    self.doubtful.lock().await.insert(key, doubt);
                    return Err(error);
                }
            }
        }
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        let key = letter.to_string();
        if left == 0 {
            buckets::remove(&self.client, &self.bucket, &key, REMOVING).await?;
        } else {
            self.leave(&key, left).await?;
        }
        // What is left of them is for the next one.
        let _ = self.settle_doubts().await;
        Ok(())
    }
}
