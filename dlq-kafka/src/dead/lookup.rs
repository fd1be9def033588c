use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dlq_core::Timestamp;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::task::spawn_blocking;

use crate::Brokers;
use crate::client::error::{SetupError, is_moving};
use crate::client::topics::{self, Troubles, failed, metadata};

/// For how long a request waits for its answer.
const PATIENCE: Duration = Duration::from_secs(8);

/// For how long brokers may disagree on who leads a topic that there is, and how often they are asked meanwhile.
const SETTLING: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(50);

/// Offsets of a partition, from `begin` to before `end`, as far as transactions have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

/// The partitions of a topic.
pub(crate) type Partitions = BTreeMap<u32, Bounds>;

/// The configuration of every client here.
pub(crate) fn config(brokers: &Brokers) -> Result<ClientConfig, SetupError> {
    brokers.client(
        &[("fetch.wait.max.ms", "100"), ("queued.max.messages.kbytes", "16384")],
        &[
            ("isolation.level", "read_committed"),
            ("allow.auto.create.topics", "false"),
            ("auto.offset.reset", "earliest"),
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("enable.partition.eof", "true"),
            // No group is joined: what the user says of a consumer's, of which one may not go with the other's default, is
            // not for this client.
            ("session.timeout.ms", "45000"),
            ("max.poll.interval.ms", "300000"),
        ],
    )
}

/// Asks where topics begin and end, by one client that is made when it is first needed.
#[derive(Clone)]
pub(crate) struct Lookup {
    pub(crate) brokers: Brokers,
    isolation: &'static str,
    client: Arc<Mutex<Option<Arc<BaseConsumer<Troubles>>>>>,
    /// Topics that were not there when they were asked for last, and since when: that one broker has not heard of it yet
    /// is no reason to wait each time.
    missing: Arc<Mutex<BTreeMap<String, Instant>>>,
}

impl Lookup {
    pub(crate) fn new(brokers: &Brokers) -> Self {
        let isolation = "read_committed";
        let brokers = brokers.clone();
        Self { brokers, isolation, client: Arc::default(), missing: Arc::default() }
    }

    /// The same for who reads everything, also what transactions have not committed yet.
    pub(crate) fn uncommitted(&self) -> Self {
        Self { isolation: "read_uncommitted", ..Self::new(&self.brokers) }
    }

    /// The partitions of a topic that need not be there: it is not waited until all brokers have heard of it.
    pub(crate) async fn partitions_if_any(
        &self,
        topic: &Arc<str>,
    ) -> Result<Option<Partitions>, SetupError> {
        let topic = Arc::clone(topic);
        self.ask(move |ask| match ask.leaders(&topic) {
            Err(
                Unanswered::Settling(SetupError::NotFound(_))
                | Unanswered::Failed(SetupError::NotFound(_)),
            ) => Ok(None),
            led => ask.bounds(&topic, led?.into_keys().collect()).map(Some),
        })
        .await
    }

    /// The partitions of a topic.
    pub(crate) async fn partitions(&self, topic: &Arc<str>) -> Result<Partitions, SetupError> {
        let topic = Arc::clone(topic);
        self.ask(move |ask| ask.partitions(&topic, |_| true)).await
    }

    /// Returns those of these partitions that a topic has.
    pub(crate) async fn some_partitions(
        &self,
        topic: &Arc<str>,
        some: BTreeSet<u32>,
    ) -> Result<Partitions, SetupError> {
        let topic = Arc::clone(topic);
        self.ask(move |ask| ask.partitions(&topic, |partition| some.contains(&partition))).await
    }

    /// Returns the broker that leads each partition of a topic; -1 if there is none.
    pub(crate) async fn leaders(&self, topic: &Arc<str>) -> Result<BTreeMap<u32, i32>, SetupError> {
        let topic = Arc::clone(topic);
        self.ask(move |ask| ask.leaders(&topic)).await
    }

    /// The first offsets of these partitions with records of `since` or later; a partition without any is at its end.
    pub(crate) async fn since(
        &self,
        topic: &Arc<str>,
        partitions: &Partitions,
        since: Timestamp,
    ) -> Result<BTreeMap<u32, u64>, SetupError> {
        let (topic, partitions) = (Arc::clone(topic), partitions.clone());
        // Of the millisecond in which it lies, since records have no nanoseconds.
        let since = Offset::Offset(since.as_nanos().div_euclid(1_000_000).max(0));
        self.ask(move |ask| {
            let found = ask.offsets(&topic, partitions.keys().copied(), since)?;
            let at = |(partition, offset): (u32, Option<u64>)| {
                let end = partitions.get(&partition).map_or(0, |bounds| bounds.end);
                (partition, offset.unwrap_or(end))
            };
            Ok(found.into_iter().map(at).collect())
        })
        .await
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl Fn(&Asking) -> Result<T, Unanswered> + Send + 'static,
    ) -> Result<T, SetupError> {
        let this = self.clone();
        let asking = move || {
            let client = this.client()?;
            // What it has said of its connections meanwhile is not kept for ever.
            while client.poll(Duration::ZERO).is_some() {}
            let asking = Asking { client, brokers: &this.brokers, missing: &this.missing };
            let begun = Instant::now();
            loop {
                match question(&asking) {
                    Err(Unanswered::Settling(error)) if begun.elapsed() < settling(&error) => {
                        sleep(PAUSE);
                    }
                    Err(Unanswered::Settling(error) | Unanswered::Failed(error)) => {
                        return Err(error);
                    }
                    Ok(answer) => return Ok(answer),
                }
            }
        };
        spawn_blocking(asking).await.unwrap_or_else(|error| {
            let text = format!("a request was cut off: {error}");
            Err(SetupError::Unavailable(text, Some(error.into())))
        })
    }

    fn client(&self) -> Result<Arc<BaseConsumer<Troubles>>, SetupError> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*client {
            return Ok(Arc::clone(client));
        }
        let mut config = config(&self.brokers)?;
        config.set("isolation.level", self.isolation);
        let made = config.create_with_context(Troubles::default());
        let made = made.map_err(|error| SetupError::answered("make a client", error))?;
        Ok(Arc::clone(client.insert(Arc::new(made))))
    }
}

/// For how long this may be settling.
fn settling(error: &SetupError) -> Duration {
    match error {
        SetupError::NotFound(_) => topics::SETTLING,
        _ => SETTLING,
    }
}

/// Reason why a request has no answer.
enum Unanswered {
    /// The brokers are about to agree on who leads a partition, or have not all heard of it yet.
    Settling(SetupError),
    Failed(SetupError),
}

impl Unanswered {
    fn new(asking: &Asking<'_>, what: &str, error: KafkaError) -> Self {
        if is_moving(&error) {
            return Self::Settling(SetupError::answered(what, error));
        }
        let is_of_topic =
            error.rdkafka_error_code() == Some(RDKafkaErrorCode::TopicAuthorizationFailed);
        Self::Failed(match failed(asking.brokers, &asking.client, what, error) {
            // Told apart, since a topic that may not be read concerns its own letters only, and a wrong setting concerns all.
            SetupError::Config(text) if is_of_topic => SetupError::Forbidden(text),
            failed => failed,
        })
    }
}

struct Asking<'a> {
    client: Arc<BaseConsumer<Troubles>>,
    brokers: &'a Brokers,
    missing: &'a Mutex<BTreeMap<String, Instant>>,
}

impl Asking<'_> {
    fn leaders(&self, topic: &str) -> Result<BTreeMap<u32, i32>, Unanswered> {
        let failed = |error| Unanswered::new(self, &format!("ask for the topic `{topic}`"), error);
        let metadata = metadata(&self.client, Some(topic), PATIENCE).map_err(failed)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let error = found.and_then(|found| found.error()).map(RDKafkaErrorCode::from);
        let is_unknown = error == Some(RDKafkaErrorCode::UnknownTopicOrPartition);
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(found) = found.filter(|_| !is_unknown) else {
            let text = format!("there is no topic `{topic}` at {}", self.brokers.bootstrap());
            let since = missing.entry(topic.to_owned()).or_insert_with(Instant::now);
            let is_settling = since.elapsed() < topics::SETTLING;
            let why = if is_settling { Unanswered::Settling } else { Unanswered::Failed };
            return Err(why(SetupError::NotFound(text)));
        };
        // A topic that goes once more gets the time for settling again.
        missing.remove(topic);
        drop(missing);
        if let Some(error) = error {
            return Err(failed(KafkaError::MetadataFetch(error)));
        }
        let each = found.partitions().iter();
        Ok(each.filter_map(|one| Some((u32::try_from(one.id()).ok()?, one.leader()))).collect())
    }

    fn partitions(
        &self,
        topic: &str,
        is_asked: impl Fn(u32) -> bool,
    ) -> Result<Partitions, Unanswered> {
        let ids = self.leaders(topic)?.into_keys();
        self.bounds(topic, ids.filter(|id| is_asked(*id)).collect())
    }

    fn bounds(&self, topic: &str, ids: Vec<u32>) -> Result<Partitions, Unanswered> {
        if ids.is_empty() {
            return Ok(Partitions::new());
        }
        let begins = self.offsets(topic, ids.iter().copied(), Offset::Beginning)?;
        let ends = self.offsets(topic, ids.iter().copied(), Offset::End)?;
        let bounds = begins.into_iter().map(|(partition, begin)| {
            let begin = begin.unwrap_or(0);
            let end = ends.get(&partition).copied().flatten().unwrap_or(begin);
            // Retention may have moved the beginning beyond the end between the two requests.
            (partition, Bounds { begin, end: end.max(begin) })
        });
        Ok(bounds.collect())
    }

    /// Sends one request for all partitions. The client takes a time in milliseconds in place of an offset; in the
    /// protocol, -1 is the end and -2 the beginning.
    fn offsets(
        &self,
        topic: &str,
        partitions: impl Iterator<Item = u32>,
        at: Offset,
    ) -> Result<BTreeMap<u32, Option<u64>>, Unanswered> {
        let failed =
            |error| Unanswered::new(self, &format!("ask for the offsets of `{topic}`"), error);
        let mut asked = TopicPartitionList::new();
        for partition in partitions.filter_map(|partition| i32::try_from(partition).ok()) {
            asked.add_partition_offset(topic, partition, at).map_err(failed)?;
        }
        let found = self.client.offsets_for_times(asked, PATIENCE).map_err(failed)?;
        let each = found.elements().into_iter().map(|found| {
            // One partition that does not answer fails all: a reading without it would look complete.
            found.error().map_err(failed)?;
            let partition = u32::try_from(found.partition()).unwrap_or(0);
            let offset = found.offset().to_raw().and_then(|raw| u64::try_from(raw).ok());
            Ok((partition, offset))
        });
        each.collect()
    }
}

impl std::fmt::Debug for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookup").field("brokers", &self.brokers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR_NO_ERROR, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
    };

    use super::*;

    #[tokio::test]
    async fn a_topic_that_one_broker_has_not_heard_of_is_asked_for_again() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("dead", 1, 1).unwrap();
        let (lookup, dead) = (Lookup::new(&Brokers::at(mock.bootstrap_servers())), "dead".into());
        assert_eq!(lookup.partitions(&dead).await.unwrap().len(), 1);
        mock.topic_error("dead", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).unwrap();
        assert_eq!(lookup.partitions_if_any(&dead).await.unwrap(), None);
        let heard_of = async {
            // It is asked many times meanwhile.
            tokio::time::sleep(PAUSE * 4).await;
            mock.topic_error("dead", RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
        };
        let (found, ()) = tokio::join!(lookup.partitions(&dead), heard_of);
        assert_eq!(found.unwrap().len(), 1);
        assert_eq!(
            lookup.partitions_if_any(&dead).await.unwrap().map(|found| found.len()),
            Some(1)
        );
    }
}
