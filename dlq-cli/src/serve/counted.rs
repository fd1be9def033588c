//! Metrics of `dlq route` and `dlq ingest` about their own work, for Prometheus, as long as they run.
//!
//! `/metrics` has what was counted up to a second ago. `/health` says that the process runs, and no more.

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::{Health, HealthState};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::interval;

use super::look::Page;
use super::{http, listen};
use crate::error::CliError;

const EVERY: Duration = Duration::from_secs(1);

/// Metrics, and the address that shows them; none unless it is given.
pub(crate) struct Counted(Option<(TcpListener, PrometheusHandle)>);

impl Counted {
    /// Listens at an address, and counts from now on.
    pub(crate) async fn open(address: Option<&str>, verb: &str) -> Result<Self, CliError> {
        let Some(address) = address else { return Ok(Self(None)) };
        let (listener, at) = listen(address).await?;
        let recorder = PrometheusBuilder::new().build_recorder();
        let counts = recorder.handle();
        // A process has one recorder, which must be there before the work creates its first counter.
        metrics::set_global_recorder(recorder)
            .map_err(|error| CliError::failed(format!("nothing can be counted: {error}")))?;
        say!("dlq: what {verb} counts is served at http://{at}/metrics");
        Ok(Self(Some((listener, counts))))
    }

    /// Returns the result of `work`; requests are answered beside it.
    pub(crate) async fn beside<T>(self, work: impl Future<Output = T>) -> T {
        let answering = async {
            if let Some((listener, counts)) = self.0 {
                let (pages, seen) = watch::channel(None);
                tokio::join!(http::answer(listener, seen, None), render(&counts, &pages));
            }
            // Without an address nothing is answered, and the work alone decides the end.
            pending().await
        };
        // Requests end with the work, and nobody is told: a scraper asks again.
        tokio::select! {
            done = work => done,
            never = answering => never,
        }
    }
}

async fn render(counts: &PrometheusHandle, pages: &watch::Sender<Option<Arc<Page>>>) {
    let mut ticks = interval(EVERY);
    loop {
        ticks.tick().await;
        let health = Health { state: HealthState::Healthy, findings: Vec::new(), backlog: 0 };
        pages.send_replace(Some(Arc::new(Page { metrics: counts.render(), health })));
    }
}
