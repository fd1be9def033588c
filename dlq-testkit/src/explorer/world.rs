//! State that outlives a process: broker, store, idempotency, and the account of what handlers really did.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::idempotency::Idempotency;
use dlq_core::idempotency::memory::MemoryIdempotency;
use dlq_core::memory::{MemoryBroker, MemorySink};
use dlq_core::store::{Actor, Claims, Control, Letters, OperationSpec, OperationState, Operations};
use dlq_core::{
    DeadLetter, DeliveredFrom, Delivery, Filter, LetterId, Message, Origin, PageRequest, Position,
    SharedClock, Status, StoreError, StoreErrorKind, Timestamp, TokioClock,
};
use dlq_letters::memory::MemoryStore;
use futures_util::FutureExt;
use tokio::time::Instant;

use super::flaw::Flaw;
use super::gate::{Gate, MOST_STEPS};
use super::headers::sent_back;
use super::plan::Plan;
use super::scenario::{Act, Ending, Order, Record, Scenario, Story};

/// The consumer under test, and its group.
pub(super) const CONSUMER: &str = "explored";

/// A run of a handler.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) generation: u32,
    pub(super) delivered_from: DeliveredFrom,
    pub(super) succeeded: bool,
    /// It took the process with it.
    pub(super) kills: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) scenario: Arc<Scenario>,
    pub(super) flaw: Option<Flaw>,
    pub(super) gate: Gate,
    pub(super) clock: SharedClock,
    pub(super) broker: MemoryBroker,
    pub(super) store: MemoryStore,
    /// The seed of conflicts that the program meets in the store.
    conflicts: Option<u64>,
    pub(super) sink: MemorySink,
    pub(super) feed: MemorySink,
    pub(super) idempotency: MemoryIdempotency,
    tally: Mutex<Tally>,
}

#[derive(Debug, Default)]
struct Tally {
    /// Ids of published messages, by story.
    ids: Vec<LetterId>,
    /// Runs by story.
    runs: Vec<Vec<Run>>,
    succeeded: HashSet<String>,
    /// Number of times that each message was given back.
    given_back: HashMap<Position, u32>,
    orders: usize,
    /// The sink takes what it refused.
    is_mended: bool,
    /// Number of times that the feed has failed by itself.
    feed_failures: u32,
    /// Times by story: when it was published, and when it was handled first.
    published: Vec<Instant>,
    published_at: Vec<Timestamp>,
    handled: HashMap<usize, Instant>,
    kills: usize,
    /// Number of additional runs, by key.
    ran_again: HashMap<String, usize>,
    frozen_until: Option<Instant>,
    violations: Vec<String>,
}

/// Returns the position of a story at the broker.
fn position(story: usize) -> Position {
    // A broker counts from 1, and what is kept back stands last in a scenario, so that it is published in this order
    // too.
    Position::Offset(story as u64 + 1)
}

/// The answer of something in memory, which never waits.
fn now<T>(answer: impl Future<Output = Result<T, dlq_core::StoreError>>) -> T {
    let answer = answer.now_or_never().expect("what is in memory does not wait");
    answer.expect("what is in memory does not fail")
}

impl World {
    /// A fresh world in which every message of the scenario has been published that is not kept back.
    pub(super) fn new(scenario: Arc<Scenario>, flaw: Option<Flaw>, plan: Plan) -> Self {
        // Every run of a plan begins at the same time, so that it takes the same steps.
        let start = Timestamp::from_millis(1_790_000_000_000);
        let clock: SharedClock = Arc::new(TokioClock::starting_at(start));
        let broker = MemoryBroker::new().stream("stories").clock(clock.clone());
        let idempotency = MemoryIdempotency::new().clock(clock.clone());
        for story in &scenario.stories {
            if let Some(lease) = story.held_elsewhere {
                // The claim is dropped as by a consumer that has died: only the end of its lease frees the key.
                let _ = now(idempotency.claim(CONSUMER.into(), story.key.clone().into(), lease));
            }
        }
        let tally = Tally { runs: vec![Vec::new(); scenario.stories.len()], ..Tally::default() };
        let world = Self {
            store: MemoryStore::new().clock(clock.clone()),
            conflicts: None,
            sink: MemorySink::new(),
            feed: MemorySink::new(),
            gate: Gate::new(plan),
            tally: Mutex::new(tally),
            scenario,
            flaw,
            clock,
            broker,
            idempotency,
        };
        world.publish(false);
        world
    }

    pub(super) fn with_conflicts(mut self, conflicts: Option<u64>) -> Self {
        self.conflicts = conflicts;
        self
    }

    /// The store, as the program under test has it.
    pub(super) fn store_of_program(&self) -> MemoryStore {
        match self.conflicts {
            Some(seed) => self.store.clone().conflicts(seed),
            None => self.store.clone(),
        }
    }

    /// Publishes the messages that are kept back, or those that are not.
    fn publish(&self, later: bool) {
        let is_next = |story: &&Story| story.later == later;
        for story in self.scenario.stories.iter().filter(is_next) {
            let mut message = story.message.clone();
            if let Some(forgery) = story.forgery {
                let now = self.clock.now();
                let other = |number: u32| {
                    let other = number as usize - 1;
                    // One that is not published yet is published with it.
                    let at = self.tally().published_at.get(other).copied().unwrap_or(now);
                    (self.scenario.stories[other].message.clone(), at)
                };
                message = forgery.forge(message, other, now);
            }
            let position = self.broker.publish(message);
            let origin = Origin::new("memory", "stories", position);
            // The account is locked only here: a forgery looks into it as well.
            let mut tally = self.tally();
            tally.ids.push(LetterId::of(&origin, Some(self.clock.now()), CONSUMER));
            tally.published.push(Instant::now());
            tally.published_at.push(self.clock.now());
        }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn violated(&self, what: String) {
        let violations = &mut self.tally().violations;
        // What is broken is found again after each step that follows, and is told once.
        if !violations.contains(&what) {
            violations.push(what);
        }
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.tally().violations.clone()
    }

    pub(super) fn runs(&self, story: usize) -> Vec<Run> {
        self.tally().runs[story].clone()
    }

    /// Returns the number of runs of a generation for the key of a story. Attempts count by key: messages that share
    /// one are the same to an idempotency store.
    pub(super) fn made(&self, story: usize, generation: u32) -> usize {
        let stories = &self.scenario.stories;
        let tally = self.tally();
        let same_key = stories.iter().zip(&tally.runs).filter(|(s, _)| s.key == stories[story].key);
        same_key.flat_map(|(_, runs)| runs).filter(|run| run.generation == generation).count()
    }

    /// Returns the number of times that a story took the process with it.
    pub(super) fn kills(&self) -> usize {
        self.tally().kills
    }

    /// Returns the number of times that recorded messages with the key of this one ran once more from the broker.
    pub(super) fn ran_again(&self, story: usize) -> usize {
        self.tally().ran_again.get(&self.scenario.stories[story].key).copied().unwrap_or(0)
    }

    pub(super) fn has_succeeded(&self, story: usize) -> bool {
        self.tally().succeeded.contains(&self.scenario.stories[story].key)
    }

    /// The id that the letter of a story has to have.
    pub(super) fn letter(&self, story: usize) -> LetterId {
        self.tally().ids[story]
    }

    /// The row of the story under an id that it can have.
    pub(super) fn row(&self, story: usize) -> Option<DeadLetter> {
        let own = self.tally().ids.get(story).copied()?;
        let get = |id| match self.scenario.record {
            Record::Stream => self.sink.get(id),
            Record::Store | Record::StoreAndQueue => now(self.store.get(id)),
        };
        // Without forgeries a row under any other id is a flaw, which `check` has to be left to see.
        if !self.scenario.has_forgeries() {
            return get(own);
        }
        let message = &self.scenario.stories[story].message;
        let claimed = self.scenario.stories[story].forgery.and_then(|forgery| {
            let published = self.tally().published_at.clone();
            forgery.claims(|number| published[number as usize - 1], published[story])
        });
        // Its own, or the one that its sender claims, each also where another message has it already.
        let ids = claimed.into_iter().chain([own]).flat_map(|id| [id, id.conflicting(message)]);
        ids.filter_map(get).find(|row| row.message.id() == message.id())
    }

    /// Every row there is, retry records included.
    pub(super) fn rows(&self) -> Vec<DeadLetter> {
        if self.scenario.record == Record::Stream {
            return self.sink.letters();
        }
        let page = now(self.store.list(Filter::new(), PageRequest::new().limit(1_000)));
        page.letters.iter().filter_map(|letter| now(self.store.get(letter.id))).collect()
    }

    /// G1, at this instant: every message is unsettled, or handled, or there is a record of it.
    pub(super) fn inspect(&self, after: &'static str) {
        // By their ids: a forged one says that it was born where another was.
        let unsettled = self.broker.unsettled_messages(CONSUMER);
        let unsettled: HashSet<_> = unsettled.iter().filter_map(Message::id).collect();
        let published = self.tally().ids.len();
        for story in 0..published {
            let is_unsettled = self.id(story).is_some_and(|id| unsettled.contains(id));
            let kept = is_unsettled || self.has_succeeded(story) || self.row(story).is_some();
            if !kept {
                let step = self.gate.log().len();
                self.violated(format!(
                    "G1: after step {step} ({after}) message {} is settled, not handled, and nowhere recorded",
                    story + 1
                ));
            }
        }
    }

    /// A run of the handler begins: what it will do. Notes what must not be.
    pub(super) fn begin(&self, story: usize, delivery: &Delivery) -> Act {
        // While a process stands still another may resolve the letter that it goes on to run.
        if delivery.delivered_from() == DeliveredFrom::Store
            && !self.has_frozen()
            && self.row(story).is_some_and(|row| row.state.status == Status::Resolved)
        {
            self.violated(format!("G6: message {} runs again although it is resolved", story + 1));
        }
        // The message is recorded and comes from the broker all the same, so it runs once more.
        if delivery.delivered_from() != DeliveredFrom::Store && self.row(story).is_some() {
            let key = self.scenario.stories[story].key.clone();
            *self.tally().ran_again.entry(key).or_default() += 1;
        }
        let generation = delivery.generation();
        let made = self.made(story, generation);
        if delivery.attempt() as usize > made + 1 {
            let attempt = delivery.attempt();
            let what = format!("message {} is at attempt {attempt} after {made} runs", story + 1);
            // If the message was given back, that is what was counted, against G10.
            self.violated(match self.given_back(&position(story)) {
                0 => format!("G3: {what} in generation {generation}"),
                times => format!("G10: {what}, and was given back {times} times"),
            });
        }
        let (act, kills) = {
            let runs = &mut self.tally().runs[story];
            let of_this = || runs.iter().filter(|run| run.generation == generation);
            let act = match self.scenario.stories[story].act(generation, of_this().count()) {
                Act::KillLater if delivery.attempt() == 1 => Act::Transient,
                Act::KillLater => Act::Kill,
                act => act,
            };
            let kills = act == Act::Kill;
            let earlier = of_this().filter(|run| run.kills).count();
            runs.push(Run {
                generation,
                delivered_from: delivery.delivered_from(),
                succeeded: false,
                kills,
            });
            (act, earlier + usize::from(kills))
        };
        if act == Act::Kill {
            self.tally().kills += 1;
            self.bounded(story, kills);
        }
        act
    }

    /// G3: what kills the process does so no more often than the policy allows, and is not run again until its letter is
    /// durable. After that a fault may keep the broker from hearing of it, and each such fault lets it begin anew.
    fn bounded(&self, story: usize, kills: usize) {
        // Without an idempotency store the first two deliveries are not yet suspect, and leave no mark.
        let unmarked = if self.scenario.idempotent { 0 } else { 2 };
        let allowed = self.scenario.policy.max_crashes() as usize + unmarked;
        let faults = self.gate.repeats();
        let lives = if self.row(story).is_some() { 1 + faults } else { 1 };
        if kills > allowed * lives + faults {
            let written = if lives > 1 { "" } else { ", and its letter is not written" };
            self.violated(format!(
                "G3: message {} killed the process {kills} times{written}",
                story + 1
            ));
        }
    }

    /// A message is given back, which counts nothing (G10).
    pub(super) fn gives_back(&self, position: Position) {
        *self.tally().given_back.entry(position).or_default() += 1;
    }

    /// Returns the number of times that the message was given back.
    pub(super) fn given_back(&self, position: &Position) -> u32 {
        self.tally().given_back.get(position).copied().unwrap_or(0)
    }

    /// A process stands still until then.
    pub(super) fn frozen_until(&self, thaws: Instant) {
        let mut tally = self.tally();
        // Of two that stand still, the last to thaw is waited for.
        tally.frozen_until = tally.frozen_until.max(Some(thaws));
    }

    /// Until when a process stands still, if one ever did.
    pub(super) fn thaws(&self) -> Option<Instant> {
        self.tally().frozen_until
    }

    /// Returns true if a process ever stood still. Between its last call to the store and its run any time may have
    /// passed.
    fn has_frozen(&self) -> bool {
        self.thaws().is_some()
    }

    /// G5: what was sent earlier with the same key and can be handled has been.
    fn in_order(&self, story: usize) {
        // Two processes may have messages of one key for a while, which no order within a process can rule out.
        if !self.scenario.ordered || !self.gate.plan.keeps_the_process() {
            return;
        }
        let stories = &self.scenario.stories;
        for earlier in 0..story {
            let related = stories[earlier].message.key() == stories[story].message.key()
                // A message that dies has no effect whose order could be seen.
                && stories[earlier].ending == Ending::Handled;
            if related && !self.has_succeeded(earlier) {
                let (this, before) = (story + 1, earlier + 1);
                self.violated(format!("G5: message {this} was handled before message {before}"));
            }
        }
    }

    /// The run that began last has succeeded.
    pub(super) fn succeed(&self, story: usize) {
        self.in_order(story);
        let key = self.scenario.stories[story].key.clone();
        let mut tally = self.tally();
        tally.handled.entry(story).or_insert_with(Instant::now);
        if let Some(run) = tally.runs[story].last_mut() {
            run.succeeded = true;
        }
        tally.succeeded.insert(key);
    }

    /// The story whose letter is refused now.
    fn refused(&self) -> Option<usize> {
        let number = self.scenario.refused.filter(|_| !self.tally().is_mended)?;
        Some(number as usize - 1)
    }

    /// Refuses these letters where one of them is to be.
    pub(super) fn takes(&self, letters: &[DeadLetter]) -> Result<(), StoreError> {
        let Some(story) = self.refused() else { return Ok(()) };
        let id = self.scenario.stories[story].message.id();
        // The sink refuses the whole batch: the consumer has to find out which letter it is.
        if letters.iter().any(|letter| letter.message.id() == id) {
            let refused = StoreError::new(StoreErrorKind::Refused, "put");
            return Err(refused.with_detail("the scenario says that it is refused"));
        }
        Ok(())
    }

    /// Returns true if the feed fails once more.
    pub(super) fn feed_fails(&self) -> bool {
        let mut tally = self.tally();
        let fails = self.scenario.feed.is_some_and(|most| tally.feed_failures < most);
        tally.feed_failures += u32::from(fails);
        fails
    }

    /// Returns how long a message waited until it was handled first.
    pub(super) fn waited(&self, story: usize) -> Option<Duration> {
        let tally = self.tally();
        Some(tally.handled.get(&story)?.duration_since(*tally.published.get(story)?))
    }

    /// The id that the producer of a story gave its message.
    fn id(&self, story: usize) -> Option<&str> {
        self.scenario.stories[story].message.id()
    }

    /// Returns true if the broker waits for no message.
    pub(super) fn is_settled(&self) -> bool {
        self.broker.unsettled(CONSUMER).is_empty()
    }

    /// Returns true, and says so, if it has taken more steps than any case needs that comes to rest. One whose store is gone
    /// never does.
    pub(super) fn is_restless(&self) -> bool {
        let is_restless = self.gate.log().len() > MOST_STEPS && self.gate.lost_store().is_none();
        if is_restless {
            self.violated(format!("G1: no rest after {MOST_STEPS} steps"));
        }
        is_restless
    }

    /// Returns true if nothing will happen any more by itself.
    pub(super) fn is_at_rest(&self) -> bool {
        // The message of a refused letter stays with the broker until the operator mends the sink.
        let waits = self.refused().and_then(|story| self.id(story));
        let unsettled = self.broker.unsettled_messages(CONSUMER);
        if unsettled.iter().any(|message| waits.is_none() || message.id() != waits) {
            return false;
        }
        // Without a store all that waits is in the broker's retry queue, and is unsettled there.
        if self.scenario.record == Record::Stream {
            return true;
        }
        let scheduled = self
            .scenario
            .schedule
            .as_ref()
            .is_some_and(|schedule| self.rows().iter().any(|letter| schedule.takes(letter)));
        !scheduled && now(self.store.next_due(Vec::new())).is_none()
    }

    /// The operator does what is next; `false` when nothing is left to do.
    pub(super) fn obey(&self) -> bool {
        let number = self.tally().orders;
        let Some(order) = self.scenario.orders.get(number) else { return false };
        self.tally().orders += 1;
        match *order {
            Order::Replay { canary, max_replays } => {
                let spec = OperationSpec::replay(Filter::new())
                    .canary(canary.unwrap_or(0))
                    .max_replays(max_replays);
                now(self.store.start(spec, Actor::new("ana")));
            }
            Order::Publish => self.publish(true),
            Order::SendBack => {
                for letter in self.sink.letters() {
                    let at = self.clock.now();
                    let message = letter.message.clone().with_published_at(at);
                    self.broker.publish(sent_back(message, &letter, at));
                }
            }
            Order::Mend => self.tally().is_mended = true,
            Order::Cancel => {
                for operation in now(self.store.operations(100)) {
                    if !operation.state.is_final() {
                        now(self.store.control(operation.id, Control::Cancel, Actor::new("ana")));
                    }
                }
            }
        }
        true
    }

    /// Operations that neither ended nor wait for the operator.
    pub(super) fn unfinished_operations(&self) -> usize {
        if self.scenario.record == Record::Stream {
            return 0;
        }
        let unfinished =
            |state: OperationState| !state.is_final() && state != OperationState::Stopped;
        now(self.store.operations(100)).iter().filter(|op| unfinished(op.state)).count()
    }
}
