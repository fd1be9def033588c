//! Looking at a store, and finding it again.

use std::future::Future;

use dlq_core::store::{
    Claims as _, Due, Group, Health, HealthThresholds, Maintenance as _, Operation, Stats,
    Unfinished,
};
use dlq_core::{DeadLetters, Filter, Status, Timestamp};
use std::sync::Arc;
use std::time::Duration;

use super::look::Watched;
use super::render;
use super::written::Written;
use crate::alert::{Counts, StoreSource};
use crate::error::{CliError, chain};
use crate::secret::hide;

/// Place of the store.
pub(super) trait StoreOpener {
    /// Identity that tells the store from another one that is put into its place; `None` if the store tells that
    /// itself.
    type Identity: PartialEq;

    /// Opens it.
    fn open(&self) -> impl Future<Output = Result<DeadLetters, CliError>>;

    /// Returns the current identity.
    fn identity(&self) -> Self::Identity;
}

/// From when on a store is not well.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) health: HealthThresholds,
    /// From when on a letter has waited for a consumer for too long.
    pub(super) overdue: Duration,
    /// Number of groups with a series of their own.
    pub(super) groups: u32,
}

/// Result of a look.
pub(super) struct StoreObservation {
    pub(super) stats: Stats,
    /// Letters that are pending, held or quarantined.
    pub(super) waiting: Stats,
    pub(super) quarantined: Stats,
    pub(super) next_due: Option<Timestamp>,
    pub(super) due: Vec<Due>,
    /// Operations that have not ended.
    pub(super) operations: Vec<Operation>,
    /// The largest groups of the letters that wait; `None` where they are not asked for.
    pub(super) groups: Option<Vec<Group>>,
}

/// Store that is opened anew when another one is in its place.
pub(super) struct Opened<P: StoreOpener> {
    place: P,
    open: Option<(P::Identity, DeadLetters)>,
}

impl<P: StoreOpener> Opened<P> {
    pub(super) fn new(place: P) -> Self {
        Self { place, open: None }
    }
}

impl<P: StoreOpener> StoreSource for Opened<P> {
    async fn store(&mut self) -> Result<DeadLetters, CliError> {
        // The identity is taken before the opening: a file that is replaced in between is opened anew at the next look.
        let identity = self.place.identity();
        if let Some((_, store)) = self.open.take_if(|(opened, _)| *opened == identity) {
            self.open = Some((identity, store.clone()));
            return Ok(store);
        }
        // The old one is closed before the new one is opened, or a file that was replaced would be held until both are
        // there.
        self.open = None;
        let store = self.place.open().await?;
        self.open = Some((identity, store.clone()));
        Ok(store)
    }

    fn forget(&mut self) {
        self.open = None;
    }
}

/// A store.
pub(super) struct Stored<P: StoreOpener> {
    opened: Opened<P>,
    limits: Limits,
    unfinished: Unfinished,
    written: Written,
    alerts: Arc<Counts>,
}

impl<P: StoreOpener> Stored<P> {
    pub(super) fn new(place: P, limits: Limits, alerts: Arc<Counts>) -> Self {
        let (unfinished, written) = Default::default();
        Self { opened: Opened::new(place), limits, unfinished, written, alerts }
    }
}

impl<P: StoreOpener> Watched for Stored<P> {
    type Observation = StoreObservation;

    async fn begin(&mut self) -> Result<(), CliError> {
        self.opened.store().await.map(|_| ())
    }

    async fn find(&mut self) -> Result<StoreObservation, String> {
        let store = self.opened.store().await.map_err(CliError::into_message)?;
        // These are several questions and no snapshot: figures of one look may differ by what happens between two of
        // them.
        let asked = async {
            let stats = store.stats(Filter::new()).await?;
            let mut waiting = Filter::new();
            // Those that somebody has to look at: retries and letters on their way come to an end by themselves.
            waiting.statuses = vec![Status::Pending, Status::Held, Status::Quarantined];
            let groups = match self.limits.groups {
                0 => None,
                most => Some(store.groups(waiting.clone(), most).await?),
            };
            let waiting = store.stats(waiting).await?;
            let quarantined = Filter::new().with_status(Status::Quarantined);
            let quarantined = store.stats(quarantined).await?;
            let next_due = store.store().next_due(Vec::new()).await?;
            let due = store.store().due(self.limits.overdue).await?;
            let mut operations = self.unfinished.look(store.store()).await?;
            operations.retain(|operation| !operation.state.is_final());
            // Counters move last, so that a look which fails before leaves them as they were.
            self.written.look(&store, &stats).await?;
            Ok(StoreObservation { stats, waiting, quarantined, next_due, due, operations, groups })
        };
        asked.await.map_err(|error: dlq_core::StoreError| hide(&chain(&error)))
    }

    fn forget(&mut self) {
        self.opened.forget();
    }

    fn health(&self, found: &StoreObservation, now: Timestamp) -> Health {
        Health::of(&found.stats, self.limits.health, now)
    }

    fn export(&self, found: Option<&StoreObservation>, now: Timestamp) {
        render::alerts(&self.alerts);
        render::store(found, &self.written, self.limits.health.age, now);
    }
}
