//! A topic of dead letters that is followed into a store, by a consumer group.

mod assigned;
mod away;
mod blocked;
mod commits;
mod end;
mod join;
mod mark;
pub(super) mod marks;
mod member;

pub(super) use marks::StoreWatch;
pub use marks::find_topic;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use dlq_core::log::{Content, Entries, Entry};
use dlq_core::{BoxError, Clock as _, StoreError, StoreErrorKind, SystemClock};
use tokio::sync::oneshot;

use super::KafkaLetters;
use super::pointed::{Completed, Unread};
use super::sent::SentBack;
use crate::dialect;
use away::Away;
use join::join;
use mark::Mark;
use member::{Command, Done, Taken};

const OPENING: &str = "follow dead letters";
const READING: &str = "read dead letters";
const CONFIRMING: &str = "confirm dead letters";

/// Time limit of a request to the thread that only the cluster delays.
const ANSWER: Duration = Duration::from_secs(30);
/// The time until letters are looked at again whose message is of a transaction that has not ended, and the most that are kept
/// while others are read.
const AGAIN: Duration = Duration::from_secs(5);
const OPEN: usize = 10_000;
/// Time for which who is dropped waits until it has left its group.
const LEAVING: Duration = Duration::from_secs(3);

const DEFAULTS: [(&str, &str); 2] =
    [("socket.timeout.ms", "10000"), ("queued.max.messages.kbytes", "16384")];
const FIXED: [(&str, &str); 5] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "earliest"),
    // What a transaction took back is no letter.
    ("isolation.level", "read_committed"),
    // With others closing may hang.
    ("partition.assignment.strategy", "range"),
];

/// Entries of a topic that a member of a consumer group hands out.
pub(super) struct Follow {
    /// Reader of the messages that letters point to.
    letters: KafkaLetters,
    group: String,
    ends: bool,
    has_ended: bool,
    /// `None` once it is being dropped.
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

impl Follow {
    /// Joins the group by which these letters are followed, which begins with the oldest letter when it has no offsets.
    pub(super) async fn open(
        letters: &KafkaLetters,
        store: String,
        lease: Duration,
    ) -> Result<Self, StoreError> {
        let (topic, group) = (Arc::clone(&letters.topic), letters.group_name());
        Mark::check(&store, OPENING)?;
        // Before anything is written: a store that nobody finds would not keep a replay from sending past it (G6).
        marks::check_group(&topic, &group, OPENING)?;
        let (brokers, name) = (letters.brokers().clone(), group.clone());
        let member = blocking(OPENING, move || join(brokers, topic, &name, store, lease)).await?;
        let (commands, asked) = mpsc::channel();
        // The thread is not joined: to leave may block for longer than anybody waits, so it tells when it is done.
        let (leaving, left) = mpsc::channel();
        let thread = std::thread::Builder::new().name("dlq-follow".to_owned());
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

    /// Asks the thread, which is there for as long as the entries have not ended.
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
        // They are kept until the answer is there, so what failed is committed again.
        self.confirmed.clear();
        Ok(())
    }
}

impl Entries for Follow {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        // A commit that failed, or whose future was dropped, is made up for before more is yielded.
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
        // They are moved before the wait: a future that is dropped here leaves them to the next call.
        for (partition, done) in std::mem::take(&mut self.yielded) {
            merge(&mut self.confirmed, partition, done);
        }
        if self.confirmed.is_empty() { Ok(()) } else { self.commit().await }
    }
}

impl Follow {
    /// Has something to yield, unless the entries have ended: letters that are open are looked at again now and then.
    async fn take(&mut self, limit: usize) -> Result<(), StoreError> {
        let due = self.looked + AGAIN;
        if !self.open.is_empty() && (Instant::now() >= due || self.open.len() >= OPEN) {
            // No more may be kept, so nothing else is read until these were looked at again.
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
        // The letters are copies. A future that is dropped while it waits leaves `taken` as it was, and nothing is yielded.
        let completing = self.letters.complete(&mut letters, may_wait, may_be_open);
        let Completed { mut missing, mut open } = completing.await?;
        self.letters.mark_for_store(&mut letters, &mut self.sent).await?;
        let cluster = Arc::clone(cluster);
        let (mut fed, mut done, mut why_open) = (Vec::new(), Vec::new(), None);
        for (index, (taken, letter)) in self.taken.drain(..count).zip(letters).enumerate() {
            if let Some(why) = open.remove(&index) {
                if self.open.is_empty() {
                    // The next look is due from when the first letter became open, and not from a look before that.
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
            // Another assignment reads on from the commit, so its offsets begin anew.
            if epoch > furthest.0 {
                *furthest = (epoch, next);
            } else if epoch == furthest.0 {
                furthest.1 = furthest.1.max(next);
            }
            let next = if epoch == furthest.0 { furthest.1 } else { next };
            let is_before = |open: &&Taken| open.partition() == partition && open.epoch == epoch;
            // An open letter comes after those behind it. The commit stays before it, so the next owner still gets it (G1).
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
impl Drop for Follow {
    fn drop(&mut self) {
        // The thread leaves its group once nobody can ask any more.
        self.commands = None;
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Bounded: a client whose brokers are silent may take for ever to leave, and the thread goes on without this one.
        let _ = left.recv_timeout(LEAVING);
    }
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Follow");
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
