//! Marks, deletion, cleanup and the audits.

use std::time::Duration;

use dlq_core::store::{
    Actor, AuditRequest, Cleanup, Control, Edit, Mark, Marked, OperationSpec, Processed,
    ProcessedEvent, Selection,
};
use dlq_core::{ErrorClass, Filter, LetterId, Resolution, Status};

use super::check::by;
use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::{CONSUMER, letter};

const CHANGED: Marked = Marked { changed: 1, skipped: 0 };
const SAME: Marked = Marked { changed: 0, skipped: 0 };
const SKIPPED: Marked = Marked { changed: 0, skipped: 1 };

/// A quarantined letter is neither replayed nor scheduled until it is released.
pub async fn quarantine_sets_a_letter_aside<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    assert_eq!(check.mark(id, Mark::Quarantined).await, CHANGED);
    assert_eq!(check.status(id).await, Status::Quarantined);
    assert_eq!(check.replay().await.progress.total, 0);
    assert_eq!(check.mark(id, Mark::Pending).await, CHANGED);
    assert_eq!(check.replay().await.progress.total, 1);
}

/// A resolved letter says that an operator dismissed it.
pub async fn resolving_dismisses_a_letter<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    let before = check.state(id).await;
    check.tick().await;
    assert_eq!(check.mark(id, Mark::Resolved).await, CHANGED);
    let state = check.state(id).await;
    assert_eq!(state.status, Status::Resolved);
    assert_eq!(state.resolution, Some(Resolution::Dismissed));
    assert!(state.updated_at > before.updated_at);
    assert_eq!(state.created_at, before.created_at);
    assert_eq!(check.mark(id, Mark::Pending).await, CHANGED);
    assert_eq!(check.state(id).await.resolution, None);
}

/// Letters that are so already are neither changed nor counted.
pub async fn what_is_so_already_is_not_counted<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    assert_eq!(check.mark(id, Mark::Pending).await, SAME);
    for mark in [Mark::Quarantined, Mark::Resolved, Mark::Pending] {
        assert_eq!(check.mark(id, mark).await, CHANGED);
        let before = check.get(id).await;
        check.tick().await;
        assert_eq!(check.mark(id, mark).await, SAME);
        assert_eq!(check.get(id).await, before);
    }
}

/// A letter that succeeded keeps its resolution when it is resolved again.
pub async fn a_success_is_not_dismissed<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    check.replay().await;
    let claim = check.claim_one().await;
    check.succeed(&claim).await;
    assert_eq!(check.mark(id, Mark::Resolved).await, SAME);
    assert_eq!(check.state(id).await.resolution, Some(Resolution::Succeeded));
}

/// A letter in somebody's hands is skipped by marks and deletions, and counted.
pub async fn what_somebody_holds_is_skipped<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    check.replay().await;
    let claim = check.claim_one().await;
    for mark in [Mark::Quarantined, Mark::Resolved, Mark::Pending] {
        assert_eq!(check.mark(id, mark).await, SKIPPED);
    }
    assert_eq!(check.delete(id).await, SKIPPED);
    check.succeed(&claim).await;
    assert_eq!(check.delete(id).await, CHANGED);
}

/// A claim whose lease ended is no obstacle, and its token is worthless afterwards.
pub async fn an_ended_lease_is_no_obstacle<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    check.replay().await;
    let claim = check.claim_one().await;
    check.outlast_leases().await;
    assert_eq!(check.mark(id, Mark::Quarantined).await, CHANGED);
    assert!(!check.extend(claim.token).await);
    assert!(check.claim(1).await.is_empty());
    assert_eq!(check.status(id).await, Status::Quarantined);
}

/// Putting a letter back starts its count of replays over, and cancels what was arranged.
pub async fn putting_back_starts_over<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    check.replay().await;
    let claim = check.claim_one().await;
    check.die(&claim).await;
    assert_eq!(check.mark(id, Mark::Pending).await, CHANGED, "its count is not zero");
    let state = check.state(id).await;
    assert_eq!((state.replays, state.retry_count), (0, 1));
    let operation = check.replay().await;
    assert_eq!(check.mark(id, Mark::Pending).await, CHANGED, "an operation holds it");
    assert_eq!(check.state(id).await.operation, None);
    assert!(check.claim(1).await.is_empty());
    assert!(check.operation(&operation).await.state.is_final());
}

/// All letters are marked when all are meant.
pub async fn all_means_all<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(30).await;
    let marked = check.store.mark(Selection::all(), Mark::Resolved, by()).await;
    assert_eq!(marked.expect("mark answers"), Marked { changed: 30, skipped: 0 });
    let deleted = check.store.delete(Selection::all(), by()).await.expect("delete answers");
    assert_eq!(deleted, Marked { changed: 30, skipped: 0 });
    assert_eq!(check.count(Filter::new()).await, 0);
}

/// More letters than fit in one batch are deleted, all of them.
pub async fn many_letters_are_deleted<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(2_300).await;
    let kept = letter(17).id;
    check.mark(kept, Mark::Quarantined).await;
    let filter = Filter::new().with_status(Status::Pending);
    let selection = Selection::matching(filter).expect("it says something");
    let deleted = check.store.delete(selection, by()).await.expect("delete answers");
    assert_eq!(deleted.changed, 2_299);
    assert_eq!(check.count(Filter::new()).await, 1);
}

/// Deleting what is not there changes nothing.
pub async fn deleting_nothing_is_fine<F: StoreFixture>(check: Check<F>) {
    assert_eq!(check.delete(letter(1).id).await, SAME);
}

async fn clean<F: StoreFixture>(check: &Check<F>, cleanup: Cleanup) -> u64 {
    check.store.cleanup(cleanup, by()).await.expect("cleanup answers").deleted
}

async fn resolved<F: StoreFixture>(check: &Check<F>, count: u64) -> Vec<LetterId> {
    let ids: Vec<_> = check.bury_at_once(count).await.iter().map(|letter| letter.id).collect();
    for id in &ids[1..] {
        check.mark(*id, Mark::Resolved).await;
    }
    ids
}

/// A cleanup deletes resolved letters only: the others are evidence (G9).
pub async fn a_cleanup_leaves_what_is_unresolved<F: StoreFixture>(check: Check<F>) {
    let ids = resolved(&check, 4).await;
    check.mark(ids[3], Mark::Quarantined).await;
    check.tick().await;
    assert_eq!(clean(&check, Cleanup::older_than(Duration::ZERO)).await, 2);
    assert_eq!(check.count(Filter::new()).await, 2);
    assert_eq!(clean(&check, Cleanup::older_than(Duration::ZERO)).await, 0);
}

/// On explicit demand a cleanup deletes unresolved letters too, but none in somebody's hands.
pub async fn a_cleanup_may_delete_everything_old<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    check.replay().await;
    check.claim(1).await;
    let cleanup = Cleanup::older_than(Duration::ZERO).unresolved();
    assert_eq!(clean(&check, cleanup).await, 2);
    assert_eq!(check.count(Filter::new().with_status(Status::Replaying)).await, 1);
}

/// A letter that changed lately is not old, however long ago it was stored.
pub async fn a_cleanup_looks_at_the_last_change<F: StoreFixture>(check: Check<F>) {
    let ids = resolved(&check, 3).await;
    check.pass(Duration::from_millis(300)).await;
    let marked = std::time::Instant::now();
    check.mark(ids[0], Mark::Resolved).await;
    let age = Duration::from_millis(200);
    let cleaned = clean(&check, Cleanup::older_than(age)).await;
    // Where real time passes it may have become old as well.
    if check.controls_time() || marked.elapsed() < age {
        assert_eq!(cleaned, 2);
        assert_eq!(check.status(ids[0]).await, Status::Resolved);
    }
    assert_eq!(clean(&check, Cleanup::older_than(Duration::from_secs(86_400))).await, 0);
}

/// An age is inclusive, to the microsecond.
pub async fn an_age_is_inclusive<F: StoreFixture>(check: Check<F>) {
    // Only a clock that is moved can tell microseconds apart.
    if !check.controls_time() {
        return;
    }
    resolved(&check, 3).await;
    let age = Duration::from_secs(10);
    check.pass(age - Duration::from_micros(1)).await;
    assert_eq!(clean(&check, Cleanup::older_than(age)).await, 0);
    check.pass(Duration::from_micros(1)).await;
    assert_eq!(clean(&check, Cleanup::older_than(age)).await, 2);
}

/// A cleanup keeps to its filter, whatever the size of its batches.
pub async fn a_cleanup_keeps_to_its_filter<F: StoreFixture>(check: Check<F>) {
    let ids = resolved(&check, 20).await;
    let mut filter = Filter::new();
    filter.ids = ids[5..16].to_vec();
    check.tick().await;
    let cleanup = Cleanup::older_than(Duration::ZERO).filter(filter).batch(3);
    assert_eq!(clean(&check, cleanup).await, 11);
    let nothing = Filter::new().with_class(ErrorClass::Permanent);
    let cleanup = Cleanup::older_than(Duration::ZERO).filter(nothing);
    assert_eq!(clean(&check, cleanup).await, 0);
    assert_eq!(check.count(Filter::new()).await, 9);
}

/// Every action of an operator is kept, with who, why, what and how many, newest first.
pub async fn every_action_is_audited<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(4).await;
    let operation = check.start(OperationSpec::replay(Filter::new()).limit(2)).await;
    check.control(&operation, Control::Pause).await;
    // The second pause changes nothing, and is no entry.
    check.control(&operation, Control::Pause).await;
    check.control(&operation, Control::Resume).await;
    check.control(&operation, Control::Cancel).await;
    for mark in [Mark::Quarantined, Mark::Pending, Mark::Resolved] {
        check.mark(letters[0].id, mark).await;
    }
    check.delete(letters[3].id).await;
    clean(&check, Cleanup::older_than(Duration::ZERO)).await;
    check.store.deduplicate(false).await.expect("deduplicate answers");
    let restored = vec![letters[3].clone(), letters[3].clone(), letters[1].clone()];
    check.store.restore(restored, by()).await.expect("restore answers");
    check.store.restore(Vec::new(), by()).await.expect("restore answers");
    let entries = check.store.audit(AuditRequest::latest(100)).await.expect("audit answers");
    let actions: Vec<_> = entries.iter().rev().map(|e| (e.action.as_str(), e.affected)).collect();
    let expected = [
        ("replay", 2),
        ("pause", 0),
        ("resume", 0),
        ("cancel", 2),
        ("quarantine", 1),
        ("release", 1),
        ("resolve", 1),
        ("delete", 1),
        ("cleanup", 1),
        ("deduplicate", 0),
        ("restore", 1),
        ("restore", 0),
    ];
    assert_eq!(actions, expected);
    for entry in &entries {
        let json = serde_json::from_str::<serde_json::Value>(&entry.subject);
        assert!(json.is_ok(), "`{}` is JSON", entry.subject);
        // A deduplication is asked for without an actor.
        if entry.action != "deduplicate" {
            assert_eq!(entry.by, by());
        }
    }
    assert_eq!(entries[11].operation, Some(operation.id));
    assert!(entries[7].subject.contains(&letters[0].id.to_string()), "it names the letter");
    let latest = check.store.audit(AuditRequest::latest(2)).await.expect("audit answers");
    assert_eq!(latest, entries[..2]);
    assert!(check.store.audit(AuditRequest::latest(0)).await.expect("audit answers").is_empty());
}

/// Entries are found by who, what, when and whose, and in pages.
pub async fn the_audit_is_searched<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    let operation = check.start(OperationSpec::replay(Filter::new()).limit(1)).await;
    check.control(&operation, Control::Cancel).await;
    for (n, letter) in (1..).zip(&letters) {
        let edit = Edit::new().set_header("n", n.to_string());
        let _ = check
            .store
            .edit(letter.id, edit, Actor::new("eve@ops"))
            .await
            .expect("an edit is made");
    }
    check.mark(letters[1].id, Mark::Quarantined).await;
    let found = async |request| check.store.audit(request).await.expect("audit answers");
    let all = found(AuditRequest::latest(100)).await;
    assert_eq!(all.len(), 6);
    assert!(all.is_sorted_by(|newer, older| newer.number > older.number && older.number > 0));
    let matching = |request: &AuditRequest| {
        let matching: Vec<_> = all.iter().filter(|entry| request.matches(entry)).collect();
        matching.into_iter().cloned().collect::<Vec<_>>()
    };
    let any = || AuditRequest::latest(100);
    let (first, last) = (all[5].at, all[0].at);
    for (request, count) in [
        (any().by("eve"), 3),
        (any().by("eve@ops"), 3),
        (any().by("ev"), 0),
        (any().by("eve").letter(letters[0].id), 1),
        (any().letter(letters[1].id), 2),
        (any().letter(letters[1].id).operation(operation.id), 4),
        (any().operation(operation.id), 2),
        (any().action("edit"), 3),
        (any().since(first), 6),
        (any().until(first), 0),
        (any().since(last.after(Duration::from_secs(1))), 0),
    ] {
        let found = found(request.clone()).await;
        assert_eq!((found.len(), &found), (count, &matching(&request)), "{request:?}");
    }
    let (mut paged, mut before) = (Vec::new(), None);
    loop {
        let mut request = AuditRequest::latest(2).action("edit");
        request.before = before;
        let page = found(request).await;
        assert!(page.len() <= 2);
        before = page.last().map(|entry| entry.number);
        paged.extend(page);
        if before.is_none() {
            break;
        }
    }
    assert_eq!(paged, matching(&any().action("edit")));
}

/// An action that found nothing to do was an action all the same.
pub async fn an_idle_action_is_audited<F: StoreFixture>(check: Check<F>) {
    check.delete(letter(1).id).await;
    let entries = check.store.audit(AuditRequest::latest(10)).await.expect("audit answers");
    assert_eq!((entries.len(), entries[0].affected), (1, 0));
}

/// An actor's name and note are kept whatever they are.
pub async fn an_actor_is_kept_as_given<F: StoreFixture>(check: Check<F>) {
    for actor in [Actor::default(), Actor::new("a\0'\u{1b}").with_note("\"%\n"), Actor::new("x")] {
        let marked = check.store.mark(Selection::all(), Mark::Pending, actor.clone()).await;
        marked.expect("mark answers");
        assert_eq!(
            check.store.audit(AuditRequest::latest(1)).await.expect("audit answers")[0].by,
            actor
        );
    }
}

/// The processing audit keeps every row, newest first.
pub async fn processed_events_are_kept<F: StoreFixture>(check: Check<F>) {
    let events: Vec<_> = (0..5_u32)
        .map(|n| ProcessedEvent {
            // The ids are those of producers, who may write anything (G8).
            event_id: format!("evt-{n}\0"),
            subject: "orders.created".to_owned(),
            consumer: CONSUMER.to_owned(),
            status: Processed::ALL[n as usize % 3],
            attempt: n,
            duration: Duration::new(u64::from(n), 123_456_789),
            at: dlq_core::Timestamp::from_nanos(1_790_000_000_123_456_789 - i64::from(n)),
            error: (n % 2 == 1).then(|| format!("error {n}")),
        })
        .collect();
    check.store.record_processed(Vec::new()).await.expect("record_processed answers");
    for pair in events.chunks(2) {
        let recorded = check.store.record_processed(pair.to_vec()).await;
        recorded.expect("record_processed answers");
    }
    let mut newest = check.store.processed(10).await.expect("processed answers");
    assert_eq!(check.store.processed(2).await.expect("processed answers"), newest[..2]);
    newest.reverse();
    assert_eq!(newest, events, "in the order in which they were recorded");
}

/// Crash marks count runs that began and did not end, for each message alone.
pub async fn crash_marks_count_unended_runs<F: StoreFixture>(check: Check<F>) {
    use dlq_core::CrashMarks;
    let (one, other) = (letter(1).id, letter(2).id);
    let begin = async |id| CrashMarks::begin(&check.store, id).await.expect("begin answers");
    assert_eq!(begin(one).await, 0);
    assert_eq!(begin(one).await, 1);
    assert_eq!(begin(other).await, 0);
    assert_eq!(begin(one).await, 2);
    let end = async |id, left| CrashMarks::end(&check.store, id, left).await.expect("end answers");
    // An end may be told twice: the answer of the first may have been lost.
    for _ in 0..2 {
        end(one, 2).await;
    }
    assert_eq!(begin(one).await, 2, "those of other runs are left");
    end(one, 9).await;
    assert_eq!(begin(one).await, 3, "none is added");
    for _ in 0..2 {
        end(one, 0).await;
        end(one, 1).await;
    }
    assert_eq!(begin(one).await, 0, "none is left");
    assert_eq!(begin(other).await, 1);
}

/// A mark of an operator begins afresh: crashes of earlier runs are forgotten.
pub async fn a_mark_forgets_crashes<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    check.replay().await;
    for crashes in 0..2 {
        assert_eq!(check.claim_one().await.letter.crashes, crashes);
        check.outlast_leases().await;
    }
    check.mark(id, Mark::Quarantined).await;
    check.mark(id, Mark::Pending).await;
    check.replay().await;
    assert_eq!(check.claim_one().await.letter.crashes, 0);
}
