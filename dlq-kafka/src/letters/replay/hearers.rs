//! Which consumer groups will hear letters of others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dlq_core::StoreError;
use dlq_core::replay::{Hearer, ReplayPlan};
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;

use super::super::aside::aside;
use super::super::lookup;
use super::super::send::REPLAYING;
use crate::brokers::Brokers;
use crate::error::SetupError;

/// For how long groups are asked. Each needs a connection of its own.
const PATIENCE: Duration = Duration::from_secs(10);

/// Notes the groups that have committed offsets in a topic that letters go to, other than those whose letters go there.
pub(super) async fn find(
    brokers: &Brokers,
    owners: &BTreeMap<String, BTreeSet<&str>>,
    plan: &mut ReplayPlan,
) -> Result<(), StoreError> {
    let (brokers, topics) = (brokers.clone(), owners.keys().cloned().collect::<Vec<_>>());
    if topics.is_empty() {
        return Ok(());
    }
    let found = aside(PATIENCE * 4, move || readers(&brokers, &topics)).await;
    let unknown = "which groups read these topics is not known";
    match found {
        Some(Ok((readers, is_all))) => {
            let others = |(topic, group): &(String, String)| {
                owners.get(topic).is_some_and(|owners| owners.iter().any(|owner| owner != group))
            };
            let others = readers.into_iter().filter(others);
            plan.hearers = others.map(|(stream, consumer)| Hearer { stream, consumer }).collect();
            if !is_all {
                plan.notes
                    .push(format!("there are so many groups that not all were asked: {unknown}"));
            }
        }
        Some(Err(SetupError::Unavailable(text, source))) => {
            return Err(SetupError::Unavailable(text, source).for_store(REPLAYING));
        }
        Some(Err(error)) => plan.notes.push(format!("{unknown}: {error}")),
        None => plan.notes.push(format!("{unknown}: no answer")),
    }
    Ok(())
}

/// Topics and the groups that have read them, and whether all groups were asked.
fn readers(
    brokers: &Brokers,
    topics: &[String],
) -> Result<(BTreeSet<(String, String)>, bool), SetupError> {
    let answered = |error: KafkaError| SetupError::answered("ask for consumer groups", error);
    let begun = Instant::now();
    let client: BaseConsumer = lookup::config(brokers)?.create().map_err(answered)?;
    let groups = client.fetch_group_list(None, PATIENCE).map_err(answered)?;
    let mut asked = TopicPartitionList::new();
    for topic in topics {
        let metadata = client.fetch_metadata(Some(topic), PATIENCE).map_err(answered)?;
        for partition in metadata.topics().iter().flat_map(|found| found.partitions()) {
            asked.add_partition(topic, partition.id());
        }
    }
    let mut readers = BTreeSet::new();
    for group in groups.groups() {
        if begun.elapsed() > PATIENCE {
            return Ok((readers, false));
        }
        let mut config = lookup::config(brokers)?;
        config.set("group.id", group.name());
        let client: BaseConsumer = config.create().map_err(answered)?;
        // A group that does not let us ask may hear them, but nobody can say so.
        let Ok(committed) = client.committed_offsets(asked.clone(), PATIENCE) else { continue };
        let read = committed
            .elements()
            .into_iter()
            .filter(|of| of.offset().to_raw().is_some_and(|at| at >= 0));
        readers.extend(read.map(|of| (of.topic().to_owned(), group.name().to_owned())));
    }
    Ok((readers, true))
}
