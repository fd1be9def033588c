use std::time::Duration;

use async_nats::jetstream::kv::{Config, Store};
use async_nats::jetstream::stream::{self, StorageType};
use dlq_core::StoreError;
use dlq_core::policy::duration;
use serde::{Deserialize, Serialize};

use crate::client::buckets;
use crate::client::difference::{Differences, word};
use crate::client::jetstream::JetStream;

const OPENING: &str = "open the bucket of idempotency keys";

/// The key-value bucket of [`NatsIdempotency`](super::NatsIdempotency): file-backed, without history, named `DLQ_KEYS`
/// unless told otherwise. All consumers can share it.
///
/// The bucket is created when it is not there. One that exists with other settings is reported, never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[must_use]
pub struct IdempotencyBucket {
    pub(super) name: String,
    replicas: usize,
    #[serde(with = "duration")]
    pub(super) max_age: Duration,
}

impl IdempotencyBucket {
    /// The bucket `DLQ_KEYS`, one replica, 30 days.
    pub fn new() -> Self {
        let max_age = Duration::from_secs(30 * 24 * 60 * 60);
        Self { name: "DLQ_KEYS".to_owned(), replicas: 1, max_age }
    }

    /// Sets its name. Defaults to `DLQ_KEYS`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets how many servers keep it. Defaults to 1; production wants 3.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets for how long an entry is kept after it was last written; zero for ever, or until somebody calls
    /// [`purge`](dlq_core::idempotency::Idempotency::purge), which consumers do not. It has to be longer than what is done
    /// shall be known, than any lease, and than the longest pause between two attempts, whose count is lost with the
    /// entry. Defaults to 30 days.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = age;
        self
    }

    pub(super) async fn open(&self, jetstream: &impl JetStream) -> Result<Store, StoreError> {
        let context = jetstream.context();
        let ensured = buckets::ensure(&context, self.config(), |found| self.differences(found));
        ensured.await.map_err(|error| error.for_store(OPENING))
    }

    fn config(&self) -> Config {
        Config {
            bucket: self.name.clone(),
            description: "Idempotency keys: what was handled, and what is in flight".to_owned(),
            history: 1,
            max_age: self.max_age,
            storage: StorageType::File,
            num_replicas: self.replicas,
            ..Config::default()
        }
    }

    fn differences(&self, found: &stream::Config) -> Differences {
        let mut wrong = buckets::forgets(found, None);
        wrong.see("max_age", word(&found.max_age), word(&self.max_age));
        wrong.see("num_replicas", word(&found.num_replicas), word(&self.replicas));
        wrong.see("history", found.max_messages_per_subject.to_string(), "1".to_owned());
        wrong
    }
}

impl Default for IdempotencyBucket {
    fn default() -> Self {
        Self::new()
    }
}
