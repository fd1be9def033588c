//! [`KafkaFeed`]: the letters of a dead-letter topic as they come, for the store beside it.

mod assigned;
mod mark;
mod marks;
mod member;
mod reach;

pub use marks::{IngestMark, find_topic, ingest_marks};

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use dlq_core::ingest::{Content, Fed, Feed};
use dlq_core::{BoxError, StoreError, StoreErrorKind};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::sync::oneshot;

use crate::brokers::Brokers;
use crate::dialect;
use crate::error::SetupError;
use crate::letters::{KafkaLetters, StoredLetter};
use assigned::Assigned;
use mark::Mark;
use member::{Command, Done, Member, Taken};
use reach::PATIENCE;

const OPENING: &str = "open a feed of dead letters";
const READING: &str = "read dead letters";
const CONFIRMING: &str = "confirm dead letters";

/// How long a request to the thread may take that only the cluster delays.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a feed that is dropped waits until it has left its group.
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
/// | with letters in hand | the offset before them, as being read | they come again, and up to the end of that moment each says that it may have come before |
/// | while it commits | either of the two | as one of the two |
/// | after it has left | the offset after the last letter, as clean | what comes after it is new |
///
/// When a process joins or leaves, all partitions are handed out anew, and what was yielded and not confirmed comes again
/// to whoever has its partition then; confirming it with the former owner changes nothing any more. Letters of a process that died come again when its lease has ended.
///
/// The group forgets where it was when none of its members was there for as long as the brokers keep offsets (seven days
/// as they are delivered): then the topic is read from its start, and the store has most of it already. Letters stay in the topic for as
/// long as that keeps them.
///
/// Dropping it waits up to three seconds until it has left its group.
pub struct KafkaFeed {
    /// By which messages are fetched that letters point to.
    letters: KafkaLetters,
    group: String,
    ends: bool,
    has_ended: bool,
    /// `None` once the feed is being dropped.
    commands: Option<mpsc::Sender<Command>>,
    left: Mutex<mpsc::Receiver<()>>,
    /// What was asked for, by a future that may have been dropped since.
    waiting: Option<oneshot::Receiver<Result<Vec<Taken>, StoreError>>>,
    taken: VecDeque<Taken>,
    read: Vec<(Taken, Fed)>,
    /// Yielded and not yet confirmed.
    yielded: BTreeMap<i32, Done>,
    /// Confirmed and not yet committed.
    confirmed: BTreeMap<i32, Done>,
}

impl KafkaFeed {
    /// The group by which letters of a topic go into a store, unless another is given.
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
    /// group is somebody else's; `InvalidConfig` when a setting will not do or the cluster refuses us; `Unavailable` when
    /// it does not answer.
    pub async fn open(
        brokers: &Brokers,
        topic: &str,
        group: &str,
        store: &str,
        lease: Duration,
    ) -> Result<Self, StoreError> {
        Mark::check(store, OPENING)?;
        let (group, letters) = (group.to_owned(), KafkaLetters::new(brokers, topic));
        let (brokers, topic, store) = (brokers.clone(), Arc::<str>::from(topic), store.to_owned());
        let name = group.clone();
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
            letters,
            group,
            ends: false,
            has_ended: false,
            commands: Some(commands),
            left: Mutex::new(left),
            waiting: None,
            taken: VecDeque::new(),
            read: Vec::new(),
            yielded: BTreeMap::new(),
            confirmed: BTreeMap::new(),
        })
    }

    /// Ends when there are no more letters, also none that another process has in hand. Defaults to waiting for more.
    #[must_use]
    pub fn until_end(mut self) -> Self {
        self.ends = true;
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

impl Feed for KafkaFeed {
    async fn next(&mut self, limit: usize) -> Result<Vec<Fed>, StoreError> {
        if !self.confirmed.is_empty() {
            self.commit().await?;
        }
        if self.taken.is_empty() && self.read.is_empty() && !self.has_ended {
            let waiting = match self.waiting.take() {
                Some(waiting) => waiting,
                None => {
                    let (reply, answer) = oneshot::channel();
                    let limit = limit.max(1);
                    if !self.ask(Command::Next { limit, ends: self.ends, reply }) {
                        return Err(ended(READING));
                    }
                    answer
                }
            };
            // A future that is dropped here leaves the answer to the next one.
            let taken = self.waiting.insert(waiting).await;
            self.waiting = None;
            self.taken = taken.map_err(|_| ended(READING))??.into();
            self.has_ended = self.taken.is_empty();
        }
        // What is being read stays where it is until it was.
        while self.read.len() < limit.max(1) {
            let Some(taken) = self.taken.front() else { break };
            let fed = self.fed(taken).await?;
            self.read.extend(self.taken.pop_front().map(|taken| (taken, fed)));
        }
        let mut all = Vec::with_capacity(self.read.len());
        for (taken, fed) in std::mem::take(&mut self.read) {
            let (partition, next) = (taken.partition(), taken.next());
            let done = Done { partition, epoch: taken.epoch, next, letters: 1 };
            merge(&mut self.yielded, partition, done);
            all.push(fed);
        }
        Ok(all)
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        for (partition, done) in std::mem::take(&mut self.yielded) {
            merge(&mut self.confirmed, partition, done);
        }
        if self.confirmed.is_empty() { Ok(()) } else { self.commit().await }
    }
}

impl KafkaFeed {
    /// What the record is; a share group may say only where the message stands, which is fetched then.
    async fn fed(&self, taken: &Taken) -> Result<Fed, StoreError> {
        let (record, cluster) = (&taken.record, self.letters.brokers().cluster_shared());
        let letter = dialect::letter(record, cluster);
        let stored = StoredLetter { letter, partition: record.partition, offset: record.offset };
        let letter = self.letters.resolved_or_gone(stored).await?;
        let content = Content::Letter(Box::new(letter));
        Ok(Fed { place: record.origin(cluster), again: taken.again, content })
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

/// A consumer that has joined the group, or is about to; blocks.
fn join(
    brokers: Brokers,
    topic: Arc<str>,
    group: &str,
    store: String,
    lease: Duration,
) -> Result<Member, StoreError> {
    let for_store = |error: SetupError| error.for_store(OPENING);
    let session = lease.as_millis().to_string();
    let beat = (lease.as_millis() / 4).clamp(1, 3000).to_string();
    let own: [(&str, &str); 3] =
        [("group.id", group), ("session.timeout.ms", &session), ("heartbeat.interval.ms", &beat)];
    let config = brokers.client(&DEFAULTS, &[&FIXED[..], &own].concat()).map_err(for_store)?;
    let asked = |what: &str, error| {
        let what = format!("{what} of topic `{topic}` by group `{group}`");
        for_store(SetupError::answered(&what, error))
    };
    let consumer: BaseConsumer<Assigned> = config
        .create_with_context(Assigned::default())
        .map_err(|error| asked("make a consumer", error))?;
    let heard = &consumer.context().heard;
    let partitions = reach::partitions(&consumer, heard, brokers.bootstrap(), &topic);
    let partitions = partitions.map_err(for_store)?;
    let conflict =
        |text: String| Err(StoreError::new(StoreErrorKind::Conflict, OPENING).with_detail(text));
    let mut written = false;
    loop {
        let found = reach::patiently(|| marks::read(&consumer, &topic, &partitions));
        match found.map_err(|error| asked("read the offsets", error))? {
            marks::Found::Mark(mark) if mark.store == store => break,
            marks::Found::Mark(Mark { store: other, .. }) => {
                return conflict(format!(
                    "the letters of `{topic}` that group `{group}` reads go into {other}, asked was {store}; use that store, \
                     give another group, or delete the group: what the topic holds is then read again from its start"
                ));
            }
            marks::Found::Foreign => {
                return conflict(format!(
                    "group `{group}` has offsets in `{topic}` that name no store: it is somebody else's, or its offsets \
                     were set by hand; give another group, or delete this one"
                ));
            }
            marks::Found::Nothing if written => {
                return conflict(format!(
                    "group `{group}` is somebody else's: it has members, and no offsets in `{topic}` that name a store; \
                     give another group"
                ));
            }
            marks::Found::Nothing => {
                written = true;
                let mut first = TopicPartitionList::new();
                for partition in &partitions {
                    let (low, _) = consumer
                        .fetch_watermarks(&topic, *partition, PATIENCE)
                        .map_err(|error| asked("look for the start", error))?;
                    let mark = Mark { store: store.clone(), confirmed: 0, clean: true };
                    mark.write(&mut first, &topic, *partition, low)
                        .map_err(|error| asked("commit the start", error))?;
                }
                match reach::patiently(|| consumer.commit(&first, CommitMode::Sync)) {
                    Ok(()) => {}
                    // Somebody joined meanwhile, who has said into which store the letters go.
                    Err(error) if is_joined(error.rdkafka_error_code()) => {}
                    Err(error) => return Err(asked("commit the start", error)),
                }
            }
        }
    }
    consumer.subscribe(&[&*topic]).map_err(|error| asked("subscribe", error))?;
    let look = (Instant::now(), Duration::ZERO);
    Ok(Member {
        consumer,
        brokers,
        topic,
        store,
        held: VecDeque::new(),
        paused: false,
        look,
        lease,
    })
}

/// Whether a commit from outside failed because the group has members.
fn is_joined(code: Option<RDKafkaErrorCode>) -> bool {
    use RDKafkaErrorCode::{IllegalGeneration, RebalanceInProgress, UnknownMemberId};
    matches!(code, Some(IllegalGeneration | RebalanceInProgress | UnknownMemberId))
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
