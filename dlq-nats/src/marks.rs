use async_nats::jetstream::kv::{Config, CreateErrorKind, Operation, Store, UpdateErrorKind};
use async_nats::jetstream::stream::StorageType;
use dlq_core::{CrashMarks, LetterId, StoreError, StoreErrorKind};

use crate::jetstream::JetStream;
use crate::publish::unwritable;

const MARKING: &str = "write a crash mark";

/// Crash marks in a key-value bucket: one key per suspect, whose value counts runs that began.
#[derive(Clone, Debug)]
pub struct NatsCrashMarks {
    bucket: Store,
}

impl NatsCrashMarks {
    /// Opens the bucket of this name, which is created with so many replicas when it is not there.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the bucket can neither be opened nor created.
    pub async fn open(
        client: &impl JetStream,
        bucket: impl Into<String>,
        replicas: usize,
    ) -> Result<Self, StoreError> {
        let context = client.context();
        let bucket = bucket.into();
        if let Ok(bucket) = context.get_key_value(bucket.clone()).await {
            return Ok(Self { bucket });
        }
        let config = Config {
            bucket,
            description: "Marks of suspects: runs that began and did not end".to_owned(),
            history: 1,
            storage: StorageType::File,
            num_replicas: replicas,
            ..Config::default()
        };
        let bucket = context
            .create_key_value(config)
            .await
            .map_err(|error| unwritable("open the bucket of crash marks", error))?;
        Ok(Self { bucket })
    }
}

impl CrashMarks for NatsCrashMarks {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        let key = letter.to_string();
        loop {
            let entry = self.bucket.entry(&key).await;
            let entry = entry.map_err(|error| unwritable(MARKING, error))?;
            let Some(entry) = entry.filter(|entry| entry.operation == Operation::Put) else {
                match self.bucket.create(&key, "1".into()).await {
                    Ok(_) => return Ok(0),
                    Err(error) if error.kind() == CreateErrorKind::AlreadyExists => continue,
                    Err(error) => return Err(unwritable(MARKING, error)),
                }
            };
            let text = std::str::from_utf8(&entry.value).ok();
            let begun: u32 = text.and_then(|text| text.parse().ok()).ok_or_else(|| {
                StoreError::new(StoreErrorKind::Corrupt, MARKING)
                    .with_detail(format!("the mark `{key}` is not a number"))
            })?;
            let more = begun.saturating_add(1).to_string();
            match self.bucket.update(&key, more.into(), entry.revision).await {
                Ok(_) => return Ok(begun),
                Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => {}
                Err(error) => return Err(unwritable(MARKING, error)),
            }
        }
    }

    async fn end(&self, letter: LetterId) -> Result<(), StoreError> {
        let removed = self.bucket.purge(letter.to_string()).await;
        removed.map_err(|error| unwritable("remove a crash mark", error))
    }
}
