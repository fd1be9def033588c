//! [`KafkaFeed`]: the letters of a dead-letter topic as they come, for the store beside it.

mod assigned;
mod away;
mod blocked;
mod commits;
mod end;
mod join;
mod mark;
mod marks;
mod member;

pub use marks::{IngestMark, find_topic, ingest_mark, ingest_marks};

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use dlq_core::log::{Content, Entries, Entry};
use dlq_core::{BoxError, Clock as _, StoreError, StoreErrorKind, SystemClock};
use tokio::sync::oneshot;

use crate::brokers::Brokers;
use crate::dialect;
use crate::letters::{Completed, KafkaLetters, SentBack, Unread};
use away::Away;
use join::join;
use mark::Mark;
use member::{Command, Done, Taken};

const OPENING: &str = "open a feed of dead letters";
const READING: &str = "read dead letters";
const CONFIRMING: &str = "confirm dead letters";

/// Time limit of a request to the thread that only the cluster delays.
const ANSWER: Duration = Duration::from_secs(30);
/// The time until letters are looked at again whose message is of a transaction that has not ended, and the most that are kept
/// while others are read.
const AGAIN: Duration = Duration::from_secs(5);
const OPEN: usize = 10_000;
/// Time for which a dropped feed waits until it has left its group.
const LEAVING: Duration = Duration::from_secs(3);

const DEFAULTS: [(&str, &str); 2] =
    [("socket.timeout.ms", "10000"), ("queued.max.messages.kbytes", "16384")];
const FIXED: [(&str, &str); 5] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "earliest"),
    ("isolation.level", "read_committed"),
    // With others closing may hang.
    ("partition.assignment.strategy", "range"),
];

/// The letters of a dead-letter topic, in the order of each partition, by a consumer group of that topic: what was
/// confirmed does not come again, to whichever process. Several processes share the partitions.
///
/// The commits of the group name the store that its letters go into, which is the mark by which it is known that there is
/// one (see [`ingest_marks`]). It is there before the first letter is yielded.
///
/// | the process dies | the group has | and then |
/// |---|---|---|
/// | before the first commit | nothing | the next one begins with the oldest letter |
/// | after the mark, before a letter is yielded | the oldest offset, and the store | the same |
/// | with letters in flight | the offset before them, as being read | they come again, and each says that it may have come before |
/// | with one in flight that is set aside | the same | it comes again, and may have its message by then |
/// | with one that waits for the end of a transaction | the offset of that one, as being read | it comes, and those behind it come again and say so |
/// | while it commits | either of the two | as one of the two |
/// | after it has left | the offset after the last letter, as clean | what comes after it is new |
///
/// Stop the feeds of a topic before it is deleted and made again: one that runs meanwhile may go on at the offset where it
/// was.
///
/// When a process joins or leaves, all partitions are handed out anew, and what was yielded and not confirmed comes again
/// to whoever has its partition then; confirming it with the former owner changes nothing any more. A process that hangs
/// with letters in flight serves its group for the time of the lease, and loses its partitions after another
/// `max.poll.interval.ms`, which is five minutes unless it is set. Partitions of a process that died go to others when its
/// lease has ended.
///
/// A topic that was deleted and created again is another, and is read from its start, as
/// [`KafkaSource`](crate::KafkaSource) does it; how much was confirmed is counted on. While it is missing that is an error
/// which passes, for a minute.
///
/// The group forgets where it was when none of its members was there for as long as the brokers keep offsets (seven days
/// unless they are told otherwise): then the topic is read from its start, and the store has most of it already. Letters
/// stay in the topic for as long as that keeps them.
///
/// A letter that was sent back before it comes says so, and how often: it is `sent` in the store, and not sent again unless
/// somebody asks for just that. Where the ledger does not say, or may not be read any more, the letter is quarantined in the
/// store, and its attribute `replays.unclear` says why; where it may not be read from the beginning, `next` fails with
/// `InvalidConfig`.
///
/// A letter that only points to its message, which share groups and our own sink write of what is too large, comes with
/// it. Where that cannot be had the letter is [damaged](Content::Damaged), so that it is set aside, and never in the store
/// without its message: it would be another letter than the same one read later, and be sent back without anything in it.
/// It stays in the topic; for the store to get it when its message can be read again, have a new group read the topic
/// from its start: the store has the others already. That the cluster is away, or refuses the login, is an error.
///
/// So is a partition whose next records cannot be read, because they are compressed in a way that this build lacks, or are
/// damaged: it names them, and passes nothing over. It comes once the rest was yielded from a feed that
/// [ends](Self::until_end); from others it passes (`Unavailable`), comes again while it is so, and the rest goes on.
///
/// Dropping it waits up to three seconds until it has left its group.
pub struct KafkaFeed {
    /// Reader of the messages that letters point to.
    letters: KafkaLetters,
    group: String,
    ends: bool,
    has_ended: bool,
    /// `None` once the feed is being dropped.
    commands: Option<mpsc::Sender<Command>>,
    left: Mutex<mpsc::Receiver<()>>,
    /// Request whose future may have been dropped since.
    waiting: Option<oneshot::Receiver<Result<Vec<Taken>, StoreError>>>,
    taken: VecDeque<Taken>,
    /// Letters whose message is of a transaction that may not have ended: they come once it has, and those behind them come
    /// before. Nothing is committed beyond them until then.
    open: VecDeque<Taken>,
    /// When these were looked at last.
    looked: Instant,
    /// The offset after the last letter that was yielded of each partition, and of which assignment.
    furthest: BTreeMap<i32, (u64, i64)>,
    away: Away,
    /// Letters that were sent back, so that they are not sent again from the store.
    sent: SentBack,
    /// Yielded and not yet confirmed.
    yielded: BTreeMap<i32, Done>,
    /// Confirmed and not yet committed.
    confirmed: BTreeMap<i32, Done>,
}

impl KafkaFeed {
    /// The group by which letters of a topic go into a store, unless another is given: that of one more store has this
    /// name, a dot and more. By its name a group is known to have a store.
    #[must_use]
    pub fn group_of(topic: &str) -> String {
        format!("dlq-ingest.{topic}")
    }

    /// The feed of this topic into the store of this name, by this consumer group, which begins with the oldest letter
    /// when it has no offsets. A `lease` says for how long partitions stay with a process that has died; brokers allow
    /// 6 s to 30 min unless they are told otherwise. The name of the store must hold no secret.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such topic; `Conflict` when the letters of this group go into another store, or the
    /// group is somebody else's; `Refused` when it is [none](Self::group_of) that is known to have a store; `InvalidConfig`
    /// when a setting will not do or the cluster refuses us; `Unavailable` when it does not answer.
    pub async fn open(
        brokers: &Brokers,
        topic: &str,
        group: &str,
        store: &str,
        lease: Duration,
    ) -> Result<Self, StoreError> {
        let letters = KafkaLetters::new(brokers, topic).group(group);
        Self::of(&letters, store.to_owned(), lease).await
    }

    /// The feed that these letters describe.
    pub(crate) async fn of(
        letters: &KafkaLetters,
        store: String,
        lease: Duration,
    ) -> Result<Self, StoreError> {
        let (topic, group) = (Arc::clone(letters.topic_shared()), letters.group_name());
        Mark::check(&store, OPENING)?;
        marks::check_group(&topic, &group, OPENING)?;
        let (brokers, name) = (letters.brokers().clone(), group.clone());
        let member = blocking(OPENING, move || join(brokers, topic, &name, store, lease)).await?;
        let (commands, asked) = mpsc::channel();
        let (leaving, left) = mpsc::channel();
        let thread = std::thread::Builder::new().name("dlq-feed".to_owned());
        let started = thread.spawn(move || {
            member.run(&asked);
            let _ = leaving.send(());
        });
        started.map_err(|error| {
            StoreError::new(StoreErrorKind::Unavailable, OPENING).with_source(error)
        })?;
        Ok(Self {
            letters: letters.clone(),
            group,
            ends: letters.ends,
            away: Away::new(letters.patience),
            has_ended: false,
            commands: Some(commands),
            left: Mutex::new(left),
            waiting: None,
            taken: VecDeque::new(),
            open: VecDeque::new(),
            looked: Instant::now(),
            furthest: BTreeMap::new(),
            sent: SentBack::default(),
            yielded: BTreeMap::new(),
            confirmed: BTreeMap::new(),
        })
    }

    /// Ends when there are no more letters, also none that another process has in flight. Defaults to waiting for more.
    #[must_use]
    pub fn until_end(mut self) -> Self {
        self.ends = true;
        self
    }

    /// Sets the topic that says which letters were sent back, where it is [another](KafkaLetters::with_ledger) than that of
    /// the letters with `.replays`.
    #[must_use]
    pub fn with_ledger(mut self, topic: &str) -> Self {
        self.letters = self.letters.clone().with_ledger(topic);
        self
    }

    /// Sets for how long the message of a letter that only points to it is waited for while the partition where that
    /// stands does not answer and the rest of the cluster does; then the letter is yielded as [`Content::Damaged`], as is
    /// at once a letter whose message has gone or may not be read. Defaults to a minute. A message whose transaction has not
    /// ended is waited for at least until the letter is 16 minutes old, since brokers end one after 15 unless
    /// `transaction.max.timeout.ms` says otherwise. The letters behind it come meanwhile; what was confirmed of them comes
    /// again if the process dies before, since the group goes on at the first that is waited for.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.away.patience = patience;
        self
    }

    /// Asks the thread, which is there for as long as the feed has not ended.
    fn ask(&self, command: Command) -> bool {
        self.commands.as_ref().is_some_and(|commands| commands.send(command).is_ok())
    }

    async fn commit(&mut self) -> Result<(), StoreError> {
        let done = self.confirmed.values().copied().collect();
        let (reply, answer) = oneshot::channel();
        if !self.ask(Command::Confirm { done, reply }) {
            return Err(ended(CONFIRMING));
        }
        match tokio::time::timeout(ANSWER, answer).await {
            Ok(Ok(committed)) => committed?,
            Ok(Err(_)) => return Err(ended(CONFIRMING)),
            Err(_) => {
                let text =
                    format!("group `{}` did not answer for {} s", self.group, ANSWER.as_secs());
                return Err(
                    StoreError::new(StoreErrorKind::Unavailable, CONFIRMING).with_detail(text)
                );
            }
        }
        self.confirmed.clear();
        Ok(())
    }
}

impl Entries for KafkaFeed {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        if !self.confirmed.is_empty() {
            self.commit().await?;
        }
        loop {
            self.take(limit.max(1)).await?;
            if self.taken.is_empty() {
                return Ok(Vec::new());
            }
            // What is being read stays where it is until it was.
            let fed = self.fed(limit.max(1)).await?;
            if !fed.is_empty() {
                return Ok(fed);
            }
        }
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        for (partition, done) in std::mem::take(&mut self.yielded) {
            merge(&mut self.confirmed, partition, done);
        }
        if self.confirmed.is_empty() { Ok(()) } else { self.commit().await }
    }
}

impl KafkaFeed {
    /// Has something to yield, unless the feed has ended: letters that are open are looked at again now and then.
    async fn take(&mut self, limit: usize) -> Result<(), StoreError> {
        let due = self.looked + AGAIN;
        if !self.open.is_empty() && (Instant::now() >= due || self.open.len() >= OPEN) {
            if self.open.len() >= OPEN {
                tokio::time::sleep_until(due.into()).await;
            }
            self.look_again();
        }
        if !self.taken.is_empty() || self.has_ended {
            return Ok(());
        }
        let waiting = match self.waiting.take() {
            Some(waiting) => waiting,
            None => {
                let (reply, answer) = oneshot::channel();
                if !self.ask(Command::Next { limit, ends: self.ends, reply }) {
                    return Err(ended(READING));
                }
                answer
            }
        };
        // A future that is dropped here leaves the answer to the next one.
        let waiting = self.waiting.insert(waiting);
        let taken = if self.open.is_empty() {
            waiting.await
        } else {
            match tokio::time::timeout_at(due.into(), waiting).await {
                Ok(taken) => taken,
                Err(_) => {
                    self.look_again();
                    return Ok(());
                }
            }
        };
        self.waiting = None;
        self.taken = taken.map_err(|_| ended(READING))??.into();
        self.has_ended = self.taken.is_empty();
        Ok(())
    }

    /// Has the letters that are open come next.
    fn look_again(&mut self) {
        self.looked = Instant::now();
        let behind = std::mem::take(&mut self.taken);
        self.taken = std::mem::take(&mut self.open);
        self.taken.extend(behind);
    }

    /// Takes the first of these records, so many at most, and yields what they are. A share group may say only where a
    /// message stands, which is fetched then. It is an error that they are all open, since there is nothing else to yield.
    async fn fed(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let cluster = self.letters.brokers().cluster_shared();
        let count = self.taken.len().min(limit);
        let records = || self.taken.iter().take(count).map(|taken| &taken.record);
        let mut letters: Vec<_> =
            records().map(|record| dialect::letter(record, cluster)).collect();
        let away = &mut self.away;
        let may_wait =
            |place: (&str, u32), why: Option<&Unread>| away.may_wait(place, why, Instant::now());
        let (all, now) = (&self.taken, SystemClock.now());
        let may_be_open = |index: usize| {
            let taken = all.get(index);
            taken.is_some_and(|taken| away::may_be_open(taken.record.timestamp, now))
        };
        let completing = self.letters.complete(&mut letters, may_wait, may_be_open);
        let Completed { mut missing, mut open } = completing.await?;
        self.letters.mark(&mut letters, &mut self.sent).await?;
        let cluster = Arc::clone(cluster);
        let (mut fed, mut done, mut why_open) = (Vec::new(), Vec::new(), None);
        for (index, (taken, letter)) in self.taken.drain(..count).zip(letters).enumerate() {
            if let Some(why) = open.remove(&index) {
                if self.open.is_empty() {
                    self.looked = Instant::now();
                }
                self.open.push_back(taken);
                why_open = Some(why);
                continue;
            }
            fed.push(Entry {
                place: taken.record.origin(&cluster),
                again: taken.again,
                // Without its message it would be another letter than the one that it is when it comes again with it.
                content: match missing.remove(&index) {
                    Some(why) => Content::Damaged(why),
                    None => Content::Letter(Box::new(letter)),
                },
            });
            done.push((taken.partition(), taken.epoch, taken.next()));
        }
        for (partition, epoch, next) in done {
            let furthest = self.furthest.entry(partition).or_insert((epoch, next));
            if epoch > furthest.0 {
                *furthest = (epoch, next);
            } else if epoch == furthest.0 {
                furthest.1 = furthest.1.max(next);
            }
            let next = if epoch == furthest.0 { furthest.1 } else { next };
            let is_before = |open: &&Taken| open.partition() == partition && open.epoch == epoch;
            let open = self.open.iter().filter(is_before).map(|open| open.next() - 1).min();
            let next = open.map_or(next, |open| next.min(open));
            merge(&mut self.yielded, partition, Done { partition, epoch, next, letters: 1 });
        }
        match why_open {
            Some(why) if fed.is_empty() && self.taken.is_empty() => Err(why),
            _ => Ok(fed),
        }
    }
}

/// Later offsets of the same assignment go on; another assignment begins anew.
fn merge(all: &mut BTreeMap<i32, Done>, partition: i32, done: Done) {
    let before = all.get(&partition).filter(|before| before.epoch == done.epoch);
    let letters = before.map_or(0, |before| before.letters) + done.letters;
    all.insert(partition, Done { letters, ..done });
}

/// Leaves its group.
impl Drop for KafkaFeed {
    fn drop(&mut self) {
        self.commands = None;
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = left.recv_timeout(LEAVING);
    }
}

impl fmt::Debug for KafkaFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("KafkaFeed");
        debug
            .field("topic", &self.letters.topic())
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

fn ended(operation: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unexpected, operation)
        .with_detail("the thread that reads has ended")
}

/// Runs what blocks beside the runtime.
async fn blocking<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        let error: BoxError = error.into();
        Err(StoreError::new(StoreErrorKind::Unexpected, operation).with_source(error))
    })
}
