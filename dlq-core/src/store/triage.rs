//! Groups of errors as people handle them: new, acknowledged, snoozed, resolved, and come back.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{AlertUpdate, Group, GroupAlert};
use crate::Timestamp;
use crate::failure::words;
use crate::fingerprint::Fingerprint;
use crate::identity::Fields;

/// Identity of a [`Group`] of errors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupKey {
    /// Consumer that gave the messages up.
    pub consumer: String,
    /// Fingerprint of their errors.
    pub fingerprint: Fingerprint,
}

impl GroupKey {
    /// Returns the key of these errors of `consumer`.
    #[must_use]
    pub fn new(consumer: impl Into<String>, fingerprint: Fingerprint) -> Self {
        Self { consumer: consumer.into(), fingerprint }
    }

    /// Returns a short text that stands for the key in stores: 32 hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut fields = Fields::new();
        fields.bytes(b"dlq group v1");
        fields.add(self.consumer.as_bytes());
        fields.add(self.fingerprint.to_string().as_bytes());
        format!("{:032x}", u128::from_be_bytes(fields.finish()))
    }

    /// Returns a filter that selects the letters of the group.
    pub fn filter(&self) -> crate::Filter {
        crate::Filter::new().with_consumer(self.consumer.clone()).with_fingerprint(self.fingerprint)
    }
}

impl Group {
    /// Returns the identity of the group.
    #[must_use]
    pub fn key(&self) -> GroupKey {
        GroupKey::new(self.consumer.clone(), self.fingerprint)
    }
}

/// Decision of an operator about a group of errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Triage {
    /// No decision was made.
    #[default]
    New,
    /// Somebody knows of it.
    Acknowledged,
    /// It is nobody's concern until this time.
    Snoozed(Timestamp),
    /// Its cause is mended: another death would be news. The letters stay as they are.
    Resolved,
}

words! {
    /// State of a group of errors, which follows from the [decision](Triage) and from what has died since.
    GroupState("state of a group") {
        /// No decision was made.
        New = "new",
        /// It was resolved, and messages have died of it since.
        Regressed = "regressed",
        /// Somebody knows of it.
        Acknowledged = "acknowledged",
        /// It is nobody's concern for now.
        Snoozed = "snoozed",
        /// Its cause is mended, and nothing has died of it since.
        Resolved = "resolved",
    }
}

impl GroupState {
    /// Returns true if somebody should look at it: it is neither resolved nor snoozed.
    #[must_use]
    pub const fn is_open(self) -> bool {
        !matches!(self, Self::Resolved | Self::Snoozed)
    }
}

/// Facts that a store keeps of a group of errors besides its letters. Survives the letters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct GroupRecord {
    /// When the earliest letter that has left the group was stored. `None` if none has left.
    pub first_seen: Option<Timestamp>,
    /// The decision.
    pub triage: Triage,
    /// When it was made, by the store's clock; `None` as long as there is none.
    pub decided_at: Option<Timestamp>,
    /// Name of the person or program that made it.
    pub decided_by: Option<String>,
    /// Name of the person or team that cares for it.
    pub owner: Option<String>,
    /// Text for those who look at it next.
    pub note: Option<String>,
    /// Latest alert about the group by receiver.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub alerts: BTreeMap<String, GroupAlert>,
}

impl GroupRecord {
    /// Applies `update`. Returns true if that changed something.
    pub fn apply(&mut self, update: &GroupUpdate, who: &str, now: Timestamp) -> bool {
        let before = self.clone();
        // An empty text takes a former one away.
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        if let Some(owner) = &update.owner {
            self.owner = text(owner);
        }
        if let Some(note) = &update.note {
            self.note = text(note);
        }
        if let Some(triage) = update.triage {
            // A decision that is made again counts from now on: what has died until now is known.
            self.triage = triage;
            self.decided_at = (triage != Triage::New).then_some(now);
            self.decided_by = (triage != Triage::New).then(|| who.to_owned());
        }
        if let Some(alert) = &update.alert {
            alert.apply(self, now);
        }
        *self != before
    }

    /// Returns the state at `now`. `has_returned` is true if messages have died of these errors since the decision.
    #[must_use]
    pub fn state(&self, now: Timestamp, has_returned: bool) -> GroupState {
        match self.triage {
            Triage::New => GroupState::New,
            Triage::Acknowledged => GroupState::Acknowledged,
            Triage::Snoozed(until) if until > now => GroupState::Snoozed,
            // Whoever snoozed it knows of it.
            Triage::Snoozed(_) => GroupState::Acknowledged,
            Triage::Resolved if has_returned => GroupState::Regressed,
            Triage::Resolved => GroupState::Resolved,
        }
    }
}

/// Change of a group's [record](GroupRecord). Parts that are not set stay as they are.
///
/// ```
/// use dlq_core::store::{GroupUpdate, Triage};
///
/// let update = GroupUpdate::new().triage(Triage::Acknowledged).owner("payments").note("the gateway is down");
/// assert!(!update.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
#[must_use]
pub struct GroupUpdate {
    /// The decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triage: Option<Triage>,
    /// The owner; an empty text for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The note; an empty text for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The step of an alert.
    #[serde(skip)]
    pub alert: Option<AlertUpdate>,
}

impl GroupUpdate {
    /// Most characters of an owner's name and of a note.
    pub const LONGEST: usize = 4_096;

    /// An update that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the decision. Defaults to the present one.
    pub fn triage(mut self, triage: Triage) -> Self {
        self.triage = Some(triage);
        self
    }

    /// Sets the owner; an empty text takes the present one away. Defaults to the present one.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets the note; an empty text takes the present one away. Defaults to the present one.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Sets the step of an alert. Defaults to none.
    pub fn alert(mut self, alert: AlertUpdate) -> Self {
        self.alert = Some(alert);
        self
    }

    /// Returns true if it belongs into the audit. Steps of alerts alone do not, since nobody decides about them.
    #[must_use]
    pub fn is_audited(&self) -> bool {
        let rest = Self { alert: None, ..self.clone() };
        self.alert.is_none() || !rest.is_empty()
    }

    /// Returns true if it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns what is wrong with it; `None` if nothing is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let texts = [("owner", &self.owner), ("note", &self.note)];
        let of_alert = self.alert.as_ref().and_then(AlertUpdate::problem);
        let of_texts = texts.into_iter().find_map(|(name, text)| {
            let length = text.as_ref()?.chars().count();
            (length > Self::LONGEST).then(|| {
                format!(
                    "the {name} has {length} characters, and at most {} are kept; shorten it",
                    Self::LONGEST
                )
            })
        });
        of_texts.or(of_alert)
    }
}

/// Group of errors with everything that is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TriagedGroup {
    /// The letters that match. Unlike in a plain list of groups, `first_seen` is when the first letter of the group was ever
    /// stored, whatever the filter.
    #[serde(flatten)]
    pub group: Group,
    /// Its state.
    pub state: GroupState,
    /// Number of matching letters that were stored in the last hour.
    pub last_hour: u64,
    /// Number of matching letters that were stored in the last 24 hours.
    pub last_day: u64,
    /// True if the last hour had at least twice as many as an average hour of the 23 before it.
    pub is_growing: bool,
    /// The decision, and what was noted of it.
    pub record: GroupRecord,
}

impl TriagedGroup {
    /// Joins what is known of a group.
    pub(crate) fn new(
        group: Group,
        record: GroupRecord,
        state: GroupState,
        last_hour: u64,
        last_day: u64,
    ) -> Self {
        // One letter is no trend.
        let is_growing = last_hour > 1 && last_hour * 23 >= 2 * last_day.saturating_sub(last_hour);
        Self { group, state, last_hour, last_day, is_growing, record }
    }

    /// Order in which an operator looks at them: new and regressed ones, then growing ones, then by number of letters.
    pub(crate) fn urgency(&self) -> impl Ord + use<> {
        // The key comes last and makes the order total, so that groups of equal weight keep their places.
        let is_news = matches!(self.state, GroupState::New | GroupState::Regressed);
        (
            std::cmp::Reverse((self.state.is_open(), is_news, self.is_growing, self.group.count)),
            self.group.key(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn what_died_since_a_resolve_has_regressed_and_a_snooze_ends() {
        let mut record = GroupRecord::default();
        assert_eq!(record.state(at(0), true), GroupState::New);
        assert!(record.apply(&GroupUpdate::new().triage(Triage::Resolved), "ana", at(1)));
        assert_eq!(record.state(at(2), false), GroupState::Resolved);
        assert_eq!(record.state(at(2), true), GroupState::Regressed);
        record.apply(&GroupUpdate::new().triage(Triage::Snoozed(at(9))), "ana", at(3));
        assert_eq!(record.state(at(8), true), GroupState::Snoozed);
        assert_eq!(record.state(at(9), true), GroupState::Acknowledged);
        assert_eq!((record.decided_at, record.decided_by.as_deref()), (Some(at(3)), Some("ana")));
    }

    #[test]
    fn an_empty_text_takes_a_former_one_away() {
        let mut record = GroupRecord::default();
        record.apply(&GroupUpdate::new().owner("ana").note("look"), "ana", at(1));
        assert_eq!(record.decided_at, None, "a note is no decision");
        assert!(!record.apply(&GroupUpdate::new().owner("ana"), "bo", at(2)));
        record.apply(&GroupUpdate::new().owner(""), "bo", at(2));
        assert_eq!((record.owner.as_deref(), record.note.as_deref()), (None, Some("look")));
    }

    #[test]
    fn long_texts_are_refused() {
        let update = GroupUpdate::new().note("x".repeat(GroupUpdate::LONGEST + 1));
        assert!(update.problem().unwrap().contains("4097 characters"));
        assert_eq!(GroupUpdate::new().note("x".repeat(GroupUpdate::LONGEST)).problem(), None);
    }
}
