//! Sending letters back, each of them once.
//!
//! # The protocol
//!
//! Letters are sent in transactions, up to 500 of them in each, and the topic of dead letters has one transactional id,
//! `dlq-replay.<topic>`, for whoever sends letters of it:
//!
//! 1. *Begin.* A producer takes the id. From here on nobody who had it before can commit anything, and what they had
//!    open is aborted. In a transaction of its own it writes to the ledger that it has begun.
//! 2. *Read* the ledger up to that record: everything that was sent before stands before it.
//! 3. *Send* what is wanted and not marked, and the mark of each, in one transaction.
//! 4. *Look* whether the letters go into a store by now, which would not learn of it; then abort. Who follows them into one
//!    waits for what is open in the ledger, so that one of both sees the other.
//! 5. *Commit.* Letters and marks are there, all of them or none. Then 3 again.
//!
//! # What happens if the process dies
//!
//! - Before 3, and after 5: nothing is open. What is marked is not sent again.
//! - In 3 and 4: the transaction is aborted by whoever takes the id next, or after 60 seconds. Nothing of it ever was, for
//!   whoever reads with `read_committed`; until then such readers of the topics that it wrote to wait.
//! - In 5: the cluster has decided to commit, and does so before it hands out the id again, or it has not, as above.
//! - A process that is stopped and goes on later finds that its id was taken. Nothing of what it had open is there; it
//!   waits until the ledger has not moved for a while, takes the id again, reads the ledger, and goes on with the rest.
//!   So do two who send at once.
//!
//! # What is not promised
//!
//! A consumer that reads with `read_uncommitted`, which is the default of Java's client, sees what was aborted too, and
//! a letter twice whose replay was killed. librdkafka's default is `read_committed`, and so is ours.

mod parcels;
mod plan;
mod readers;
mod run;
mod subscribers;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::replay::ReplayRules;
use dlq_core::{Filter, LetterId, OperationId};

pub(crate) use subscribers::listeners;

pub use dlq_core::replay::{ReplayOutcome, ReplayPlan, ReplayReport, Skipped, Subscriber};
pub(super) use readers::Way;

use super::KafkaLetters;
use super::picture::{LetterPosition, Picture};
use super::send::KafkaTarget;

/// For how long groups are asked. Each needs a connection of its own.
const ASKING: Duration = Duration::from_secs(10);
/// Maximum number of groups that are named at once.
const NAMED: usize = 5;

/// Some of these groups.
fn some(groups: &BTreeSet<String>) -> String {
    let named: Vec<_> = groups.iter().take(NAMED).map(|group| format!("`{group}`")).collect();
    match groups.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} others", named.join(", ")),
    }
}

/// A letter and what became of it.
#[derive(Debug)]
pub struct Replayed {
    /// The letter.
    pub id: LetterId,
    /// Its partition in the topic of dead letters.
    pub partition: u32,
    /// Its offset in that partition.
    pub offset: u64,
    /// Outcome for the letter.
    pub outcome: ReplayOutcome,
}

/// Sends letters back: those that match a filter, of the [range](KafkaLetters::range) of the letters, each death once, whoever sends it and however often (G6).
///
/// What was sent is marked in the [ledger](KafkaLetters::ledger), a compacted topic that is created when it is not
/// there, in the transaction that sends it, and read with the status `sent` from then on. Running it twice, at once or
/// one after the other, sends nothing twice; running it again after it was killed or cancelled goes on. A letter that
/// died again is a new death, and can be sent again. Letters that are [followed](dlq_core::log::Log::follow) into a store are
/// sent from there: a replay that was begun before ends. How often a letter was sent back goes with it, and a letter at the
/// [cap](Self::cap) is not sent (G7).
///
/// A death whose record in the ledger is none of this version is not sent, and fails alone: whether it was sent nobody can
/// say. A record without a value under its key says that it was not.
///
/// Consumers must read with `isolation.level=read_committed`, which is librdkafka's default and that of
/// this crate. **Java's default is `read_uncommitted`**: such a consumer sees a letter twice whose replay was killed
/// and run again.
///
/// Letters keep key, value and the producer's headers, byte for byte. Attempts start over; the headers `replay.*` say
/// when, by what and from where it was sent.
///
/// A plan says which other groups will hear the letters, and which retry topics are not read by the group whose letters go
/// there. Where groups share the retry topics, a letter of a group that does not read them is not sent and fails: every
/// group would pass over it.
///
/// Once it was [planned](Self::plan), it sends nothing but what the last plan has come to: what dies while somebody thinks
/// about the plan is for the next one. Clones share the plan.
///
/// ```no_run
/// use dlq_core::{BoxError, Filter, OperationId};
/// use dlq_kafka::{KafkaLetters, KafkaReplay, KafkaTarget};
///
/// async fn send_back(letters: &KafkaLetters, id: OperationId) -> Result<(), BoxError> {
///     let filter = Filter::new().error("connection refused");
///     let target = KafkaTarget::Origin { keep_partition: false };
///     let replay = KafkaReplay::new(letters, filter, target, id).rate(100);
///     for subscriber in &replay.plan().await?.subscribers {
///         println!("{subscriber} will hear them too");
///     }
///     let report = replay.run(std::future::pending(), |_| {}).await?;
///     println!("{report}");
///     Ok(())
/// }
/// ```
///
/// # What happens if the process dies
///
/// What it had not committed never was: whoever sends these letters next begins by aborting it, and sends the rest.
/// Nobody has to wait. Unless somebody does, the cluster aborts it after 60 seconds; until then consumers of the topics
/// that it wrote to wait.
///
/// # Permissions
///
/// To write to the topics that letters go to and to the ledger, to read the ledger, and to write as the transactional id
/// `dlq-replay.<topic>`; to describe the group `dlq-ingest.<topic>`, and to list groups, without which no store of another
/// group is seen; to create the ledger, unless it is there: one partition, `cleanup.policy=compact`. To describe the
/// groups whose handlers get letters by retry topics that groups share.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until it runs"]
pub struct KafkaReplay {
    letters: KafkaLetters,
    filter: Filter,
    target: KafkaTarget,
    group: Option<Arc<str>>,
    rules: ReplayRules,
    who: String,
    agreed: Arc<Mutex<Option<Agreed>>>,
}

/// Result of a plan.
#[derive(Clone, Debug)]
struct Agreed {
    picture: Arc<Picture>,
    /// The last place of a letter.
    last: Option<LetterPosition>,
}

impl Agreed {
    fn includes(&self, place: LetterPosition) -> bool {
        // Two bounds are needed: a record that is written after the plan may have an earlier time than the plan's last letter.
        let end = self.picture.seen.get(&place.partition).map_or(0, |bounds| bounds.end);
        place.offset < end && Some(place) <= self.last
    }
}

impl KafkaReplay {
    /// Sends the letters that match to this target, as this operation.
    pub fn new(
        letters: &KafkaLetters,
        filter: Filter,
        target: KafkaTarget,
        operation: OperationId,
    ) -> Self {
        Self {
            letters: letters.clone(),
            filter,
            target,
            group: None,
            rules: ReplayRules::new(operation),
            who: String::new(),
            agreed: Arc::default(),
        }
    }

    /// Sets who sends them, for the ledger. Defaults to nobody.
    pub fn who(mut self, who: impl Into<String>) -> Self {
        self.who = who.into();
        self
    }

    /// Sets the group whose handlers get the letters, with [`KafkaTarget::Handler`]. Defaults to the group that wrote each
    /// letter, and for a letter that does not say it to the group called like its consumer.
    pub fn group(mut self, group: impl Into<Arc<str>>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Sets how many letters are sent at most, oldest first. Defaults to all.
    pub fn limit(mut self, letters: u64) -> Self {
        self.rules.limit = letters;
        self
    }

    /// Sets how many letters are sent in a second; 0 is read as 1. They come in transactions of a quarter of a second,
    /// or of one letter. Defaults to as many as the cluster takes.
    pub fn rate(mut self, per_second: u32) -> Self {
        self.rules.rate = Some(per_second.max(1));
        self
    }

    /// Sets how often a letter may be sent back; 0 for any number. Defaults to 10.
    pub fn cap(mut self, cap: u32) -> Self {
        self.rules.cap = cap;
        self
    }

    /// Sends letters that were sent before too; each once for this operation. Defaults to not.
    pub fn again(mut self) -> Self {
        self.rules.again = true;
        self
    }
}
