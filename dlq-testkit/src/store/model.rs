//! Any store against the one in memory: whatever is done to both, in whatever order, they answer alike.

use std::time::Duration;

use dlq_core::store::{
    ArchiveFilter, AuditEntry, AuditRequest, Claim, ClaimRequest, Cleanup, Control, Edit, Finish,
    Mark, Operation, OperationSpec, Pace, Schedule, ScheduleRun, Selection,
};
use dlq_core::{
    Attempt, Binding, Clock, DeadLetter, DelayedRetry, Filter, LetterId, Message, OperationId,
    Order, PageRequest, Resolution, Status, Store,
};
use dlq_letters::memory::MemoryStore;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::check::{by, written};
use super::{Check, StoreFixture};
use crate::fixtures::{ManualClock, any_letter, delayed_retry, died_again, failure, letter_of};

const CONSUMERS: [&str; 2] = ["orders.handle", "audit.write"];

/// A step that is done to both stores.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Step {
    /// Puts deaths of messages, each a number, a generation and whether its bytes are other ones.
    Put(Vec<(u8, u8, bool)>),
    /// Enqueues a retry of a generation after so many attempts, due in so many seconds.
    Enqueue(u8, u8, u8, u8),
    /// Claims so many letters of one consumer, or of all.
    Claim(u8, Option<bool>),
    /// Extends the n-th claim so far.
    Extend(u8),
    /// Finishes the n-th claim so far in one of several ways.
    Finish(u8, u8),
    /// Marks the letter of a message, or those of a consumer.
    Mark(u8, u8),
    /// Deletes the letter of a message, or those of a consumer.
    Delete(u8),
    /// Restores what was deleted of them.
    Undelete(u8),
    /// Edits the letter of a message in one of several ways.
    Edit(u8, u8),
    /// Restores letters, each as a death that is put, in one of several states.
    Restore(Vec<(u8, u8, bool, u8)>),
    /// Cleans up what is so many seconds old.
    Cleanup(u8, bool),
    /// Starts an operation: consumer, limit, canary, letters a second, cap.
    Start(Option<bool>, Option<u8>, u8, u8, u8),
    /// Steers the n-th operation.
    Control(u8, u8),
    /// Runs the schedule of one consumer with a batch.
    Schedule(bool, u8),
    /// Collapses duplicates.
    Deduplicate(bool),
    /// Lets so many tenths of a second pass.
    Pass(u8),
}

/// Arbitrary steps, those that happen often more often.
pub fn any_step() -> impl Strategy<Value = Step> {
    let n = 0..8_u8;
    prop_oneof![
        6 => vec((n.clone(), 0..3_u8, prop::bool::weighted(0.1)), 1..4).prop_map(Step::Put),
        3 => (n.clone(), 0..3_u8, 1..4_u8, 0..9_u8).prop_map(|(n, g, a, d)| Step::Enqueue(n, g, a, d)),
        6 => (0..5_u8, any::<Option<bool>>()).prop_map(|(limit, who)| Step::Claim(limit, who)),
        1 => any::<u8>().prop_map(Step::Extend),
        8 => (any::<u8>(), any::<u8>()).prop_map(|(claim, how)| Step::Finish(claim, how)),
        2 => (0..10_u8, 0..3_u8).prop_map(|(which, mark)| Step::Mark(which, mark)),
        1 => (0..10_u8).prop_map(Step::Delete),
        1 => (0..10_u8).prop_map(Step::Undelete),
        3 => (n.clone(), 0..6_u8).prop_map(|(n, how)| Step::Edit(n, how)),
        2 => vec((n, 0..3_u8, prop::bool::weighted(0.2), any::<u8>()), 1..4).prop_map(Step::Restore),
        1 => (0..9_u8, any::<bool>()).prop_map(|(age, all)| Step::Cleanup(age, all)),
        4 => (any::<Option<bool>>(), prop::option::of(0..5_u8), 0..3_u8, 0..3_u8, 0..4_u8)
            .prop_map(|(who, limit, canary, pace, cap)| Step::Start(who, limit, canary, pace, cap)),
        2 => (any::<u8>(), 0..3_u8).prop_map(|(which, how)| Step::Control(which, how)),
        2 => (any::<bool>(), 0..4_u8).prop_map(|(who, batch)| Step::Schedule(who, batch)),
        1 => any::<bool>().prop_map(Step::Deduplicate),
        4 => (0..60_u8).prop_map(Step::Pass),
    ]
}

/// Compares a store with the one in memory over `cases` random sequences of steps, with and without deduplication.
///
/// # Panics
///
/// When the two answer differently, with the shortest sequence found that makes them; and when the store does not take
/// a clock.
pub fn compare<F: StoreFixture>(cases: u32) {
    if !F::is_available() {
        return;
    }
    // No file is kept of failures: the shortest sequence stands in the panic.
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let steps = (any::<bool>(), vec(any_step(), 1..40));
    let ended = TestRunner::new(config).run(&steps, |(dedup, steps)| {
        crate::run("agrees with the model", async {
            let fixture = F::fresh("agrees_with_the_model").await;
            let store = fixture.open(dedup).await;
            let clock = fixture.clock().expect("the comparison needs a store that takes a clock");
            agrees_with_model(&store, clock, dedup, &steps).await;
        });
        Ok(())
    });
    if let Err(error) = ended {
        panic!("{error}");
    }
}

/// Puts arbitrary letters, `cases` times, and reads them back.
///
/// # Panics
///
/// When a letter does not come back as it was written, with the simplest letters found that do not.
pub fn keeps_any_letter<F: StoreFixture>(cases: u32) {
    if !F::is_available() {
        return;
    }
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let ended = TestRunner::new(config).run(&vec(any_letter(), 1..8), |letters| {
        crate::run("keeps any letter", async {
            let check = Check::<F>::new("keeps_any_letter").await;
            check.put(letters.clone()).await;
            for (n, letter) in letters.iter().enumerate() {
                // Letters may be at odds with one another; those that are alone must come back.
                if letters.iter().enumerate().all(|(m, other)| m == n || other.id != letter.id) {
                    let found = check.get(letter.id).await;
                    assert_eq!(written(&found), written(letter));
                    let alone = Filter::new().with_id(letter.id).error(letter.error());
                    let listed = check.list(&alone, Order::NewestFirst, 2).await;
                    assert_eq!(listed, [found.summary()]);
                }
            }
        });
        Ok(())
    });
    if let Err(error) = ended {
        panic!("{error}");
    }
}

/// Makes two tests with random input: that a store agrees with the one in memory whatever is done to it, and that it
/// keeps any letter.
///
/// Takes a type that implements [`StoreFixture`] and how many inputs to try in each.
#[macro_export]
macro_rules! store_model {
    ($fixture:ty, $cases:expr) => {
        #[test]
        fn agrees_with_the_model() {
            $crate::store::model::compare::<$fixture>($cases);
        }

        #[test]
        fn keeps_any_letter() {
            $crate::store::model::keeps_any_letter::<$fixture>($cases);
        }
    };
}

/// Does `steps` to `store`, which must be empty and tell the time by `clock`, and to a store in memory.
///
/// # Panics
///
/// When the two answer differently.
pub async fn agrees_with_model<S: Store>(
    store: &S,
    clock: &ManualClock,
    dedup: bool,
    steps: &[Step],
) {
    // Both stores tell the time by one clock, so that answers with times can be compared.
    let model = MemoryStore::new().clock(clock.shared()).dedup(dedup);
    let mut one = Side { store: &model, claims: Vec::new(), operations: Vec::new() };
    let mut other = Side { store, claims: Vec::new(), operations: Vec::new() };
    for (number, step) in steps.iter().enumerate() {
        if let Step::Pass(tenths) = step {
            clock.advance(Duration::from_millis(u64::from(*tenths) * 100));
        }
        let expected = one.answer(clock, step).await;
        let found = other.answer(clock, step).await;
        assert_eq!(found, expected, "step {number}: {step:?}");
        // Everything is compared after each step, so that the first difference names the step to blame.
        let expected = one.everything().await;
        let found = other.everything().await;
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "after step {number}: {step:?}");
        }
        assert_eq!(found.len(), expected.len(), "after step {number}: {step:?}");
    }
}

fn death(n: u8, generation: u8, other_bytes: bool) -> DeadLetter {
    let payload = if other_bytes { "other" } else { "payload" };
    // Up to three messages share an id, which gives deduplication something to merge. The last one has none.
    let original = if n == 7 { String::new() } else { format!("evt-{}", n / 3) };
    let mut letter =
        letter_of(Message::new("orders.created", payload).with_id(original), u64::from(n));
    letter.consumer = CONSUMERS[usize::from(n % 2)].to_owned();
    (0..generation).fold(letter, |letter, _| died_again(&letter))
}

fn consumer(which: bool) -> String {
    CONSUMERS[usize::from(which)].to_owned()
}

fn selection(which: u8) -> Selection {
    let filter = match which {
        8 | 9 => Filter::new().with_consumer(consumer(which == 9)),
        n => Filter::new().with_id(death(n, 0, false).id),
    };
    Selection::matching(filter).expect("it says something")
}

/// A store, the claims it has given out and the operations it has started, in order.
struct Side<'a, S> {
    store: &'a S,
    claims: Vec<Claim>,
    operations: Vec<OperationId>,
}

impl<S: Store> Side<'_, S> {
    /// Does one step and returns the answer as text, without what may differ: fences and ids of operations.
    async fn answer(&mut self, clock: &ManualClock, step: &Step) -> String {
        let now = clock.now();
        // Shorter than the longest pass of time, so that some leases end.
        let lease = Duration::from_secs(2);
        match step {
            Step::Put(deaths) => {
                let letters = deaths.iter().map(|(n, g, other)| death(*n, *g, *other)).collect();
                format!("{:?}", self.store.put(letters).await.expect("put answers"))
            }
            Step::Enqueue(n, generation, attempts, seconds) => {
                let due = now.after(Duration::from_secs(u64::from(*seconds)));
                let record: DelayedRetry =
                    delayed_retry(&death(*n, *generation, false), u32::from(*attempts), due);
                format!("{:?}", self.store.enqueue(record).await.expect("enqueue answers"))
            }
            Step::Claim(limit, who) => {
                let names = who.map(consumer);
                let request = ClaimRequest::due(names, u32::from(*limit), lease);
                let claims = self.store.claim(request).await.expect("claim answers");
                let shown: Vec<_> = claims
                    .iter()
                    .map(|claim| {
                        let letter = self.plain(claim.letter.clone());
                        (letter, claim.token.generation, claim.continues, claim.lease_until)
                    })
                    .collect();
                self.claims.extend(claims);
                format!("{shown:#?}")
            }
            Step::Extend(which) => {
                let Some(claim) = self.claim(*which) else { return String::new() };
                let extended = self.store.extend(vec![claim.token], lease).await;
                format!("{:?}", extended.expect("extend answers"))
            }
            Step::Finish(which, how) => {
                let Some(claim) = self.claim(*which) else { return String::new() };
                let finish = finish(claim, *how, now);
                let finished = self.store.finish(vec![(claim.token, finish)]).await;
                format!("{:?}", finished.expect("finish answers"))
            }
            Step::Mark(which, mark) => {
                let mark = [Mark::Quarantined, Mark::Pending, Mark::Resolved][usize::from(*mark)];
                let marked = self.store.mark(selection(*which), mark, by()).await;
                format!("{:?}", marked.expect("mark answers"))
            }
            Step::Delete(which) => {
                let deleted = self.store.delete(selection(*which), by()).await;
                format!("{:?}", deleted.expect("delete answers"))
            }
            Step::Undelete(which) => {
                let letters = selection(*which).filter().clone();
                let filter = ArchiveFilter::new().letters(letters);
                let undeleted = self.store.undelete(filter, by()).await;
                format!("{:?}", undeleted.expect("undelete answers"))
            }
            Step::Edit(n, how) => {
                let id = death(*n, 0, false).id;
                match self.store.edit(id, edit(*how), by()).await {
                    Ok(letter) => format!("{:?}", self.plain(letter)),
                    Err(error) => format!("{:?} {error}", error.kind()),
                }
            }
            Step::Restore(letters) => {
                let letters = letters
                    .iter()
                    .map(|(n, g, other, state)| restored(death(*n, *g, *other), *state, now));
                let restored = self.store.restore(letters.collect(), by()).await;
                format!("{:?}", restored.expect("restore answers"))
            }
            Step::Cleanup(age, all) => {
                let mut cleanup = Cleanup::older_than(Duration::from_secs(u64::from(*age)));
                cleanup.include_unresolved = *all;
                format!("{:?}", self.store.cleanup(cleanup, by()).await.expect("cleanup answers"))
            }
            Step::Start(who, limit, canary, pace, cap) => {
                let mut spec = OperationSpec::replay(Filter::new())
                    .canary(u32::from(*canary))
                    .max_replays(u32::from(*cap));
                spec.filter.consumers.extend(who.map(consumer));
                spec.limit = limit.map(u64::from);
                spec.pace = Pace::per_second(u32::from(*pace));
                let plan = self.store.plan(spec.clone()).await.expect("plan answers");
                let operation = self.store.start(spec, by()).await.expect("start answers");
                self.operations.push(operation.id);
                let planned = (plan.count, plan.past_cap, plan.ineligible, plan.sample.len());
                format!("{planned:?} {:?}", self.plain_operation(operation))
            }
            Step::Control(which, how) => {
                if self.operations.is_empty() {
                    return String::new();
                }
                let id = self.operations[usize::from(*which) % self.operations.len()];
                let control = Control::ALL[usize::from(*how)];
                match self.store.control(id, control, by()).await {
                    Ok(operation) => format!("{:?}", self.plain_operation(operation)),
                    Err(error) => format!("{:?}", error.kind()),
                }
            }
            Step::Schedule(who, batch) => {
                let schedule = Schedule::enabled()
                    .every(Duration::from_secs(1))
                    .batch(u32::from(*batch))
                    .max_retries(3);
                let run = ScheduleRun { consumer: consumer(*who), schedule };
                format!("{:?}", self.store.run_schedule(run).await.expect("run_schedule answers"))
            }
            Step::Deduplicate(force) => {
                let removed = self.store.deduplicate(*force).await;
                format!("{:?}", removed.map_err(|error| error.kind()))
            }
            Step::Pass(_) => String::new(),
        }
    }

    fn claim(&self, which: u8) -> Option<&Claim> {
        // The latest six claims may have ended, so that stale tokens are tried as well.
        let latest = self.claims.len().checked_sub(1)?;
        self.claims.get(latest - usize::from(which) % self.claims.len().min(6))
    }

    /// Everything that can be asked for, each as text.
    async fn everything(&self) -> Vec<String> {
        let request = PageRequest::new().order(Order::OldestFirst).limit(1_000);
        let page = self.store.list(Filter::new(), request).await.expect("list answers");
        let mut all = Vec::new();
        for summary in page.letters {
            let letter = self.store.get(summary.id).await.expect("get answers");
            let letter = letter.expect("what is listed is there");
            assert_eq!(summary, letter.summary());
            all.push(format!("{:#?}", self.plain(letter)));
        }
        for id in &self.operations {
            let operation = self.store.operation(*id).await.expect("operation answers");
            let operation = operation.expect("what was started is there");
            let items = self.store.items(*id, 0, 1_000).await.expect("items answers");
            all.push(format!("{:#?} {items:#?}", self.plain_operation(operation)));
        }
        let stats = self.store.stats(Filter::new()).await.expect("stats answers");
        let pending = Filter::new().with_status(Status::Pending);
        let count = self.store.count(pending).await.expect("count answers");
        let groups = self.store.groups(Filter::new(), 100).await.expect("groups answers");
        let groups: Vec<_> =
            groups.iter().map(|g| (g.fingerprint, &g.consumer, g.count, g.sample.id)).collect();
        all.push(format!("{stats:#?} {count} {groups:#?}"));
        for names in [Vec::new(), vec![consumer(false)], vec![consumer(true)]] {
            all.push(format!("{:?}", self.store.next_due(names).await.expect("next_due answers")));
        }
        let audit = self.store.audit(AuditRequest::latest(1_000)).await.expect("audit answers");
        let audit = audit.into_iter().map(|entry| self.plain_entry(entry));
        all.push(format!("{:#?}", audit.collect::<Vec<_>>()));
        all
    }

    fn number(&self, id: OperationId) -> OperationId {
        // Each store makes ids of its own. The order in which operations were started is the same.
        let number = self.operations.iter().position(|known| *known == id);
        let number = number.expect("the operation was started here");
        OperationId::from_bytes([u8::try_from(number).unwrap_or(u8::MAX); 16])
    }

    fn plain(&self, mut letter: DeadLetter) -> (LetterId, DeadLetter) {
        letter.state.operation = letter.state.operation.map(|id| self.number(id));
        (letter.id, letter)
    }

    fn plain_operation(&self, mut operation: Operation) -> Operation {
        operation.id = self.number(operation.id);
        operation
    }

    fn plain_entry(&self, mut entry: AuditEntry) -> AuditEntry {
        // A store may leave numbers out.
        entry.number = 0;
        if let Some(id) = entry.operation {
            let number = self.number(id);
            entry.subject = entry.subject.replace(&id.to_string(), &number.to_string());
            entry.operation = Some(number);
        }
        entry
    }
}

fn edit(how: u8) -> Edit {
    match how {
        0 => Edit::new().payload("payload"),
        1 => Edit::new().payload("other"),
        2 => Edit::new().payload("[1]").set_header("h", "1"),
        3 => Edit::new().payload("[1").remove_header("h"),
        4 => Edit::new().no_payload(),
        _ => Edit::new().set_header("h", "2"),
    }
}

fn restored(mut letter: DeadLetter, state: u8, now: dlq_core::Timestamp) -> DeadLetter {
    letter.state.status = Status::ALL[usize::from(state) % Status::ALL.len()];
    letter.state.due = state.is_multiple_of(3).then_some(now.after(Duration::from_secs(1)));
    letter.state.replays = u32::from(state % 5);
    letter.state.created_at = now.before(Duration::from_secs(u64::from(state % 11)));
    letter.state.updated_at = now;
    if state.is_multiple_of(4) {
        let other = Message::new("s", ["payload", "other", "[1]"][usize::from(state) / 4 % 3]);
        letter.state.edited_from.push(Binding::of(&letter.id, &other));
    }
    letter
}

fn finish(claim: &Claim, how: u8, now: dlq_core::Timestamp) -> Finish {
    match how % 6 {
        0 | 1 => Finish::Resolved(Resolution::ALL[usize::from(how / 6) % 3]),
        2 => Finish::Released { after: Duration::from_secs(u64::from(how / 60)) },
        3 => {
            let generation = claim.next_death().generation;
            let attempts = if claim.continues { claim.letter.attempts + 1 } else { 1 };
            let mut history = claim.letter.history.clone();
            history.push(Attempt {
                number: attempts,
                generation,
                failure: failure(u64::from(how)),
            });
            Finish::Retry {
                due: now.after(Duration::from_secs(u64::from(how / 60))),
                history,
                attempts,
            }
        }
        _ => {
            let mut death = died_again(&claim.letter);
            death.generation = claim.next_death().generation;
            Finish::Dead(Box::new(death))
        }
    }
}
