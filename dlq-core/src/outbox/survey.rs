use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Address;
use crate::replay::Subscriber;

/// Result of looking at addresses before anything is sent; see [`Outbox::survey`](super::Outbox::survey).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Survey {
    /// Consumers that receive what is sent to these addresses, those included whose letters are sent.
    pub subscribers: BTreeSet<Subscriber>,
    /// Addresses at which every letter will be refused, and why.
    pub closed: BTreeMap<Address, String>,
    /// The shortest time for which a broker knows a repeat by itself. `None` if it knows them for at least a week.
    pub window: Option<Duration>,
    /// Anything else to be known beforehand, in words.
    pub notes: Vec<String>,
}

impl Survey {
    /// Adds the findings of another outbox.
    pub fn join(mut self, other: Self) -> Self {
        self.subscribers.extend(other.subscribers);
        self.closed.extend(other.closed);
        // `None` stands for the longest window, so it must not count as the smallest of the two.
        self.window = self.window.into_iter().chain(other.window).min();
        self.notes.extend(other.notes);
        self
    }

    /// The time for which the broker knows repeats, if that is too short for this lease. A letter whose sender died is sent
    /// again after its lease, so the broker should know it for at least twice as long.
    #[must_use]
    pub fn short_window(&self, lease: Duration) -> Option<Duration> {
        self.window.filter(|window| *window < lease * 2)
    }
}
