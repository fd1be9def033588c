use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a router has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouterReport {
    /// Letters that were written.
    pub routed: u64,
    /// Advisories of a death that was known already, by another ear, another router or the consumer itself.
    pub known: u64,
    /// Letters without a payload among those written, because the message had left its stream.
    pub without_payload: u64,
    /// Advisories of streams and consumers that the router does not watch.
    pub ignored: u64,
    /// Tries that failed, and were made again.
    pub failures: u64,
    /// Advisories that were let go after failures; those of the durable ear come again.
    pub given_up: u64,
    /// Consumers that were made to say what they had given up.
    pub pokes: u64,
}

impl fmt::Display for RouterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { routed, known, without_payload, ignored, failures, given_up, pokes } = self;
        write!(
            f,
            "{routed} letters, {without_payload} of them without payload; {known} deaths heard again, {ignored} not \
             watched, {failures} failures, {given_up} given up; {pokes} pokes"
        )
    }
}

/// Counts as it goes.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) routed: AtomicU64,
    pub(super) known: AtomicU64,
    pub(super) without_payload: AtomicU64,
    pub(super) ignored: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) given_up: AtomicU64,
    pub(super) pokes: AtomicU64,
}

impl Counts {
    pub(super) fn report(&self) -> RouterReport {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RouterReport {
            routed: read(&self.routed),
            known: read(&self.known),
            without_payload: read(&self.without_payload),
            ignored: read(&self.ignored),
            failures: read(&self.failures),
            given_up: read(&self.given_up),
            pokes: read(&self.pokes),
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
