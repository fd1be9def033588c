//! Silence of an operation that is watched: nothing ends, and somebody should see why.

use std::time::{Duration, Instant};

use dlq_admin::shown::consumer_names;
use dlq_core::store::{ItemOutcome, Operation, OperationState};
use dlq_core::{Clock as _, SystemClock};

/// After how long without an end of a letter it is asked whether anybody runs them.
const QUIET: Duration = Duration::from_secs(10);

/// Time since which nothing has ended, and the number of letters that had; `None` once that was said.
pub(super) struct Quiet(Option<(u64, Instant)>);

impl Quiet {
    pub(super) fn new(operation: &Operation) -> Self {
        Self(Some((operation.progress.done(), Instant::now())))
    }

    /// Returns true, once, if nothing has ended for long although something could.
    pub(super) fn has_lasted(&mut self, operation: &Operation) -> bool {
        let Some((done, since)) = &mut self.0 else { return false };
        let now = operation.progress.done();
        // What is not to send now has time, and its silence begins anew afterwards.
        if now != *done || !is_to_send(operation) {
            (*done, *since) = (now, Instant::now());
            return false;
        }
        let has_lasted = since.elapsed() >= QUIET;
        if has_lasted {
            // It is said once: an operator who goes on to wait knows it by then.
            self.0 = None;
        }
        has_lasted
    }
}

/// Returns true if a letter of the operation should end soon.
fn is_to_send(operation: &Operation) -> bool {
    let progress = &operation.progress;
    let is_out = [ItemOutcome::Released, ItemOutcome::Sending]
        .into_iter()
        .any(|outcome| progress.with_outcome(outcome) > 0);
    let waits_for_rate =
        operation.spec.pace.is_some() && operation.next_release > SystemClock.now();
    match operation.state {
        // A canary that was sent to a broker waits for news of it.
        OperationState::Canary if !operation.spec.target.is_handler() && progress.sent() > 0 => {
            is_out
        }
        // Letters that are out should end whatever the rate says of the next ones.
        OperationState::Canary | OperationState::Running => is_out || !waits_for_rate,
        _ => false,
    }
}

/// Says that nothing ends, and who may be lacking.
pub(super) fn tell(operation: &Operation, unattended: &[String]) {
    let for_so_long = QUIET.as_secs();
    if !operation.spec.target.is_handler() {
        say!(
            "no letter has been sent for {for_so_long} s; see whether anybody sends them, or do it: dlq op send {} --via URL",
            operation.id
        );
        return;
    }
    let untaken = operation.progress.with_outcome(ItemOutcome::Released) == 0;
    let lacking = match consumer_names(unattended).as_str() {
        "" => String::new(),
        names => format!(", for nobody reported to run {names}"),
    };
    say!(
        "no letter has come to an end for {for_so_long} s{}; the consumers in which they died take them, where these run on \
         this store: see whether they do{lacking}",
        if untaken { ", and nobody takes any" } else { "" }
    );
}

#[cfg(test)]
mod tests {
    use dlq_core::store::{Actor, Cluster, OperationSpec, Progress, Target};
    use dlq_core::{Filter, OperationId, Timestamp};

    use super::*;

    fn operation(state: OperationState, outcome: ItemOutcome) -> Operation {
        Operation {
            id: OperationId::of("t", Timestamp::EPOCH, 0),
            spec: OperationSpec::replay(Filter::new()).canary(1),
            state,
            by: Actor::new("t"),
            created_at: Timestamp::EPOCH,
            updated_at: Timestamp::EPOCH,
            next_release: Timestamp::EPOCH,
            progress: Progress { total: 2, by_outcome: [(outcome, 2)].into() },
        }
    }

    #[test]
    fn a_canary_that_nobody_takes_is_to_be_sent() {
        use ItemOutcome::{Queued, Released, Sent};
        assert!(is_to_send(&operation(OperationState::Canary, Queued)));
        assert!(is_to_send(&operation(OperationState::Running, Queued)));
        assert!(!is_to_send(&operation(OperationState::Paused, Queued)));
        let mut sent = operation(OperationState::Canary, Sent);
        sent.spec = sent.spec.target(Target::Origin, [Cluster::new("nats", "default")]);
        assert!(!is_to_send(&sent), "it waits for news of what it sent");
        let mut slow = operation(OperationState::Running, Queued);
        slow.spec.pace = "1/h".parse().ok();
        assert!(is_to_send(&slow));
        slow.next_release = SystemClock.now().after(Duration::from_secs(3_000));
        assert!(!is_to_send(&slow), "the next one has its time");
        slow.progress.by_outcome = [(Released, 1), (Queued, 1)].into();
        assert!(is_to_send(&slow));
    }

    #[test]
    fn a_silence_is_said_once() {
        let running = operation(OperationState::Running, ItemOutcome::Queued);
        let mut quiet = Quiet::new(&running);
        assert!(!quiet.has_lasted(&running));
        quiet.0 = Instant::now().checked_sub(QUIET).map(|since| (0, since));
        assert!(quiet.has_lasted(&running));
        assert!(!quiet.has_lasted(&running));
    }
}
