//! Which stores the letters of a topic go into.

use dlq_core::StoreError;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaResult;

use super::mark::{self, Mark};
use super::reach::{self, Heard, PATIENCE};
use super::{DEFAULTS, KafkaFeed, OPENING, blocking};
use crate::brokers::Brokers;
use crate::error::SetupError;

/// What the name of a group must contain to be looked at.
const NAMED: &str = "dlq-ingest";
/// How many groups are looked at.
const LOOKED_AT: usize = 100;

/// A store into which the letters of a topic go.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestMark {
    /// The consumer group that says so.
    pub group: String,
    /// The store.
    pub store: String,
    /// How many of its letters were confirmed.
    pub confirmed: u64,
}

/// Which stores the letters of this topic go into: by the group that [`KafkaFeed::group_of`] names, and by others whose
/// names contain `dlq-ingest`.
///
/// # Errors
///
/// `NotFound` when there is no such topic; `InvalidConfig` when the cluster refuses us; `Unavailable` when it does not
/// answer.
pub async fn ingest_marks(brokers: &Brokers, topic: &str) -> Result<Vec<IngestMark>, StoreError> {
    let (brokers, topic) = (brokers.clone(), topic.to_owned());
    blocking(OPENING, move || look(&brokers, &topic).map_err(|error| error.for_store(OPENING)))
        .await
}

/// How many partitions a topic has, which is asked of the cluster.
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
        let consumer = client(&brokers, &KafkaFeed::group_of(&topic))?;
        let partitions = reach::partitions(&consumer, consumer.context(), &brokers, &topic)?;
        Ok(partitions.len())
    };
    blocking(FINDING, move || find().map_err(|error: SetupError| error.for_store(FINDING))).await
}

fn look(brokers: &Brokers, topic: &str) -> Result<Vec<IngestMark>, SetupError> {
    let first = KafkaFeed::group_of(topic);
    let consumer = client(brokers, &first)?;
    let heard = consumer.context();
    let partitions = reach::partitions(&consumer, heard, brokers, topic)?;
    let mut groups = vec![first];
    // Who may not list groups knows the first one.
    if let Ok(list) = consumer.fetch_group_list(None, PATIENCE) {
        let names = list.groups().iter().map(|group| group.name());
        let names = names.filter(|name| name.contains(NAMED) && *name != groups[0]);
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort_unstable();
        groups.extend(names.into_iter().take(LOOKED_AT));
    }
    let mut marks = Vec::new();
    for group in groups {
        let own = client(brokers, &group)?;
        let found = reach::patiently(|| read(&own, topic, &partitions)).map_err(|error| {
            SetupError::answered(&format!("read the offsets of group `{group}`"), error)
        })?;
        if let Found::Mark(Mark { store, confirmed, .. }) = found {
            marks.push(IngestMark { group, store, confirmed });
        }
    }
    Ok(marks)
}

fn client(brokers: &Brokers, group: &str) -> Result<BaseConsumer<Heard>, SetupError> {
    let config =
        brokers.client(&DEFAULTS, &[("group.id", group), ("enable.auto.commit", "false")])?;
    let made = config.create_with_context(Heard::default());
    made.map_err(|error| SetupError::answered("make a client", error))
}

/// What the offsets of a group say.
pub(super) enum Found {
    Nothing,
    /// Offsets, but not of a feed.
    Foreign,
    /// The sum of the partitions.
    Mark(Mark),
}

/// Reads them; blocks.
pub(super) fn read<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partitions: &[i32],
) -> KafkaResult<Found> {
    let committed = consumer.committed_offsets(mark::all(topic, partitions), PATIENCE)?;
    let mut found = Found::Nothing;
    for element in committed.elements() {
        element.error()?;
        if mark::offset(&element).is_none() {
            continue;
        }
        found = match (Mark::read(&element), found) {
            (Some(mark), Found::Mark(mut sum)) => {
                sum.confirmed += mark.confirmed;
                Found::Mark(sum)
            }
            (Some(mark), _) => Found::Mark(mark),
            (None, Found::Nothing) => Found::Foreign,
            (None, found) => found,
        };
    }
    Ok(found)
}
