//! A cluster and a topic of dead letters there.

use std::sync::atomic::{AtomicBool, Ordering};

use dlq_core::log::{IngestMark, Log as _};
use dlq_core::{StoreError, StoreErrorKind, Timestamp};
use dlq_kafka::{Brokers, KafkaLetters, ScanRange, find_topic};

use super::settings::brokers;
use super::url::KafkaUrl;
use crate::broker::{self, Mark};
use crate::cli::BrokerArgs;
use crate::error::CliError;
use crate::filter::{AtKafkaArgs, Attribute};
use crate::output::Progress;

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

    /// The letters that are meant.
    pub(super) fn letters(&self, at_kafka: &AtKafkaArgs) -> KafkaLetters {
        self.read(at_kafka, None, false)
    }

    /// The same for verbs that only look, where those since some time are all that is read; what a reading of all costs is
    /// said before.
    pub(super) fn looked_at(
        &self,
        at_kafka: &AtKafkaArgs,
        since: Option<Timestamp>,
    ) -> KafkaLetters {
        self.read(at_kafka, since, since.is_none())
    }

    fn read(
        &self,
        at_kafka: &AtKafkaArgs,
        since: Option<Timestamp>,
        says_cost: bool,
    ) -> KafkaLetters {
        let AtKafkaArgs { partition, offsets, key, header } = at_kafka;
        let mut range = ScanRange::new();
        for partition in partition {
            range = range.with_partition(*partition);
        }
        if let Some(offsets) = offsets {
            range = range.with_offsets(offsets.from..offsets.to);
        }
        for key in key {
            range = range.with_key(key.clone());
        }
        for Attribute(name, value) in header {
            range = range.with_header(name.clone(), value.clone());
        }
        if let Some(since) = since {
            range = range.with_since(since);
        }
        let bar = Progress::of(0, "records read");
        let (shown, is_said) = (self.shown.clone(), AtomicBool::new(!says_cost));
        self.log().with_range(range).with_progress(move |progress| {
            if !is_said.swap(true, Ordering::Relaxed) {
                broker::say_cost(&shown, progress.total, None);
            }
            bar.set_total(progress.total);
            bar.set(progress.read);
            if progress.read >= progress.total {
                bar.end();
            }
        })
    }

    /// Checks that the cluster responds, and has the topic.
    pub(super) async fn find(&self) -> Result<(), CliError> {
        let found = find_topic(&self.brokers, &self.topic).await;
        found.map(|_| ()).map_err(|error| self.failed(error))
    }

    /// Checks that the cluster responds.
    pub(super) async fn reach(&self) -> Result<(), CliError> {
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
