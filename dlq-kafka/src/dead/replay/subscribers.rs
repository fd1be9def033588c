//! Consumer groups that will receive letters of others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use dlq_core::StoreError;
use dlq_core::replay::{ReplayPlan, Subscriber};
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};

use super::super::lookup;
use super::{ASKING, some};
use crate::client::aside::aside;
use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::groups::Groups;
use crate::client::reach::{self, Heard};
use crate::dead::dispatch::REPLAYING;

/// Topics, and a group that has read them.
type Reader = (String, String);

/// Notes the groups that have committed offsets in a topic that letters go to, other than those whose letters go there.
pub(super) async fn find(
    brokers: &Brokers,
    owners: &BTreeMap<String, BTreeSet<&str>>,
    plan: &mut ReplayPlan,
) -> Result<(), StoreError> {
    let (readers, notes) = listeners(brokers, owners.keys().cloned().collect()).await?;
    let others = |subscriber: &Subscriber| {
        let owners = owners.get(&subscriber.stream);
        owners.is_some_and(|owners| owners.iter().any(|owner| *owner != subscriber.consumer))
    };
    plan.subscribers = readers.into_iter().filter(others).collect();
    plan.notes.extend(notes);
    Ok(())
}

/// The groups that have committed offsets in these topics, and what is not known of groups.
pub(crate) async fn listeners(
    brokers: &Brokers,
    topics: Vec<String>,
) -> Result<(BTreeSet<Subscriber>, Vec<String>), StoreError> {
    let (mut subscribers, mut notes) = (BTreeSet::new(), Vec::new());
    if topics.is_empty() {
        return Ok((subscribers, notes));
    }
    let brokers = brokers.clone();
    let found = aside(ASKING * 4, move || Readers::find(&brokers, &topics)).await;
    let unknown = "which groups read these topics is not known";
    match found {
        Some(Ok(Readers { readers, silent, unasked, why })) => {
            subscribers = (readers.into_iter())
                .map(|(stream, consumer)| Subscriber { stream, consumer })
                .collect();
            notes.extend(
                silent.map(|why| format!("whether more groups hear them is not known: {why}")),
            );
            if !unasked.is_empty() {
                let groups = some(&unasked);
                notes.push(format!(
                    "whether they are heard by {groups} is not known: {}",
                    why.as_deref().unwrap_or("there are so many groups that not all were asked")
                ));
            }
        }
        // A cluster that is away fails the plan. Whoever may not ask is told what is not known, and may still send.
        Some(Err(SetupError::Unavailable(text, source))) => {
            return Err(SetupError::Unavailable(text, source).for_store(REPLAYING));
        }
        Some(Err(error)) => notes.push(format!("{unknown}: {error}")),
        None => notes.push(format!("{unknown}: no answer")),
    }
    Ok((subscribers, notes))
}

/// Groups that have read topics.
#[derive(Default)]
struct Readers {
    readers: BTreeSet<Reader>,
    /// Reason why there may be more groups than were asked, if so.
    silent: Option<String>,
    /// Groups that could not be asked, and why one of them could not.
    unasked: BTreeSet<String>,
    why: Option<String>,
}

impl Readers {
    fn find(brokers: &Brokers, topics: &[String]) -> Result<Self, SetupError> {
        let answered =
            |error: KafkaError| SetupError::answered("ask for the topics that groups read", error);
        // Kafka has no list of a topic's readers. A group that has committed an offset there is taken for one.
        let groups = Groups::all(brokers)?;
        let (begun, silent) = (Instant::now(), groups.unknown());
        let client: BaseConsumer = lookup::config(brokers)?.create().map_err(answered)?;
        let mut asked = TopicPartitionList::new();
        for topic in topics {
            let metadata = client.fetch_metadata(Some(topic), ASKING).map_err(answered)?;
            for partition in metadata.topics().iter().flat_map(|found| found.partitions()) {
                asked.add_partition(topic, partition.id());
            }
        }
        let mut found = Self { silent, ..Self::default() };
        for group in groups.iter().map(|group| group.name()) {
            // A cluster may have thousands of groups. The plan names those that were not asked instead of taking forever.
            if begun.elapsed() > ASKING {
                found.unasked.insert(group.to_owned());
                continue;
            }
            match committed(brokers, group, &asked) {
                Ok(committed) => {
                    let read = committed.elements().into_iter();
                    // A partition without a commit has a negative offset.
                    let read = read.filter(|of| of.offset().to_raw().is_some_and(|at| at >= 0));
                    let readers = read.map(|of| (of.topic().to_owned(), group.to_owned()));
                    found.readers.extend(readers);
                }
                Err(error) => {
                    found.unasked.insert(group.to_owned());
                    found.why.get_or_insert_with(|| error.to_string());
                }
            }
        }
        Ok(found)
    }
}

/// Returns the committed offset of a group, for every requested partition.
pub(super) fn committed(
    brokers: &Brokers,
    group: &str,
    asked: &TopicPartitionList,
) -> Result<TopicPartitionList, SetupError> {
    let what = format!("read the offsets of group `{group}`");
    let mut config = lookup::config(brokers)?;
    // A client asks for the offsets of its own group only, so each group takes a client.
    let made = config.set("group.id", group).create_with_context(Heard::default());
    let client: BaseConsumer<Heard> = made.map_err(|error| SetupError::answered(&what, error))?;
    reach::of_group(&client, client.context(), &what, |patience| -> KafkaResult<_> {
        let committed = client.committed_offsets(asked.clone(), patience)?;
        committed.elements().iter().try_for_each(|of| of.error())?;
        Ok(committed)
    })
}
