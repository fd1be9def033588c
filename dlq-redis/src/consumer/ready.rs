//! [`Ready`]: deliveries that were fetched and wait to be yielded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dlq_core::TransportError;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;

use super::calls::Request;
use super::place::GroupMember;

/// A delivery that was fetched.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) what: What,
    /// No later than this its lease has begun.
    pub(super) since: Instant,
    pub(super) _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(super) enum What {
    Entry { id: Arc<str>, count: u64, pairs: Vec<(Vec<u8>, Bytes)> },
    Record { name: Arc<str>, fence: Arc<str>, count: u64, body: Bytes, payload: Bytes },
}

impl What {
    /// The request by which its lease is renewed.
    pub(super) fn extend(&self, place: &GroupMember) -> Request {
        match self {
            Self::Entry { id, count, .. } => Request::Extend { id: id.clone(), count: *count },
            Self::Record { name, fence, .. } => Request::Record {
                proof: None,
                name: name.clone(),
                fence: fence.clone(),
                verb: "extend",
                time: place.lease,
            },
        }
    }

    /// The request by which it is given back.
    pub(super) fn give_back(&self) -> Request {
        let delay = std::time::Duration::ZERO;
        match self {
            Self::Entry { id, count, .. } => {
                Request::GiveBack { id: id.clone(), count: *count, delay }
            }
            Self::Record { name, fence, .. } => Request::Record {
                proof: None,
                name: name.clone(),
                fence: fence.clone(),
                verb: "later",
                time: delay,
            },
        }
    }

    fn is(&self, request: &Request) -> bool {
        match (self, request) {
            (Self::Entry { id, count, .. }, Request::Extend { id: other, count: told }) => {
                id == other && count == told
            }
            (
                Self::Record { name, fence, .. },
                Request::Record { name: other, fence: told, .. },
            ) => name == other && fence == told,
            _ => false,
        }
    }
}

/// Deliveries that were fetched and wait to be yielded, in their order.
#[derive(Debug, Default)]
pub(super) struct Ready {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Fetched>,
    error: Option<TransportError>,
    closed: bool,
}

/// The next thing to tell.
#[derive(Debug)]
pub(super) enum Next {
    Fetched(Fetched),
    Failed(TransportError),
    Closed,
}

impl Ready {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, fetched: Vec<Fetched>) {
        if !fetched.is_empty() {
            self.state().queue.extend(fetched);
            // The notice is kept for a `next` that is about to wait; there is never more than one.
            self.changed.notify_one();
        }
    }

    pub(super) fn fail(&self, error: TransportError) {
        // The latest error replaces the one before: a task that goes on failing reports again, and nothing piles up.
        self.state().error = Some(error);
        self.changed.notify_one();
    }

    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_one();
    }

    /// The next thing to tell. Nothing is awaited once it is taken, so that the future can be dropped.
    pub(super) async fn next(&self, lease: std::time::Duration) -> Next {
        loop {
            {
                let mut state = self.state();
                // What is still queued was given back by `close`, or comes again when its lease ends.
                if state.closed {
                    return Next::Closed;
                }
                // An error goes before what is queued: under load the queue is never empty, and the consumer would not hear
                // of it.
                if let Some(error) = state.error.take() {
                    return Next::Failed(error);
                }
                while let Some(fetched) = state.queue.pop_front() {
                    // Another process may have it by now: it comes again.
                    if fetched.since.elapsed() < lease * 3 / 4 {
                        return Next::Fetched(fetched);
                    }
                    tracing::warn!(
                        "a fetched message waited longer than its lease could be renewed; it comes again"
                    );
                }
            }
            self.changed.notified().await;
        }
    }

    /// The requests that renew leases of which a quarter has passed.
    pub(super) fn to_renew(&self, place: &GroupMember) -> Vec<Request> {
        let state = self.state();
        let old = state.queue.iter().filter(|fetched| fetched.since.elapsed() >= place.lease / 4);
        old.map(|fetched| fetched.what.extend(place)).collect()
    }

    /// Notes that leases began anew, or were lost.
    pub(super) fn renewed(&self, request: &Request, is_ours: bool, at: Instant) {
        let mut state = self.state();
        if is_ours {
            if let Some(fetched) = state.queue.iter_mut().find(|fetched| fetched.what.is(request)) {
                fetched.since = at;
            }
        } else {
            // Another owner has it now, and would run it at the same time.
            state.queue.retain(|fetched| !fetched.what.is(request));
        }
    }

    /// Takes all that is left.
    pub(super) fn drain(&self) -> Vec<Fetched> {
        self.state().queue.drain(..).collect()
    }
}
