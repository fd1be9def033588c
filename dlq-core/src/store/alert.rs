//! Alerts about groups of errors: each receiver has one alert of each kind, from however many processes.
//!
//! A process claims an alert, sends it, and notes that it was accepted. Claims and notes are in the group's
//! [record](GroupRecord), which a store changes by compare-and-swap.
//!
//! | the process dies | the alert |
//! |---|---|
//! | before the claim | is sent by whoever looks next |
//! | between claim and note | is sent by another process once the claim has ended; the receiver may have had it already |
//! | after the note | is not sent again |

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{GroupRecord, GroupState, TriagedGroup};
use crate::Timestamp;
use crate::failure::words;

words! {
    /// Kind of an alert about a group of errors.
    AlertKind("kind of alert") {
        /// The receiver was never told of the group.
        New = "new",
        /// Messages have died of it since it was resolved.
        Regressed = "regressed",
        /// It grows, and the receiver was not told of it in the last 24 hours.
        Growing = "growing",
        /// It was resolved after the receiver was told of it.
        Resolved = "resolved",
    }
}

/// Latest alert about a group that a receiver has had, and the claim of whoever sends it the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct GroupAlert {
    /// When the receiver had accepted it, by the store's clock; `None` if it has had none.
    pub at: Option<Timestamp>,
    /// Its kind.
    pub kind: Option<AlertKind>,
    /// When the decision was made that the alert knew of.
    pub decided_at: Option<Timestamp>,
    /// Claim of the process that sends the next alert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<AlertClaim>,
}

/// Right to send an alert, for a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AlertClaim {
    /// Process that has it.
    pub holder: String,
    /// Time at which it ends, by the store's clock.
    pub until: Timestamp,
}

/// Step of an alert; see the [update](super::GroupUpdate::alert) of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AlertUpdate {
    receiver: String,
    holder: String,
    step: Step,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Claim { lease: Duration, seen: Option<Timestamp>, decided_at: Option<Timestamp> },
    Accepted { kind: AlertKind, decided_at: Option<Timestamp> },
}

impl AlertUpdate {
    /// Most characters in the names of a receiver and of a holder.
    pub const LONGEST: usize = 64;
    /// Most receivers of which a record knows; whoever had an alert the longest time ago is forgotten.
    pub const RECEIVERS: usize = 16;

    /// Claims the next alert for `receiver` in the name of `holder`. Does nothing if another process has claimed or sent it,
    /// or somebody has decided about the group, since `record` was read. [`GroupRecord::is_claimed`] tells if it is claimed.
    #[must_use]
    pub fn claim(receiver: &str, holder: &str, lease: Duration, record: &GroupRecord) -> Self {
        let seen = record.alerts.get(receiver).and_then(|alert| alert.at);
        let step = Step::Claim { lease, seen, decided_at: record.decided_at };
        Self { receiver: receiver.to_owned(), holder: holder.to_owned(), step }
    }

    /// Notes that `receiver` has accepted an alert about the group as it stands in `record`, and ends the claim of `holder`.
    #[must_use]
    pub fn accepted(receiver: &str, holder: &str, kind: AlertKind, record: &GroupRecord) -> Self {
        let step = Step::Accepted { kind, decided_at: record.decided_at };
        Self { receiver: receiver.to_owned(), holder: holder.to_owned(), step }
    }

    pub(super) fn problem(&self) -> Option<String> {
        let names = [("receiver", &self.receiver), ("holder", &self.holder)];
        names.into_iter().find_map(|(what, name)| {
            (name.chars().count() > Self::LONGEST).then(|| {
                format!("the name of the {what} is longer than {} characters", Self::LONGEST)
            })
        })
    }

    pub(super) fn apply(&self, record: &mut GroupRecord, now: Timestamp) {
        let decided = record.decided_at;
        match &self.step {
            Step::Claim { lease, seen, decided_at } => {
                let known = record.alerts.get(&self.receiver);
                // The caller decided on the alert by what it had read. If that has changed, the alert may be sent
                // already, or be wanted no more.
                let is_stale = decided != *decided_at || known.and_then(|alert| alert.at) != *seen;
                let claim = known.and_then(|alert| alert.claim.as_ref());
                let is_own = claim.is_some_and(|claim| claim.holder == self.holder);
                let is_taken = claim.is_some_and(|claim| claim.until > now) && !is_own;
                if is_taken || (is_stale && !is_own) {
                    return;
                }
                let until = now.after(*lease);
                // An own claim from before ends where the new one fails, since it would be taken for that.
                let claim = (!is_stale).then(|| AlertClaim { holder: self.holder.clone(), until });
                record.alerts.entry(self.receiver.clone()).or_default().claim = claim;
            }
            Step::Accepted { kind, decided_at } => {
                let alert = record.alerts.entry(self.receiver.clone()).or_default();
                (alert.at, alert.kind) = (Some(now), Some(*kind));
                alert.decided_at = *decided_at;
                // The claim of another process stays: this one may have been so slow that its own has ended, and both
                // have sent.
                alert.claim.take_if(|claim| claim.holder == self.holder);
            }
        }
        while record.alerts.len() > Self::RECEIVERS {
            // The receiver of this step stays, or its claim would be lost at once.
            let others = record.alerts.iter().filter(|(name, _)| **name != self.receiver);
            let oldest = others.min_by_key(|(_, alert)| alert.at).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { return };
            record.alerts.remove(&oldest);
        }
    }
}

impl GroupRecord {
    /// Returns true if `holder` has the claim to send the next alert to `receiver`.
    #[must_use]
    pub fn is_claimed(&self, receiver: &str, holder: &str) -> bool {
        let claim = self.alerts.get(receiver).and_then(|alert| alert.claim.as_ref());
        claim.is_some_and(|claim| claim.holder == holder)
    }
}

impl TriagedGroup {
    /// Returns the alert about the group that `receiver` should have and has not had; `None` if there is none, as always for
    /// groups that are acknowledged or snoozed.
    #[must_use]
    pub fn alert_due(&self, receiver: &str, now: Timestamp) -> Option<AlertKind> {
        due(self.record.alerts.get(receiver), &self.record, self.state, self.is_growing, now)
    }
}

fn due(
    alert: Option<&GroupAlert>,
    record: &GroupRecord,
    state: GroupState,
    is_growing: bool,
    now: Timestamp,
) -> Option<AlertKind> {
    /// A group that grows is told of once in this time.
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let last = alert.and_then(|alert| Some((alert.kind?, alert.at?, alert.decided_at)));
    // An alert that knew of another decision says nothing of what came after this one.
    let of_decision = last.filter(|(_, _, decided_at)| *decided_at == record.decided_at);
    let growing = || {
        let (_, at, _) = last?;
        (is_growing && at.after(DAY) <= now).then_some(AlertKind::Growing)
    };
    match (state, last, of_decision) {
        (GroupState::New, None, _) => Some(AlertKind::New),
        (GroupState::New, ..) => growing(),
        (GroupState::Regressed, _, Some((AlertKind::Regressed | AlertKind::Growing, ..))) => {
            growing()
        }
        (GroupState::Regressed, ..) => Some(AlertKind::Regressed),
        // Whoever had an alert after the decision has had one of a regression, which goes on.
        (GroupState::Resolved, Some((kind, ..)), None) if kind != AlertKind::Resolved => {
            Some(AlertKind::Resolved)
        }
        (GroupState::Resolved | GroupState::Acknowledged | GroupState::Snoozed, ..) => None,
    }
}

#[cfg(test)]
#[path = "alert_tests.rs"]
mod tests;
