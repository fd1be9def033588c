//! New partitions of a group that begins with what comes from now on.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaResult;

use crate::consumer::partition::Partition;

/// Time limit for an answer of a broker.
const ANSWER: Duration = Duration::from_secs(2);

/// Has partitions begin where they end now, which a thread of its own asks: a broker may be silent.
pub(crate) fn begin<C: ConsumerContext + 'static>(
    consumer: &Arc<BaseConsumer<C>>,
    partitions: Vec<Arc<Partition>>,
    is_news: bool,
) -> Option<JoinHandle<()>> {
    let consumer = Arc::clone(consumer);
    let thread = std::thread::Builder::new().name("dlq-kafka-latest".to_owned());
    let asking = thread.spawn(move || ask(&consumer, &partitions, is_news));
    asking.inspect_err(|error| tracing::warn!(%error, "a thread that asks cannot be started")).ok()
}

/// Asks one partition. A partition without a leader, or whose leader does not respond, is left as it is and holds up no
/// other: the client would wait for a leader for as long as it may.
fn ask<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[Arc<Partition>],
    is_news: bool,
) {
    let mut led: HashMap<Arc<str>, BTreeMap<i32, i32>> = HashMap::new();
    let mut silent = HashSet::new();
    for partition in partitions {
        let (topic, number) = (&partition.topic, partition.number);
        let leaders = led.entry(Arc::clone(topic)).or_insert_with(|| {
            leaders(consumer, topic).unwrap_or_else(|error| {
                tracing::warn!(%error, topic = &**topic, "who leads it is not known");
                BTreeMap::new()
            })
        });
        let leader = leaders.get(&number).filter(|leader| **leader >= 0);
        let Some(leader) = leader.filter(|leader| !silent.contains(*leader)) else {
            if is_news {
                tracing::warn!(
                    topic = &**topic,
                    partition = number,
                    "nobody can say where it ends, so that it waits; it is asked again"
                );
            }
            continue;
        };
        match consumer.fetch_watermarks(topic, number, ANSWER) {
            Ok((begin, end)) => {
                // Only a commit makes the end last. A process that dies before that has handed out nothing, and the
                // next one asks anew.
                let begins = partition.begins_at(u64::try_from(end).unwrap_or(0));
                if begins && begin < end {
                    tracing::warn!(
                        topic = &**topic,
                        partition = number,
                        records = end - begin,
                        "the group has committed nothing here and begins at the end; what stands there is not read"
                    );
                }
            }
            Err(error) => {
                // Each further partition of this broker would wait for as long.
                silent.insert(*leader);
                tracing::warn!(
                    %error, topic = &**topic, partition = number,
                    "where it ends was not answered, so that it waits; it is asked again"
                );
            }
        }
    }
}

/// Returns the broker that leads each partition; -1 if there is none.
fn leaders<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
) -> KafkaResult<BTreeMap<i32, i32>> {
    let metadata = consumer.fetch_metadata(Some(topic), ANSWER)?;
    let found = metadata.topics().iter().filter(|found| found.name() == topic);
    Ok(found.flat_map(|found| found.partitions()).map(|one| (one.id(), one.leader())).collect())
}
