//! Records of retry topics that groups share, which no group would take: each group passes over what is of another.

use std::collections::{BTreeMap, BTreeSet};

use dlq_core::Severity::{Error, Note, Warning};

use super::{Deployment, Finding};
use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::ladder::Ladder;
use crate::client::topics::{Cluster, Look, blocking, topic_name};
use crate::client::wire;
use crate::dead::newest;

/// Number of offsets of each partition that are looked at, from its end.
const OFFSETS: u64 = 10_000;

/// Returns a finding for each group and each handler that has records in a shared retry topic and is not known to read it.
pub(super) async fn check(deployment: &Deployment, brokers: &Brokers) -> Vec<Finding> {
    let mut groups: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for plan in &deployment.consumers {
        // In topics of a group's own everything is for that group.
        let shared = plan.ladder.as_ref().filter(|ladder| Ladder::is_shared(ladder));
        let stages = shared.and_then(|ladder| ladder.stages(&plan.topic, &plan.group).ok());
        for stage in stages.into_iter().flatten() {
            groups.entry(stage.topic).or_default().insert(&plan.group);
        }
    }
    let mut findings = Vec::new();
    for (topic, known) in groups {
        match of_topic(brokers, &topic, &known).await {
            Ok(found) => findings.extend(found),
            // What is missing has a finding of its own.
            Err(SetupError::NotFound(_)) => {}
            Err(error) => {
                let advice = format!("whose records it has cannot be told ({error})");
                let finding = Finding::new(Note, &topic_name(&topic), "groups");
                findings.push(finding.found("unknown", "known").advice(advice));
            }
        }
    }
    findings
}

async fn of_topic(
    brokers: &Brokers,
    topic: &str,
    known: &BTreeSet<&str>,
) -> Result<Vec<Finding>, SetupError> {
    // By the group that a record names, or by the handler where it names none.
    let mut of_group: BTreeMap<String, u64> = BTreeMap::new();
    let mut of_handler: BTreeMap<String, u64> = BTreeMap::new();
    let mut records = newest(brokers, topic, OFFSETS).await?;
    while let Some(record) = records.next().await? {
        let unpacked = wire::unpack(&record, brokers.cluster_shared());
        match (unpacked.group, unpacked.decoded.consumer) {
            (Some(group), _) if known.contains(&*group) => {}
            (Some(group), _) => *of_group.entry(group.to_string()).or_default() += 1,
            (None, Some(handler)) if !known.contains(&*handler) => {
                *of_handler.entry(handler).or_default() += 1;
            }
            (None, _) => {}
        }
    }
    let (asked, at) = (of_group.keys().cloned().collect(), topic.to_owned());
    let of_brokers = brokers.clone();
    let absent = blocking(move || absent(&of_brokers, &at, asked)).await?;
    // A group that has committed there reads the topic, and is only no part of this deployment.
    of_group.retain(|group, _| absent.contains(group));
    let finding = |severity| Finding::new(severity, &topic_name(topic), "groups");
    let of_group = of_group.into_iter().map(|(group, count)| {
        finding(Error)
            .found(format!("{count} records of group `{group}`"), "records of groups that read it")
            .advice(
                "that group has read nothing of it, and the others pass over them; start it, or send their letters back \
                 once more, to another group",
            )
    });
    let of_handler = of_handler.into_iter().map(|(handler, count)| {
        finding(Warning)
            .found(format!("{count} records for `{handler}`, of no group"), "records of a group")
            .advice(
                "a group without a handler of that name passes over them; if none has it, send their letters back once \
                 more",
            )
    });
    Ok(of_group.chain(of_handler).collect())
}

/// Returns those of these groups that have committed nothing in a topic.
fn absent(
    brokers: &Brokers,
    topic: &str,
    groups: BTreeSet<String>,
) -> Result<BTreeSet<String>, SetupError> {
    let mut absent = BTreeSet::new();
    for group in groups {
        // A client asks for the offsets of its own group only.
        let mut cluster = Cluster::new(brokers, Some(&group))?;
        let Look::There(seen) = cluster.look(topic)? else { continue };
        let of: Vec<_> = (0..seen.partitions).map(|partition| (topic, partition)).collect();
        if cluster.committed(&group, &of)?.iter().all(Option::is_none) {
            absent.insert(group);
        }
    }
    Ok(absent)
}
