//! [`Dispatcher`]: sends the letters of operations through outboxes.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Address, BoxOutbox, Once, Outbox as _, Outboxes, Outgoing, Sent, Settled};
use crate::protocol::Replay;
use crate::store::{
    BoxStore, ClaimToken, Cluster, Dispatch as _, Dispatched, FormerSender, ItemOutcome, Operation,
    OperationState, Operations as _, TakeRequest, Taken, Unfinished,
};
use crate::{DeadLetter, LetterId, OperationId, StoreError, StoreErrorKind};

/// Sends the letters of a store's operations through outboxes. Cheap to clone; any number of them may run at once, in any
/// number of processes.
///
/// Each [`step`](Self::step) takes letters from the store, finds out what a former sender did with those that it left,
/// sends, and records what became of them. See [`Dispatch`](crate::store::Dispatch) for what happens if the process dies in
/// between.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    store: BoxStore,
    outboxes: Outboxes,
    lease: Duration,
    batch: u32,
}

/// Result of one step of a [`Dispatcher`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Step {
    /// The operation as it was when letters were taken.
    pub operation: Operation,
    /// Number of letters taken.
    pub taken: u64,
    /// Number of letters that brokers have confirmed.
    pub confirmed: u64,
    /// Number of those that a former sender may have sent too.
    pub doubtful: u64,
    /// Letters that this operation does not send, and why.
    pub refused: Vec<(LetterId, String)>,
    /// Number of letters that were put back to be sent later.
    pub later: u64,
    /// Number of letters of which nobody knows whether they were sent. They are settled once their lease has ended.
    pub unknown: u64,
    /// Time until more letters may be taken; `None` if that does not depend on time alone.
    pub wait: Option<Duration>,
    /// The last error of a broker that concerned more than one letter.
    pub error: Option<StoreError>,
}

/// Sum of what a [`Dispatcher`] did for one operation.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Dispatches {
    /// Number of letters that brokers have confirmed.
    pub confirmed: u64,
    /// Number of those that a former sender may have sent too.
    pub doubtful: u64,
    /// Number of letters that were not sent.
    pub refused: u64,
}

/// A letter on its way, with what is needed to record it.
struct Held {
    token: ClaimToken,
    outgoing: Outgoing,
    is_doubtful: bool,
}

impl Step {
    /// Gives up a letter that a former sender may have sent.
    fn give_up(&mut self, token: ClaimToken, why: &str) -> (ClaimToken, Dispatched) {
        let why = format!("perhaps sent before, and not again: {why}");
        self.refused.push((token.letter, why.clone()));
        (token, Dispatched::Unclear(why))
    }
}

impl Dispatcher {
    /// A dispatcher of the operations in `store`.
    #[must_use]
    pub fn new(store: BoxStore, outboxes: Outboxes) -> Self {
        // A batch has half of the lease to be sent, as `take_and_send` explains.
        Self { store, outboxes, lease: Duration::from_secs(60), batch: 500 }
    }

    /// Sets how long a letter is held for a sender that says nothing; letters are sent for half of it. Defaults to one minute.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how many letters a step takes at most. Defaults to 500.
    #[must_use]
    pub const fn batch(mut self, batch: u32) -> Self {
        self.batch = if batch == 0 { 1 } else { batch };
        self
    }

    /// Returns true if letters of `operation` are sent through outboxes, and all those are here that it names.
    #[must_use]
    pub fn serves(&self, operation: &Operation) -> bool {
        let has =
            |cluster: &Cluster| self.outboxes.get(&cluster.transport, &cluster.alias).is_some();
        !operation.spec.target.is_handler() && operation.spec.via.iter().all(has)
    }

    /// Takes letters of an operation, sends them, and records what became of them.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` unless the operation is [served](Self::serves) here: only by the outbox of a letter can it be found out
    /// what a former sender did. Otherwise the store's. Letters that were taken and not recorded are settled once their lease has
    /// ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is what killing the process is: what was taken is settled once its lease has ended.
    pub async fn step(&self, operation: OperationId) -> Result<Step, StoreError> {
        self.check_outboxes(operation).await?;
        self.take_and_send(operation).await
    }

    async fn check_outboxes(&self, operation: OperationId) -> Result<(), StoreError> {
        let found = self.store.operation(operation).await?;
        let via = found.into_iter().flat_map(|operation| operation.spec.via);
        let lacking = via.filter(|at| self.outboxes.get(&at.transport, &at.alias).is_none());
        let lacking: Vec<_> = lacking.map(|cluster| cluster.to_string()).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let error = StoreError::new(StoreErrorKind::InvalidConfig, "send letters back");
        Err(error
            .with_detail(format!("the operation also needs an outbox of {}", lacking.join(", "))))
    }

    /// A step of an operation that is served.
    async fn take_and_send(&self, operation: OperationId) -> Result<Step, StoreError> {
        let begun = Instant::now();
        let of = |outbox: &BoxOutbox| {
            (Cluster::new(outbox.transport(), outbox.cluster()), outbox.sender().to_owned())
        };
        let senders: BTreeMap<_, _> = self.outboxes.iter().map(of).collect();
        if senders.is_empty() {
            let error = StoreError::new(StoreErrorKind::InvalidConfig, "send letters back");
            return Err(error.with_detail("there is no outbox; give the address of a broker"));
        }
        let request = TakeRequest::new(operation, self.batch, self.lease, senders);
        let takes = self.store.take(request).await?;
        let mut step = Step {
            taken: takes.letters.len() as u64,
            confirmed: 0,
            doubtful: 0,
            refused: Vec::new(),
            later: 0,
            unknown: 0,
            wait: takes.wait,
            error: None,
            operation: takes.operation,
        };
        let mut ended = Vec::with_capacity(takes.letters.len());
        let by_outbox = self.sort(&mut step, takes.letters, &mut ended);
        // The other half of the lease is for answers that come late and for recording them. After the lease another
        // sender may take the letters.
        let until = begun + self.lease / 2;
        for (outbox, fresh, lapsed) in by_outbox {
            let mut letters = fresh;
            // Letters of former senders are settled first: those that did not arrive are sent with the others, once (G6).
            self.settle(&mut step, &outbox, lapsed, &mut letters, &mut ended).await;
            send(&mut step, &outbox, letters, until, &mut ended).await;
        }
        // If the process dies before this, the store knows nothing of the sends. After the lease the next sender settles the
        // letters, finds those that arrived, and records them.
        if !ended.is_empty() {
            self.store.record(ended).await?;
        }
        Ok(step)
    }

    /// Finds the outbox of each letter. Those without one are refused.
    #[expect(clippy::type_complexity, reason = "it is taken apart at once, by the one caller")]
    fn sort(
        &self,
        step: &mut Step,
        taken: Vec<Taken>,
        ended: &mut Vec<(ClaimToken, Dispatched)>,
    ) -> Vec<(BoxOutbox, Vec<Held>, BTreeMap<FormerSender, Vec<Held>>)> {
        let mut sorted: BTreeMap<Cluster, (BoxOutbox, Vec<Held>, BTreeMap<_, Vec<_>>)> =
            BTreeMap::new();
        for Taken { token, letter, former, .. } in taken {
            let routed = self.outboxes.route(&letter, &step.operation.spec.target);
            let (outbox, to) = match routed {
                Ok(routed) => routed,
                Err(why) => {
                    step.refused.push((letter.id, why.to_string()));
                    ended.push((token, Dispatched::Refused(why.to_string())));
                    continue;
                }
            };
            let cluster = Cluster::new(outbox.transport(), outbox.cluster());
            let entry = sorted.entry(cluster);
            let (_, fresh, lapsed) =
                entry.or_insert_with(|| (outbox.clone(), Vec::new(), BTreeMap::new()));
            let outgoing = outgoing(&step.operation, letter, to);
            let held = Held { token, outgoing, is_doubtful: false };
            match former {
                None => fresh.push(held),
                Some(former) => lapsed.entry(former).or_insert_with(Vec::new).push(held),
            }
        }
        sorted.into_values().collect()
    }

    /// Finds out what former senders did. What did not arrive joins `letters`.
    async fn settle(
        &self,
        step: &mut Step,
        outbox: &BoxOutbox,
        lapsed: BTreeMap<FormerSender, Vec<Held>>,
        letters: &mut Vec<Held>,
        ended: &mut Vec<(ClaimToken, Dispatched)>,
    ) {
        let is_open =
            matches!(step.operation.state, OperationState::Canary | OperationState::Running);
        for (former, held) in lapsed {
            let batch = held.iter().map(|held| held.outgoing.clone()).collect();
            // A former sender's letters go together, because a broker is asked about one sender and its time.
            let settled = match outbox.settle(former.sender, former.since, batch).await {
                Ok(settled) => settled,
                Err(error) => {
                    // Nothing was found out, so nothing is recorded. The letters lapse again and are settled later.
                    step.unknown += held.len() as u64;
                    step.error = Some(error);
                    continue;
                }
            };
            // A letter for which an answer is missing is not recorded either, and lapses again.
            for (mut held, settled) in held.into_iter().zip(settled) {
                held.is_doubtful = matches!(settled, Settled::Unclear(_));
                match settled {
                    Settled::Arrived(_) => {
                        step.confirmed += 1;
                        ended.push((held.token, Dispatched::Confirmed { is_doubtful: false }));
                    }
                    _ if is_open => letters.push(held),
                    Settled::Unclear(why) if step.operation.state.is_final() => {
                        ended.push(step.give_up(held.token, &why));
                    }
                    // Put back, it would look as if it had not been sent. It is asked about again once its lease has ended.
                    Settled::Unclear(_) => step.unknown += 1,
                    // Nobody wants it sent any more, or not now.
                    Settled::Not => {
                        step.later += 1;
                        ended.push((held.token, Dispatched::Later));
                    }
                }
            }
        }
    }

    /// Sends an operation's letters until it is over, or `stop` resolves. `told` is called after each step. Waits while the
    /// operation is paused, while a broker or the store is away, and as the rate says.
    ///
    /// Over is an operation that is completed or cancelled, once nothing of it is on its way.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step), of the store those that do not go away by waiting.
    pub async fn run(
        &self,
        operation: OperationId,
        stop: impl Future<Output = ()>,
        mut told: impl FnMut(&Step),
    ) -> Result<Dispatches, StoreError> {
        let mut stop = pin!(stop);
        let mut sum = Dispatches::default();
        let mut failures = 0;
        loop {
            // The loop looks again and again, since a store does not tell when an operation has begun or was resumed.
            // A step is never cut off by `stop`: what it took, it records.
            let wait = match self.step(operation).await {
                Ok(step) => {
                    sum.confirmed += step.confirmed;
                    sum.doubtful += step.doubtful;
                    sum.refused += step.refused.len() as u64;
                    told(&step);
                    failures = if step.error.is_some() { failures + 1 } else { 0 };
                    match self.pause(&step, failures).await? {
                        Some(wait) => wait,
                        None => return Ok(sum),
                    }
                }
                Err(error) if error.is_transient() => {
                    failures += 1;
                    backoff(failures)
                }
                Err(error) => return Err(error),
            };
            tokio::select! {
                biased;
                () = &mut stop => return Ok(sum),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Sends the letters of every operation that it [serves](Self::serves), until `stop` resolves. `told` is called after each
    /// step. Whatever fails is logged and tried again.
    pub async fn serve(&self, stop: impl Future<Output = ()>, mut told: impl FnMut(&Step)) {
        const LOOK: Duration = Duration::from_secs(1);
        let mut stop = pin!(stop);
        let mut failures = 0;
        let mut unfinished = Unfinished::default();
        loop {
            let mut wait = LOOK;
            let mut failed = None;
            match unfinished.look(&self.store).await {
                Ok(operations) => {
                    // The list begins with the newest, and older operations have their turn first. One that fails keeps no
                    // other from its turn.
                    for operation in operations.iter().rev().filter(|it| self.is_to_do(it)) {
                        // `is_to_do` has looked for the outboxes that `step` would check.
                        match self.take_and_send(operation.id).await {
                            Ok(step) => {
                                told(&step);
                                // A step that took nothing is followed by the full wait, so that the store has its rest.
                                if step.taken > 0 {
                                    wait = wait.min(step.wait.unwrap_or(LOOK));
                                }
                                failed = step.error.or(failed);
                            }
                            Err(error) => failed = Some(error),
                        }
                    }
                }
                Err(error) => failed = Some(error),
            }
            failures = if failed.is_some() { failures + 1 } else { 0 };
            if let Some(error) = failed {
                wait = backoff(failures);
                let error = text(&error);
                tracing::warn!(error, retry_in = ?wait, "cannot send letters of an operation; retrying");
            }
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Returns true if letters of `operation` are to be sent or settled here.
    fn is_to_do(&self, operation: &Operation) -> bool {
        let is_open = matches!(operation.state, OperationState::Canary | OperationState::Running);
        let is_on_its_way = operation.progress.with_outcome(ItemOutcome::Sending) > 0;
        self.serves(operation) && (is_open || is_on_its_way)
    }

    /// Returns how long to wait after a step; `None` if the operation is over.
    async fn pause(&self, step: &Step, failures: u32) -> Result<Option<Duration>, StoreError> {
        const LOOK: Duration = Duration::from_millis(500);
        if failures > 0 {
            return Ok(Some(backoff(failures)));
        }
        // Letters that were put back would be taken again at once, so such a step is followed by a look and a wait.
        if step.taken > 0 && step.later == 0 {
            return Ok(Some(step.wait.unwrap_or_default().min(LOOK)));
        }
        let found = self.store.operation(step.operation.id).await;
        let operation = match found {
            Ok(Some(operation)) => operation,
            Ok(None) => return Ok(None),
            Err(error) if error.is_transient() => return Ok(Some(LOOK)),
            Err(error) => return Err(error),
        };
        let is_on_its_way = operation.progress.with_outcome(ItemOutcome::Sending) > 0;
        if operation.state.is_final() && !is_on_its_way {
            return Ok(None);
        }
        // Others may take what is due at once; nothing is gained by asking without a break.
        let least = Duration::from_millis(10);
        Ok(Some(step.wait.unwrap_or(LOOK).clamp(least, LOOK)))
    }
}

/// The wait after so many failures in a row: from a quarter of a second, doubled each time, to 15 s.
fn backoff(failures: u32) -> Duration {
    let doubled =
        Duration::from_millis(250) * 2_u32.saturating_pow(failures.saturating_sub(1).min(8));
    doubled.min(Duration::from_secs(15))
}

/// A letter of an operation as it is sent. All of it follows from the row and the operation, so that whoever repeats it sends
/// the same.
fn outgoing(operation: &Operation, letter: DeadLetter, to: Address) -> Outgoing {
    let replay = Replay {
        operation: operation.id,
        count: letter.state.replays.saturating_add(1),
        from: format!("letter {}", letter.id),
        at: operation.created_at,
    };
    let once = Once::in_operation(letter.death(), operation.id);
    Outgoing { letter: Arc::new(letter), to, replay, once }
}

/// Sends letters, and notes what became of each.
async fn send(
    step: &mut Step,
    outbox: &BoxOutbox,
    letters: Vec<Held>,
    until: Instant,
    ended: &mut Vec<(ClaimToken, Dispatched)>,
) {
    if letters.is_empty() {
        return;
    }
    let batch = letters.iter().map(|held| held.outgoing.clone()).collect();
    let sent = match outbox.send(batch, until).await {
        Ok(sent) => sent,
        Err(error) => {
            // An error of the whole call means that nothing was sent, so each letter may be put back.
            let all =
                letters.iter().map(|_| Sent::Later(StoreError::new(error.kind(), "send a letter")));
            let all = all.collect();
            step.error = Some(error);
            all
        }
    };
    for (held, sent) in letters.into_iter().zip(sent) {
        let Held { token, is_doubtful, .. } = held;
        match sent {
            Sent::Confirmed => {
                step.confirmed += 1;
                step.doubtful += u64::from(is_doubtful);
                ended.push((token, Dispatched::Confirmed { is_doubtful }));
            }
            Sent::Refused(error) if is_doubtful => ended.push(step.give_up(token, &text(&error))),
            Sent::Refused(error) => {
                let why = text(&error);
                step.refused.push((token.letter, why.clone()));
                ended.push((token, Dispatched::Refused(why)));
            }
            // One that a former sender may have sent is asked about again, after the lease.
            Sent::Later(error) if is_doubtful => {
                step.unknown += 1;
                step.error.get_or_insert(error);
            }
            Sent::Later(error) => {
                step.later += 1;
                step.error.get_or_insert(error);
                ended.push((token, Dispatched::Later));
            }
            // Nothing is recorded of it: it stays `sending`, is given to nobody before its lease ends, and is settled then.
            Sent::Unknown(error) => {
                step.unknown += 1;
                step.error.get_or_insert(error);
            }
        }
    }
}

/// The text of an error with its causes.
fn text(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
