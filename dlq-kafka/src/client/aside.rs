use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

/// Does on a thread of its own what blocks, and the client has calls that block for ever: `None` when it is not done
/// within this time, and is left alone then. Unlike the runtime's threads for that, it keeps no runtime from ending.
pub(crate) async fn aside<T: Send + 'static>(
    within: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = oneshot::channel();
    // Nobody hears it who has gone.
    leave(move || drop(tell.send(work())));
    timeout(within, told).await.ok()?.ok()
}

/// Does the same without anybody who waits for it.
pub(crate) fn leave(work: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().name("dlq-kafka-aside".to_owned());
    if let Err(error) = thread.spawn(work) {
        tracing::warn!(%error, "a thread cannot be started");
    }
}
