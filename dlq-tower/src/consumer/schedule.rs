//! The automatic schedule: letters come back by themselves, a few at a time.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::StoreError;
use dlq_core::store::{Claims, Schedule, ScheduleRun};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::gate::Gate;
use super::health::{Part, Reporter, report};
use crate::backoff::Growing;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The store is asked at least this often: another process may have a shorter interval.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// And not more often than this.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

pub(super) struct Scheduling<C> {
    pub(super) claims: C,
    pub(super) names: Vec<String>,
    pub(super) schedule: Schedule,
    pub(super) gate: Arc<Gate>,
    pub(super) waker: Arc<Notify>,
    pub(super) stop: CancellationToken,
    pub(super) health: Reporter,
}

impl<C: Claims> Scheduling<C> {
    /// Runs until it is stopped, or the store refuses for good.
    pub(super) async fn run(self) -> Result<(), StoreError> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Ok(()),
            ended = self.repeat() => ended,
        }
    }

    async fn repeat(&self) -> Result<(), StoreError> {
        let mut pause = Growing::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            // Letters that come back during an outage would only die again.
            self.gate.no_outage().await;
            match self.once().await {
                Ok(wait) => {
                    pause.reset();
                    self.health.failing(Part::Schedule, None);
                    sleep(wait.clamp(SHORTEST_WAIT, LONGEST_WAIT)).await;
                }
                Err(error) if error.is_transient() => {
                    let wait = pause.next();
                    tracing::error!(error = report(&error), retry_in = ?wait, "the automatic schedule could not be run");
                    self.health.failing(Part::Schedule, Some(report(&error)));
                    sleep(wait).await;
                }
                // A permanent error ends this part. The run reports it, and goes on without it (G9).
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs what is to be run, and says how long it is until it is to be run again, by the store's clock: that of this
    /// machine may go wrong.
    async fn once(&self) -> Result<Duration, StoreError> {
        let mut wait = Duration::MAX;
        // An error for one name ends the round: the store is one, and would most likely fail for the others too.
        for consumer in &self.names {
            let run = ScheduleRun { consumer: consumer.clone(), schedule: self.schedule.clone() };
            let (letters, again) = self.claims.run_schedule(run).await?;
            if letters > 0 {
                tracing::info!(consumer, letters, "the automatic schedule sent letters back");
                // The source of the store sleeps until something falls due, and what was sent back is due now.
                self.waker.notify_one();
            }
            wait = wait.min(again);
        }
        Ok(wait)
    }
}
