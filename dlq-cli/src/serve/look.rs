//! Looking at what is served, again and again.

use std::time::Duration;

use dlq_core::store::{Health, HealthState};
use dlq_core::{SharedClock, Timestamp};
use tokio::time::{Instant, timeout};

use super::render::page;
use crate::error::CliError;

/// Time limit of a look. Shorter than the ten seconds that Prometheus waits by default.
pub(super) const PATIENCE: Duration = Duration::from_secs(8);

/// Store or broker that is watched.
pub(super) trait Watched {
    /// Result of a look.
    type Observation;

    /// Opens it for the first time.
    async fn begin(&mut self) -> Result<(), CliError>;

    /// Looks.
    async fn find(&mut self) -> Result<Self::Observation, String>;

    /// Opens it anew at the next look, since this one failed.
    fn forget(&mut self);

    /// Returns the health.
    fn health(&self, found: &Self::Observation, now: Timestamp) -> Health;

    /// Sets the gauges and counters. What is not known is left out, rather than shown as it was.
    fn export(&self, found: Option<&Self::Observation>, now: Timestamp);
}

/// Memory from one look to the next.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Looks that were answered, and that were not.
    pub(super) looks: [u64; 2],
    pub(super) answered: Option<Timestamp>,
    pub(super) took: Duration,
}

/// Answer until the next look.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) metrics: String,
    pub(super) health: Health,
}

/// Looks. What fails is opened anew at the next look.
pub(super) struct Looker<W> {
    watched: W,
    memory: Memory,
    clock: SharedClock,
}

impl<W: Watched> Looker<W> {
    pub(super) fn new(watched: W, clock: SharedClock) -> Self {
        Self { watched, memory: Memory::default(), clock }
    }

    /// Opens it for the first time. Only what will never be right is an error.
    pub(super) async fn begin(&mut self) -> Result<(), CliError> {
        match timeout(PATIENCE, self.watched.begin()).await {
            // A store that does not answer may come, and probes should say that it does not; a URL that is wrong never
            // will be right.
            Ok(Err(refused @ CliError::Refused(_))) => Err(refused),
            _ => Ok(()),
        }
    }

    /// Ends within [`PATIENCE`].
    pub(super) async fn look(&mut self) -> Page {
        let began = Instant::now();
        let found = timeout(PATIENCE, self.watched.find()).await;
        self.memory.took = began.elapsed();
        let now = self.clock.now();
        let found = found
            .unwrap_or_else(|_| Err(format!("it did not answer within {} s", PATIENCE.as_secs())));
        let health = match &found {
            Ok(found) => {
                self.memory.answered = Some(now);
                self.memory.looks[0] += 1;
                self.watched.health(found, now)
            }
            // The connection is dropped also after a timeout: a server that was replaced keeps old connections silent
            // for minutes.
            Err(why) => {
                self.memory.looks[1] += 1;
                self.watched.forget();
                Health { state: HealthState::Unhealthy, findings: vec![why.clone()], backlog: 0 }
            }
        };
        let found = found.as_ref().ok();
        let export = || self.watched.export(found, now);
        Page { metrics: page(found.is_some(), &self.memory, export), health }
    }
}

#[cfg(test)]
#[path = "look_tests.rs"]
mod tests;
