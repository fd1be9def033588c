//! A cluster and a topic of dead letters there.

use dlq_core::log::{IngestMark, Log as _};
use dlq_core::{StoreError, StoreErrorKind};
use dlq_kafka::{Brokers, KafkaLetters, ScanRange, find_topic};

use super::settings::brokers;
use super::url::KafkaUrl;
use crate::broker::Mark;
use crate::cli::BrokerArgs;
use crate::error::CliError;
use crate::filter::{AtKafkaArgs, Attribute};

/// The letters that are meant, by where they stand and by their messages.
pub(super) fn range(at_kafka: &AtKafkaArgs) -> ScanRange {
    let AtKafkaArgs { partition, offsets, key, header } = at_kafka;
    let mut range = ScanRange::new();
    for partition in partition {
        range = range.partition(*partition);
    }
    if let Some(offsets) = offsets {
        range = range.offsets(offsets.from..offsets.to);
    }
    for key in key {
        range = range.key(key.clone());
    }
    for Attribute(name, value) in header {
        range = range.header(name.clone(), value.clone());
    }
    range
}

/// Broker and topic that `kafka://…` names.
#[derive(Clone, Debug)]
pub(crate) struct Broker {
    pub(super) brokers: Brokers,
    pub(super) topic: String,
    /// The URL, fit to be shown.
    pub(super) shown: String,
}

impl Broker {
    /// Nothing is asked of the cluster yet.
    pub(crate) fn new(rest: &str, shown: String, args: &BrokerArgs) -> Result<Self, CliError> {
        let url = KafkaUrl::parse(rest)?;
        Ok(Self { brokers: brokers(&url, args)?, topic: url.topic, shown })
    }

    /// The topic as a log.
    pub(super) fn log(&self) -> KafkaLetters {
        KafkaLetters::new(&self.brokers, &*self.topic)
    }

    /// The letters that are meant, for a replay.
    pub(super) fn letters(&self, at_kafka: &AtKafkaArgs) -> KafkaLetters {
        self.log().range(range(at_kafka))
    }

    /// Checks that the cluster responds, and has the topic.
    pub(super) async fn find(&self) -> Result<(), CliError> {
        let found = find_topic(&self.brokers, &self.topic).await;
        found.map(|_| ()).map_err(|error| self.failed(error))
    }

    /// Checks that the cluster responds.
    pub(super) async fn reach(&self) -> Result<(), CliError> {
        // Any answer will do, also that there is no such topic.
        match find_topic(&self.brokers, &self.topic).await {
            Err(error) if error.kind() != StoreErrorKind::NotFound => Err(self.failed(error)),
            _ => Ok(()),
        }
    }

    /// Returns the stores that the letters of the topic go into.
    pub(super) async fn marks(&self) -> Result<Vec<Mark>, CliError> {
        let marks = self.log().marks().await.map_err(|error| self.failed(error))?;
        Ok(marks.into_iter().map(|mark| self.said(mark)).collect())
    }

    /// The store into which they go by the group of this log.
    pub(super) async fn mark_of(&self, log: &KafkaLetters) -> Result<Option<Mark>, CliError> {
        let mark = log.mark().await.map_err(|error| self.failed(error))?;
        Ok(mark.map(|mark| self.said(mark)))
    }

    fn said(&self, mark: IngestMark) -> Mark {
        Mark {
            store: mark.store,
            confirmed: (mark.confirmed > 0).then(|| format!("{} letters", mark.confirmed)),
            delete: format!(
                "kafka-consumer-groups.sh --bootstrap-server {} --delete --group {}",
                self.brokers.bootstrap(),
                mark.by
            ),
            by: mark.by,
        }
    }

    /// Makes the error of a failure, with advice.
    pub(super) fn failed(&self, error: StoreError) -> CliError {
        let (kind, error) = (error.kind(), CliError::from(error));
        let advice = match kind {
            StoreErrorKind::NotFound => "name another topic: kafka://HOST:PORT/TOPIC",
            // The client only says that it reached nobody, whatever it was that kept it away.
            StoreErrorKind::Unavailable => {
                "is the address right, does it run, and does it want TLS or a login? See --kafka KEY=VALUE"
            }
            _ => return error.about(&self.shown),
        };
        match error.about(&self.shown) {
            CliError::Failed(text) => CliError::Failed(format!("{text}; {advice}")),
            other => other,
        }
    }
}
