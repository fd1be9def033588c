use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{DeadLetter, Death, Filter, History, LetterId, Resolution, Timestamp};

/// Proof of a claim. Worthless once the lease has ended and another has claimed, or the letter has died again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClaimToken {
    /// The letter.
    pub letter: LetterId,
    /// The generation that was claimed.
    pub generation: u32,
    /// Grows with every claim of the letter, also when the letter was deleted and written again in between.
    pub fence: u64,
}

/// A letter in somebody's hands.
///
/// It ends by [`Claims::finish`](super::Claims::finish) with its token. A claim that is not finished ends with its
/// lease, which counts a crash when the letter is claimed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Proof of the claim.
    pub token: ClaimToken,
    /// The letter as it was claimed, payload and history included. Its `crashes` count the runs that ended with the
    /// process since its last death: leases that ended unfinished and, for a retry record, those it came with.
    pub letter: DeadLetter,
    /// True if the letter was a retry record or a replay under way (`retrying`), so that the count of attempts goes on.
    /// The letter's generation is then that of the death the message would die next; see [`Claim::next_death`].
    pub continues: bool,
    /// When the lease ends, by the store's time.
    pub lease_until: Timestamp,
}

impl Claim {
    /// The death that the message would die next: one generation higher than its last, or, when it is a record of a
    /// run that goes on, the generation that the record has.
    #[must_use]
    pub const fn next_death(&self) -> Death {
        let generation = self.letter.generation;
        // A record has the generation of its next death already.
        let generation = if self.continues { generation } else { generation.saturating_add(1) };
        Death { letter: self.letter.id, generation }
    }
}

/// Request to claim letters.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub struct ClaimRequest {
    /// Only these; usually the names of a consumer.
    pub filter: Filter,
    /// Maximum number of letters; 0 claims none.
    pub limit: u32,
    /// Time after which the claim ends unless it is extended.
    pub lease: Duration,
    /// Name of the claimer, for operators.
    pub owner: String,
}

impl ClaimRequest {
    /// Claims up to `limit` due letters of these consumers.
    pub fn due<I: Into<String>>(
        consumers: impl IntoIterator<Item = I>,
        limit: u32,
        lease: Duration,
    ) -> Self {
        let mut filter = Filter::new();
        filter.consumers = consumers.into_iter().map(Into::into).collect();
        Self { filter, limit, lease, owner: String::new() }
    }

    /// Replaces the filter.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Sets who claims. Defaults to nobody in particular.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }
}

/// End of a claim. Every variant but `Released` resets the count of leases that ended unfinished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Done: the letter becomes `resolved`, and so does a retry record. Its operation counts it as succeeded, or, when
    /// it was dismissed, as skipped.
    Resolved(Resolution),
    /// It failed but may be retried: the letter becomes `retrying`, due again, with its attempts so far and the class
    /// and cause of the last one. It has the generation of the death it would die next, is counted as delayed once
    /// more (once, when it had died before) and stays with its operation.
    Retry {
        /// When the next attempt may run.
        due: Timestamp,
        /// Every attempt so far.
        history: History,
        /// Handler runs so far in this generation.
        attempts: u32,
    },
    /// It died again: the letter becomes `pending` with this death, whose generation is one higher (or, for a retry
    /// record that dies its first death, the same); a lower one is raised to that. Counts of replays and the time of
    /// first sight stay. Its operation counts it as failed again.
    Dead(Box<DeadLetter>),
    /// Not now: back to what it was, due again after this time. Counts nothing, and stays with its operation.
    Released {
        /// Minimum time to wait.
        after: Duration,
    },
}

/// Result of recording the end of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It was, now or by an earlier call with the same token (which is remembered until a later claim of the letter is
    /// finished).
    Applied,
    /// The token is worthless: the lease ended and another claimed, or the letter died again, was marked or deleted
    /// meanwhile. Nothing changed.
    Stale,
}
