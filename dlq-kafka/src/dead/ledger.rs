//! Ledger of replays: a compacted topic of one partition, in which each death that was sent has a record.
//!
//! The key of a record is the death, `ID.GENERATION`, its value says in JSON by which operation, where to, when, by whom
//! and for the how-manieth time. A record is written in the transaction that sends the letter, so that neither is there
//! without the other for whoever reads with `read_committed`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlq_core::{Death, OperationId, Timestamp};
use rdkafka::Message as _;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::{Offset, TopicPartitionList};
use serde::{Deserialize, Serialize};

use super::lookup::{Bounds, Lookup, config};
use crate::client::aside::aside;
use crate::client::brokers::Brokers;
use crate::client::error::{SetupError, is_refusal};
use crate::dead::stop::Stop;

/// For how long an answer is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The key of the record that is written by whoever begins to send. Who has read it has read everything that was sent
/// before. It names the alias of the cluster, by which letters of others are known.
pub(crate) const BEGUN: &[u8] = b"begun";

/// Last replay of a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) operation: OperationId,
    pub(super) at: Timestamp,
    /// Number of times, including this one.
    pub(super) times: u32,
}

pub(super) type Marks = HashMap<Death, Mark>;

/// Deaths of which it is not known whether they were sent back, and why: their last record is none of this version.
pub(super) type Unclear = BTreeMap<Death, String>;

/// A record as it is written.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) operation: OperationId,
    /// The topic that it was sent to.
    #[serde(default)]
    pub(super) to: String,
    pub(super) at: Timestamp,
    #[serde(default)]
    pub(super) who: String,
    #[serde(default = "once")]
    pub(super) times: u32,
    /// Only where somebody begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cluster: Option<Arc<str>>,
}

const fn once() -> u32 {
    1
}

pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The ledger, as far as it was read.
pub(super) struct Ledger {
    consumer: BaseConsumer,
    topic: String,
    /// The first offset that was not read.
    next: i64,
    read: Read,
}

impl Ledger {
    /// The ledger in this topic, which must be there.
    pub(super) fn open(brokers: &Brokers, topic: &str) -> Result<Self, SetupError> {
        let what = format!("read topic `{topic}`");
        let answered = |error| SetupError::answered(&what, error);
        let mut config = config(brokers)?;
        // An assignment by hand wants a name of a group, which never comes to be.
        config.set("group.id", "dlq.replays");
        // Another than the leader may not have its end yet.
        config.set("client.rack", "");
        let consumer: BaseConsumer = config.create().map_err(answered)?;
        let mut all = TopicPartitionList::new();
        all.add_partition_offset(topic, 0, Offset::Beginning).map_err(answered)?;
        consumer.assign(&all).map_err(answered)?;
        Ok(Self { consumer, topic: topic.to_owned(), next: 0, read: Read::default() })
    }

    /// Reads on, beyond this offset or, without one, to the end.
    pub(super) fn read(&mut self, beyond: Option<i64>) -> Result<(), SetupError> {
        let mut until = Instant::now() + PATIENCE;
        // An end before that offset is no end: brokers show a transaction a moment after they have confirmed it.
        while beyond.is_none_or(|offset| self.next <= offset) {
            match self.consumer.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => {
                    self.next = message.offset() + 1;
                    self.read.hear(&message);
                    until = Instant::now() + PATIENCE;
                }
                Some(Err(KafkaError::PartitionEOF(_))) if beyond.is_none() => break,
                // Others are of a broker that is away, of which the client looks for another.
                Some(Err(error)) if error.rdkafka_error_code().is_some_and(is_refusal) => {
                    return Err(self.failed(error));
                }
                Some(Err(_)) | None if Instant::now() < until => {}
                Some(Err(error)) => return Err(self.failed(error)),
                None => {
                    let timed_out = RDKafkaErrorCode::OperationTimedOut;
                    return Err(self.failed(KafkaError::MessageConsumption(timed_out)));
                }
            }
        }
        Ok(())
    }

    /// The alias of the cluster by which letters were sent, if whoever began last has said it.
    pub(super) fn alias(&self) -> Option<&str> {
        self.read.cluster.as_deref()
    }

    /// Returns the deaths that were sent back.
    pub(super) fn marks(&self) -> &Marks {
        &self.read.marks
    }

    /// Returns true if this operation has sent this death back, perhaps before others did.
    pub(super) fn is_sent_by(&self, death: &Death, operation: OperationId) -> bool {
        self.read.is_sent_by(death, operation)
    }

    /// Returns the reason why it is unknown whether this death was sent back, if it is.
    pub(super) fn unclear(&self, death: &Death) -> Option<&str> {
        self.read.unclear.get(death).map(String::as_str)
    }

    /// Returns true if something is written within this time, unless it is to stop.
    pub(super) fn moves_within(&mut self, time: Duration, stop: &Stop) -> Result<bool, SetupError> {
        let until = Instant::now() + time;
        while Instant::now() < until && !stop.is_set() {
            if let Some(Ok(message)) = self.consumer.poll(Duration::from_millis(50)) {
                self.next = message.offset() + 1;
                self.read.hear(&message);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn failed(&self, error: KafkaError) -> SetupError {
        SetupError::answered(&format!("read topic `{}`", self.topic), error)
    }
}

/// Content of the ledger, as far as it was read.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) marks: Marks,
    pub(super) unclear: Unclear,
    /// The alias of the cluster by which letters were sent, if whoever began last has said it.
    pub(super) cluster: Option<Arc<str>>,
    /// Operations that have sent a death back before others did.
    earlier: HashSet<(Death, OperationId)>,
}

impl Read {
    fn is_sent_by(&self, death: &Death, operation: OperationId) -> bool {
        self.marks.get(death).is_some_and(|mark| mark.operation == operation)
            || self.earlier.contains(&(*death, operation))
    }

    fn hear(&mut self, message: &BorrowedMessage<'_>) {
        if message.key() == Some(BEGUN) {
            // A begin without a value takes the alias back, by which an operator goes on under another one.
            let begun = message.payload().and_then(|json| serde_json::from_slice(json).ok());
            self.cluster = begun.and_then(|Written { cluster, .. }| cluster);
            return;
        }
        if let Some((death, mark)) = mark_of(message) {
            self.take(death, mark);
        }
    }

    fn take(&mut self, death: Death, mark: Result<Option<Mark>, String>) {
        let before = self.marks.remove(&death);
        self.unclear.remove(&death);
        match mark {
            Ok(Some(mark)) => {
                self.marks.insert(death, mark);
                // Others may send it again before an answer that was lost is looked for, so who sent it before stays known.
                self.earlier.extend(before.map(|before| (death, before.operation)));
            }
            Ok(None) => {}
            Err(why) => drop(self.unclear.insert(death, why)),
        }
    }
}

/// Reads a record: the death, and its last replay. A death without a value was not sent back, on somebody's word.
fn mark_of(message: &BorrowedMessage<'_>) -> Option<(Death, Result<Option<Mark>, String>)> {
    let key = message.key()?;
    let (topic, offset) = (message.topic(), message.offset());
    let death = std::str::from_utf8(key).ok().and_then(|key| key.parse::<Death>().ok());
    let Some(death) = death else {
        tracing::warn!(topic, offset, "a record of the ledger is of no death; it is passed over");
        return None;
    };
    let Some(json) = message.payload() else { return Some((death, Ok(None))) };
    let mark = serde_json::from_slice::<Written>(json).map(|written| {
        let Written { operation, at, times, .. } = written;
        Some(Mark { operation, at, times })
    });
    // A mark that cannot be read is not taken for none: the letter would be sent a second time (G6).
    let unclear = |error| {
        format!(
            "the record at offset {offset} of topic `{topic}`, which says whether letter {death} was sent back, is none \
             of this version ({error}); write a record without a value under its key to go without it"
        )
    };
    Some((death, mark.map_err(unclear)))
}

/// Returns the offsets of the ledger, if it exists; it then has one partition.
pub(crate) async fn bounds(
    lookup: &Lookup,
    topic: &Arc<str>,
) -> Result<Option<Bounds>, SetupError> {
    let Some(partitions) = lookup.partitions_if_any(topic).await? else { return Ok(None) };
    if partitions.len() > 1 {
        return Err(SetupError::Config(format!(
            "topic `{topic}`, which says what was sent back, has {} partitions; it must have 1",
            partitions.len()
        )));
    }
    Ok(partitions.get(&0).copied())
}

/// All that a ledger says.
pub(super) async fn read(brokers: &Brokers, topic: &Arc<str>) -> Result<Read, SetupError> {
    let (brokers, name) = (brokers.clone(), Arc::clone(topic));
    // This limit is for a large ledger as a whole. A silence ends the reading earlier, in `Ledger::read`.
    let read = aside(PATIENCE * 20, move || {
        let mut ledger = Ledger::open(&brokers, &name)?;
        ledger.read(None)?;
        Ok(ledger.read)
    });
    read.await.unwrap_or_else(|| Err(silent(&format!("read topic `{topic}`"))))
}

/// Retention of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// The last record of each key for ever.
    Latest,
    /// Every record for this time, which is that of the broker.
    For(Duration),
}

/// Makes sure that there is a ledger, and that it does not forget too soon.
pub(crate) async fn ensure(
    lookup: &Lookup,
    topic: &Arc<str>,
    keeps: Keeps,
) -> Result<(), SetupError> {
    let what = format!("create topic `{topic}`, which says what was sent back");
    let answered = |error| SetupError::answered(&what, error);
    let admin: AdminClient<DefaultClientContext> =
        lookup.brokers.client(&[], &[])?.create().map_err(answered)?;
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    let options = options.operation_timeout(Some(PATIENCE));
    if bounds(lookup, topic).await?.is_none() {
        // One partition has one order: what was sent before a record of ours stands before it.
        // -1 leaves the replicas to the brokers.
        let new = NewTopic::new(topic, 1, TopicReplication::Fixed(-1));
        let retention = match keeps {
            Keeps::Latest => String::new(),
            Keeps::For(time) => time.as_millis().to_string(),
        };
        let new = match keeps {
            Keeps::Latest => new.set("cleanup.policy", "compact"),
            Keeps::For(_) => (new.set("cleanup.policy", "delete"))
                .set("retention.ms", &retention)
                // The clock of the broker counts: a claim is looked for by time, and the clocks of senders differ.
                .set("message.timestamp.type", "LogAppendTime"),
        };
        let created = admin.create_topics([&new], &options).await.map_err(answered)?;
        match created.into_iter().find_map(Result::err) {
            None | Some((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Some((_, code)) => return Err(answered(KafkaError::MetadataFetch(code))),
        }
        let until = Instant::now() + PATIENCE;
        while bounds(lookup, topic).await.ok().flatten().is_none() {
            if Instant::now() > until {
                return Err(silent(&what));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    // A ledger that keeps for a time may be set to another time: settle says where it does not go back far enough.
    if keeps != Keeps::Latest {
        return Ok(());
    }
    let of = [ResourceSpecifier::Topic(topic)];
    let found = admin.describe_configs(&of, &options).await.map_err(answered)?;
    // A user who may not read the settings is not refused for that: the ledger is taken to be as it should be.
    let found = found.into_iter().next().and_then(Result::ok);
    let policy = found.as_ref().and_then(|found| found.get("cleanup.policy"));
    match policy.and_then(|entry| entry.value.as_deref()) {
        // A letter whose mark retention has removed would be sent again (G6), so this is refused and not just told.
        Some(policy) if policy.contains("delete") => Err(SetupError::Config(format!(
            "topic `{topic}` says what was sent back, and its `cleanup.policy` is `{policy}`, so that it forgets; set it \
             to `compact`"
        ))),
        _ => Ok(()),
    }
}

fn silent(what: &str) -> SetupError {
    SetupError::Unavailable(format!("{what}: no answer within {PATIENCE:?}"), None)
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { topic, next, read, .. } = self;
        f.debug_struct("Ledger")
            .field("topic", topic)
            .field("next", next)
            .field("marks", &read.marks.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_operation_has_sent_is_known_after_others_have_sent_it_again() {
        let [death, beside] =
            [1, 2].map(|n| Death { letter: dlq_testkit::fixtures::letter(n).id, generation: 0 });
        let [ours, others] = [1, 2].map(|n| OperationId::of("ana", Timestamp::EPOCH, n));
        let mark =
            |operation, times| Ok(Some(Mark { operation, at: Timestamp::from_millis(1), times }));
        let mut read = Read::default();
        read.take(death, mark(ours, 1));
        assert!(read.is_sent_by(&death, ours));
        read.take(death, mark(others, 2));
        assert_eq!(read.marks[&death].operation, others, "who has sent it last");
        assert!(read.is_sent_by(&death, ours) && read.is_sent_by(&death, others));
        assert!(!read.is_sent_by(&beside, ours));
        read.take(beside, mark(ours, 1));
        read.take(beside, Ok(None));
        assert!(!read.is_sent_by(&beside, ours), "somebody says that it was not");
    }
}
