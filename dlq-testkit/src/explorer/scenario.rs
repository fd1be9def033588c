use std::time::Duration;

use dlq_core::policy::{Backoff, Jitter, RetryPolicy};
use dlq_core::store::Schedule;
use dlq_core::{Message, Reason};

use super::headers::Forgery;

/// Behaviour of a run of the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Act {
    /// It succeeds.
    Succeed,
    /// It succeeds, after longer than any lease.
    SucceedLate,
    /// It fails; another run may succeed.
    Transient,
    /// It fails; no run will succeed.
    Permanent,
    /// It panics.
    Panic,
    /// It takes the process with it.
    Kill,
    /// It fails at the first attempt that a delivery makes, and takes the process with it at any other.
    KillLater,
}

/// Ending of a message, whatever goes wrong on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// Its handler succeeds, and no letter is left open.
    Handled,
    /// A letter is left, with this reason.
    Dead(Reason),
    /// A letter is left, quarantined with this reason.
    Quarantined(Reason),
    /// A single letter is left, with this reason, unless a fault made the handler run once more and it succeeded: no letter is left
    /// open then.
    DeadUnlessHandled(Reason),
}

/// A message, and what its handler does each time.
#[derive(Clone, Debug)]
#[must_use]
pub struct Story {
    pub(super) message: Message,
    pub(super) key: String,
    pub(super) lives: Vec<Vec<Act>>,
    pub(super) ending: Ending,
    pub(super) held_elsewhere: Option<Duration>,
    pub(super) later: bool,
    pub(super) forgery: Option<Forgery>,
}

impl Story {
    /// A message whose handler does `acts` one after another; the last one is repeated. A message that comes back from
    /// the dead goes on with its next [life](Self::then), if it has one.
    pub fn new(number: u32, acts: &[Act], ending: Ending) -> Self {
        let message = Message::new("stories.told", number.to_string())
            .with_id(format!("story-{number}"))
            .with_key(format!("key-{number}"));
        let key = format!("story-{number}");
        let lives = vec![acts.to_vec()];
        Self { message, key, lives, ending, held_elsewhere: None, later: false, forgery: None }
    }

    /// Adds what the handler does after the message has died once more. Defaults to the same as before.
    pub fn then(mut self, acts: &[Act]) -> Self {
        self.lives.push(acts.to_vec());
        self
    }

    /// Replaces the payload by one that the handler cannot read.
    pub fn undecodable(mut self) -> Self {
        self.message = self.message.with_payload(Some("\u{1}not a number".into()));
        self
    }

    /// Sets the idempotency key. Defaults to one of its own.
    pub fn keyed(mut self, key: &str) -> Self {
        self.key = key.to_owned();
        self
    }

    /// Sets the message's own key. Defaults to one of its own.
    pub fn of_customer(mut self, key: &'static str) -> Self {
        self.message = self.message.with_key(key);
        self
    }

    /// Lets another consumer hold the idempotency key for so long, and then die. Defaults to nobody.
    pub fn held_elsewhere(mut self, lease: Duration) -> Self {
        self.held_elsewhere = Some(lease);
        self
    }

    /// Keeps it back until [`Order::Publish`]. Stories that are kept back come last in a scenario. Defaults to no.
    pub fn later(mut self) -> Self {
        self.later = true;
        self
    }

    /// Lets its sender forge headers. The message that they tell of is published at the same time. Defaults to none.
    pub fn forged(mut self, forgery: Forgery) -> Self {
        self.forgery = Some(forgery);
        self
    }

    /// Returns the behaviour of the handler at run `index`, counted from 0 within the generation.
    pub(super) fn act(&self, generation: u32, index: usize) -> Act {
        let life = usize::try_from(generation).unwrap_or(usize::MAX).min(self.lives.len() - 1);
        let acts = &self.lives[life];
        acts.get(index).or(acts.last()).copied().unwrap_or(Act::Succeed)
    }
}

/// Place of letters and retry records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record {
    /// Both in a store.
    Store,
    /// Letters in a store, retry records in the broker's retry queue.
    StoreAndQueue,
    /// Letters in a stream of the broker, retry records in its retry queue: no store.
    Stream,
}

/// Action of an operator when everything has come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// Sends every pending letter back.
    Replay {
        /// Number of letters that go first.
        canary: Option<u32>,
        /// After how many replays a letter is set aside; 0 for never.
        max_replays: u32,
    },
    /// Sends every letter of the broker's stream of dead letters back to where it was born, with the headers of a replay.
    SendBack,
    /// Cancels what has stopped.
    Cancel,
    /// Publishes the messages that were [kept back](Story::later).
    Publish,
    /// Has the sink take what it [refused](Scenario::refused).
    Mend,
}

/// A few messages and the consumer that they meet.
#[derive(Clone, Debug)]
#[must_use]
pub struct Scenario {
    pub(super) name: &'static str,
    pub(super) stories: Vec<Story>,
    pub(super) policy: RetryPolicy,
    pub(super) record: Record,
    pub(super) idempotent: bool,
    pub(super) schedule: Option<Schedule>,
    pub(super) orders: Vec<Order>,
    pub(super) most_replayed: Option<usize>,
    pub(super) ordered: bool,
    pub(super) refused: Option<u32>,
    pub(super) feed: Option<u32>,
}

impl Scenario {
    /// Messages that meet a consumer with three attempts, 100 ms apart, whose record is a store.
    pub fn new(name: &'static str, stories: impl IntoIterator<Item = Story>) -> Self {
        Self {
            name,
            stories: stories.into_iter().collect(),
            policy: spaced(Duration::from_millis(100)),
            record: Record::Store,
            idempotent: false,
            schedule: None,
            orders: Vec::new(),
            most_replayed: None,
            ordered: false,
            refused: None,
            feed: None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Sets the time between two attempts. Defaults to 100 ms, which is waited in the process.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.policy = spaced(delay);
        self
    }

    /// Sets where letters and retry records are kept. Defaults to a store.
    pub fn record(mut self, record: Record) -> Self {
        self.record = record;
        self
    }

    /// Handles each key once. Defaults to no.
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Sets the automatic schedule. Defaults to none.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = Some(schedule);
        self
    }

    /// Handles messages of one key in the order of the source. Defaults to no.
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Has the sink refuse the letter of the message with this number until [`Order::Mend`]. The operator goes on while that
    /// message waits, and where nothing else goes wrong the messages that are published then wait for nobody. Defaults to no
    /// letter.
    pub fn refused(mut self, number: u32) -> Self {
        self.refused = Some(number);
        self
    }

    /// Adds a second sink that gets a copy of each letter, and fails so many times before it takes one. Defaults to none.
    pub fn feed(mut self, fails: u32) -> Self {
        self.feed = Some(fails);
        self
    }

    /// Returns true if a sender forges headers.
    pub(super) fn has_forgeries(&self) -> bool {
        self.stories.iter().any(|story| story.forgery.is_some())
    }

    /// Adds what an operator does next when everything has come to rest. Defaults to nothing.
    pub fn order(mut self, order: Order) -> Self {
        self.orders.push(order);
        self
    }

    /// Sets how many messages may be run by replays. Defaults to any number.
    pub fn most_replayed(mut self, messages: usize) -> Self {
        self.most_replayed = Some(messages);
        self
    }
}

fn spaced(delay: Duration) -> RetryPolicy {
    // Without jitter, so that a plan takes the same steps each time.
    let backoff = Backoff::constant(delay).jitter(Jitter::None);
    RetryPolicy::new().with_max_attempts(3).with_backoff(backoff)
}
