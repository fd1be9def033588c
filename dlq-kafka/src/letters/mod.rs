//! Reads a topic of dead letters, and sends letters back.

mod aside;
mod entries;
mod extent;
mod fetch;
mod ledger;
mod log;
mod lookup;
mod pointed;
mod range;
mod reading;
mod records;
mod replay;
mod scan;
mod send;
mod sent;
mod snapshot;
mod stored;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

pub use extent::{Extent, ExtentReader};
pub use log::KafkaEntries;
pub use range::ScanRange;
pub use reading::LetterScan;
pub use records::ScanProgress;
pub use replay::{
    KafkaReplay, ReplayOutcome, ReplayPlan, ReplayReport, Replayed, Skipped, Subscriber,
};
pub use send::KafkaTarget;
pub use stored::StoredLetter;

pub(crate) use aside::{aside, leave};
pub(crate) use fetch::newest;
pub(crate) use ledger::{BEGUN, Keeps, PATIENCE, bounds, ensure, random};
pub(crate) use lookup::{Lookup, config};
pub(crate) use pointed::{Completed, Unread};
pub(crate) use replay::listeners;
pub(crate) use sent::SentBack;
pub(crate) use stored::{GROUP, POINTER};

use crate::Brokers;
use crate::feed::KafkaFeed;
use snapshot::Snapshot;

/// For how long a message is waited for whose topic alone is away.
const AWAY: Duration = Duration::from_secs(60);

/// The letters of a topic, as [`Letters`](dlq_core::store::Letters): listed, filtered, grouped and counted as a store
/// does it.
///
/// Whatever is in the topic is a letter: ours, those of the [dialects](crate::dialect), and what nothing is known of.
/// Several copies of a death are one letter, of several deaths of a message the latest counts, and the same death with
/// other bytes is a second letter, as in a store. Which of two was first says the timestamp of the record, then the
/// partition, then the offset, so that all readers agree.
///
/// # At the cluster
///
/// Reading needs the permissions `Describe` and `Read` of the topic, and changes nothing: there is no group to join, and
/// no offset is committed. (The client wants a group all the same, and is given the name `dlq.letters`; it may do
/// without permission for that.) Records of transactions that were aborted, or have not ended, are not seen.
///
/// A topic of dead letters keeps what it has by time or size, and has no compaction: a letter that is compacted away is
/// not missed before the topic is read from its beginning again. A topic that was deleted and made anew is seen to be
/// another unless it has the very offsets of the old one.
///
/// # Pointers
///
/// Some letters have no message with them and only say where it stands: those of share groups that copy no records, in
/// the attribute `kafka.pointer`. The message is fetched from there when the letter is asked for. When it has gone,
/// [`get`](dlq_core::store::Letters::get) gives the letter with the attribute `kafka.pointer.gone`; when it may not or
/// cannot be read, with the attribute `kafka.pointer.unread`, which says why. [`stored`](Self::stored) fails. Letters beside
/// it are not concerned.
///
/// # What was sent back
///
/// That is in the ledger, which needs the same permissions where it is there. A letter of which it cannot be known, because
/// its record there is none of this version, the ledger may not be read, or it is of another alias of the cluster, by which
/// letters of others have other identities, has the attribute `replays.unclear`, which says what to do. By another alias
/// nothing is [sent back](crate::KafkaReplay).
///
/// # When the process dies
///
/// Nothing is written anywhere, so there is nothing to be put right.
///
/// # Cost
///
/// The topic is read from its beginning when it is first asked for, and from where it was read to when something was
/// written since; when something was removed, it is read from its beginning again. Clones share what was read. Letters
/// are kept without payloads of more than 1 KiB, and need one to three KiB each. For millions of letters there are
/// stores.
#[derive(Clone)]
pub struct KafkaLetters {
    lookup: Lookup,
    topic: Arc<str>,
    ledger: Arc<str>,
    range: ScanRange,
    progress: Option<Arc<dyn Fn(ScanProgress) + Send + Sync>>,
    kept: Arc<Mutex<Option<Arc<Snapshot>>>>,
    group: Option<Arc<str>>,
    pub(crate) ends: bool,
    pub(crate) patience: Duration,
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
            progress: None,
            kept: Arc::default(),
            group: None,
            ends: false,
            patience: AWAY,
        }
    }

    /// Only the letters whose records are of this range: of several deaths of a message the latest counts, wherever that
    /// stands, so that a death is not taken for the last one because those after it are out of the range. Partitions
    /// are read as far as that needs: from `since` to the end, or else all. Defaults to all letters.
    #[must_use]
    pub fn with_range(mut self, range: ScanRange) -> Self {
        self.range = range;
        self.kept = Arc::default();
        self
    }

    /// Sets the topic that says which letters were [sent back](KafkaReplay). Defaults to that of the letters with
    /// `.replays`. All who send letters back need the same one: another does not know what was sent, counts from one, and
    /// a consumer takes what comes to its handler with a count that it has seen for a copy, which it passes over.
    #[must_use]
    pub fn with_ledger(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.ledger = topic.into();
        self.kept = Arc::default();
        self
    }

    /// Calls this while the topic is read: at the beginning, about every 256 records, and at the end. Defaults to
    /// nothing.
    #[must_use]
    pub fn with_progress(mut self, tell: impl Fn(ScanProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(tell));
        self
    }

    /// Sets the consumer group by which the log is followed: [that of the topic](KafkaFeed::group_of), or its name, a dot and
    /// more for one more store. Defaults to that of the topic.
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

    /// Sets for how long a log that is followed waits for the message of a letter that only points to it, as
    /// [`KafkaFeed::with_patience`] does. Defaults to a minute.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn topic_shared(&self) -> &Arc<str> {
        &self.topic
    }

    /// The group by which the log is followed.
    pub(crate) fn group_name(&self) -> String {
        let group = self.group.as_deref().map(str::to_owned);
        group.unwrap_or_else(|| KafkaFeed::group_of(&self.topic))
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
    const fn letters<L: dlq_core::store::Letters + Clone>() {}
    letters::<KafkaLetters>();
    const fn log<L: dlq_core::log::Log>() {}
    log::<KafkaLetters>();
};
