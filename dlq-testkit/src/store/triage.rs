//! Records of groups of errors, and consumers that are there.

use std::time::Duration;

use dlq_core::store::{
    AlertKind, AlertUpdate, AuditRequest, DeadLetters, GroupKey, GroupRecord, GroupState,
    GroupUpdate, Heartbeat, Presence, Receipt, Triage,
};
use dlq_core::{DeadLetter, Failure, Fingerprint, StoreErrorKind, Timestamp};

use super::check::by;
use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::letter;

fn key_of(letter: &DeadLetter) -> GroupKey {
    GroupKey::new(letter.consumer.clone(), letter.fingerprint)
}

fn other_fingerprint() -> Fingerprint {
    Fingerprint::of("another error", dlq_core::Reason::Manual, None)
}

impl<F: StoreFixture> Check<F> {
    async fn group_record(&self, key: &GroupKey) -> GroupRecord {
        let records = self.store.group_records(vec![key.clone()]).await;
        records.expect("group_records answers").remove(0)
    }

    async fn update(&self, key: &GroupKey, update: GroupUpdate) -> GroupRecord {
        let updated = self.store.update_group(key.clone(), update, by()).await;
        updated.expect("update_group answers")
    }

    async fn present(&self) -> Vec<Presence> {
        self.store.consumers().await.expect("consumers answers").0
    }
}

/// A decision and notes about a group are kept, and found through another handle; nothing is known of other groups.
pub async fn a_group_keeps_its_record<F: StoreFixture>(check: Check<F>) {
    let key = key_of(&letter(1));
    assert_eq!(check.group_record(&key).await, GroupRecord::default());
    // People write anything, and a terminal or a pattern of the database must not take it for more than text.
    let hostile = "a\0'\"\\\u{1b}[31m\u{202e}%";
    let update = GroupUpdate::new().triage(Triage::Acknowledged).owner("payments").note(hostile);
    let updated = check.update(&key, update).await;
    assert_eq!(updated.triage, Triage::Acknowledged);
    assert_eq!(updated.decided_by, Some(by().who));
    assert!(updated.decided_at.is_some());
    assert_eq!(updated.note.as_deref(), Some(hostile));
    let others = [
        GroupKey::new("another", key.fingerprint),
        GroupKey::new(key.consumer.clone(), other_fingerprint()),
    ];
    let asked = vec![others[0].clone(), key.clone(), others[1].clone()];
    let records = check.reopened().await.group_records(asked).await.expect("it answers");
    assert_eq!(records, [GroupRecord::default(), updated.clone(), GroupRecord::default()]);
    // Parts that are not set stay, and an empty text takes a former one away.
    let changed = check.update(&key, GroupUpdate::new().note("")).await;
    let mut expected = updated;
    expected.note = None;
    assert_eq!(changed, expected);
    assert_eq!(check.group_record(&key).await, changed);
}

impl<F: StoreFixture> Check<F> {
    async fn last_action(&self) -> (String, u64) {
        let audit = self.store.audit(AuditRequest::latest(1)).await.expect("audit answers");
        audit.first().map(|entry| (entry.action.clone(), entry.affected)).unwrap_or_default()
    }
}

/// Each update is in the audit, also one that changes nothing; one that is refused changes nothing and is not.
pub async fn updates_of_groups_are_audited<F: StoreFixture>(check: Check<F>) {
    let key = key_of(&letter(1));
    let long = GroupUpdate::new().owner("ana").note("x".repeat(GroupUpdate::LONGEST + 1));
    let refused = check.store.update_group(key.clone(), long, by()).await;
    assert_eq!(refused.expect_err("it is too long").kind(), StoreErrorKind::Refused);
    assert_eq!(check.group_record(&key).await, GroupRecord::default());
    assert_eq!(check.last_action().await, (String::new(), 0));
    check.update(&key, GroupUpdate::new().owner("ana")).await;
    assert_eq!(check.last_action().await, ("triage".to_owned(), 1));
    check.update(&key, GroupUpdate::new().owner("ana")).await;
    assert_eq!(check.last_action().await, ("triage".to_owned(), 0));
}

/// Two changes of a group at once are both kept, also where both make its record.
pub async fn updates_of_groups_at_once_all_count<F: StoreFixture>(check: Check<F>) {
    // Several times, each with a group of its own, since both have to meet before the record is there.
    for n in 0..8 {
        let key = GroupKey::new(format!("consumer-{n}"), other_fingerprint());
        let (one, other) = tokio::join!(
            check.update(&key, GroupUpdate::new().owner("ana")),
            check.update(&key, GroupUpdate::new().note("look")),
        );
        drop((one, other));
        let record = check.group_record(&key).await;
        assert_eq!((record.owner.as_deref(), record.note.as_deref()), (Some("ana"), Some("look")));
    }
}

/// A single process has the claim to send an alert, and none once it is noted; the audit has nothing of it.
pub async fn an_alert_is_claimed_by_one<F: StoreFixture>(check: Check<F>) {
    const LEASE: Duration = Duration::from_secs(3600);
    let key = key_of(&letter(1));
    let holders = ["one", "two", "three", "four"];
    let seen = check.group_record(&key).await;
    let claim =
        |holder: &str| GroupUpdate::new().alert(AlertUpdate::claim("slack", holder, LEASE, &seen));
    let (a, b, c, d) = tokio::join!(
        check.update(&key, claim(holders[0])),
        check.update(&key, claim(holders[1])),
        check.update(&key, claim(holders[2])),
        check.update(&key, claim(holders[3])),
    );
    let claimed = holders.iter().zip([a, b, c, d]);
    let claimed: Vec<_> =
        claimed.filter(|(holder, record)| record.is_claimed("slack", holder)).collect();
    let [(holder, _)] = claimed[..] else { panic!("{} have the claim", claimed.len()) };
    let accepted = AlertUpdate::accepted("slack", holder, AlertKind::New, &seen);
    let record = check.update(&key, GroupUpdate::new().alert(accepted)).await;
    assert!(record.alerts["slack"].at.is_some());
    assert_eq!(check.group_record(&key).await, record);
    let record = check.update(&key, claim("five")).await;
    assert!(!record.is_claimed("slack", "five"), "it was sent");
    // A decision keeps what was told.
    let decided = check.update(&key, GroupUpdate::new().triage(Triage::Acknowledged)).await;
    assert_eq!(decided.alerts, record.alerts);
    let audit = check.store.audit(AuditRequest::latest(9)).await.expect("audit answers");
    assert_eq!(audit.len(), 1, "the decision alone is in the audit");
}

/// A death of another error, of generation 1.
fn died_of_another(letter: &DeadLetter) -> DeadLetter {
    let mut death = letter.clone().with_generation(1);
    death.fingerprint = other_fingerprint();
    death
}

/// When a group was first seen outlives the letters that were deleted or have died of something else.
pub async fn a_group_remembers_when_it_was_first_seen<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let letters = [check.get(letter(0).id).await, check.get(letter(1).id).await];
    let key = key_of(&letters[0]);
    assert_eq!(check.group_record(&key).await.first_seen, None);
    // The second leaves first.
    let receipt = check.put_one(&died_of_another(&letters[1])).await;
    assert_eq!(receipt, Receipt::Reopened);
    assert_eq!(check.group_record(&key).await.first_seen, Some(letters[1].state.created_at));
    let of_another = key_of(&died_of_another(&letters[1]));
    assert_eq!(check.group_record(&of_another).await.first_seen, None);
    check.delete(letters[0].id).await;
    let first = Some(letters[0].state.created_at);
    assert_eq!(check.group_record(&key).await.first_seen, first);
    check.delete(letter(2).id).await;
    assert_eq!(check.group_record(&key).await.first_seen, first, "a later one changes nothing");
    check.delete(letters[1].id).await;
    let seen = check.group_record(&of_another).await.first_seen;
    assert_eq!(seen, Some(letters[1].state.created_at));
}

/// The first sight of a group does not depend on the filter, and goes on where it was known before.
pub async fn a_filter_does_not_change_the_first_sight<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let letters = [check.get(letter(0).id).await, check.get(letter(2).id).await];
    let known = DeadLetters::new(check.store.clone());
    let late = dlq_core::Filter::new().since(letters[1].state.created_at);
    let groups = known.triaged_groups(late.clone(), 10).await.expect("it answers");
    assert_eq!(groups.len(), 1);
    assert_eq!((groups[0].group.count, groups[0].state), (1, GroupState::New));
    assert_eq!(groups[0].group.first_seen, letters[0].state.created_at);
    check.delete(letters[0].id).await;
    let groups = known.triaged_groups(late, 10).await.expect("it answers");
    assert_eq!(groups[0].group.first_seen, letters[0].state.created_at);
}

/// A group that was resolved comes back when something dies of it, and not before.
pub async fn a_resolved_group_comes_back<F: StoreFixture>(check: Check<F>) {
    let mut first = letter(1);
    first.died_at = check.now().before(Duration::from_secs(60));
    check.put_one(&first).await;
    let key = key_of(&first);
    let known = DeadLetters::new(check.store.clone());
    let state = async || {
        let groups = known.triaged_groups(key.filter(), 10).await.expect("it answers");
        groups[0].state
    };
    assert_eq!(state().await, GroupState::New);
    let record = check.update(&key, GroupUpdate::new().triage(Triage::Resolved)).await;
    assert_eq!(state().await, GroupState::Resolved);
    // The letter dies anew: it is stored as long as before, and news all the same.
    let mut again = first.clone().with_generation(1);
    again.died_at = record.decided_at.expect("it was decided").after(Duration::from_secs(1));
    check.put_one(&again).await;
    assert_eq!(state().await, GroupState::Regressed);
    let far = Timestamp::MAX.before(Duration::from_secs(3600));
    check.update(&key, GroupUpdate::new().triage(Triage::Snoozed(far))).await;
    assert_eq!(state().await, GroupState::Snoozed);
}

/// New groups come first, then those that somebody knows of, then those that are nobody's concern.
pub async fn urgent_groups_come_first<F: StoreFixture>(check: Check<F>) {
    let mut letters = Vec::new();
    for (n, count) in [(0_u64, 1_u64), (1, 3), (2, 2)] {
        for m in 0..count {
            let mut letter = letter(10 * n + m);
            let failure = Failure::new(
                dlq_core::ErrorClass::Permanent,
                dlq_core::Cause::Error,
                "tests::Kind",
                "refused",
            );
            letter.fingerprint = Fingerprint::of(
                &format!("consumer {n}"),
                dlq_core::Reason::Permanent,
                Some(&failure),
            );
            check.put_one(&letter).await;
            letters.push(letter);
        }
    }
    let (small, large, middle) = (key_of(&letters[0]), key_of(&letters[1]), key_of(&letters[4]));
    let order = async || {
        let known = DeadLetters::new(check.store.clone());
        let groups = known.triaged_groups(dlq_core::Filter::new(), 10).await;
        groups.expect("it answers").iter().map(|it| it.group.key()).collect::<Vec<_>>()
    };
    assert_eq!(order().await, [large.clone(), middle.clone(), small.clone()]);
    check.update(&large, GroupUpdate::new().triage(Triage::Acknowledged)).await;
    check.update(&middle, GroupUpdate::new().triage(Triage::Resolved)).await;
    // Their letters have died a long time before the decision.
    assert_eq!(order().await, [small, large, middle]);
}

/// Letters of the last hour and of the last day are counted by group, among those that match.
pub async fn letters_of_late_are_counted<F: StoreFixture>(check: Check<F>) {
    // Nobody waits a day for a store whose time cannot be moved.
    let Some(clock) = check.fixture.clock() else { return };
    const HOUR: Duration = Duration::from_secs(3600);
    let known = DeadLetters::new(check.store.clone()).clock(clock.shared());
    for (n, later) in [(0, 25), (1, 5), (2, 0)] {
        check.put_one(&letter(n)).await;
        clock.advance(HOUR * later);
    }
    let counts = async |ago: Option<Duration>| {
        let all = dlq_core::Filter::new();
        let filter = ago.map_or(all.clone(), |ago| all.since(check.now().before(ago)));
        let groups = known.triaged_groups(filter, 10).await.expect("it answers");
        assert_eq!(groups.len(), 1);
        (groups[0].group.count, groups[0].last_day, groups[0].last_hour)
    };
    assert_eq!(counts(None).await, (3, 2, 1));
    assert_eq!(counts(Some(HOUR * 26)).await, (2, 2, 1));
    assert_eq!(counts(Some(HOUR * 24)).await, (2, 2, 1));
    assert_eq!(counts(Some(HOUR * 6)).await, (2, 2, 1));
    assert_eq!(counts(Some(HOUR / 2)).await, (1, 1, 1));
}

/// Consumers are known from their first heartbeat until they sign off; those that are gone are forgotten in the end.
pub async fn consumers_are_known_while_they_are_there<F: StoreFixture>(check: Check<F>) {
    assert_eq!(check.present().await, []);
    let billing = Heartbeat::new("billing", "p1").host("web-1").build("1.0").reads(["orders.>"]);
    let audit = Heartbeat::new("audit", "p1");
    for heartbeat in [&billing, &audit, &billing] {
        check.store.heartbeat(heartbeat.clone()).await.expect("heartbeat answers");
        check.tick().await;
    }
    let present = check.present().await;
    assert_eq!(present.len(), 2);
    assert_eq!([&present[0].heartbeat, &present[1].heartbeat], [&audit, &billing]);
    assert!(present[1].last_seen > present[1].since, "it was heard of twice");
    assert_eq!(present[0].last_seen, present[0].since);
    let (_, now) = check.store.consumers().await.expect("consumers answers");
    assert!(present.iter().all(|it| it.is_alive(now)));
    check.store.sign_off(audit.clone()).await.expect("sign_off answers");
    check.store.sign_off(audit).await.expect("sign_off may be repeated");
    assert_eq!(check.present().await.len(), 1);
    if check.controls_time() {
        check.pass(Presence::KEPT + Duration::from_secs(1)).await;
        let present = check.present().await;
        let (_, now) = check.store.consumers().await.expect("consumers answers");
        assert!(!present[0].is_alive(now), "it is shown as gone");
        let other = Heartbeat::new("billing", "p2");
        check.store.heartbeat(other.clone()).await.expect("heartbeat answers");
        let present = check.present().await;
        assert_eq!(present.iter().map(|it| &it.heartbeat).collect::<Vec<_>>(), [&other]);
    }
}

/// Many consumers at once are all kept.
pub async fn heartbeats_at_once_are_all_kept<F: StoreFixture>(check: Check<F>) {
    let beats = (0..16).map(|n| check.store.heartbeat(Heartbeat::new("c", format!("p{n}"))));
    for beat in futures_util::future::join_all(beats).await {
        beat.expect("heartbeat answers");
    }
    assert_eq!(check.present().await.len(), 16);
}
