use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::kv::{Config, Store};
use async_nats::jetstream::stream::StorageType;
use dlq_core::{CrashMarks, LetterId, StoreError, StoreErrorKind};

use crate::buckets;
use crate::jetstream::JetStream;

const OPENING: &str = "open the bucket of crash marks";
const MARKING: &str = "write a crash mark";

/// For how long a bucket that is made here keeps a mark, and for how long one that is there has to.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const LEAST: Duration = Duration::from_secs(24 * 60 * 60);

/// Crash marks in a key-value bucket: one key per suspect, whose value counts runs that began.
#[derive(Clone, Debug)]
pub struct NatsCrashMarks {
    client: Client,
    bucket: Store,
}

impl NatsCrashMarks {
    /// Opens the bucket of this name, which is created with so many replicas when it is not there. It then keeps a mark
    /// for 30 days after it was last written, so that what is left of suspects does not stay for ever.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when it exists and would forget marks: it is in memory, evicts them, or keeps them for less than a
    /// day; or when the server says that the user may not read or write it; `Unavailable` when it can
    /// neither be opened nor created.
    pub async fn open(
        jetstream: &impl JetStream,
        bucket: impl Into<String>,
        replicas: usize,
    ) -> Result<Self, StoreError> {
        let config = Config {
            bucket: bucket.into(),
            description: "Marks of suspects: runs that began and did not end".to_owned(),
            history: 1,
            max_age: KEPT,
            storage: StorageType::File,
            num_replicas: replicas,
            ..Config::default()
        };
        let wrong = |found: &_| buckets::forgets(found, Some(LEAST));
        let bucket = buckets::open(jetstream, config, wrong).await;
        let client = jetstream.context().client();
        Ok(Self { client, bucket: bucket.map_err(|error| error.for_store(OPENING))? })
    }
}

impl CrashMarks for NatsCrashMarks {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        let key = letter.to_string();
        loop {
            let entry = buckets::read(&self.client, &self.bucket, &key, MARKING).await?;
            // Of one that was removed the place is left.
            let revision = entry.as_ref().map_or(0, |entry| entry.sequence);
            let begun: u32 = match entry.filter(|entry| !buckets::is_removed(entry)) {
                None => 0,
                Some(entry) => {
                    let text = std::str::from_utf8(&entry.payload).ok();
                    text.and_then(|text| text.parse().ok()).ok_or_else(|| {
                        StoreError::new(StoreErrorKind::Corrupt, MARKING)
                            .with_detail(format!("the mark `{key}` is not a number"))
                    })?
                }
            };
            let more = begun.saturating_add(1).to_string();
            let (client, bucket) = (&self.client, &self.bucket);
            let written = buckets::replace(client, bucket, &key, more.into(), revision, MARKING);
            if written.await?.is_some() {
                return Ok(begun);
            }
        }
    }

    async fn end(&self, letter: LetterId) -> Result<(), StoreError> {
        let key = letter.to_string();
        buckets::remove(&self.client, &self.bucket, &key, "remove a crash mark").await
    }
}
