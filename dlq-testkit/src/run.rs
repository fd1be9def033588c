use std::future::Future;
use std::time::Duration;

/// Time limit of a check before it counts as hung.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs one check on a runtime of its own, with two threads, so that what runs side by side really does.
///
/// # Panics
///
/// When the check panics, or has not ended after two minutes.
pub fn run(check: &str, future: impl Future<Output = ()>) {
    run_within(DEADLINE, check, future);
}

/// The same with another deadline.
pub(crate) fn run_within(deadline: Duration, check: &str, future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the machine can start two threads");
    let ended = runtime.block_on(async { tokio::time::timeout(deadline, future).await });
    assert!(ended.is_ok(), "`{check}` has not ended after {deadline:?}");
}
