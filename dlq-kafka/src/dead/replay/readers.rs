//! Finds out whether groups read the retry topics by which letters are sent to their handlers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;

use super::super::lookup;
use super::ASKING;
use super::subscribers::committed;
use crate::client::aside::aside;
use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::groups::Groups;

/// A retry topic, and the group to which letters go by it.
pub(in crate::dead) type Way = (String, String);

/// Returns the ways by which letters reach nobody, or may reach nobody, each with the reason: a ladder that a consumer had
/// once may still be there, and nobody reads it. With each way come the topics in which its letters were born: a group that
/// is stopped and has read one of those is believed to read its retry topics.
pub(super) async fn unheard(
    brokers: &Brokers,
    ways: BTreeMap<Way, BTreeSet<String>>,
) -> BTreeMap<Way, String> {
    let brokers = brokers.clone();
    // Kept aside, so that each way has an answer even where the thread gives none.
    let all: Vec<Way> = ways.keys().cloned().collect();
    let asked = aside(ASKING * 4, move || {
        let begun = Instant::now();
        let ask = |(way, born): (Way, BTreeSet<String>)| {
            let why = match begun.elapsed() > ASKING {
                true => Some(unknown(&way, "no answer")),
                false => why(&brokers, &way, &born)
                    .unwrap_or_else(|error| Some(unknown(&way, &error.to_string()))),
            };
            Some((way, why?))
        };
        ways.into_iter().filter_map(ask).collect()
    });
    let silent = |way: Way| {
        let why = unknown(&way, "no answer");
        (way, why)
    };
    asked.await.unwrap_or_else(|| all.into_iter().map(silent).collect())
}

fn unknown((topic, group): &Way, why: &str) -> String {
    format!("whether group `{group}` reads `{topic}` is not known: {why}")
}

/// Returns why nobody would read what goes this way; `None` where somebody does.
fn why(
    brokers: &Brokers,
    way: &Way,
    born: &BTreeSet<String>,
) -> Result<Option<String>, SetupError> {
    let (topic, group) = way;
    let what = format!("ask for group `{group}`");
    let answered = |error: KafkaError| SetupError::answered(&what, error);
    let client: BaseConsumer = lookup::config(brokers)?.create().map_err(answered)?;
    let groups = Groups::named(brokers, group)?;
    let found = groups.iter().find(|found| found.name() == group);
    // While it is shared out nobody has anything yet, and members of another kind do not say what they have.
    let members = found.filter(|found| found.state() == "Stable").map(|found| found.members());
    let given: Option<Vec<_>> = members
        .and_then(|members| members.iter().map(|member| topics_of(member.assignment()?)).collect());
    // Members that are there know better than commits: a group may have read a topic once that it reads no more.
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        let reads = given.iter().any(|topics| topics.contains(topic));
        return Ok((!reads).then(|| {
            format!(
                "nobody of group `{group}` reads `{topic}`, so that letters stay there unheard: is that a stage of its ladder?"
            )
        }));
    }
    let mut asked = TopicPartitionList::new();
    for topic in born.iter().chain([topic]) {
        let metadata = client.fetch_metadata(Some(topic), ASKING).map_err(answered)?;
        for partition in metadata.topics().iter().flat_map(|found| found.partitions()) {
            asked.add_partition(topic, partition.id());
        }
    }
    let committed = committed(brokers, group, &asked)?;
    let has_read =
        committed.elements().iter().any(|of| of.offset().to_raw().is_some_and(|at| at >= 0));
    // One that is there may have read nothing yet.
    let silent = groups.unknown().filter(|_| found.is_none());
    Ok((!has_read).then(|| match silent {
        Some(why) => unknown(way, &why),
        None => format!(
            "group `{group}` is not there, and has never read `{topic}`: is it called so, and is that a stage of its ladder?"
        ),
    }))
}

/// The topics of which a member has a partition, as the protocol of consumers writes its assignment.
fn topics_of(assignment: &[u8]) -> Option<BTreeSet<String>> {
    let mut rest = assignment.get(2..)?;
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(taken)
    };
    let mut topics = BTreeSet::new();
    for _ in 0..u32::from_be_bytes(take(4)?.try_into().ok()?) {
        let length = u16::from_be_bytes(take(2)?.try_into().ok()?);
        let topic = std::str::from_utf8(take(length.into())?).ok()?;
        let partitions = u32::from_be_bytes(take(4)?.try_into().ok()?);
        // Members of any kind write these bytes. A count that is too large ends the reading before anything is kept for it.
        take(usize::try_from(partitions).ok()?.checked_mul(4)?)?;
        if partitions > 0 {
            topics.insert(topic.to_owned());
        }
    }
    Some(topics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_is_read_whatever_its_bytes_are() {
        let mut bytes = vec![0, 3, 0, 0, 0, 2, 0, 2];
        bytes.extend(b"ab");
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 7, 0, 1, b'c', 0, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(topics_of(&bytes), Some(BTreeSet::from(["ab".to_owned()])));
        for cut in 0..23 {
            assert_eq!(topics_of(&bytes[..cut]), None, "{cut}");
        }
        assert_eq!(topics_of(&[0, 0, 255, 255, 255, 255, 0, 0, 255, 255, 255, 255]), None);
        assert_eq!(topics_of(&[0, 0, 0, 0, 0, 0]), Some(BTreeSet::new()));
    }
}
