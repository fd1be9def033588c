//! [`KafkaOutbox`]: sends letters of a store back to topics.

mod ledger;
mod send;
mod settle;
mod survey;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use dlq_core::outbox::{Address, Once, Outbox, Outgoing, Sent, Settled, Survey};
use dlq_core::replay::Skipped;
use dlq_core::store::Target;
use dlq_core::{DeadLetter, StoreError, Timestamp};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::client::aside::leave;
use crate::client::brokers::Brokers;
use crate::client::ladder::{Ladder, is_topic};
use crate::dead::dispatch::{REPLAYING, first_stage, group_of};
use crate::dead::session::Session;
use crate::dead::{Keeps, Lookup, ensure, random};

/// Prefix of the transactional ids of outboxes.
const PREFIX: &str = "dlq-outbox.";
/// Time for which the ledger keeps what was sent.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Letters that are remembered of those that were sent last; twice as many may be.
const REMEMBERED: usize = 50_000;

/// Sends letters of a store back to the topics of one cluster, exactly once for consumers that read with
/// `isolation.level=read_committed`; an [`Outbox`].
///
/// | target | where a letter goes |
/// |---|---|
/// | origin | to the topic where it was born; its key decides on the partition, unless [`keep_partition`](Self::keep_partition) |
/// | a subject | to the topic of that name |
/// | handler | to the first retry topic of its consumer, with [`ladder`](Self::ladder) only |
///
/// ```no_run
/// # async fn outboxes() -> Result<(), dlq_core::StoreError> {
/// use dlq_core::outbox::Outboxes;
/// use dlq_kafka::{Brokers, KafkaOutbox};
///
/// let brokers = Brokers::at("kafka-1:9092").with_cluster("eu");
/// let mut outboxes = Outboxes::new();
/// outboxes.add(KafkaOutbox::open(&brokers, "shop.outbox").await?)?;
/// # Ok(()) }
/// ```
///
/// # Once
///
/// A letter and a record of it in the ledger are written in one transaction: both are there or neither is. The ledger is a
/// topic of one partition that keeps its records for 7 days, and belongs to the store: all who send letters of one store
/// name the same. An outbox has a transactional id of its own, which is its [sender](Outbox::sender).
///
/// [`settle`](Outbox::settle) takes the transactional id of a dead sender. From then on that sender can commit nothing, and
/// what it had open is aborted or, if the cluster had decided so, committed. Then settle writes a record of its own to the
/// ledger and reads the ledger up to it, so the answer is exact. A sender that was only stopped finds that its id was taken:
/// nothing of its batch arrives, and all of it is [`Sent::Later`].
///
/// | the process dies | the cluster has | settle says |
/// |---|---|---|
/// | before the commit | an open transaction, aborted by settle or after 60 seconds | [`Settled::Not`] |
/// | in the commit | a decision, which settle waits for | [`Settled::Arrived`] or [`Settled::Not`] |
/// | after the commit | the letter and its record | [`Settled::Arrived`] |
///
/// A sender also remembers what it has sent last, and confirms that without sending it again.
///
/// # What is refused
///
/// A letter that its topic does not take, or whose topic is not there, is [`Sent::Refused`]; the rest of its transaction is
/// written again without it. What is not committed by `until` is aborted and [`Sent::Later`]. A commit without an answer is
/// [`Sent::Unknown`].
///
/// # Rights
///
/// To describe and write the topics that letters go to; to describe, read and write the ledger, and to create it unless it
/// is there; to describe and write the transactional ids that begin with `dlq-outbox.`. [`open`](Self::open) and the
/// [survey](Outbox::survey) name those that are missing, except that clients cannot ask whether a topic may be written to.
#[derive(Clone, Debug)]
#[must_use]
pub struct KafkaOutbox {
    brokers: Brokers,
    lookup: Lookup,
    ledger: Arc<str>,
    sender: Arc<str>,
    keep_partition: bool,
    ladder: Option<Ladder>,
    /// The right to send as `sender`, where it has it. A transactional id has one transaction at a time.
    session: Arc<Mutex<Option<Held>>>,
    known: Arc<std::sync::Mutex<Known>>,
}

/// A session. Closing it may block, so that is done elsewhere.
#[derive(Debug)]
struct Held(Option<Arc<Session>>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            leave(move || drop(session));
        }
    }
}

/// Knowledge from earlier calls.
#[derive(Debug, Default)]
struct Known {
    /// Letters that arrived: the latest, and those before them.
    arrived: [HashSet<Once>; 2],
    /// The time at which each topic was asked for, and the number of its partitions.
    topics: HashMap<Arc<str>, (Instant, usize)>,
}

impl Known {
    fn has_arrived(&self, once: &Once) -> bool {
        self.arrived.iter().any(|some| some.contains(once))
    }

    fn arrived(&mut self, once: Once) {
        let [latest, before] = &mut self.arrived;
        latest.insert(once);
        if latest.len() >= REMEMBERED {
            // The older half goes as a whole, so no order has to be kept.
            *before = std::mem::take(latest);
        }
    }
}

impl KafkaOutbox {
    /// Opens an outbox with a sender of its own, whose ledger is this topic. Creates the ledger if it is missing.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the ledger has more than one partition or a right is missing, `Unavailable` when the cluster does
    /// not answer.
    pub async fn open(brokers: &Brokers, ledger: impl Into<Arc<str>>) -> Result<Self, StoreError> {
        Self::open_as(brokers, ledger, &format!("{:016x}", random())).await
    }

    /// Opens an outbox whose transactional id is `dlq-outbox.LEDGER.NAME`. Fences off another outbox of that name.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub async fn open_as(
        brokers: &Brokers,
        ledger: impl Into<Arc<str>>,
        name: &str,
    ) -> Result<Self, StoreError> {
        let ledger = ledger.into();
        let outbox = Self {
            brokers: brokers.clone(),
            lookup: Lookup::new(brokers),
            sender: format!("{PREFIX}{ledger}.{name}").into(),
            ledger,
            keep_partition: false,
            ladder: None,
            session: Arc::default(),
            known: Arc::default(),
        };
        let ready = ensure(&outbox.lookup, &outbox.ledger, Keeps::For(KEPT)).await;
        ready.map_err(|error| error.for_store(REPLAYING))?;
        // By this record a ledger is known to go back to before the first claim of this sender.
        outbox.mark().await?;
        Ok(outbox)
    }

    /// Sends letters to the partitions where they were born. Defaults to the partitions that their keys lead to, as for
    /// Java's producers.
    pub fn keep_partition(mut self) -> Self {
        self.keep_partition = true;
        self
    }

    /// Sets the ladder by which letters go to their handlers; the same as the consumers'. Defaults to none.
    pub fn ladder(mut self, ladder: Ladder) -> Self {
        self.ladder = Some(ladder);
        self
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outbox for KafkaOutbox {
    fn transport(&self) -> &'static str {
        "kafka"
    }

    fn cluster(&self) -> &str {
        self.brokers.cluster()
    }

    fn sender(&self) -> &str {
        &self.sender
    }

    fn route(&self, letter: &DeadLetter, to: &Target) -> Result<Address, Skipped> {
        let origin = &letter.origin;
        let is_here = origin.transport() == "kafka"
            && origin.cluster() == self.brokers.cluster()
            && is_topic(origin.stream());
        let address =
            |topic: &str| Address::new("kafka", Arc::clone(self.brokers.cluster_shared()), topic);
        match to {
            Target::Subject(topic) => Ok(address(topic)),
            _ if !is_here => Err(Skipped::NoOrigin),
            Target::Origin => {
                let mut to = address(origin.stream());
                if self.keep_partition {
                    to.partition = Some(origin.partition().ok_or(Skipped::NoOrigin)?);
                }
                Ok(to)
            }
            Target::Handler => {
                // Without the ladder of its consumer nobody knows which retry topic that reads, and a guess would be heard
                // by nobody.
                let way = self.ladder.as_ref().zip(group_of(letter));
                let stage = way.and_then(|(ladder, group)| first_stage(letter, group, ladder));
                let mut to = address(&stage.ok_or(Skipped::NoOrigin)?);
                to.consumer = Some(letter.consumer.as_str().into());
                Ok(to)
            }
            _ => Err(Skipped::NoOrigin),
        }
    }

    async fn survey(&self, to: BTreeSet<Address>) -> Result<Survey, StoreError> {
        self.look(to).await
    }

    async fn send(&self, batch: Vec<Outgoing>, until: Instant) -> Result<Vec<Sent>, StoreError> {
        Ok(self.send_all(&batch, until).await)
    }

    async fn settle(
        &self,
        sender: String,
        since: Timestamp,
        batch: Vec<Outgoing>,
    ) -> Result<Vec<Settled>, StoreError> {
        self.settle_all(&sender, since, &batch).await
    }
}
