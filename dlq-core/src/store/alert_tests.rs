use super::*;
use crate::store::{GroupUpdate, Triage};

const LEASE: Duration = Duration::from_secs(60);

fn at(hours: u64) -> Timestamp {
    Timestamp::EPOCH.after(Duration::from_secs(hours * 3600))
}

/// Record of a group, of which messages have died since the decision or not, and which grows or not.
#[derive(Default)]
struct Known {
    record: GroupRecord,
    has_returned: bool,
    grows: bool,
}

impl Known {
    fn step(&mut self, alert: AlertUpdate, now: Timestamp) {
        self.record.apply(&GroupUpdate::new().alert(alert), "", now);
    }

    fn decide(&mut self, triage: Triage, now: Timestamp) {
        self.record.apply(&GroupUpdate::new().triage(triage), "ana", now);
    }

    fn due(&self, now: Timestamp) -> Option<AlertKind> {
        let state = self.record.state(now, self.has_returned);
        due(self.record.alerts.get("slack"), &self.record, state, self.grows, now)
    }

    /// Sends the alert that is due, and returns it.
    fn told(&mut self, now: Timestamp) -> Option<AlertKind> {
        let kind = self.due(now)?;
        self.step(AlertUpdate::accepted("slack", "one", kind, &self.record), now);
        Some(kind)
    }
}

#[test]
fn each_transition_is_told_once() {
    let mut known = Known::default();
    assert_eq!(known.told(at(1)), Some(AlertKind::New));
    assert_eq!(known.told(at(2)), None);
    known.decide(Triage::Resolved, at(3));
    assert_eq!(known.told(at(3)), Some(AlertKind::Resolved));
    assert_eq!(known.told(at(4)), None);
    known.has_returned = true;
    assert_eq!(known.told(at(5)), Some(AlertKind::Regressed));
    assert_eq!(known.told(at(6)), None);
    // A second time it is news again, also if nobody heard of the end of the first.
    known.decide(Triage::Resolved, at(7));
    assert_eq!(known.told(at(8)), Some(AlertKind::Regressed));
    assert_eq!(known.told(at(9)), None);
}

#[test]
fn one_that_grows_is_told_of_once_a_day_and_not_beside_another_alert() {
    let mut known = Known { grows: true, ..Known::default() };
    assert_eq!(known.told(at(1)), Some(AlertKind::New));
    assert_eq!(known.told(at(24)), None);
    assert_eq!(known.told(at(25)), Some(AlertKind::Growing));
    assert_eq!(known.told(at(26)), None);
    known.decide(Triage::Resolved, at(60));
    known.has_returned = true;
    assert_eq!(known.told(at(60)), Some(AlertKind::Regressed));
    assert_eq!(known.told(at(61)), None);
    assert_eq!(known.told(at(84)), Some(AlertKind::Growing));
    assert_eq!(known.told(at(85)), None, "it is the same regression");
}

#[test]
fn what_somebody_knows_of_or_has_reopened_is_not_told() {
    let mut known = Known { grows: true, has_returned: true, ..Known::default() };
    known.decide(Triage::Acknowledged, at(1));
    assert_eq!(known.due(at(2)), None);
    known.decide(Triage::Snoozed(at(50)), at(2));
    assert_eq!(known.due(at(3)), None);
    known.decide(Triage::New, at(4));
    assert_eq!(known.told(at(4)), Some(AlertKind::New), "nobody was told before");
    known.decide(Triage::Resolved, at(5));
    known.decide(Triage::New, at(6));
    assert_eq!(known.due(at(7)), None);
    let mut unknown = Known::default();
    unknown.decide(Triage::Resolved, at(1));
    assert_eq!(unknown.due(at(2)), None, "nobody heard of its beginning");
}

#[test]
fn a_claim_is_held_by_one_until_it_ends() {
    let mut known = Known::default();
    let claim = |holder, known: &Known| AlertUpdate::claim("slack", holder, LEASE, &known.record);
    let (one, other) = (claim("one", &known), claim("other", &known));
    known.step(one.clone(), at(1));
    known.step(other.clone(), at(1));
    assert!(known.record.is_claimed("slack", "one") && !known.record.is_claimed("slack", "other"));
    assert!(!known.record.is_claimed("pager", "one"), "each receiver has its own");
    // Whoever has it keeps it longer, and another has it once it has ended.
    known.step(one, at(2));
    known.step(other.clone(), at(2));
    assert!(known.record.is_claimed("slack", "one"));
    known.step(other.clone(), at(3));
    assert!(known.record.is_claimed("slack", "other"));
    let accepted = AlertUpdate::accepted("slack", "other", AlertKind::New, &known.record);
    known.step(accepted, at(3));
    assert_eq!(known.record.alerts["slack"].claim, None);
    // What was seen before is known to be sent.
    known.step(other, at(4));
    assert!(!known.record.is_claimed("slack", "other"));
}

#[test]
fn a_claim_fails_where_somebody_has_decided_since() {
    let mut known = Known::default();
    let before = AlertUpdate::claim("slack", "one", LEASE, &known.record);
    known.step(before.clone(), at(1));
    known.decide(Triage::Acknowledged, at(1));
    known.step(before, at(1));
    assert!(!known.record.is_claimed("slack", "one"), "not the former one, either");
}

#[test]
fn a_note_is_of_the_decision_that_the_alert_knew_of() {
    let mut known = Known { has_returned: true, ..Known::default() };
    known.decide(Triage::Resolved, at(1));
    let accepted = AlertUpdate::accepted("slack", "one", AlertKind::Regressed, &known.record);
    known.decide(Triage::Resolved, at(2));
    known.step(accepted, at(3));
    assert_eq!(known.due(at(4)), Some(AlertKind::Regressed), "this one nobody has heard of");
}

#[test]
fn a_record_knows_of_a_bounded_number_of_receivers() {
    let mut known = Known::default();
    for n in 0..40 {
        let name = format!("receiver {n}");
        known.step(AlertUpdate::accepted(&name, "one", AlertKind::New, &known.record), at(n));
    }
    assert_eq!(known.record.alerts.len(), AlertUpdate::RECEIVERS);
    assert!(known.record.alerts.contains_key("receiver 39"));
    let long = AlertUpdate::claim(&"x".repeat(65), "one", LEASE, &known.record);
    assert!(GroupUpdate::new().alert(long).problem().is_some());
}
