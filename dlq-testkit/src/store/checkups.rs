//! Findings of a store about itself.

use std::time::Duration;

use dlq_core::store::{CheckLimits, Control, Due, Mark, Processed, ProcessedEvent, Vitals};
use dlq_core::{Clock as _, Finding, Severity, Timestamp};

use super::check::by;
use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::{CONSUMER, delayed_retry, letter};

const LONG: Duration = Duration::from_secs(3600);

/// Limits that nothing reaches.
fn none() -> CheckLimits {
    let ever = Duration::from_secs(100 * 365 * 24 * 3600);
    CheckLimits::default()
        .overdue(ever)
        .age(ever)
        .idle(ever)
        .skew(ever)
        .ahead(ever)
        .processed(u64::MAX)
        .deep(true)
}

impl<F: StoreFixture> Check<F> {
    async fn found(&self, limits: CheckLimits) -> Vec<Finding> {
        self.store.check(limits).await.expect("check answers")
    }

    /// Returns the single finding by these limits.
    async fn only(&self, limits: CheckLimits) -> Finding {
        assert_eq!(self.found(none()).await, []);
        let mut findings = self.found(limits).await;
        assert_eq!(findings.len(), 1, "{findings:?}");
        let finding = findings.remove(0);
        assert_eq!(finding.severity, Severity::Warning);
        for text in
            [&finding.subject, &finding.setting, &finding.found, &finding.want, &finding.advice]
        {
            assert!(!text.is_empty(), "{finding:?}");
        }
        finding
    }
}

/// A store without letters is well, and so is one that works; the default limits say nothing about either.
pub async fn a_store_that_works_is_well<F: StoreFixture>(check: Check<F>) {
    assert_eq!(check.found(CheckLimits::default().deep(true)).await, []);
    check.bury(3).await;
    check.replay().await;
    check.claim_one().await;
    assert_eq!(check.found(CheckLimits::default().deep(true)).await, []);
}

/// A claim whose lease ended, and that nobody took, is found; one that lasts is not.
pub async fn a_claim_never_finished_is_found<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    check.replay().await;
    check.claim_one().await;
    assert_eq!(check.found(none().overdue(Duration::ZERO)).await, []);
    check.outlast_leases().await;
    let finding = check.only(none().overdue(Duration::ZERO)).await;
    assert_eq!(finding.setting, "unfinished claims");
    assert!(finding.subject.contains(CONSUMER) && finding.found.starts_with("1,"), "{finding}");
    assert_eq!(check.found(none().overdue(LONG)).await, []);
}

/// A retry record that is due, and that nobody takes, is found.
pub async fn an_overdue_retry_is_found<F: StoreFixture>(check: Check<F>) {
    // It is due when the leases of this check end, which is what time is passed for.
    let record = delayed_retry(&letter(1), 1, check.now().after(check.lease()));
    check.enqueue(record).await;
    assert_eq!(check.found(none().overdue(Duration::ZERO)).await, []);
    check.outlast_leases().await;
    let finding = check.only(none().overdue(Duration::ZERO)).await;
    assert_eq!(finding.setting, "overdue retries");
    assert!(finding.subject.contains(CONSUMER), "{finding}");
}

/// A retry record that waits for years is found, however many others are due before it.
pub async fn a_retry_that_is_due_too_late_is_found<F: StoreFixture>(check: Check<F>) {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let late = check.now().after(50 * YEAR);
    check.enqueue(delayed_retry(&letter(1), 1, late)).await;
    for n in 2..5 {
        check.enqueue(delayed_retry(&letter(n), 1, check.now().after(LONG))).await;
    }
    assert_eq!(check.found(none().ahead(60 * YEAR)).await, []);
    let finding = check.only(CheckLimits::default()).await;
    assert_eq!(finding.setting, "latest due time");
    assert!(finding.subject.contains(CONSUMER), "{finding}");
    // To the microsecond, as some stores have it.
    assert_eq!(finding.found[..22], late.to_string()[..22], "{finding}");
}

/// A letter of the age that is given is found, unless it is resolved.
pub async fn an_old_letter_is_found<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    check.tick().await;
    let finding = check.only(none().age(Duration::from_millis(1))).await;
    assert_eq!(finding.setting, "oldest unresolved");
    assert_eq!(finding.found, check.state(id).await.created_at.to_string());
    check.mark(id, Mark::Resolved).await;
    assert_eq!(check.found(none().age(Duration::from_millis(1))).await, []);
}

/// An operation that has letters and nobody who takes them is found, until it is paused or somebody comes.
pub async fn an_operation_without_takers_is_found<F: StoreFixture>(check: Check<F>) {
    check.bury(2).await;
    let operation = check.replay().await;
    check.tick().await;
    let idle = none().idle(Duration::from_millis(1));
    let finding = check.only(idle).await;
    assert!(finding.subject.contains(&operation.id.to_string()), "{finding}");
    assert!(finding.found.starts_with("2,"), "{finding}");
    assert_eq!(check.found(none().idle(LONG)).await, []);
    let pause = check.store.control(operation.id, Control::Pause, by());
    pause.await.expect("control answers");
    assert_eq!(check.found(idle).await, []);
}

/// A processing audit that has grown long is found.
pub async fn a_long_audit_is_found<F: StoreFixture>(check: Check<F>) {
    let event = |n: u32| ProcessedEvent {
        event_id: format!("evt-{n}"),
        subject: "orders.created".to_owned(),
        consumer: CONSUMER.to_owned(),
        status: Processed::Success,
        attempt: 1,
        duration: Duration::from_millis(3),
        at: Timestamp::from_millis(1_763_683_200_000),
        error: None,
    };
    check.store.record_processed((0..5).map(event).collect()).await.expect("rows are written");
    assert_eq!(check.found(none().processed(6)).await, []);
    let finding = check.only(none().processed(5)).await;
    assert_eq!(finding.subject, "processing audit");
}

/// A letter that was stored in the future is found: clocks differ. Where the store has a time of its own they cannot.
pub async fn a_clock_that_differs_is_found<F: StoreFixture>(check: Check<F>) {
    let Some(clock) = check.fixture.clock() else { return };
    clock.advance(LONG);
    check.bury(1).await;
    clock.set(clock.now().before(LONG));
    let finding = check.only(none().skew(LONG / 2)).await;
    assert_eq!(finding.subject, "clock");
    assert_eq!(check.found(none().skew(2 * LONG)).await, []);
}

/// Letters that wait to be claimed are counted by consumer, those that have waited too long among them; what is not due
/// yet, held by a claim or arranged for nobody is not.
pub async fn what_is_due_is_counted<F: StoreFixture>(check: Check<F>) {
    let due = async |overdue| check.store.due(overdue).await.expect("due answers");
    check.bury(5).await;
    let mut of_another = letter(100);
    of_another.consumer = "mail.send".to_owned();
    check.enqueue(delayed_retry(&of_another, 1, check.now().after(check.lease()))).await;
    assert_eq!(due(Duration::ZERO).await, []);
    check.replay().await;
    assert_eq!(check.claim(3).await.len(), 3);
    check.outlast_leases().await;
    let counts = |found: Vec<Due>| {
        let one = |due: Due| (due.consumer, due.letters, due.overdue);
        found.into_iter().map(one).collect::<Vec<_>>()
    };
    let [mail, orders] = ["mail.send", CONSUMER].map(str::to_owned);
    let all = [(mail.clone(), 1, 1), (orders.clone(), 3, 3)];
    assert_eq!(counts(due(Duration::ZERO).await), all);
    let found = due(LONG).await;
    let first = check.store.next_due(vec![mail.clone()]).await.expect("next_due answers");
    assert_eq!(first, Some(found[0].since));
    assert_eq!(counts(found), [(mail, 1, 0), (orders, 3, 0)]);
}

/// However many letters wait, the answer is bounded and says so.
pub async fn a_long_line_is_not_counted_to_its_end<F: StoreFixture>(check: Check<F>) {
    let most = u64::from(Vitals::MOST);
    check.bury_at_once(most + 1).await;
    check.replay().await;
    assert_eq!(check.claim(Vitals::MOST + 1).await.len() as u64, most + 1);
    check.outlast_leases().await;
    let finding = check.only(none().overdue(Duration::ZERO)).await;
    assert!(finding.found.starts_with(&format!("at least {most},")), "{finding}");
}
