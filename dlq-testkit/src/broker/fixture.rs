use std::fmt;
use std::future::Future;
use std::time::Duration;

use dlq_core::log::Entries;
use dlq_core::replay::{ReplayOutcome, ReplayPlan, ReplayReport, ReplayRules};
use dlq_core::store::Letters;
use dlq_core::{
    DeadLetter, Filter, LetterId, Message, OperationId, Origin, Source, StoreError, Timestamp,
};

/// A place that letters are sent back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplayTarget {
    /// The stream or topic where each was born.
    Origin,
    /// Another subject or topic of the place.
    Elsewhere,
    /// The retry stage of the consumer whose letter it is.
    Handler,
    /// A subject or topic that nobody keeps.
    Nowhere,
}

/// A replay as a check wants it.
#[derive(Clone, Debug)]
#[must_use]
pub struct ReplaySpec {
    /// The letters that are sent.
    pub filter: Filter,
    /// The place they go to.
    pub target: ReplayTarget,
    /// Operation, limit, rate and cap.
    pub rules: ReplayRules,
    /// Time that others wait for a replay that has died, where a broker needs that.
    pub lease: Duration,
}

impl ReplaySpec {
    /// Sends every letter to this target, as the operation of this number.
    pub fn to(target: ReplayTarget, operation: u64) -> Self {
        let rules = ReplayRules::new(OperationId::of("ana", Timestamp::EPOCH, operation));
        Self { filter: Filter::new(), target, rules, lease: Duration::from_secs(30) }
    }

    /// Sends every letter to its origin, as the operation of this number.
    pub fn to_origin(operation: u64) -> Self {
        Self::to(ReplayTarget::Origin, operation)
    }

    /// Sends the letters that match.
    pub fn of(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Sends at most so many letters.
    pub fn limit(mut self, letters: u64) -> Self {
        self.rules.limit = letters;
        self
    }

    /// Sends so many letters in a second.
    pub fn rate(mut self, per_second: u32) -> Self {
        self.rules.rate = Some(per_second);
        self
    }

    /// Sends a letter at most so often; 0 for any number.
    pub fn cap(mut self, times: u32) -> Self {
        self.rules.cap = times;
        self
    }

    /// Sends letters that were sent before, too.
    pub fn again(mut self) -> Self {
        self.rules.again = true;
        self
    }

    /// Sets how long others wait for it when it has died.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }
}

/// A message that was sent back, as it stands at its target: key, payload and every header, those of the replay too.
#[derive(Clone, Debug)]
pub struct Arrived(pub Message);

impl Arrived {
    /// Returns the last header of this name as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let named = |header: &&dlq_core::Header| header.name == name.as_bytes();
        let header = self.0.headers().iter().filter(named).last()?;
        std::str::from_utf8(header.value.as_deref()?).ok()
    }

    /// Returns the payload as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.0.payload().map_or(&[][..], |payload| payload)).into_owned()
    }
}

/// The mark that says into which store letters go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Name of the store.
    pub store: String,
    /// Progress of the confirmed letters as the broker counts it: 0 for none, and never less than before.
    pub confirmed: u64,
}

/// A place for dead letters at a broker, with the stream or topic in which they were born and with everything that belongs
/// to both. The letters are those of the consumer [`CONSUMER`](Self::CONSUMER).
pub trait BrokerFixture: fmt::Debug + Send + Sync + Sized + 'static {
    /// Reads the letters.
    type Letters: Letters;
    /// Sends letters back.
    type Replay: Send + Sync;
    /// Feeds the letters into a store.
    type Feed: Entries;
    /// Yields what was sent to the handler.
    type Source: Source;

    /// The consumer whose letters they are.
    const CONSUMER: &'static str = "billing";

    /// True if the headers of a message stay in their order.
    const KEEPS_ORDER_OF_HEADERS: bool = true;

    /// Time that a check waits for what must come.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Returns true if there is a broker to be had. Where there is not, this says so aloud, and the checks are skipped.
    #[must_use]
    fn is_available() -> bool {
        true
    }

    /// Makes an empty place for the check of this name. Checks run side by side; one whose name contains `restart`
    /// restarts the broker, which must be its own.
    fn fresh(check: &str) -> impl Future<Output = Self>;

    /// The subject of messages of the origin.
    fn subject(&self) -> String;

    /// The place where the `number`-th message of the origin stood.
    fn origin(&self, number: u32) -> Origin;

    /// Returns true if a message of this broker can be like this one.
    fn carries(_message: &Message) -> bool {
        true
    }

    /// Writes letters by the broker's own sink.
    fn bury(&self, letters: Vec<DeadLetter>) -> impl Future<Output = ()>;

    /// Writes entries among the letters of which none was written by a sink, and a copy of a letter that somebody has
    /// tampered with. Returns how many of them read as letters all the same.
    fn bury_unreadable(&self) -> impl Future<Output = u64>;

    /// Writes letters whose messages stay where they were born: one that is there, as it is to be shown, and the id of one
    /// whose message has gone. `None` where all letters of the broker have their messages with them.
    fn bury_pointers(&self) -> impl Future<Output = Option<(DeadLetter, LetterId)>> {
        async { None }
    }

    /// Opens a reader of the letters, as another process would.
    fn letters(&self) -> Self::Letters;

    /// Describes a replay of the letters of this reader.
    fn replay(&self, letters: &Self::Letters, spec: ReplaySpec) -> Self::Replay;

    /// Plans a replay.
    fn plan(replay: &Self::Replay) -> impl Future<Output = Result<ReplayPlan, StoreError>>;

    /// Runs a replay until all is sent or `stop` is ready, and tells what became of each letter. Dropping the future is
    /// what killing the process is.
    fn run(
        replay: &Self::Replay,
        stop: impl Future<Output = ()> + Send,
        tell: impl FnMut(LetterId, &ReplayOutcome) + Send,
    ) -> impl Future<Output = Result<ReplayReport, StoreError>>;

    /// Reads the messages that were sent back to this target, in the order in which they stand there.
    fn arrived(&self, target: ReplayTarget) -> impl Future<Output = Vec<Arrived>>;

    /// Returns once the broker itself would take another copy of what was sent back before: from then on only the ledger
    /// keeps letters from being sent twice.
    fn forget(&self) -> impl Future<Output = ()> {
        async {}
    }

    /// Opens a source for the consumer of this name, which hears what is sent to its handler; `None` where it has none.
    fn source(&self, consumer: &str) -> impl Future<Output = Option<Self::Source>>;

    /// Opens a feed of the letters into the store of this name, for one that `ends` with the last letter that is there, or
    /// else follows.
    ///
    /// # Errors
    ///
    /// As the broker's own: `Conflict` when the letters go into another store.
    fn feed(&self, store: &str, ends: bool)
    -> impl Future<Output = Result<Self::Feed, StoreError>>;

    /// The stores into which the letters go.
    fn marks(&self) -> impl Future<Output = Vec<Mark>>;

    /// Restarts the broker, as after a power cut, and returns when it is up again; `false` where that cannot be done.
    fn restart(&self) -> impl Future<Output = bool> {
        async { false }
    }
}
