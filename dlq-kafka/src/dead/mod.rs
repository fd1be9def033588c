//! The topic of dead letters: the sink that writes it, the log that is read, and replay, which sends letters back.

pub(crate) mod dispatch;
mod entries;
mod fetch;
mod follow;
mod ledger;
mod log;
mod lookup;
mod picture;
mod pointed;
mod queue_depth;
mod range;
mod reading;
mod records;
mod replay;
mod scan;
mod send;
mod sent;
pub(crate) mod session;
pub(crate) mod sink;
pub(crate) mod stop;
mod stored;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::StoreError;
use dlq_core::log::IngestMark;
pub use follow::find_topic;
pub use log::KafkaEntries;
pub use queue_depth::{QueueDepth, QueueDepthReader};
pub use range::ScanRange;
pub use replay::{
    KafkaReplay, ReplayOutcome, ReplayPlan, ReplayReport, Replayed, Skipped, Subscriber,
};
pub use send::KafkaTarget;

pub(crate) use fetch::newest;
pub(crate) use ledger::{BEGUN, Keeps, PATIENCE, bounds, ensure, random};
pub(crate) use lookup::{Lookup, config};
pub(crate) use replay::listeners;
pub(crate) use stored::{GROUP, POINTER};

use crate::Brokers;

/// For how long a message is waited for whose topic alone is away.
const AWAY: Duration = Duration::from_secs(60);

/// The letters of a topic, as a [`Log`](dlq_core::log::Log): read into an engine, or followed into a store.
///
/// ```no_run
/// use dlq_core::log::Range;
/// use dlq_core::store::Letters as _;
/// use dlq_core::{BoxError, Filter};
/// use dlq_kafka::{Brokers, KafkaLetters, Reading};
///
/// async fn count(brokers: &Brokers) -> Result<u64, BoxError> {
///     let letters = KafkaLetters::new(brokers, "payments.dlq");
///     Ok(Reading::of(letters, Range::all()).await?.count(Filter::new()).await?)
/// }
/// ```
///
/// Whatever is in the topic is a letter: ours, those of the [dialects](crate::dialect), and what nothing is known of. Several
/// copies of a death are one letter, of several deaths of a message the latest counts, and the same death with other bytes is
/// a second letter, as in a store.
///
/// # Reading
///
/// Records of different partitions come by their timestamps, then by partition, so that all readers agree which of two was
/// first. A reading [without an end](dlq_core::log::Range::for_ever) yields them as they come; each partition keeps its order.
/// Payloads are always read: brokers cannot leave them out.
///
/// Reading needs the permissions `Describe` and `Read` of the topic, and changes nothing: there is no group to join, and
/// no offset is committed. (The client wants a group all the same, and is given the name `dlq.letters`; it may do
/// without permission for that.) Records of transactions that were aborted, or have not ended, are not seen.
///
/// # Pointers
///
/// Some letters have no message with them and only say where it stands, in the attribute `kafka.pointer`: those of share
/// groups that copy no records, and those of ours that are too large. The message is fetched from there when the letter is
/// [shown](dlq_core::log::Log::complete). When it has gone, the letter comes with the attribute `kafka.pointer.gone`; when it
/// may not or cannot be read, with the attribute `kafka.pointer.unread`, which says why. Letters beside it are not concerned.
///
/// # What was sent back
///
/// That is in the ledger, which needs the same permissions where it is there. It is read when a reading begins. A letter of
/// which it cannot be known, because its record there is none of this version, the ledger may not be read, or it is of another
/// alias of the cluster, by which letters of others have other identities, has the attribute `replays.unclear`, which says
/// what to do. By another alias nothing is [sent back](crate::KafkaReplay).
///
/// # Following
///
/// A consumer group of the topic [follows](dlq_core::log::Log::follow) it into a store: what was confirmed does not come
/// again, to whichever process. Several processes share the partitions; entries come in the order of each. The commits of the
/// group name the store, which is the mark by which it is known that there is one. It is there before the first entry is
/// yielded.
///
/// | the process dies | the group has | and then |
/// |---|---|---|
/// | before the first commit | nothing | the next one begins with the oldest letter |
/// | after the mark, before an entry is yielded | the oldest offset, and the store | the same |
/// | with entries in flight | the offset before them, as being read | they come again, and each says that it may have come before |
/// | with one in flight that is set aside | the same | it comes again, and may have its message by then |
/// | with one that waits for the end of a transaction | the offset of that one, as being read | it comes, and those behind it come again and say so |
/// | while it commits | either of the two | as one of the two |
/// | after it has left | the offset after the last entry, as clean | what comes after it is new |
///
/// When a process joins or leaves, all partitions are handed out anew, and what was yielded and not confirmed comes again
/// to whoever has its partition then; confirming it with the former owner changes nothing any more. A process that hangs
/// with entries in flight serves its group for the time of the lease, and loses its partitions after another
/// `max.poll.interval.ms`, which is five minutes unless it is set. Partitions of a process that died go to others when its
/// lease has ended. Dropping the entries waits up to three seconds until the process has left its group.
///
/// Stop who follows a topic before it is deleted and made again: one that runs meanwhile may go on at the offset where it
/// was. A topic that was deleted and created again is another, and is read from its start, as
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
/// A letter that only points to its message comes with it. Where that cannot be had the letter is
/// [damaged](dlq_core::log::Content::Damaged), so that it is set aside, and never in the store without its message: it would
/// be another letter than the same one read later, and be sent back without anything in it. For the store to get it when its
/// message can be read again, have a new group read the topic from its start: the store has the others already. That the
/// cluster is away, or refuses the login, is an error.
///
/// So is a partition whose next records cannot be read, because they are compressed in a way that this build lacks, or are
/// damaged: it names them, and passes nothing over. It comes once the rest was yielded from entries that
/// [end](Self::until_end); from others it passes (`Unavailable`), comes again while it is so, and the rest goes on.
#[derive(Clone)]
pub struct KafkaLetters {
    lookup: Lookup,
    topic: Arc<str>,
    ledger: Arc<str>,
    range: ScanRange,
    group: Option<Arc<str>>,
    ends: bool,
    patience: Duration,
}

impl KafkaLetters {
    /// The letters of this topic, which is looked for when it is read.
    #[must_use]
    pub fn new(brokers: &Brokers, topic: impl Into<Arc<str>>) -> Self {
        let topic = topic.into();
        Self {
            lookup: Lookup::new(brokers),
            ledger: format!("{topic}.replays").into(),
            topic,
            range: ScanRange::new(),
            group: None,
            ends: false,
            patience: AWAY,
        }
    }

    /// Returns the number of offsets of each partition, which is that of its records unless transactions or compaction have
    /// left gaps.
    ///
    /// # Errors
    ///
    /// As [`Log::marks`](dlq_core::log::Log::marks).
    pub async fn offsets(&self) -> Result<BTreeMap<u32, u64>, StoreError> {
        let there = self.lookup.partitions(&self.topic).await.map_err(reading::unread)?;
        Ok(there.into_iter().map(|(partition, at)| (partition, at.end - at.begin)).collect())
    }

    /// Sets which letters a [replay](KafkaReplay) sends: those whose records are of this range. Of several deaths of a message
    /// the latest counts, wherever that stands, so that a death is not taken for the last one because those after it are out
    /// of the range. Defaults to all letters.
    #[must_use]
    pub fn range(mut self, range: ScanRange) -> Self {
        self.range = range;
        self
    }

    /// Sets the topic that says which letters were [sent back](KafkaReplay). Defaults to that of the letters with
    /// `.replays`. All who send letters back need the same one: another does not know what was sent, counts from one, and
    /// a consumer takes what comes to its handler with a count that it has seen for a copy, which it passes over.
    #[must_use]
    pub fn ledger(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.ledger = topic.into();
        self
    }

    /// Returns the group by which the letters of a topic go into a store, unless another is given: that of one more store has
    /// this name, a dot and more. By its name a group is known to have a store.
    #[must_use]
    pub fn group_of(topic: &str) -> String {
        follow::marks::group_of(topic)
    }

    /// Sets the consumer group by which the log is followed: [that of the topic](Self::group_of), or its name, a dot and more
    /// for one more store. Defaults to that of the topic.
    #[must_use]
    pub fn group(mut self, name: impl Into<Arc<str>>) -> Self {
        self.group = Some(name.into());
        self
    }

    /// Ends a log that is followed when there are no more letters, also none that another process has in flight. Defaults to
    /// waiting for more.
    #[must_use]
    pub fn until_end(mut self) -> Self {
        self.ends = true;
        self
    }

    /// Sets for how long who follows waits for the message of a letter that only points to it while the partition where that
    /// stands does not answer and the rest of the cluster does. Then the letter is
    /// [damaged](dlq_core::log::Content::Damaged), as is at once a letter whose message has gone or may not be read. Defaults
    /// to a minute.
    ///
    /// A message whose transaction has not ended is waited for at least until the letter is 16 minutes old, since brokers end
    /// one after 15 unless `transaction.max.timeout.ms` says otherwise. The letters behind it come meanwhile; what was
    /// confirmed of them comes again if the process dies before, since the group goes on at the first that is waited for.
    #[must_use]
    pub fn message_timeout(mut self, timeout: Duration) -> Self {
        self.patience = timeout;
        self
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Returns the store into which the letters go by the [group](Self::group) that was set, if it has one. No other group is
    /// asked.
    ///
    /// # Errors
    ///
    /// As [`Log::marks`](dlq_core::log::Log::marks); `Refused` where nobody follows by that group.
    pub async fn mark(&self) -> Result<Option<IngestMark>, StoreError> {
        follow::marks::one(self.brokers(), &self.topic, self.group_name()).await
    }

    /// The group by which the log is followed.
    fn group_name(&self) -> String {
        let group = self.group.as_deref().map(str::to_owned);
        group.unwrap_or_else(|| Self::group_of(&self.topic))
    }

    /// The cluster.
    pub fn brokers(&self) -> &Brokers {
        &self.lookup.brokers
    }
}

impl std::fmt::Debug for KafkaLetters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaLetters")
            .field("topic", &self.topic)
            .field("brokers", self.brokers())
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn log<L: dlq_core::log::Log + Clone>() {}
    log::<KafkaLetters>();
};
