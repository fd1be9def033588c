//! The topics that are ours: [`DlqTopic`] for the dead, [`RetryTopics`] for what waits for its next attempt.
//!
//! Making them ready is: look which are there, read the settings of the consumer's topic, create what is missing by one
//! request, wait until each new one has leaders, read the settings of all, judge them.
//!
//! # If the process dies here
//!
//! | before | what is there | running it again |
//! |---|---|---|
//! | the request | nothing new | creates all |
//! | its answer | any part of what is missing: brokers create topic by topic | creates the rest |
//! | leaders | topics that cannot be written to yet | waits, as far as they are new to it; else tells it |
//! | the judgement | topics that may not do | judges them the same |
//!
//! Another process that does the same at the same time is the second row: what it created first is judged like what was
//! there before. Nothing that exists is changed, so that nothing can be half changed.

mod cluster;
mod config;
mod create;
mod partition;
mod rules;
mod seen;
mod wanted;

use std::collections::BTreeMap;
use std::time::Instant;

use dlq_core::{Finding, Severity};
use rdkafka::admin::ResourceSpecifier;

pub use config::{DlqTopic, RetryTopics};

use cluster::PAUSE;
pub(crate) use cluster::{Cluster, PATIENCE, SETTLING, Troubles, blocking, failed, metadata};
pub(crate) use partition::partition_for;
pub(crate) use rules::{judge, topic_name};
pub(crate) use seen::{Look, Seen};
pub(crate) use wanted::{Role, WantedTopic, merge};

use crate::client::brokers::Brokers;
use crate::client::error::SetupError;

/// A topic that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundTopic {
    pub(crate) name: String,
    pub(crate) partitions: i32,
}

/// Result of [`make`]: changes and observations.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) created: Vec<String>,
    pub(crate) found: Vec<FoundTopic>,
    pub(crate) findings: Vec<Finding>,
}

/// Sees that these topics are there and will do, and their sources too, which need not be among them; creates what is
/// missing if it is to. Sources are never created.
///
/// What will not do is an error, lesser matters are logged. The answer has the topics in the order of `wanted`. It is
/// there within a minute or so: each request may take ten seconds, and the first that fails is the last.
pub(crate) async fn ensure(
    brokers: &Brokers,
    wanted: &[WantedTopic],
    create: bool,
) -> Result<Vec<FoundTopic>, SetupError> {
    let made = make(brokers, wanted, create).await?;
    let (bad, lesser): (Vec<_>, Vec<_>) =
        made.findings.iter().partition(|finding| finding.severity == Severity::Error);
    for finding in lesser {
        let Finding { subject, setting, found, want, advice, .. } = finding;
        tracing::warn!(setting, found, want, "{subject}: {advice}");
    }
    if bad.is_empty() { Ok(made.found) } else { Err(SetupError::Config(rules::list(&bad))) }
}

/// As [`ensure`], with what it finds.
pub(crate) async fn make(
    brokers: &Brokers,
    wanted: &[WantedTopic],
    create: bool,
) -> Result<Made, SetupError> {
    let (brokers, wanted) = (brokers.clone(), wanted.to_vec());
    blocking(move || make_here(&brokers, &wanted, create)).await
}

fn make_here(brokers: &Brokers, asked: &[WantedTopic], create: bool) -> Result<Made, SetupError> {
    let wanted = merge(asked)?;
    let mut cluster = Cluster::new(brokers, None)?;
    let (mut all, mut missing) = (BTreeMap::new(), Vec::new());
    let creates = |topic: &WantedTopic| create && topic.role != Role::Source;
    let settling = Instant::now() + SETTLING;
    for (name, topic) in &wanted {
        // A topic that is to be created is not waited for, since creating one that is there is no error.
        let until = if creates(topic) { Instant::now() } else { settling };
        match cluster.look_until(until, name)? {
            Look::There(seen) => _ = all.insert(name.clone(), seen),
            Look::Missing => missing.push(topic),
            Look::Refused(text) => return Err(SetupError::Config(text)),
        }
    }
    // Told before anything is created, so that a wrong name does not leave half of a consumer's topics behind.
    let absent = missing.iter().filter(|topic| !creates(topic)).map(|topic| absent(topic));
    let absent: Vec<_> = absent.collect();
    if !absent.is_empty() {
        return Err(SetupError::NotFound(absent.join("; ")));
    }
    // They are read before the creation: the largest message of a new topic follows from that of its sources.
    read_settings(&mut cluster, Instant::now(), &mut all)?;
    let mut made = Made::default();
    if !missing.is_empty() {
        made.created = cluster.create(&missing, &all)?;
        for topic in &missing {
            // A write to a topic without leaders would fail or wait, and the caller opens its producer next.
            all.insert(topic.name.clone(), await_leaders(&mut cluster, &topic.name)?);
        }
        read_settings(&mut cluster, Instant::now() + SETTLING, &mut all)?;
    }
    for topic in wanted.values() {
        made.findings.extend(judge(topic, &all[&topic.name], &all, cluster.ids.len()));
    }
    let found = |topic: &WantedTopic| FoundTopic {
        name: topic.name.clone(),
        partitions: all[&topic.name].partitions,
    };
    made.found = asked.iter().map(found).collect();
    Ok(made)
}

fn absent(topic: &WantedTopic) -> String {
    let name = topic_name(&topic.name);
    if topic.role == Role::Source {
        format!("{name} is not there; check its name, or create it")
    } else {
        let kind = topic.kind();
        format!("{name} is not there, {kind}; create it, or have missing topics created")
    }
}

/// Reads the settings of all these topics, again until then where there are none.
pub(crate) fn read_settings(
    cluster: &mut Cluster,
    until: Instant,
    all: &mut BTreeMap<String, Seen>,
) -> Result<(), SetupError> {
    let names: Vec<_> = all.keys().cloned().collect();
    let of: Vec<_> = names.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
    let settings = cluster.settings(until, &of)?;
    for (seen, settings) in all.values_mut().zip(settings) {
        seen.settings = settings;
    }
    Ok(())
}

/// A topic is known to the brokers, and has leaders, a moment after it was created.
fn await_leaders(cluster: &mut Cluster, name: &str) -> Result<Seen, SetupError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = match cluster.look(name)? {
            Look::There(seen) if seen.leaderless.is_empty() && seen.partitions > 0 => {
                return Ok(seen);
            }
            Look::There(seen) => format!("no leader of partitions {:?}", seen.leaderless),
            Look::Missing => "it is not known".to_owned(),
            Look::Refused(text) => return Err(SetupError::Config(text)),
        };
        if Instant::now() > deadline {
            return Err(SetupError::Unavailable(
                format!(
                    "{} was created, and is not ready: {found}; look at the brokers",
                    topic_name(name)
                ),
                None,
            ));
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests;
