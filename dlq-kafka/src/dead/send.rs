use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use dlq_core::protocol::Replay;
use dlq_core::replay::Skipped;
use dlq_core::{BindingKey, Clock, DeadLetter, OperationId, StoreError, SystemClock, Timestamp};
use rdkafka::message::OwnedHeaders;

use super::ledger::{BEGUN, Written};
use super::replay::Way;
use crate::client::ladder::{Ladder, is_topic};
use crate::dead::dispatch::{
    OutgoingRecord, Recipient, born_in, first_stage, group_of, pack_letter, refused,
};

/// Destination of letters.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum KafkaTarget {
    /// To the topics where they were born, where every group that reads them hears them.
    Origin {
        /// True if each letter goes to the partition where it was born. Otherwise its key decides, as it does for
        /// Java's producers: by `murmur2`, unless the setting `partitioner` of [`Brokers::with`](crate::Brokers::with)
        /// says otherwise.
        keep_partition: bool,
    },
    /// To this topic.
    Topic(String),
    /// To the consumer that failed and to nobody else: to the first stage of this ladder, which must be the one that its
    /// [group](crate::KafkaReplay::group) reads. It runs at once, whatever the stage's delay is.
    Handler(Ladder),
}

/// Makes the records that are sent.
#[derive(Debug)]
pub(super) struct Shipment {
    /// The topic that the letters are from.
    pub(super) from: String,
    pub(super) ledger: Arc<str>,
    pub(super) cluster: Arc<str>,
    /// The secret by which consumers of the topics believe whose letter it is.
    pub(super) key: Option<BindingKey>,
    pub(super) target: KafkaTarget,
    pub(super) operation: OperationId,
    pub(super) who: String,
    /// The group whose handlers get the letters, if somebody has said it.
    pub(super) group: Option<Arc<str>>,
    /// Topics that letters go to, and how many partitions they have, or why nothing can be sent there.
    pub(super) topics: HashMap<String, Result<usize, String>>,
    /// Ways by which nothing is sent since nobody would take it, each with the reason.
    pub(super) unheard: BTreeMap<Way, String>,
}

impl Shipment {
    /// The topic that a letter goes to.
    pub(super) fn topic_for(&self, letter: &DeadLetter) -> Result<String, Skipped> {
        let origin = &letter.origin;
        // A letter whose birth is not known has the place where it stands for its origin, and that is no place to send it to.
        let is_known = origin.transport() == "kafka"
            && origin.cluster() == &*self.cluster
            && origin.stream() != self.from
            && is_topic(origin.stream());
        match &self.target {
            KafkaTarget::Topic(topic) => Ok(topic.clone()),
            _ if !is_known => Err(Skipped::NoOrigin),
            KafkaTarget::Origin { .. } => Ok(origin.stream().to_owned()),
            KafkaTarget::Handler(ladder) => {
                let group = self.group_of(letter).ok_or(Skipped::NoOrigin)?;
                first_stage(letter, group, ladder).ok_or(Skipped::NoOrigin)
            }
        }
    }

    /// Returns the group whose handlers get a letter; `None` where it is not known whose letter it is.
    pub(super) fn group_of<'a>(&'a self, letter: &'a DeadLetter) -> Option<&'a str> {
        match self.group.as_deref() {
            Some(group) => Some(group).filter(|group| !group.is_empty()),
            None => group_of(letter),
        }
    }

    /// Returns the ways that letters go to their handlers, each with the topics in which its letters were born.
    pub(super) fn ways<'a>(
        &self,
        letters: impl IntoIterator<Item = &'a DeadLetter>,
    ) -> BTreeMap<Way, BTreeSet<String>> {
        let mut ways: BTreeMap<Way, BTreeSet<String>> = BTreeMap::new();
        for letter in letters {
            let (Ok(topic), Some(group)) = (self.topic_for(letter), self.group_of(letter)) else {
                continue;
            };
            // Of a topic that cannot be written to that is said.
            if self.topics.get(&topic).is_some_and(Result::is_ok) {
                let born = letter.origin.stream().to_owned();
                ways.entry((topic, group.to_owned())).or_default().insert(born);
            }
        }
        ways
    }

    /// The topics that these letters go to.
    pub(super) fn topics_for<'a>(
        &self,
        letters: impl IntoIterator<Item = &'a DeadLetter>,
    ) -> BTreeSet<String> {
        letters.into_iter().filter_map(|letter| self.topic_for(letter).ok()).collect()
    }

    /// The record of a letter that stands at this partition and offset, which is sent back for this time.
    pub(super) fn pack(
        &self,
        letter: &DeadLetter,
        at: (u32, u64),
        count: u32,
        now: Timestamp,
    ) -> Result<OutgoingRecord, StoreError> {
        let topic = self.topic_for(letter).map_err(|why| refused(why.to_string()))?;
        let partitions = match self.topics.get(&topic) {
            Some(Ok(partitions)) => *partitions,
            Some(Err(why)) => return Err(refused(why.clone())),
            None => return Err(refused(self.missing(&topic))),
        };
        let (from, (partition, offset)) = (&self.from, at);
        let replay = Replay {
            operation: self.operation,
            count,
            from: format!("{from}/{partition}/{offset}"),
            at: now,
        };
        let (partition, recipient) = match &self.target {
            KafkaTarget::Origin { keep_partition: true } => {
                (Some(born_in(letter, &topic, partitions)?), Recipient::Everybody)
            }
            KafkaTarget::Handler(ladder) => {
                let group = self.group_of(letter).unwrap_or_default();
                if ladder.is_shared()
                    && let Some(why) = self.unheard.get(&(topic.clone(), group.to_owned()))
                {
                    return Err(refused(format!(
                        "{why} Other groups that share that topic pass over it; name the group that has its handler"
                    )));
                }
                // A topic of its own needs no name: everything in it is the group's, whatever its consumer is called by then.
                (None, Recipient::Handler { group: ladder.is_shared().then_some(group) })
            }
            _ => (None, Recipient::Everybody),
        };
        pack_letter(letter, &replay, topic.into(), partition, recipient, self.key.as_ref())
    }

    /// The record that says that it was sent.
    pub(super) fn mark(
        &self,
        letter: &DeadLetter,
        to: &str,
        times: u32,
        now: Timestamp,
    ) -> Result<OutgoingRecord, StoreError> {
        let key = letter.death().to_string();
        let who = self.who.clone();
        let operation = self.operation;
        let written = Written { operation, to: to.to_owned(), at: now, who, times, cluster: None };
        self.entry(key.into(), &written)
    }

    /// The record that says that somebody begins.
    pub(super) fn begun(&self, at: Timestamp) -> Result<OutgoingRecord, StoreError> {
        let (who, cluster) = (self.who.clone(), Some(Arc::clone(&self.cluster)));
        let (operation, to, times) = (self.operation, String::new(), 0);
        let written = Written { operation, to, at, who, times, cluster };
        self.entry(Bytes::from_static(BEGUN), &written)
    }

    fn entry(&self, key: Bytes, written: &Written) -> Result<OutgoingRecord, StoreError> {
        let json = serde_json::to_vec(written).map_err(|error| refused(error.to_string()))?;
        Ok(OutgoingRecord {
            topic: Arc::clone(&self.ledger),
            // One partition has one order, by which whoever has read its own record knows all that came before.
            partition: Some(0),
            key: Some(key),
            value: Some(json.into()),
            headers: OwnedHeaders::new(),
        })
    }

    /// Returns the error text for a missing topic.
    pub(super) fn missing(&self, topic: &str) -> String {
        match &self.target {
            KafkaTarget::Handler(_) => format!(
                "there is no retry topic `{topic}`, so that nobody would hear it; start its consumer, or name the ladder \
                 that it has"
            ),
            _ => format!("there is no topic `{topic}`; create it, or name another"),
        }
    }
}

pub(super) fn now() -> Timestamp {
    SystemClock.now()
}
