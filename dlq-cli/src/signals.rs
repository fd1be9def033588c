//! Ending what runs until it is told to end.

use std::future::Future;
use std::pin::Pin;

use tokio::sync::oneshot;

use crate::error::CliError;

/// Runs `work`, once signals are listened for, and gives it a future that is ready when the process is asked to end
/// (SIGINT, SIGTERM). Asked again, it ends at once.
pub(crate) async fn until_asked<T, W>(
    work: impl FnOnce(Box<dyn Future<Output = ()> + Send + Unpin>) -> W,
) -> Result<T, CliError>
where
    W: Future<Output = Result<T, CliError>>,
{
    let (ask, asked) = oneshot::channel::<()>();
    let stop = Box::pin(async move {
        // Dropped it was not asked.
        if asked.await.is_err() {
            std::future::pending::<()>().await;
        }
    });
    // Listening begins before the work does, so that a signal at its first step is not missed.
    let mut signals = Signals::new()?;
    tokio::select! {
        done = work(Box::new(stop)) => done,
        () = async {
            signals.next().await;
            say!("dlq: ending; once more to end at once");
            // Work that has ended no longer listens, and its result is taken at once.
            let _ = ask.send(());
            // The second signal drops the work wherever it is, as the death of the process would.
            signals.next().await;
        } => Err(CliError::failed("ended at once; what was in flight comes again")),
    }
}

/// Returns the result of `serving`, and works beside it until then. The work finishes what it has begun.
pub(crate) async fn beside<T, W: Future<Output = ()>>(
    serving: impl Future<Output = T>,
    work: Option<impl FnOnce(Pin<Box<dyn Future<Output = ()>>>) -> W>,
) -> T {
    let Some(work) = work else { return serving.await };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let working = work(Box::pin(async {
        // The receiver resolves when the sender is dropped, too: that is the signal.
        let _ = stopped.await;
    }));
    let serving = async {
        let served = serving.await;
        drop(stop);
        served
    };
    // Both are waited for: the work beside may have claimed or sent something that it still has to note.
    tokio::join!(serving, working).0
}

/// Signals that ask a process to end.
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(crate) fn new() -> Result<Self, CliError> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| {
            signal(kind)
                .map_err(|error| CliError::failed(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    #[cfg(unix)]
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    #[cfg(not(unix))]
    pub(crate) fn new() -> Result<Self, CliError> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) {
        // Without a handler the system's own way to end a process is left, which needs nothing of this.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
