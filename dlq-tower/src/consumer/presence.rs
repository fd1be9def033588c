//! Heartbeats of a consumer in its store, by which operators see who is there.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use dlq_core::StoreError;
use dlq_core::store::{Heartbeat, Maintenance, Presence};
use futures_util::future::try_join_all;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::health::report;

/// Time limit of the last word, so that a store that does not answer holds no stop up.
const FAREWELL: Duration = Duration::from_secs(1);

/// Heartbeats of all handlers of a run.
pub(super) struct Heartbeats<S> {
    store: S,
    beats: Vec<Heartbeat>,
    stop: CancellationToken,
}

impl<S: Maintenance> Heartbeats<S> {
    /// Heartbeats for handlers of these names.
    pub(super) fn new(
        store: S,
        names: &[String],
        build: Option<&str>,
        reads: Option<&str>,
        stop: CancellationToken,
    ) -> Self {
        let process = process();
        let beat = |name: &String| {
            let mut beat = Heartbeat::new(name.as_str(), process.as_str()).reads(reads);
            beat.host = host();
            beat.build = build.map(str::to_owned);
            beat
        };
        Self { store, beats: names.iter().map(beat).collect(), stop }
    }

    /// Runs until it is stopped, and signs off then. A store that does not answer is told again later.
    pub(super) async fn run(self) {
        let mut is_failing = false;
        loop {
            let beaten = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                beaten = self.beat() => beaten,
            };
            // One line for an outage, and not one each quarter of a minute.
            if let Err(error) = &beaten
                && !is_failing
            {
                let error = report(error);
                tracing::warn!(
                    error,
                    "heartbeat not written; `dlq consumers` may show this one as gone"
                );
            }
            is_failing = beaten.is_err();
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                () = sleep(Presence::INTERVAL) => {}
            }
        }
        // Best effort: without it the consumer is shown as gone after a minute, which is as true.
        let farewell = self.beats.iter().map(|beat| self.store.sign_off(beat.clone()));
        if let Ok(Err(error)) = timeout(FAREWELL, try_join_all(farewell)).await {
            tracing::debug!(error = report(&error), "the consumer did not sign off");
        }
    }

    async fn beat(&self) -> Result<(), StoreError> {
        for beat in &self.beats {
            self.store.heartbeat(beat.clone()).await?;
        }
        Ok(())
    }
}

/// Text that no other run has. Ids of processes repeat among containers, which all begin with 1.
fn process() -> String {
    format!("{}-{:016x}", std::process::id(), RandomState::new().build_hasher().finish())
}

/// Name of this machine; `None` where it has none.
fn host() -> Option<String> {
    let variable = std::env::var("HOSTNAME").ok();
    // Many shells set it without exporting it.
    let name = variable.or_else(|| std::fs::read_to_string("/etc/hostname").ok());
    name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}
