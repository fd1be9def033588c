//! Stores that the letters of a topic go into.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::log::IngestMark;
use dlq_core::{StoreError, StoreErrorKind};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaResult;

use super::mark::{self, Mark};
use super::{DEFAULTS, blocking};
use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::groups::Groups;
use crate::client::reach::{self, Heard, Yields};
use crate::dead::session::Broken;

const LOOKING: &str = "look for the stores of dead letters";

/// Returns the stores that the letters of this topic go into, by the commits of all groups by which it can be followed; see
/// [`group_of`]. A group that this user may not see is skipped, except for the first one.
pub(in super::super) async fn all(
    brokers: &Brokers,
    topic: &Arc<str>,
) -> Result<Vec<IngestMark>, StoreError> {
    let (brokers, topic) = (brokers.clone(), Arc::clone(topic));
    let find = move || Looking::at(&brokers, &topic)?.all();
    blocking(LOOKING, move || find().map_err(|error: SetupError| error.for_store(LOOKING))).await
}

/// Returns the store into which the letters of this topic go by this group, if it has one. No other group is asked.
pub(in super::super) async fn one(
    brokers: &Brokers,
    topic: &Arc<str>,
    group: String,
) -> Result<Option<IngestMark>, StoreError> {
    let (brokers, topic) = (brokers.clone(), Arc::clone(topic));
    check_group(&topic, &group, LOOKING)?;
    let find = move || Looking::at(&brokers, &topic)?.of(&group);
    blocking(LOOKING, move || find().map_err(|error: SetupError| error.for_store(LOOKING))).await
}

/// Returns the group by which a topic is followed, unless another is given.
pub(in super::super) fn group_of(topic: &str) -> String {
    format!("dlq-ingest.{topic}")
}

/// Checks that this topic may be followed by this group: by another nobody would find the store.
pub(super) fn check_group(
    topic: &str,
    group: &str,
    operation: &'static str,
) -> Result<(), StoreError> {
    let first = group_of(topic);
    if is_of(&first, group) {
        return Ok(());
    }
    Err(StoreError::new(StoreErrorKind::Refused, operation).with_detail(format!(
        "by group `{group}` nobody would see that the letters of `{topic}` go into a store; name it `{first}`, or for one \
         more store `{first}.{group}`"
    )))
}

fn is_of(first: &str, group: &str) -> bool {
    let more = group.strip_prefix(first);
    more.is_some_and(|more| more.is_empty() || (more.starts_with('.') && more.len() > 1))
}

/// Asks the cluster for the number of partitions of a topic.
///
/// # Errors
///
/// `NotFound` when there is no such topic, with the names of some that there are; `InvalidConfig` when a setting will not
/// do or the cluster refuses us; `Unavailable` when it does not answer within five seconds, with what the client complains
/// of.
pub async fn find_topic(brokers: &Brokers, topic: &str) -> Result<usize, StoreError> {
    const FINDING: &str = "find a topic";
    let (brokers, topic) = (brokers.clone(), topic.to_owned());
    let find = move || {
        let consumer = client(&brokers, &group_of(&topic))?;
        let partitions =
            reach::partitions(&consumer, consumer.context(), &brokers, &topic, Yields::Nothing)?;
        Ok(partitions.len())
    };
    blocking(FINDING, move || find().map_err(|error: SetupError| error.for_store(FINDING))).await
}

/// Looks for what groups say of a topic; blocks.
struct Looking<'a> {
    brokers: &'a Brokers,
    topic: &'a str,
    partitions: Vec<i32>,
}

impl<'a> Looking<'a> {
    fn at(brokers: &'a Brokers, topic: &'a str) -> Result<Self, SetupError> {
        let consumer = client(brokers, &group_of(topic))?;
        let partitions =
            reach::partitions(&consumer, consumer.context(), brokers, topic, Yields::Nothing)?;
        Ok(Self { brokers, topic, partitions })
    }

    fn all(&self) -> Result<Vec<IngestMark>, SetupError> {
        let first = group_of(self.topic);
        let mut marks: Vec<_> = self.of(&first)?.into_iter().collect();
        for group in self.others(&first)? {
            match self.of(&group) {
                Err(SetupError::Config(why)) => {
                    tracing::warn!(why, "whether this group has a store is not known");
                }
                found => marks.extend(found?),
            }
        }
        Ok(marks)
    }

    /// The groups besides the first, by name.
    fn others(&self, first: &str) -> Result<BTreeSet<String>, SetupError> {
        let list = match Groups::all(self.brokers) {
            // Who may not list them knows the first one.
            Err(SetupError::Config(why)) => {
                tracing::warn!(why, "whether more groups have stores is not known");
                return Ok(BTreeSet::new());
            }
            list => list?,
        };
        // A group that is not seen may have a store, and letters that are sent past that store would be sent again from it
        // (G6).
        if let Some(why) = list.unknown() {
            let text = format!("whether more groups have stores is not known: {why}");
            return Err(SetupError::Unavailable(text, None));
        }
        let names = list.iter().map(|group| group.name());
        let others = names.filter(|name| *name != first && is_of(first, name));
        Ok(others.map(str::to_owned).collect())
    }

    fn of(&self, group: &str) -> Result<Option<IngestMark>, SetupError> {
        mark_of(&client(self.brokers, group)?, group, self.topic, &self.partitions)
    }
}

fn mark_of(
    client: &BaseConsumer<Heard>,
    group: &str,
    topic: &str,
    partitions: &[i32],
) -> Result<Option<IngestMark>, SetupError> {
    let what = format!("read the offsets of group `{group}`");
    let ask = |patience| read(client, topic, partitions, patience);
    Ok(match reach::of_group(client, client.context(), &what, ask)? {
        GroupOffsets::Mark(Mark { store, confirmed, .. }) => {
            Some(IngestMark::new(group, store, confirmed))
        }
        GroupOffsets::Nothing | GroupOffsets::Foreign => None,
    })
}

/// Asks again and again whether the letters of a topic go into a store, by clients that stay connected.
pub(in super::super) struct StoreWatch {
    topic: Arc<str>,
    partitions: Vec<i32>,
    groups: Vec<(String, BaseConsumer<Heard>)>,
}

impl StoreWatch {
    /// Looks for the groups by which the topic is followed now, and connects for each of them and for the first; blocks. A
    /// group for one more store that comes to be later is not among them.
    pub(in super::super) fn open(brokers: &Brokers, topic: &Arc<str>) -> Result<Self, SetupError> {
        let looking = Looking::at(brokers, topic)?;
        let first = group_of(topic);
        let others = looking.others(&first)?;
        let connect = |group: String| {
            let client = client(brokers, &group)?;
            Ok((group, client))
        };
        let groups: Result<_, SetupError> =
            std::iter::once(first).chain(others).map(connect).collect();
        Ok(Self { topic: Arc::clone(topic), partitions: looking.partitions, groups: groups? })
    }

    /// Refuses a replay of letters that go into a store, which would not learn of it; blocks.
    pub(in super::super) fn refuse_kept(&self) -> Result<(), Broken> {
        let first = group_of(&self.topic);
        for (group, client) in &self.groups {
            let store = match mark_of(client, group, &self.topic, &self.partitions) {
                Ok(mark) => mark.map(|mark| mark.store),
                // As `all`: what this user may not see of another group is skipped.
                Err(SetupError::Config(_)) if *group != first => None,
                Err(error) => return Err(error.into()),
            };
            if let Some(store) = store {
                return Err(Broken::Kept(format!(
                    "the letters of topic `{}` are kept in {store}, which would not learn of it; send them from that store",
                    self.topic
                )));
            }
        }
        Ok(())
    }
}

/// A client that asks of a group, and has not joined it.
pub(super) fn client(brokers: &Brokers, group: &str) -> Result<BaseConsumer<Heard>, SetupError> {
    let config =
        brokers.client(&DEFAULTS, &[("group.id", group), ("enable.auto.commit", "false")])?;
    let made = config.create_with_context(Heard::default());
    made.map_err(|error| SetupError::answered("make a client", error))
}

/// Content of a group's offsets.
pub(super) enum GroupOffsets {
    Nothing,
    /// Offsets, but of nobody who follows.
    Foreign,
    /// The sum of the partitions.
    Mark(Mark),
}

/// Reads them; blocks for so long at most.
pub(super) fn read<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partitions: &[i32],
    patience: Duration,
) -> KafkaResult<GroupOffsets> {
    let committed = consumer.committed_offsets(mark::all(topic, partitions), patience)?;
    let mut found = GroupOffsets::Nothing;
    for element in committed.elements() {
        // A partition of which nothing is known may be the one that has the mark.
        element.error()?;
        if mark::offset(&element).is_none() {
            continue;
        }
        found = match (Mark::read(&element), found) {
            (Some(mark), GroupOffsets::Mark(mut sum)) => {
                sum.confirmed += mark.confirmed;
                GroupOffsets::Mark(sum)
            }
            (Some(mark), _) => GroupOffsets::Mark(mark),
            // Foreign only as long as no partition has a mark: one of them names the store of the whole group.
            (None, GroupOffsets::Nothing) => GroupOffsets::Foreign,
            (None, found) => found,
        };
    }
    Ok(found)
}
