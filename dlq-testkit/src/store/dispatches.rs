//! Letters of operations that somebody sends through an outbox.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::store::{
    ClaimToken, Cluster, Control, Dispatched, Finished, FormerSender, ItemOutcome, Mark, Operation,
    OperationSpec, OperationState, Pace, Selection, TakeRequest, Taken, Takes, Target,
};
use dlq_core::{Filter, LetterId, OperationId, Reason, Status, StoreErrorKind};

use super::check::by;
use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::{died_again, letter};

const CONFIRMED: Dispatched = Dispatched::Confirmed { is_doubtful: false };

fn cluster() -> Cluster {
    Cluster::new("memory", "default")
}

fn to_origin() -> OperationSpec {
    OperationSpec::replay(Filter::new())
        .target(Target::Origin, [cluster()])
        .canary_wait(Duration::from_secs(1))
}

impl<F: StoreFixture> Check<F> {
    async fn take_as(&self, operation: &Operation, limit: u32, sender: &str) -> Takes {
        let senders = BTreeMap::from([(cluster(), sender.to_owned())]);
        let request = TakeRequest::new(operation.id, limit, self.lease(), senders);
        self.store.take(request).await.expect("take answers")
    }

    async fn take(&self, operation: &Operation, limit: u32) -> Vec<Taken> {
        self.take_as(operation, limit, "first").await.letters
    }

    async fn record(&self, token: ClaimToken, dispatched: Dispatched) -> Finished {
        let recorded = self.store.record(vec![(token, dispatched)]).await.expect("record answers");
        assert_eq!(recorded.len(), 1, "one answer for one letter");
        recorded[0]
    }

    async fn counts(&self, id: LetterId) -> (u32, u32) {
        let state = self.state(id).await;
        (state.retry_count, state.replays)
    }
}

/// A letter that is taken is held by its sender, and its counts have not moved.
pub async fn a_taken_letter_is_held<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    let operation = check.start(to_origin()).await;
    let taken = check.take(&operation, 2).await;
    let ids: Vec<_> = taken.iter().map(|taken| taken.letter.id).collect();
    assert_eq!(ids, [letters[0].id, letters[1].id], "in frozen order");
    assert_eq!(taken[0].letter.message, letters[0].message);
    assert_eq!((taken[0].index, taken[0].former.as_ref()), (0, None));
    use ItemOutcome::{Queued, Sending};
    assert_eq!(check.outcomes(&operation).await, [Sending, Sending, Queued]);
    let state = check.state(letters[0].id).await;
    assert_eq!((state.status, state.due), (Status::Replaying, None));
    assert_eq!(check.counts(letters[0].id).await, (0, 0));
    assert_eq!(check.take(&operation, 9).await.len(), 1, "nobody is given it twice");
}

/// No handler is given a letter of such an operation: not while it is queued, and not when the lease of its sender has ended.
pub async fn g6_no_handler_is_given_what_an_outbox_holds<F: StoreFixture>(check: Check<F>) {
    check.bury(2).await;
    let operation = check.start(to_origin()).await;
    assert!(check.claim(9).await.is_empty(), "queued letters wait for a sender");
    assert_eq!(check.take(&operation, 1).await.len(), 1);
    assert!(check.claim(9).await.is_empty());
    check.outlast_leases().await;
    assert!(check.claim(9).await.is_empty(), "nobody knows whether it was sent");
    assert_eq!(check.store.next_due(vec![]).await.expect("next_due answers"), None);
}

/// A letter that the broker has confirmed is sent, and counted as sent back.
pub async fn a_confirmed_letter_is_sent<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(1).await;
    let operation = check.start(to_origin()).await;
    let taken = check.take(&operation, 1).await;
    assert_eq!(check.record(taken[0].token, CONFIRMED).await, Finished::Applied);
    assert_eq!(check.status(letters[0].id).await, Status::Sent);
    assert_eq!(check.counts(letters[0].id).await, (1, 1));
    assert!(check.state(letters[0].id).await.last_retry_at.is_some());
    let operation = check.operation(&operation).await;
    assert_eq!(operation.state, OperationState::Completed);
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::Sent]);
    assert!(check.claim(9).await.is_empty());
}

/// The same record may come again, and changes nothing.
pub async fn g6_a_record_is_applied_once<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(1).await;
    let operation = check.start(to_origin()).await;
    let taken = check.take(&operation, 1).await;
    for _ in 0..2 {
        assert_eq!(check.record(taken[0].token, CONFIRMED).await, Finished::Applied);
        assert_eq!(check.counts(letters[0].id).await, (1, 1));
    }
    assert_eq!(check.operation(&operation).await.progress.with_outcome(ItemOutcome::Sent), 1);
}

/// A letter that the broker refuses concerns itself alone.
pub async fn g4_a_refused_letter_is_skipped_alone<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(2).await;
    let operation = check.start(to_origin()).await;
    let taken = check.take(&operation, 2).await;
    let refused = Dispatched::Refused("it is too large".to_owned());
    assert_eq!(check.record(taken[0].token, refused).await, Finished::Applied);
    assert_eq!(check.record(taken[1].token, CONFIRMED).await, Finished::Applied);
    let items = check.items(&operation).await;
    assert_eq!(items[0].outcome, ItemOutcome::Skipped);
    assert_eq!(items[0].why.as_deref(), Some("it is too large"));
    let state = check.state(letters[0].id).await;
    assert_eq!((state.status, state.operation), (Status::Pending, None));
    assert_eq!(check.counts(letters[0].id).await, (0, 0));
    assert_eq!(check.operation(&operation).await.state, OperationState::Completed);
}

/// A letter that was not taken by the broker waits for its turn again.
pub async fn what_was_not_taken_is_queued_again<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(1).await;
    let operation = check.start(to_origin()).await;
    let taken = check.take(&operation, 1).await;
    assert_eq!(check.record(taken[0].token, Dispatched::Later).await, Finished::Applied);
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::Queued]);
    assert_eq!(check.status(letters[0].id).await, Status::Pending);
    let again = check.take(&operation, 1).await;
    assert_eq!((again.len(), again[0].former.as_ref()), (1, None));
}

/// A letter whose sender is gone is given to the next one, with what is needed to find out what was sent. It is no crash.
pub async fn g3_a_lapsed_letter_names_its_sender<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(1).await;
    let operation = check.start(to_origin()).await;
    let first = check.take_as(&operation, 1, "first").await.letters;
    let since = check.state(letters[0].id).await.last_retry_at.expect("it was taken");
    check.outlast_leases().await;
    let second = check.take_as(&operation, 1, "second").await.letters;
    let former = FormerSender { sender: "first".to_owned(), since };
    assert_eq!(second[0].former, Some(former));
    assert_eq!((second[0].letter.crashes, check.get(letters[0].id).await.crashes), (0, 0));
    assert_eq!(check.counts(letters[0].id).await, (0, 0));
    assert_eq!(check.record(first[0].token, CONFIRMED).await, Finished::Stale);
    assert_eq!(check.record(second[0].token, CONFIRMED).await, Finished::Applied);
    assert_eq!(check.counts(letters[0].id).await, (1, 1));
}

/// While an operation is paused nothing new is taken, and what was on its way is settled.
pub async fn a_pause_leaves_what_is_on_its_way<F: StoreFixture>(check: Check<F>) {
    check.bury(2).await;
    let operation = check.start(to_origin()).await;
    let taken = check.take(&operation, 1).await;
    check.store.control(operation.id, Control::Pause, by()).await.expect("it is paused");
    assert!(check.take(&operation, 9).await.is_empty());
    check.outlast_leases().await;
    let lapsed = check.take(&operation, 9).await;
    assert_eq!(lapsed.len(), 1);
    assert_eq!(lapsed[0].letter.id, taken[0].letter.id);
    assert_eq!(check.record(lapsed[0].token, Dispatched::Later).await, Finished::Applied);
    use ItemOutcome::Queued;
    assert_eq!(check.outcomes(&operation).await, [Queued, Queued]);
}

/// A sender keeps to a rate that is changed meanwhile, from the next letters on.
pub async fn a_sender_keeps_to_a_rate_that_is_changed<F: StoreFixture>(check: Check<F>) {
    check.bury(4).await;
    let slow: Pace = "1/h".parse().expect("it is a rate");
    let operation = check.start(to_origin().pace(slow)).await;
    let send = async || {
        let takes = check.take_as(&operation, 9, "first").await;
        for taken in &takes.letters {
            assert_eq!(check.record(taken.token, CONFIRMED).await, Finished::Applied);
        }
        (takes.letters.len(), takes.wait)
    };
    assert_eq!(send().await.0, 1, "the first goes at once");
    let (sent, wait) = send().await;
    assert!(sent == 0 && wait > Some(Duration::from_secs(3_000)), "{wait:?}");
    check.set_pace(&operation, Pace::per_second(100)).await;
    let (sent, wait) = send().await;
    assert!(wait < Some(Duration::from_secs(1)), "{wait:?}");
    check.set_pace(&operation, None).await;
    assert_eq!(send().await.0, 3 - sent);
    assert_eq!(check.operation(&operation).await.state, OperationState::Completed);
}

/// A cancel takes back what nobody has taken; what was on its way ends as it ends.
pub async fn a_cancel_leaves_what_is_on_its_way<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    let operation = check.start(to_origin()).await;
    let taken = check.take(&operation, 2).await;
    check.store.control(operation.id, Control::Cancel, by()).await.expect("it is cancelled");
    use ItemOutcome::{Sending, Sent, Skipped};
    assert_eq!(check.outcomes(&operation).await, [Sending, Sending, Skipped]);
    assert_eq!(check.record(taken[0].token, CONFIRMED).await, Finished::Applied);
    assert_eq!(check.record(taken[1].token, Dispatched::Later).await, Finished::Applied);
    assert_eq!(check.outcomes(&operation).await, [Sent, Skipped, Skipped]);
    let state = check.state(letters[1].id).await;
    assert_eq!((state.status, state.operation), (Status::Pending, None));
    assert_eq!(check.operation(&operation).await.state, OperationState::Cancelled);
}

/// The letter dies again before its sender says that it was sent: it was, and has failed again.
pub async fn g6_a_death_before_the_record_counts_the_send<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(1).await;
    let operation = check.start(to_origin()).await;
    let taken = check.take(&operation, 1).await;
    check.put_one(&died_again(&letters[0])).await;
    assert_eq!(check.counts(letters[0].id).await, (1, 1));
    assert_eq!(check.status(letters[0].id).await, Status::Pending);
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::FailedAgain]);
    assert_eq!(check.record(taken[0].token, CONFIRMED).await, Finished::Stale);
    assert_eq!(check.counts(letters[0].id).await, (1, 1));
}

/// A letter that dies again after it was sent has failed again, also when its operation has ended.
pub async fn a_death_after_the_record_is_failed_again<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(1).await;
    let operation = check.start(to_origin()).await;
    let taken = check.take(&operation, 1).await;
    assert_eq!(check.record(taken[0].token, CONFIRMED).await, Finished::Applied);
    check.put_one(&died_again(&letters[0])).await;
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::FailedAgain]);
    let state = check.state(letters[0].id).await;
    assert_eq!((state.status, state.operation, state.replays), (Status::Pending, None, 1));
}

/// A letter that dies again while it waits for its turn is not sent.
pub async fn a_death_before_its_turn_is_skipped<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(1).await;
    let operation = check.start(to_origin()).await;
    check.put_one(&died_again(&letters[0])).await;
    assert!(check.take(&operation, 1).await.is_empty());
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::Skipped]);
    assert_eq!(check.counts(letters[0].id).await, (0, 0));
}

/// A consumer that shares the store tells of letters that were handled, before their sender has recorded them or after.
pub async fn a_success_resolves_what_was_sent<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    let operation = check.start(to_origin()).await;
    let taken = check.take(&operation, 2).await;
    assert_eq!(check.record(taken[0].token, CONFIRMED).await, Finished::Applied);
    let deaths = letters.iter().map(|letter| letter.death()).collect();
    let resolved = check.store.succeeded(deaths).await.expect("succeeded answers");
    assert_eq!(resolved, 2, "the third was not sent");
    use ItemOutcome::{Queued, Succeeded};
    assert_eq!(check.outcomes(&operation).await, [Succeeded, Succeeded, Queued]);
    for letter in &letters[..2] {
        assert_eq!(check.status(letter.id).await, Status::Resolved);
        assert_eq!(check.counts(letter.id).await, (1, 1));
    }
    assert_eq!(check.record(taken[1].token, CONFIRMED).await, Finished::Stale);
    assert_eq!(check.counts(letters[1].id).await, (1, 1));
}

/// A success of an earlier death says nothing of a later one.
pub async fn g6_a_success_of_another_death_resolves_nothing<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(1).await;
    let operation = check.start(to_origin()).await;
    let taken = check.take(&operation, 1).await;
    assert_eq!(check.record(taken[0].token, CONFIRMED).await, Finished::Applied);
    let later = died_again(&letters[0]);
    let resolved = check.store.succeeded(vec![later.death()]).await.expect("succeeded answers");
    assert_eq!((resolved, check.status(later.id).await), (0, Status::Sent));
}

/// A sent letter can be put back by hand, and another operation sends it again; the first one keeps what it knows.
pub async fn what_was_sent_can_be_put_back<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(1).await;
    let first = check.start(to_origin()).await;
    let taken = check.take(&first, 1).await;
    check.record(taken[0].token, CONFIRMED).await;
    assert_eq!(check.start(to_origin()).await.progress.total, 0, "it is not pending");
    check.mark(letters[0].id, Mark::Pending).await;
    assert_eq!(check.outcomes(&first).await, [ItemOutcome::Sent]);
    let second = check.start(to_origin()).await;
    assert_eq!(check.take(&second, 1).await.len(), 1);
    check.put_one(&died_again(&letters[0])).await;
    assert_eq!(check.outcomes(&first).await, [ItemOutcome::Sent]);
    assert_eq!(check.outcomes(&second).await, [ItemOutcome::FailedAgain]);
}

/// A letter that is on its way is neither marked nor deleted, however long ago its lease has ended.
pub async fn what_is_on_its_way_is_left_alone<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    let operation = check.start(to_origin()).await;
    check.take(&operation, 1).await;
    check.outlast_leases().await;
    let marked = check.store.mark(Selection::all(), Mark::Quarantined, by()).await;
    let marked = marked.expect("mark answers");
    assert_eq!((marked.changed, marked.skipped), (0, 1));
    let deleted = check.store.delete(Selection::all(), by()).await.expect("delete answers");
    assert_eq!((deleted.changed, deleted.skipped), (0, 1));
}

/// The cap, and errors that are terminal, set letters aside instead of sending them.
pub async fn g7_what_is_worn_or_terminal_is_set_aside<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(2).await;
    let once = to_origin().max_replays(1);
    let operation = check.start(once.clone().limit(1)).await;
    let taken = check.take(&operation, 1).await;
    check.record(taken[0].token, CONFIRMED).await;
    check.mark(letters[1].id, Mark::Pending).await;
    check.put_one(&died_again(&letters[0])).await;
    // Upper and lower case are alike, as in searches.
    let text = letters[1].error().to_uppercase();
    let operation = check.start(once.terminal(text)).await;
    assert!(check.take(&operation, 9).await.is_empty());
    use ItemOutcome::Skipped;
    assert_eq!(check.outcomes(&operation).await, [Skipped, Skipped]);
    for (letter, reason) in letters.iter().zip([Reason::MaxReplays, Reason::TerminalError]) {
        let found = check.get(letter.id).await;
        assert_eq!((found.state.status, found.reason), (Status::Quarantined, reason));
    }
}

/// A handler's operation sets letters with terminal errors aside too.
pub async fn a_terminal_error_is_given_to_no_handler<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(2).await;
    let spec = OperationSpec::replay(Filter::new()).terminal(letters[0].error());
    let operation = check.start(spec).await;
    let claims = check.claim(9).await;
    let found = check.get(letters[0].id).await;
    assert_eq!((found.state.status, found.reason), (Status::Quarantined, Reason::TerminalError));
    let all_alike = letters[0].error() == letters[1].error();
    assert_eq!(claims.len(), usize::from(!all_alike));
    assert_eq!(check.items(&operation).await[0].outcome, ItemOutcome::Skipped);
}

/// Letters of a canary that were sent are outstanding until nothing was heard for a while; one that failed stops the rest.
pub async fn a_canary_waits_for_news<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    // Real time is waited for. A clock that is moved costs nothing.
    let wait = if check.controls_time() { 60_000 } else { 800 };
    let spec = to_origin().canary(1).canary_wait(Duration::from_millis(wait));
    let operation = check.start(spec).await;
    let taken = check.take(&operation, 9).await;
    assert_eq!(taken.len(), 1);
    check.record(taken[0].token, CONFIRMED).await;
    assert!(check.take(&operation, 9).await.is_empty(), "it may still die");
    check.pass(Duration::from_millis(wait + 50)).await;
    assert_eq!(check.take(&operation, 1).await.len(), 1);
    assert_eq!(check.operation(&operation).await.state, OperationState::Running);
    let stopped = check.start(to_origin()).await;
    assert_eq!(stopped.progress.total, 0, "all three are held");
    // The rest is on its way by now, so that a canary's death comes too late to stop it.
    check.put_one(&died_again(&letters[0])).await;
    assert_eq!(check.operation(&operation).await.state, OperationState::Running);
}

/// A canary that died again stops its operation.
pub async fn a_canary_that_died_again_stops_the_rest<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    let spec = to_origin().canary(1).canary_wait(Duration::from_secs(3600));
    let operation = check.start(spec).await;
    let taken = check.take(&operation, 9).await;
    check.record(taken[0].token, CONFIRMED).await;
    check.put_one(&died_again(&letters[0])).await;
    assert!(check.take(&operation, 9).await.is_empty());
    assert_eq!(check.operation(&operation).await.state, OperationState::Stopped);
}

/// Refuses senders an operation that does not exist, one whose letters go to handlers, and one without a broker.
pub async fn senders_are_refused_what_is_not_theirs<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    let senders = || BTreeMap::from([(cluster(), "first".to_owned())]);
    let unknown = OperationId::from_bytes([7; 16]);
    let request = TakeRequest::new(unknown, 1, check.lease(), senders());
    let error = check.store.take(request).await.expect_err("there is none");
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
    let nowhere = OperationSpec::replay(Filter::new()).target(Target::Origin, []);
    let error = check.store.start(nowhere, by()).await.expect_err("no broker is named");
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    let operation = check.replay().await;
    let request = TakeRequest::new(operation.id, 1, check.lease(), senders());
    let error = check.store.take(request).await.expect_err("handlers claim them");
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    let gone = ClaimToken { letter: letter(99).id, generation: 0, fence: 1 };
    assert_eq!(check.record(gone, CONFIRMED).await, Finished::Stale);
}
