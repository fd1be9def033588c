//! Futures that are given so many steps.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

/// Polls a future so many times. Returns its result if it has ended by then; one that is dropped afterwards was killed there.
pub(super) async fn run_for<F: Future>(steps: u32, mut work: Pin<&mut F>) -> Option<F::Output> {
    let mut left = steps;
    poll_fn(|context| {
        left = left.saturating_sub(1);
        match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Yields the steps at which something is killed, round by round: each of the first dozen, in which most is decided, and then
/// fewer and fewer.
pub(super) fn rounds() -> impl Iterator<Item = u32> {
    std::iter::successors(Some(1), |steps| Some(steps + 1 + steps / 12))
}

/// Runs futures beside one another, and returns their results in the order in which they ended. Each is polled when it was
/// woken itself, so that its steps are its own: polled with the others, it would be killed wherever it waits longest.
pub(super) async fn beside_one_another<F: Future>(
    futures: impl IntoIterator<Item = F>,
) -> Vec<F::Output> {
    futures.into_iter().collect::<FuturesUnordered<F>>().collect().await
}

/// Number of runs that are killed beside one another: they wait for the broker most of the time.
pub(super) const AT_ONCE: usize = 8;
