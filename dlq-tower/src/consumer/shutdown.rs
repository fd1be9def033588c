//! When to stop.

use tokio_util::sync::CancellationToken;

use super::health::HealthHandle;

/// Stops a consumer, and shows how it is. Cheap to clone; outlives the consumer.
#[derive(Clone, Debug)]
pub struct ConsumerHandle {
    stop: CancellationToken,
    health: HealthHandle,
}

impl ConsumerHandle {
    pub(super) fn new(stop: CancellationToken, health: HealthHandle) -> Self {
        Self { stop, health }
    }

    /// Asks the consumer to stop. Asking twice, before it runs or after it has ended is fine.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Returns the health of the consumer.
    #[must_use]
    pub fn health(&self) -> HealthHandle {
        self.health.clone()
    }
}

/// Waits for a request to end: `SIGTERM` or `SIGINT`; on systems without them, Ctrl-C.
///
/// When signals cannot be listened to, it says so in the log and waits for ever.
///
/// # Cancel safety
///
/// A signal that comes while nobody waits is missed; from the first call on it no longer ends the process.
pub async fn signal() {
    if let Err(error) = listen().await {
        tracing::error!(%error, "cannot listen to signals");
        std::future::pending::<()>().await;
    }
}

#[cfg(unix)]
async fn listen() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(signal = name, "asked to stop");
    Ok(())
}

#[cfg(not(unix))]
async fn listen() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}
