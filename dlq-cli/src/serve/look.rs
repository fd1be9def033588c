//! Looking at the store, and finding it again.

use std::future::Future;
use std::time::Duration;

use dlq_core::store::{
    Claims as _, Due, Health, HealthState, HealthThresholds, Operation, Stats, Upkeep as _,
};
use dlq_core::{DeadLetters, Filter, SharedClock, Status, Timestamp};
use tokio::time::{Instant, timeout};

use super::render::render;
use super::written::Written;
use crate::error::{CliError, chain};

/// How long the store may take. Shorter than the ten seconds that Prometheus waits by default.
const PATIENCE: Duration = Duration::from_secs(8);
/// How many operations are looked at, the latest.
const OPERATIONS: u32 = 100;

/// Where the store is.
pub(super) trait Place {
    /// What tells the store there from another one that is put into its place; `None` when it tells that itself.
    type Identity: PartialEq;

    /// Opens it.
    fn open(&self) -> impl Future<Output = Result<DeadLetters, CliError>>;

    /// What is there now.
    fn identity(&self) -> Self::Identity;
}

/// What was found.
pub(super) struct Found {
    pub(super) stats: Stats,
    /// Letters that are pending, held or quarantined.
    pub(super) waiting: Stats,
    pub(super) quarantined: Stats,
    pub(super) next_due: Option<Timestamp>,
    pub(super) due: Vec<Due>,
    /// Those that have not ended.
    pub(super) operations: Vec<Operation>,
}

/// What it remembers from one look to the next.
pub(super) struct Memory {
    pub(super) written: Written,
    /// Looks that were answered, and that were not.
    pub(super) looks: [u64; 2],
    pub(super) answered: Option<Timestamp>,
    pub(super) took: Duration,
    pub(super) thresholds: HealthThresholds,
    /// From when on a letter has waited for a consumer for too long.
    pub(super) overdue: Duration,
}

/// What is answered until the next look.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) metrics: String,
    pub(super) health: Health,
}

/// Looks at a store. One that fails is opened anew at the next look.
pub(super) struct Looker<P: Place> {
    place: P,
    open: Option<(P::Identity, DeadLetters)>,
    memory: Memory,
    clock: SharedClock,
}

impl<P: Place> Looker<P> {
    pub(super) fn new(
        place: P,
        thresholds: HealthThresholds,
        overdue: Duration,
        clock: SharedClock,
    ) -> Self {
        let (written, took) = (Written::default(), Duration::ZERO);
        let memory = Memory { written, looks: [0; 2], answered: None, took, thresholds, overdue };
        Self { place, open: None, memory, clock }
    }

    /// Opens the store for the first time. Only what will never be a store is an error.
    pub(super) async fn begin(&mut self) -> Result<(), CliError> {
        match timeout(PATIENCE, self.store()).await {
            Ok(Err(refused @ CliError::Refused(_))) => Err(refused),
            _ => Ok(()),
        }
    }

    /// Ends within [`PATIENCE`].
    pub(super) async fn look(&mut self) -> Page {
        let began = Instant::now();
        let found = timeout(PATIENCE, self.find()).await;
        self.memory.took = began.elapsed();
        let now = self.clock.now();
        let found = found.unwrap_or_else(|_| {
            Err(format!("the store did not answer within {} s", PATIENCE.as_secs()))
        });
        let health = match &found {
            Ok(found) => {
                self.memory.answered = Some(now);
                self.memory.looks[0] += 1;
                Health::of(&found.stats, self.memory.thresholds, now)
            }
            Err(why) => {
                self.memory.looks[1] += 1;
                self.open = None;
                Health { state: HealthState::Unhealthy, findings: vec![why.clone()], backlog: 0 }
            }
        };
        Page { metrics: render(found.as_ref().ok(), &self.memory, now), health }
    }

    /// The store; opened, when it is not or when another one is in its place.
    async fn store(&mut self) -> Result<DeadLetters, CliError> {
        let identity = self.place.identity();
        if let Some((_, store)) = self.open.take_if(|(opened, _)| *opened == identity) {
            self.open = Some((identity, store.clone()));
            return Ok(store);
        }
        self.open = None;
        let store = self.place.open().await?;
        self.open = Some((identity, store.clone()));
        Ok(store)
    }

    async fn find(&mut self) -> Result<Found, String> {
        let store = self.store().await.map_err(CliError::into_message)?;
        let asked = async {
            let stats = store.stats(Filter::new()).await?;
            let mut waiting = Filter::new();
            waiting.statuses = vec![Status::Pending, Status::Held, Status::Quarantined];
            let waiting = store.stats(waiting).await?;
            let quarantined = Filter::new().with_status(Status::Quarantined);
            let quarantined = store.stats(quarantined).await?;
            let next_due = store.store().next_due(Vec::new()).await?;
            let due = store.store().due(self.memory.overdue).await?;
            let mut operations = store.operations(OPERATIONS).await?;
            operations.retain(|operation| !operation.state.is_final());
            self.memory.written.look(&store, &stats).await?;
            Ok(Found { stats, waiting, quarantined, next_due, due, operations })
        };
        asked.await.map_err(|error: dlq_core::StoreError| chain(&error))
    }
}

#[cfg(test)]
#[path = "look_tests.rs"]
mod tests;
