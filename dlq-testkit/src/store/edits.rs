//! Edits of payloads and headers: what is sent afterwards, and which deaths a letter still knows (G2).

use dlq_core::store::{
    AuditEntry, AuditRequest, Edit, Finish, Finished, ItemOutcome, Mark, Receipt,
};
use dlq_core::{DeadLetter, Filter, Header, LetterId, Message, Resolution, Status, StoreErrorKind};
use serde_json::{Value, json};

use super::check::by;
use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::{delayed_retry, died_again, hostile_messages, letter, letter_of};

const FIXED: &str = "{\"order\":\"fixed\"}";

async fn edit<F: StoreFixture>(check: &Check<F>, id: LetterId, edit: Edit) -> DeadLetter {
    check.tick().await;
    let edited = check.store.edit(id, edit, by()).await.expect("edit answers");
    assert_eq!(check.get(id).await, edited, "the answer is the letter as it is");
    edited
}

async fn fix<F: StoreFixture>(check: &Check<F>, id: LetterId) -> DeadLetter {
    edit(check, id, Edit::new().payload(FIXED)).await
}

async fn refused<F: StoreFixture>(check: &Check<F>, id: LetterId, edit: Edit) -> StoreErrorKind {
    let before = check.store.get(id).await.expect("get answers");
    let audit = check.store.audit(AuditRequest::latest(100)).await.expect("audit answers");
    let error = check.store.edit(id, edit, by()).await.expect_err("it is refused");
    assert_eq!(check.store.get(id).await.expect("get answers"), before, "nothing has changed");
    assert_eq!(check.store.audit(AuditRequest::latest(100)).await.expect("audit answers"), audit);
    error.kind()
}

async fn latest<F: StoreFixture>(check: &Check<F>) -> (AuditEntry, Value) {
    let entry = check.store.audit(AuditRequest::latest(1)).await.expect("audit answers").remove(0);
    let subject = serde_json::from_str(&entry.subject).expect("a subject is JSON");
    (entry, subject)
}

/// The same death again: nothing changes, and there is no second letter.
async fn stays<F: StoreFixture>(check: &Check<F>, arrives: &DeadLetter, receipt: Receipt) {
    let before = check.get(arrives.id).await;
    let count = check.count(Filter::new()).await;
    check.tick().await;
    assert_eq!(check.put_one(arrives).await, receipt);
    assert_eq!(check.get(arrives.id).await, before);
    assert_eq!(check.count(Filter::new()).await, count);
}

/// An edit replaces the payload and nothing else.
pub async fn an_edit_replaces_the_payload<F: StoreFixture>(check: Check<F>) {
    let before = {
        let id = check.bury(1).await[0].id;
        check.get(id).await
    };
    let after = fix(&check, before.id).await;
    assert!(after.state.updated_at > before.state.updated_at);
    assert_eq!(after.state.edited_from.len(), 1);
    let mut expected = before.clone();
    expected.message = before.message.clone().with_payload(Some(FIXED.into()));
    expected.state.updated_at = after.state.updated_at;
    expected.state.edited_from = after.state.edited_from.clone();
    assert_eq!(after, expected);
}

/// A payload can be taken away, be empty, and be any bytes.
pub async fn any_payload_can_be_written<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    for (what, message) in hostile_messages() {
        let edited = match message.payload() {
            Some(payload) => Edit::new().payload(payload.clone()).allow_invalid(),
            None => Edit::new().no_payload(),
        };
        assert_eq!(edit(&check, id, edited).await.message.payload(), message.payload(), "{what}");
    }
    let headers = |message: &Message| message.headers().iter().cloned().collect::<Vec<Header>>();
    let odd = edit(&check, id, Edit::new().set_header(&b"\xff\0"[..], &b"\0\xfe\r\n"[..])).await;
    assert_eq!(odd.message.headers().len(), 2, "{:?}", headers(&odd.message));
    let bare = Edit::new().remove_header(&b"\xff\0"[..]).remove_header("trace");
    assert!(edit(&check, id, bare).await.message.headers().is_empty());
}

/// A replay sends what was edited.
pub async fn a_replay_sends_the_edited_bytes<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    let _ = edit(&check, id, Edit::new().payload(FIXED).set_header("fixed", "1")).await;
    check.replay().await;
    let claim = check.claim_one().await;
    assert_eq!(claim.letter, check.get(id).await);
    assert_eq!(claim.letter.message.payload().map(|payload| &payload[..]), Some(FIXED.as_bytes()));
    assert_eq!(claim.letter.message.headers().get("fixed"), Some(&b"1"[..]));
    assert_eq!(claim.next_death().generation, 1);
    check.succeed(&claim).await;
    assert_eq!(check.state(id).await.resolution, Some(Resolution::Succeeded));
}

/// A letter that an operation or the schedule has sent and nobody has taken is sent as edited.
pub async fn what_waits_to_be_taken_can_be_edited<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    let operation = check.replay().await;
    let claim = check.claim_one().await;
    check.finish(claim.token, Finish::Released { after: std::time::Duration::ZERO }).await;
    let edited = fix(&check, id).await;
    assert_eq!(edited.state.operation, Some(operation.id), "it stays with its operation");
    check.tick().await;
    let claim = check.claim_one().await;
    assert_eq!(claim.letter.message, edited.message);
    check.succeed(&claim).await;
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::Succeeded]);
}

/// The original death put again neither undoes an edit nor becomes a second letter.
pub async fn the_original_death_stays_known<F: StoreFixture>(check: Check<F>) {
    let original = check.bury(1).await.remove(0);
    let _ = fix(&check, original.id).await;
    stays(&check, &original, Receipt::Unchanged).await;
    let edited = check.get(original.id).await;
    stays(&check, &edited, Receipt::Unchanged).await;
    for mark in [Mark::Quarantined, Mark::Resolved] {
        check.mark(original.id, mark).await;
        stays(&check, &original, Receipt::Unchanged).await;
    }
}

/// However often a letter was edited, it knows the death that it had first.
pub async fn two_edits_forget_nothing<F: StoreFixture>(check: Check<F>) {
    let original = check.bury(1).await.remove(0);
    let _ = fix(&check, original.id).await;
    let twice = edit(&check, original.id, Edit::new().payload("[]")).await;
    assert_eq!(twice.state.edited_from.len(), 2);
    stays(&check, &original, Receipt::Unchanged).await;
    // Back to what it was.
    let payload = original.message.payload().cloned().expect("it has one");
    let back = edit(&check, original.id, Edit::new().payload(payload)).await;
    assert_eq!(back.message, original.message);
    stays(&check, &original, Receipt::Unchanged).await;
    stays(&check, &twice, Receipt::Unchanged).await;
    let again = fix(&check, original.id).await;
    assert_eq!(again.state.edited_from.len(), 3, "each is remembered once");
}

/// An edited letter that dies again is reopened, and still knows the death before the edit.
pub async fn an_edited_letter_may_die_again<F: StoreFixture>(check: Check<F>) {
    let original = check.bury(1).await.remove(0);
    let _ = fix(&check, original.id).await;
    check.replay().await;
    let claim = check.claim_one().await;
    let death = check.die_of(&claim).await;
    let found = check.get(original.id).await;
    assert_eq!((found.generation, found.state.status), (1, Status::Pending));
    assert_eq!(found.message, death.message);
    stays(&check, &original, Receipt::Superseded).await;
    // Edited anew, it knows the deaths of both generations.
    let _ = edit(&check, original.id, Edit::new().payload("{}")).await;
    stays(&check, &original, Receipt::Superseded).await;
    stays(&check, &death, Receipt::Unchanged).await;
    let next = died_again(&death);
    assert_eq!(check.put_one(&next).await, Receipt::Reopened);
    assert_eq!(check.get(original.id).await.message, next.message);
    stays(&check, &original, Receipt::Superseded).await;
}

/// Another message with the same identity is kept beside an edited letter.
pub async fn another_payload_is_still_a_second_letter<F: StoreFixture>(check: Check<F>) {
    let original = check.bury(1).await.remove(0);
    let _ = fix(&check, original.id).await;
    let message = original.message.clone().with_payload(Some("other".into()));
    let other = original.clone().with_message(message);
    let second = other.id.conflicting(&other.message);
    assert_eq!(check.put_one(&other).await, Receipt::Conflicting(second));
    assert_eq!(check.count(Filter::new()).await, 2);
    // The second one too may be edited and redelivered.
    let _ = fix(&check, second).await;
    assert_eq!(check.put_one(&other).await, Receipt::Conflicting(second));
    assert_eq!(check.count(Filter::new()).await, 2);
}

/// A retry record of an edited death changes nothing.
pub async fn a_record_does_not_undo_an_edit<F: StoreFixture>(check: Check<F>) {
    let original = check.bury(1).await.remove(0);
    let edited = fix(&check, original.id).await;
    check.enqueue(delayed_retry(&original, 9, check.now())).await;
    assert_eq!(check.get(original.id).await, edited);
    assert_eq!(check.count(Filter::new()).await, 1);
}

/// A letter in somebody's hands cannot be edited until its lease has ended; then the claim is void.
pub async fn what_somebody_holds_is_not_edited<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    let operation = check.replay().await;
    let claim = check.claim_one().await;
    let wanted = Edit::new().payload(FIXED);
    assert_eq!(refused(&check, id, wanted.clone()).await, StoreErrorKind::Conflict);
    check.outlast_leases().await;
    let edited = edit(&check, id, wanted).await;
    assert_eq!(edited.state.status, Status::Pending);
    assert!(!check.extend(claim.token).await);
    let finish = Finish::Resolved(Resolution::Succeeded);
    assert_eq!(check.finish(claim.token, finish).await, Finished::Stale);
    let again = check.claim_one().await;
    assert_eq!(again.letter.message, edited.message, "it is due, as edited");
    check.succeed(&again).await;
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::Succeeded]);
}

/// A message that waits for another attempt is not dead, and cannot be edited.
pub async fn a_record_is_not_edited<F: StoreFixture>(check: Check<F>) {
    let id = letter(1).id;
    check.enqueue(delayed_retry(&letter(1), 2, check.now())).await;
    let wanted = Edit::new().payload(FIXED);
    assert_eq!(refused(&check, id, wanted.clone()).await, StoreErrorKind::Conflict);
    check.tick().await;
    check.claim_one().await;
    assert_eq!(refused(&check, id, wanted.clone()).await, StoreErrorKind::Conflict);
    check.outlast_leases().await;
    assert_eq!(refused(&check, id, wanted).await, StoreErrorKind::Conflict);
}

/// A missing letter cannot be edited.
pub async fn an_unknown_letter_is_not_edited<F: StoreFixture>(check: Check<F>) {
    assert_eq!(
        refused(&check, letter(1).id, Edit::new().payload("x")).await,
        StoreErrorKind::NotFound
    );
}

/// A payload that was JSON stays JSON unless told otherwise.
pub async fn json_stays_json<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    let broken = Edit::new().payload("{\"order\":");
    assert_eq!(refused(&check, id, broken.clone()).await, StoreErrorKind::Refused);
    let _ = edit(&check, id, broken.allow_invalid()).await;
    let _ = edit(&check, id, Edit::new().payload("anything")).await;
}

/// An edit made for a payload that is not there any more is refused.
pub async fn an_edit_may_expect_a_payload<F: StoreFixture>(check: Check<F>) {
    let original = check.bury(1).await.remove(0);
    let expecting = Edit::new().payload("{}").expecting(&original);
    let _ = fix(&check, original.id).await;
    assert_eq!(refused(&check, original.id, expecting).await, StoreErrorKind::Conflict);
    let expecting = Edit::new().payload("{}").expecting(&check.get(original.id).await);
    let _ = edit(&check, original.id, expecting).await;
}

/// An edit that finds nothing to change changes not even a time, and is audited.
pub async fn an_idle_edit_changes_nothing<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    let fixed = fix(&check, id).await;
    let again = fix(&check, id).await;
    assert_eq!(again, fixed);
    let (entry, subject) = latest(&check).await;
    assert_eq!((entry.action.as_str(), entry.affected), ("edit", 0));
    assert_eq!(subject, json!({ "letter": id, "generation": 0 }));
}

/// The audit says who changed what, in which letter, from what to what.
pub async fn an_edit_is_audited<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    let wanted = Edit::new().payload(&b"\xff\0"[..]).allow_invalid();
    let _ = edit(&check, id, wanted.set_header("trace", "new").remove_header("none")).await;
    let (entry, subject) = latest(&check).await;
    assert_eq!((&entry.by, entry.action.as_str(), entry.affected), (&by(), "edit", 1));
    let expected = json!({
        "letter": id,
        "generation": 0,
        "payload": { "before": "{\"order\":0}", "after": { "base64": "/wA=" } },
        "headers": [{ "name": "trace", "before": ["t-0"], "after": ["new"] }],
    });
    assert_eq!(subject, expected);
    let long = "x".repeat(1 << 20);
    let _ = edit(&check, id, Edit::new().payload(long)).await;
    let (entry, subject) = latest(&check).await;
    assert!(entry.subject.len() < 10_000, "{} bytes", entry.subject.len());
    assert_eq!(subject["payload"]["after"]["length"], 1 << 20);
}

/// Headers alone may be edited; the bytes of the death stay the same.
pub async fn headers_are_not_the_death<F: StoreFixture>(check: Check<F>) {
    let original = check.bury(1).await.remove(0);
    let edited = edit(&check, original.id, Edit::new().set_header("v", "2")).await;
    assert!(edited.state.edited_from.is_empty());
    stays(&check, &original, Receipt::Unchanged).await;
}

/// An edited letter that was deleted leaves no trace: its death is new again.
pub async fn a_deleted_edit_leaves_no_trace<F: StoreFixture>(check: Check<F>) {
    let original = check.bury(1).await.remove(0);
    let _ = fix(&check, original.id).await;
    check.delete(original.id).await;
    assert_eq!(check.put_one(&original).await, Receipt::Stored);
    assert_eq!(check.get(original.id).await.message, original.message);
}

/// An edited letter that others were merged into knows them still.
pub async fn a_merged_letter_may_be_edited<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    let one = letter(1);
    let copy = letter_of(one.message.clone(), 2).with_id(letter(2).id);
    check.put_one(&one).await;
    assert_eq!(check.put_one(&copy).await, Receipt::Merged(one.id));
    let edited = fix(&check, one.id).await;
    assert_eq!(check.put_one(&one).await, Receipt::Unchanged);
    assert_eq!(check.put_one(&copy).await, Receipt::Merged(one.id));
    assert_eq!(check.get(one.id).await, edited);
}
