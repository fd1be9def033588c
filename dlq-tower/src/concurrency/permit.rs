use std::mem::take;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::{Semaphore, TryAcquireError};
use tokio_util::sync::PollSemaphore;

/// Where a service takes its permits, one at a time. A clone starts without one.
#[derive(Debug)]
pub(super) struct Permits {
    semaphore: PollSemaphore,
    is_waiting: bool,
    holds: bool,
}

impl Permits {
    pub(super) fn new(semaphore: Arc<Semaphore>) -> Self {
        Self { semaphore: PollSemaphore::new(semaphore), is_waiting: false, holds: false }
    }

    /// Waits until it holds a permit; `false` when the semaphore was closed.
    #[inline]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.holds {
            return Poll::Ready(true);
        }
        if !self.is_waiting {
            match self.semaphore.as_ref().try_acquire() {
                Ok(permit) => {
                    permit.forget();
                    self.holds = true;
                    return Poll::Ready(true);
                }
                Err(TryAcquireError::Closed) => return Poll::Ready(false),
                Err(TryAcquireError::NoPermits) => {}
            }
        }
        self.wait(cx)
    }

    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.is_waiting = true;
        let permit = ready!(self.semaphore.poll_acquire(cx));
        self.is_waiting = false;
        self.holds = permit.is_some();
        if let Some(permit) = permit {
            permit.forget();
        }
        Poll::Ready(self.holds)
    }

    /// Hands its permit over.
    #[inline]
    pub(super) fn hand_over(&mut self) -> Permit {
        let mut permit = Permit { semaphore: self.semaphore.clone_inner(), is_held: false };
        self.hand_to(&mut permit);
        permit
    }

    /// Hands its permit to where an earlier one was released.
    #[inline]
    pub(super) fn hand_to(&mut self, permit: &mut Permit) {
        permit.is_held = take(&mut self.holds);
        assert!(permit.is_held, "a service is polled ready before it is called");
    }
}

impl Clone for Permits {
    fn clone(&self) -> Self {
        Self { semaphore: self.semaphore.clone(), is_waiting: false, holds: false }
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        if self.holds {
            self.semaphore.as_ref().add_permits(1);
        }
    }
}

/// The permit of an attempt, until it is released.
#[derive(Debug)]
pub(super) struct Permit {
    semaphore: Arc<Semaphore>,
    is_held: bool,
}

impl Permit {
    #[inline]
    pub(super) fn release(&mut self) {
        if take(&mut self.is_held) {
            self.semaphore.add_permits(1);
        }
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        self.release();
    }
}
