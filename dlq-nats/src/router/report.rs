use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::metrics::happened;

/// Counts of a router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RouterReport {
    /// Letters that were written.
    pub routed: u64,
    /// Advisories of a death that was known already, by another ear, another router or the consumer itself.
    pub known: u64,
    /// Letters without a payload among those written, because the message had left its stream.
    pub without_payload: u64,
    /// Messages that nobody had told of, and that were found in their stream.
    pub found: u64,
    /// Advisories of streams and consumers that the router does not watch, or of another JetStream domain.
    pub ignored: u64,
    /// Tries that failed, and were made again.
    pub failures: u64,
    /// Number of advisories that were let go after failures. They come again to the durable subscriber, and their
    /// letters may have been written since.
    pub given_up: u64,
    /// Consumers that were made to say what they had given up.
    pub pokes: u64,
    /// Consumers with another `max_deliver` than expected.
    pub unexpected: u64,
    /// Parts of the router that ended before they were asked to, which ends it: a defect.
    pub broken: u64,
}

impl fmt::Display for RouterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            routed,
            known,
            without_payload,
            found,
            ignored,
            failures,
            given_up,
            pokes,
            unexpected,
            broken,
        } = self;
        write!(
            f,
            "{routed} letters, {without_payload} of them without payload; {known} deaths heard again, {found} found that \
             nobody told of, {ignored} of what is not watched, {failures} failures, {given_up} given up; {pokes} pokes; \
             {unexpected} consumers with another `max_deliver` than expected"
        )?;
        if *broken > 0 {
            write!(f, "; {broken} of its parts broke down")?;
        }
        Ok(())
    }
}

/// Event of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Routed,
    Known,
    WithoutPayload,
    Found,
    Ignored,
    Failed,
    GivenUp,
    Poked,
    Unexpected,
    Broken,
}

impl Event {
    const COUNT: usize = Self::Broken as usize + 1;

    /// The label of the metric.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Routed => "routed",
            Self::Known => "known",
            Self::WithoutPayload => "without_payload",
            Self::Found => "found",
            Self::Ignored => "ignored",
            Self::Failed => "failed",
            Self::GivenUp => "given_up",
            Self::Poked => "poked",
            Self::Unexpected => "unexpected",
            Self::Broken => "broken",
        }
    }
}

/// Counts as it goes.
#[derive(Debug, Default)]
pub(super) struct Counts([AtomicU64; Event::COUNT]);

impl Counts {
    pub(super) fn count(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
        happened(event);
    }

    pub(super) fn report(&self) -> RouterReport {
        let read = |event: Event| self.0[event as usize].load(Ordering::Relaxed);
        RouterReport {
            routed: read(Event::Routed),
            known: read(Event::Known),
            without_payload: read(Event::WithoutPayload),
            found: read(Event::Found),
            ignored: read(Event::Ignored),
            failures: read(Event::Failed),
            given_up: read(Event::GivenUp),
            pokes: read(Event::Poked),
            unexpected: read(Event::Unexpected),
            broken: read(Event::Broken),
        }
    }
}
