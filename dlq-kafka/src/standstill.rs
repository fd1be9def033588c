//! Partitions that stand still: a record stands where the next is to be read, another client reads it, and ours does not.
//!
//! The client keeps the highest epoch of a leader that it has heard of. Where a topic was made anew, and that was not seen
//! while it was missing, its epochs begin anew too; the client takes them for old news, asks with its own, is refused, and
//! asks again without end and without a word. Only another client gets out of that, and so it is told until the process is
//! restarted: nothing that was done is lost by that, and nothing is passed over.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlq_core::{TransportError, TransportErrorKind};

/// How long a record may take to come that another client has read. Brokers may slow a client down.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often it is told. A consumer takes its source for well again after half a minute without a word.
const TOLD: Duration = Duration::from_secs(20);

type Place = (Arc<str>, i32);

/// Since when records are missing, and from which offset on.
#[derive(Debug, Default)]
pub(crate) struct Standstill {
    missing: HashMap<Place, (u64, Instant)>,
    told: Option<Instant>,
}

impl Standstill {
    /// At this offset of a partition, or after it, stands a record.
    pub(crate) fn seen(&mut self, place: Place, from: u64, now: Instant) {
        let known = self.missing.entry(place).or_insert((from, now));
        if known.0 != from {
            *known = (from, now);
        }
    }

    /// There is none.
    pub(crate) fn refuted(&mut self, place: &Place) {
        self.missing.remove(place);
    }

    /// What stands still for too long. `rests` says where everything is done of a partition, if all of it is; one that is
    /// paused gets nothing because we want nothing.
    pub(crate) fn told(
        &mut self,
        now: Instant,
        rests: impl Fn(&Place) -> Option<u64>,
        is_paused: impl Fn(&Place) -> bool,
    ) -> Option<TransportError> {
        self.missing.retain(|place, (from, _)| rests(place) == Some(*from));
        for (_, known) in self.missing.iter_mut().filter(|(place, _)| is_paused(place)) {
            known.1 = now;
        }
        let is_long = |since: Instant| now.saturating_duration_since(since) >= PATIENCE;
        let still = self.missing.iter().filter(|(_, (_, since))| is_long(*since));
        let ((topic, partition), (from, _)) = still.min_by_key(|(place, _)| *place)?;
        let text = format!(
            "topic `{topic}`, partition {partition}: what stands from offset {from} on has not come for {} s; if that \
             lasts, restart the process, since a client that missed that a topic was made anew may never read it",
            PATIENCE.as_secs()
        );
        if self.told.is_some_and(|at| now.saturating_duration_since(at) < TOLD) {
            return None;
        }
        self.told = Some(now);
        Some(
            TransportError::new(TransportErrorKind::Unavailable, "fetch records").with_detail(text),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g9_what_does_not_come_is_told_until_it_does() {
        let (mut still, begun) = (Standstill::default(), Instant::now());
        let place: Place = ("orders".into(), 3);
        let at = |seconds| begun + Duration::from_secs(seconds);
        let (rests, runs) = (|_: &Place| Some(5), |_: &Place| false);
        still.seen(place.clone(), 5, begun);
        assert!(still.told(at(29), rests, runs).is_none(), "it may still come");
        still.seen(place.clone(), 5, at(29));
        for seconds in [30, 50] {
            let told = still.told(at(seconds), rests, runs).expect("it has not come");
            assert!(told.is_transient());
            assert!(told.to_string().contains("`orders`, partition 3: what stands from offset 5"));
            assert!(still.told(at(seconds + 19), rests, runs).is_none(), "it was told");
        }
        assert!(still.told(at(50), rests, |_| true).is_none(), "nothing is asked for");
        assert!(still.told(at(79), rests, runs).is_none());
        assert!(still.told(at(80), rests, runs).is_some());
        assert!(still.told(at(90), |_| None, runs).is_none(), "it has come");
        assert!(still.told(at(190), rests, runs).is_none());
        still.seen(place.clone(), 5, at(200));
        still.refuted(&place);
        assert!(still.told(at(300), rests, runs).is_none());
    }
}
