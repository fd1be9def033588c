//! Looking at the dead letters of a broker: how many there are, how old they are, and how far their readers have come.
//! What the broker knows without handing out letters.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::store::{Health, HealthThresholds, Stats};
use dlq_core::{Status, Timestamp};

use super::look::Watched;
use super::render;
use crate::error::CliError;

/// Size of the dead letters at a broker.
#[derive(Debug)]
pub(crate) struct QueueDepth {
    /// Letters by original subject at NATS, by partition at Kafka, by key at Redis.
    pub(crate) by_part: BTreeMap<String, u64>,
    pub(crate) oldest: Option<Timestamp>,
    /// For how long the broker keeps them.
    pub(crate) kept: Option<Duration>,
    pub(crate) readers: Readers,
}

/// Progress of the readers, in the words of their broker. Both are by stream or topic.
#[derive(Debug)]
pub(crate) enum Readers {
    /// The last sequence, and by consumer what it has yet to be handed and what it has yet to acknowledge.
    #[cfg(feature = "nats")]
    Nats { ends: BTreeMap<String, u64>, progress: Vec<(String, String, u64, u64)> },
    /// The end offset, and by group how far it is behind.
    #[cfg(feature = "kafka")]
    Kafka { ends: BTreeMap<String, u64>, lag: Vec<(String, String, u64)> },
    /// Nothing: an ingest keeps its place, and is not behind by a number.
    #[cfg(feature = "redis")]
    Redis,
}

/// Reader of the size at a broker.
pub(crate) trait Measure {
    /// Asks the broker.
    async fn measure(&mut self) -> Result<QueueDepth, CliError>;

    /// Connects anew at the next look.
    fn forget(&mut self);
}

/// The dead letters of a broker.
pub(super) struct Brokered<M> {
    pub(super) at: M,
    pub(super) thresholds: HealthThresholds,
}

impl<M: Measure> Watched for Brokered<M> {
    type Observation = QueueDepth;

    async fn begin(&mut self) -> Result<(), CliError> {
        // There is nothing to open at a broker, so the first look is a measurement whose figures are dropped.
        self.at.measure().await.map(|_| ())
    }

    async fn find(&mut self) -> Result<QueueDepth, String> {
        self.at.measure().await.map_err(CliError::into_message)
    }

    fn forget(&mut self) {
        self.at.forget();
    }

    fn health(&self, found: &QueueDepth, now: Timestamp) -> Health {
        let letters = found.by_part.values().sum();
        let stats = Stats {
            total: letters,
            // A broker knows no status: until an ingest or a replay has taken them, all of its letters wait.
            by_status: [(Status::Pending, letters)].into(),
            oldest_unresolved: found.oldest,
            ..Stats::default()
        };
        Health::of(&stats, self.thresholds, now)
    }

    fn export(&self, found: Option<&QueueDepth>, now: Timestamp) {
        if let Some(found) = found {
            render::broker(found, now);
        }
    }
}
