//! Futures that are given so many steps.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Runs it for so many steps; its result, if it has ended by then. One that is dropped afterwards was killed there.
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
