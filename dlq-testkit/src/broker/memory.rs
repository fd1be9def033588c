//! A broker in memory, whole or with a flaw, by which the checks themselves are checked.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::log::{Content, Entries, Entry, IngestMark, Log, Range};
use dlq_core::memory::MemorySource;
use dlq_core::replay::{ReplayOutcome, ReplayPlan, ReplayReport, Skipped};
use dlq_core::store::reading::{Row, Sent};
use dlq_core::store::rules::born;
use dlq_core::{
    DeadLetter, Death, LetterId, Message, OperationId, Origin, Position, StoreError,
    StoreErrorKind, Timestamp,
};
use dlq_letters::log::Reading;
use tokio::time::{sleep, timeout};

use super::{Arrived, BrokerFixture, LogFixture, LogLetters, Mark, ReplaySpec, ReplayTarget};

const BEGIN: i64 = 1_790_000_000_000;
/// Pause of a feed that follows before it looks again.
const LOOK: Duration = Duration::from_millis(5);

/// The promise that a broker in memory breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// None.
    #[default]
    None,
    /// The oldest letter is listed last.
    ListsOutOfOrder,
    /// Every death is listed, and not the last of a letter.
    ListsEveryDeath,
    /// A letter with the same identity as another and other bytes is taken for a copy.
    MergesConflicts,
    /// Payloads are shown as far as they are kept in memory.
    ShowsSmallPayloads,
    /// Services of letters are forgotten.
    IgnoresServices,
    /// An entry that cannot be read hides those after it.
    StopsAtUnreadable,
    /// Nothing is looked up in the ledger.
    Repeats,
    /// Every third letter is marked and not sent.
    Loses,
    /// The newest letter is sent first.
    SendsOutOfOrder,
    /// Headers of the producer are dropped.
    LosesHeaders,
    /// A letter is marked before it is sent.
    MarksFirst,
    /// A letter is sent before it is marked.
    SendsFirst,
    /// The ledger is read once, when a replay begins.
    ReadsLedgerOnce,
    /// A replay goes on when it is cancelled.
    IgnoresCancel,
    /// Letters are sent as fast as can be.
    IgnoresRate,
    /// Letters are sent however often they were sent before.
    IgnoresCap,
    /// A replay sends what has come since it was planned.
    ForgetsPlan,
    /// A plan sends the letters.
    PlansInEarnest,
    /// Letters for another place go to their origin.
    IgnoresTarget,
    /// A feed confirms what it yields.
    ConfirmsEarly,
    /// A letter that comes again does not say so.
    ForgetsAgain,
    /// The feed of another store takes over.
    ForgetsStore,
    /// A letter that was sent back is pending in a store.
    FeedsSentAsPending,
    /// A call that is given up loses what it would have yielded.
    LosesWhenDropped,
    /// A reader is taken for one who follows.
    LeavesTrace,
    /// All is read, whatever the range.
    IgnoresRange,
}

/// Every flaw, by its number.
const FLAWS: [Flaw; 27] = [
    Flaw::None,
    Flaw::ListsOutOfOrder,
    Flaw::ListsEveryDeath,
    Flaw::MergesConflicts,
    Flaw::ShowsSmallPayloads,
    Flaw::IgnoresServices,
    Flaw::StopsAtUnreadable,
    Flaw::Repeats,
    Flaw::Loses,
    Flaw::SendsOutOfOrder,
    Flaw::LosesHeaders,
    Flaw::MarksFirst,
    Flaw::SendsFirst,
    Flaw::ReadsLedgerOnce,
    Flaw::IgnoresCancel,
    Flaw::IgnoresRate,
    Flaw::IgnoresCap,
    Flaw::ForgetsPlan,
    Flaw::PlansInEarnest,
    Flaw::IgnoresTarget,
    Flaw::ConfirmsEarly,
    Flaw::ForgetsAgain,
    Flaw::ForgetsStore,
    Flaw::FeedsSentAsPending,
    Flaw::LosesWhenDropped,
    Flaw::LeavesTrace,
    Flaw::IgnoresRange,
];

/// A death that was sent back.
#[derive(Clone, Copy, Debug)]
struct Marked {
    operation: OperationId,
    sent: Sent,
}

#[derive(Debug, Default)]
struct BrokerState {
    /// Letters in the order in which they were written, and entries that nobody can read.
    log: Vec<Option<DeadLetter>>,
    ledger: BTreeMap<Death, Marked>,
    arrived: BTreeMap<ReplayTarget, Vec<Arrived>>,
    /// The store that the letters go into, and how many entries it has confirmed.
    mark: Option<Mark>,
    /// Number of entries that were ever yielded.
    yielded: usize,
}

/// A broker in memory, with the [`Flaw`] of this number: `MemoryFixture<{ Flaw::Repeats as usize }>`.
#[derive(Clone, Debug)]
pub struct MemoryFixture<const FLAW: usize = 0>(BrokerHandle);

#[derive(Clone, Debug)]
struct BrokerHandle {
    place: Arc<Mutex<BrokerState>>,
    flaw: Flaw,
}

impl BrokerHandle {
    fn place(&self) -> MutexGuard<'_, BrokerState> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// The letter of this entry: when it was written says the entry, how often it was sent back the letter.
    fn standing(&self, letter: &DeadLetter, at: usize) -> DeadLetter {
        let mut at = i64::try_from(at).unwrap_or(0);
        if self.has(Flaw::ListsOutOfOrder) && at == 0 {
            at = 1_000;
        }
        // An entry is a second younger than the one before it, which `number_at` counts on.
        let at = Timestamp::from_millis(BEGIN + 1_000 * at);
        let replays = letter.state.replays;
        let mut state = born(at);
        (state.replays, state.retry_count) = (replays, replays);
        letter.clone().with_state(state)
    }

    /// Returns the letter of a row with its payload.
    fn whole(&self, row: &Row<Origin>) -> DeadLetter {
        let place = self.place();
        let letter = place.log.get(at(&row.place)).and_then(Option::as_ref);
        let payload = letter.and_then(|letter| letter.message.payload());
        match payload {
            Some(payload) if !self.has(Flaw::ShowsSmallPayloads) => {
                row.with_payload(payload.clone()).unwrap_or_else(|| row.letter.clone())
            }
            _ => row.letter.clone(),
        }
    }

    fn place_of(at: usize) -> Origin {
        Origin::new("memory", "orders.memory.dlq", Position::Offset(at as u64))
    }
}

/// The number of an entry.
fn at(place: &Origin) -> usize {
    match place.position() {
        Position::Offset(at) | Position::Pair(at, _) => usize::try_from(*at).unwrap_or(usize::MAX),
        // Nothing stands there.
        _ => usize::MAX,
    }
}

/// The number of the first entry that was written at this time or later.
fn number_at(time: Timestamp) -> usize {
    let seconds = time.since(Timestamp::from_millis(BEGIN)).as_millis().div_ceil(1_000);
    usize::try_from(seconds).unwrap_or(usize::MAX)
}

/// The log of a broker in memory.
#[derive(Clone, Debug)]
pub struct MemoryLog {
    place: BrokerHandle,
    ends: bool,
}

impl MemoryLog {
    /// Ends a log that is followed with the last letter that is there.
    #[must_use]
    pub fn until_end(mut self) -> Self {
        self.ends = true;
        self
    }

    fn entries(&self, next: usize, ends: bool, leaves_mark: bool) -> MemoryEntries {
        let seen = BTreeSet::new();
        MemoryEntries { place: self.place.clone(), ends, next, leaves_mark, seen }
    }
}

impl Log for MemoryLog {
    type Entries = MemoryEntries;

    async fn marks(&self) -> Result<Vec<IngestMark>, StoreError> {
        let place = self.place.place();
        let marks = place.mark.iter();
        Ok(marks.map(|mark| IngestMark::new("ingest", &mark.store, mark.confirmed)).collect())
    }

    async fn read(&self, range: Range) -> Result<MemoryEntries, StoreError> {
        let end = self.place.place().log.len();
        let last =
            range.last.map_or(usize::MAX, |last| usize::try_from(last).unwrap_or(usize::MAX));
        let since = range.since.map_or(0, number_at);
        // There is one partition, so that a range begins at one place at most.
        let mut from = range.from.first().map_or(0, at).max(end.saturating_sub(last)).max(since);
        if self.place.has(Flaw::IgnoresRange) {
            from = 0;
        }
        let leaves_mark = self.place.has(Flaw::LeavesTrace);
        if leaves_mark {
            self.place
                .place()
                .mark
                .get_or_insert(Mark { store: "nobody".to_owned(), confirmed: 0 });
        }
        Ok(self.entries(from, !range.for_ever, leaves_mark))
    }

    async fn follow(&self, store: String, _lease: Duration) -> Result<MemoryEntries, StoreError> {
        let mut place = self.place.place();
        let other = place.mark.as_ref().filter(|mark| mark.store != store);
        if let Some(other) = other.filter(|_| !self.place.has(Flaw::ForgetsStore)) {
            let text = format!("the letters go into {}", other.store);
            return Err(StoreError::new(StoreErrorKind::Conflict, "open a feed").with_detail(text));
        }
        let confirmed = place.mark.as_ref().map_or(0, |mark| mark.confirmed);
        place.mark = Some(Mark { store, confirmed });
        let next = usize::try_from(confirmed).unwrap_or(usize::MAX);
        Ok(self.entries(next, self.ends, true))
    }

    async fn at(&self, places: Vec<Origin>) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let place = self.place.place();
        let letter = |origin: &Origin| place.log.get(at(origin)).cloned().flatten();
        let letter = |origin| letter(origin).filter(|_| !self.place.has(Flaw::ShowsSmallPayloads));
        Ok(places.iter().map(letter).collect())
    }
}

/// A replay at a broker in memory.
#[derive(Debug)]
pub struct MemoryReplay {
    place: BrokerHandle,
    spec: ReplaySpec,
    /// The number of entries and the letters that its plan has come to.
    planned: Mutex<Option<(usize, BTreeSet<LetterId>)>>,
}

/// Letters that are sent, and letters that are not.
struct Selected {
    send: Vec<DeadLetter>,
    skip: Vec<(DeadLetter, Skipped)>,
}

impl MemoryReplay {
    async fn select(&self) -> Result<Selected, StoreError> {
        let (place, rules) = (&self.place, &self.spec.rules);
        let log = MemoryLog { place: place.clone(), ends: true };
        let mut rows = Reading::of(log, Range::all()).await?.rows(&self.spec.filter).await?;
        rows.sort_by_key(|row| at(&row.place));
        if place.has(Flaw::SendsOutOfOrder) {
            rows.reverse();
        }
        let planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        let planned = planned.as_ref().filter(|_| !place.has(Flaw::ForgetsPlan));
        let mut selected = Selected { send: Vec::new(), skip: Vec::new() };
        for row in rows {
            if planned.is_some_and(|(end, _)| at(&row.place) >= *end) {
                continue;
            }
            let letter = place.whole(&row);
            let by = place.place().ledger.get(&letter.death()).map(|marked| marked.operation);
            let by = by.filter(|_| !place.has(Flaw::Repeats));
            let is_shown = planned.is_none_or(|(_, shown)| shown.contains(&letter.id));
            let why = match rules.skipped(&letter, by) {
                Some(Skipped::MaxReplays) if place.has(Flaw::IgnoresCap) => None,
                None if self.spec.target == ReplayTarget::Origin
                    && letter.origin.stream() != "orders.memory" =>
                {
                    Some(Skipped::NoOrigin)
                }
                why => why,
            };
            match why {
                Some(why) => selected.skip.push((letter, why)),
                None if is_shown && (selected.send.len() as u64) < rules.limit => {
                    selected.send.push(letter)
                }
                None => {}
            }
        }
        Ok(selected)
    }

    /// Says why nobody would hear letters for this target.
    fn refused(&self) -> Result<(), StoreError> {
        match self.spec.target {
            ReplayTarget::Nowhere | ReplayTarget::Handler => {
                Err(StoreError::new(StoreErrorKind::Refused, "send letters back"))
            }
            ReplayTarget::Origin | ReplayTarget::Elsewhere => Ok(()),
        }
    }

    /// Sends one, unless somebody else has. Fails when a store has begun to take the letters since the replay began.
    async fn send(
        &self,
        letter: &DeadLetter,
        number: u64,
        is_kept: bool,
    ) -> Result<ReplayOutcome, StoreError> {
        let skipped = ReplayOutcome::Skipped(Skipped::Sent);
        match self.place.flaw {
            Flaw::MarksFirst => {
                // A process that is killed between the two has marked a letter that nobody sends.
                self.mark(letter);
                tokio::task::yield_now().await;
                self.post(letter, number);
            }
            Flaw::SendsFirst => {
                if self.is_sent(letter) {
                    return Ok(skipped);
                }
                // A process that is killed between the two has sent a letter that the next replay sends again.
                self.post(letter, number);
                tokio::task::yield_now().await;
                self.mark(letter);
            }
            _ => {
                // This is the last wait before the mark: a kill leaves the letter untouched, or sent and marked.
                tokio::task::yield_now().await;
                if self.is_kept() && !is_kept {
                    let error = StoreError::new(StoreErrorKind::Refused, "send letters back");
                    return Err(error.with_detail("a store takes the letters now"));
                }
                if self.is_sent(letter) {
                    return Ok(skipped);
                }
                self.post(letter, number);
                self.mark(letter);
            }
        }
        Ok(ReplayOutcome::Sent)
    }

    /// Returns true if a store takes the letters.
    fn is_kept(&self) -> bool {
        self.place.place().mark.is_some()
    }

    fn is_sent(&self, letter: &DeadLetter) -> bool {
        let marked = self.place.place().ledger.get(&letter.death()).map(|marked| marked.operation);
        let looks = !self.place.has(Flaw::Repeats) && !self.place.has(Flaw::ReadsLedgerOnce);
        looks && self.spec.rules.is_sent(marked)
    }

    fn mark(&self, letter: &DeadLetter) {
        let mut place = self.place.place();
        let times = place.ledger.get(&letter.death()).map_or(0, |marked| marked.sent.times) + 1;
        let sent = Sent { at: Timestamp::from_millis(BEGIN), times };
        let marked = Marked { operation: self.spec.rules.operation, sent };
        place.ledger.insert(letter.death(), marked);
    }

    fn post(&self, letter: &DeadLetter, number: u64) {
        if self.place.has(Flaw::Loses) && number.is_multiple_of(3) {
            return;
        }
        let target = match self.spec.target {
            _ if self.place.has(Flaw::IgnoresTarget) => ReplayTarget::Origin,
            target => target,
        };
        // What the letter says of itself includes what the ledger says of it.
        let arrived = Arrived(self.outgoing(letter));
        self.place.place().arrived.entry(target).or_default().push(arrived);
    }

    fn outgoing(&self, letter: &DeadLetter) -> Message {
        let mut message = letter.message.clone();
        if self.place.has(Flaw::LosesHeaders) {
            message = message.with_headers(dlq_core::Headers::new());
        }
        let own = [
            ("retry.count", "0".to_owned()),
            ("replay.count", (letter.state.replays + 1).to_string()),
            ("replay.id", self.spec.rules.operation.to_string()),
            ("replay.timestamp", Timestamp::from_millis(BEGIN).to_string()),
            ("replay.from-dlq", "memory".to_owned()),
            ("dlq.id", letter.id.to_string()),
            ("dlq.consumer", letter.consumer.clone()),
            ("original.topic", letter.origin.stream().to_owned()),
        ];
        own.into_iter().fold(message, |message, (name, value)| message.with_header(name, value))
    }
}

/// Entries of a broker in memory.
#[derive(Debug)]
pub struct MemoryEntries {
    place: BrokerHandle,
    ends: bool,
    next: usize,
    /// True if it commits what it has confirmed.
    leaves_mark: bool,
    /// The letters that a reading has yielded.
    seen: BTreeSet<LetterId>,
}

impl Entries for MemoryEntries {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        loop {
            let fed = self.fed(limit);
            if self.leaves_mark && self.place.has(Flaw::LosesWhenDropped) {
                // Whoever drops the future here drops what was taken.
                tokio::task::yield_now().await;
            }
            if !fed.is_empty() || self.ends {
                return Ok(fed);
            }
            sleep(LOOK).await;
        }
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        // A process can be killed here, before the confirmation.
        tokio::task::yield_now().await;
        self.told();
        Ok(())
    }
}

impl MemoryEntries {
    fn told(&self) {
        let place = &mut *self.place.place();
        if let Some(mark) = place.mark.as_mut().filter(|_| self.leaves_mark) {
            mark.confirmed = mark.confirmed.max(self.next as u64);
        }
    }

    fn fed(&mut self, limit: usize) -> Vec<Entry> {
        let place = self.place.clone();
        let place = &mut *place.place();
        // A reading yields everything as new, whoever was given it before.
        let yielded = if self.leaves_mark { place.yielded } else { 0 };
        let mut fed = Vec::new();
        while fed.len() < limit
            && let Some(entry) = place.log.get(self.next)
        {
            if !self.leaves_mark && entry.is_none() && self.place.has(Flaw::StopsAtUnreadable) {
                self.ends = true;
                break;
            }
            fed.extend(self.entry(place, entry.as_ref(), yielded));
            self.next += 1;
        }
        if self.leaves_mark {
            place.yielded = yielded.max(self.next);
        }
        if self.place.has(Flaw::ConfirmsEarly)
            && let Some(mark) = place.mark.as_mut().filter(|_| self.leaves_mark)
        {
            mark.confirmed = mark.confirmed.max(self.next as u64);
        }
        fed
    }

    fn entry(
        &mut self,
        place: &BrokerState,
        entry: Option<&DeadLetter>,
        yielded: usize,
    ) -> Option<Entry> {
        let at = self.next;
        let content = match entry {
            None => Content::Foreign,
            Some(letter) => {
                let mut letter = self.place.standing(letter, at);
                let marked = place.ledger.get(&letter.death());
                let says = !self.leaves_mark || !self.place.has(Flaw::FeedsSentAsPending);
                if let Some(marked) = marked.filter(|_| says) {
                    marked.sent.mark(&mut letter.state);
                }
                if !self.leaves_mark && !self.is_read(&mut letter) {
                    return None;
                }
                Content::Letter(Box::new(letter))
            }
        };
        let again = at < yielded && !self.place.has(Flaw::ForgetsAgain);
        Some(Entry { place: BrokerHandle::place_of(at), again, content })
    }

    /// Spoils a letter that is read, and returns false if it is left out.
    fn is_read(&mut self, letter: &mut DeadLetter) -> bool {
        let is_new = self.seen.insert(letter.id);
        if self.place.has(Flaw::MergesConflicts) && letter.generation == 0 && !is_new {
            return false;
        }
        if self.place.has(Flaw::ListsEveryDeath) && letter.generation > 0 {
            letter.id = letter.id.conflicting(&Message::new("died again", "x"));
        }
        if self.place.has(Flaw::IgnoresServices) {
            letter.service = None;
        }
        true
    }
}

impl<const FLAW: usize> LogFixture for MemoryFixture<FLAW> {
    type Log = MemoryLog;

    fn log(&self) -> MemoryLog {
        MemoryLog { place: self.0.clone(), ends: false }
    }
}

impl<const FLAW: usize> BrokerFixture for MemoryFixture<FLAW> {
    type Letters = LogLetters<MemoryLog>;
    type Replay = MemoryReplay;
    type Feed = MemoryEntries;
    type Source = MemorySource;

    /// Short beside a flaw, which loses letters for good.
    const PATIENCE: Duration = Duration::from_secs(if FLAW == 0 { 60 } else { 2 });

    async fn fresh(_check: &str) -> Self {
        let flaw = FLAWS.get(FLAW).copied().unwrap_or(Flaw::None);
        Self(BrokerHandle { place: Arc::default(), flaw })
    }

    fn subject(&self) -> String {
        "orders.created".to_owned()
    }

    fn origin(&self, number: u32) -> Origin {
        Origin::new("memory", "orders.memory", Position::Offset(number.into()))
    }

    async fn bury(&self, letters: Vec<DeadLetter>) {
        self.0.place().log.extend(letters.into_iter().map(Some));
    }

    async fn bury_unreadable(&self) -> u64 {
        self.0.place().log.extend([None, None]);
        0
    }

    fn letters(&self) -> LogLetters<MemoryLog> {
        LogLetters::new(self.log())
    }

    fn replay(&self, letters: &LogLetters<MemoryLog>, spec: ReplaySpec) -> MemoryReplay {
        MemoryReplay { place: letters.log().place.clone(), spec, planned: Mutex::default() }
    }

    async fn plan(replay: &MemoryReplay) -> Result<ReplayPlan, StoreError> {
        replay.refused()?;
        let selected = replay.select().await?;
        if replay.place.has(Flaw::PlansInEarnest) {
            for letter in &selected.send {
                let _ = replay.send(letter, 1, true).await;
            }
        }
        let shown = selected.send.iter().map(|letter| letter.id).collect();
        let end = replay.place.place().log.len();
        *replay.planned.lock().unwrap_or_else(PoisonError::into_inner) = Some((end, shown));
        let mut plan = ReplayPlan::default();
        plan.letters = selected.send.len() as u64;
        plan.sample = selected.send.iter().take(10).map(DeadLetter::summary).collect();
        for (_, why) in selected.skip {
            *plan.skipped.entry(why).or_default() += 1;
        }
        Ok(plan)
    }

    async fn run(
        replay: &MemoryReplay,
        stop: impl Future<Output = ()> + Send,
        mut tell: impl FnMut(LetterId, &ReplayOutcome) + Send,
    ) -> Result<ReplayReport, StoreError> {
        replay.refused()?;
        // It is compared at each letter: a store that begins to take them meanwhile stops the replay.
        let is_kept = replay.is_kept();
        let selected = replay.select().await?;
        let (mut report, mut stop) = (ReplayReport::default(), pin!(stop));
        let mut count = |letter: &DeadLetter, outcome: ReplayOutcome| {
            report.count(&outcome);
            tell(letter.id, &outcome);
        };
        for (letter, why) in &selected.skip {
            count(letter, ReplayOutcome::Skipped(*why));
        }
        let pause = replay.spec.rules.rate.map(|rate| Duration::from_secs(1) / rate);
        let (mut left, mut stopped) = (selected.send.len() as u64, None);
        for letter in &selected.send {
            // A pause of zero polls `stop` below all the same, so that nothing is sent after a cancel.
            let pause = pause.filter(|_| !replay.place.has(Flaw::IgnoresRate)).unwrap_or_default();
            if replay.place.has(Flaw::IgnoresCancel) {
                sleep(pause).await;
            } else if timeout(pause, stop.as_mut()).await.is_ok() {
                break;
            }
            match replay.send(letter, left, is_kept).await {
                Ok(outcome) => count(letter, outcome),
                Err(error) => {
                    stopped = Some(error);
                    break;
                }
            }
            left -= 1;
        }
        (report.left, report.stopped) = (left, stopped);
        Ok(report)
    }

    async fn arrived(&self, target: ReplayTarget) -> Vec<Arrived> {
        self.0.place().arrived.get(&target).cloned().unwrap_or_default()
    }

    async fn source(&self, _consumer: &str) -> Option<MemorySource> {
        None
    }

    async fn feed(&self, store: &str, ends: bool) -> Result<MemoryEntries, StoreError> {
        let log = MemoryLog { place: self.0.clone(), ends };
        log.follow(store.to_owned(), Duration::ZERO).await
    }

    async fn marks(&self) -> Vec<Mark> {
        self.0.place().mark.iter().cloned().collect()
    }
}
