//! Gauges of waiting letters, read from the store now and then.

use std::time::Duration;

use dlq_core::store::Letters;
use dlq_core::{Filter, Status, StoreError};
use metrics::gauge;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::health::report;
use super::{DLQ_EVENTS_COUNT, DLQ_MESSAGES_QUARANTINED};

/// Interval of questions to the store. Counting is cheap at any size: stores keep the counts.
const EVERY: Duration = Duration::from_secs(15);

pub(super) struct Gauges<L> {
    pub(super) letters: L,
    pub(super) names: Vec<String>,
    pub(super) stop: CancellationToken,
}

impl<L: Letters> Gauges<L> {
    /// Runs until it is stopped. A store that does not answer leaves the gauges as they were.
    pub(super) async fn run(self) {
        loop {
            let looked = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                looked = self.look() => looked,
            };
            if let Err(error) = looked {
                tracing::warn!(error = report(&error), "the dead letters could not be counted");
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = sleep(EVERY) => {}
            }
        }
    }

    async fn look(&self) -> Result<(), StoreError> {
        let mut waiting = Filter::new();
        waiting.consumers = self.names.clone();
        waiting.statuses = vec![Status::Pending, Status::Held, Status::Quarantined];
        let mut quarantined = waiting.clone();
        quarantined.statuses = vec![Status::Quarantined];
        let waiting = self.letters.stats(waiting).await?.by_consumer;
        let quarantined = self.letters.stats(quarantined).await?.by_consumer;
        for (name, counts) in
            [(DLQ_EVENTS_COUNT, &waiting), (DLQ_MESSAGES_QUARANTINED, &quarantined)]
        {
            for consumer in &self.names {
                // A consumer without letters is shown as 0, or its former number would stand for ever.
                let count = counts.get(consumer).copied().unwrap_or(0);
                gauge!(name, "consumer" => consumer.clone()).set(count as f64);
            }
        }
        Ok(())
    }
}
