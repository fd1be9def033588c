//! Size of a topic of dead letters, for `dlq serve`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dlq_core::log::Log as _;
use dlq_kafka::{KafkaLag, QueueDepthReader};

use super::{Broker, ladder};
use crate::cli::{BrokerArgs, ServeAtBrokerArgs};
use crate::error::{CliError, chain};
use crate::filter::AtKafkaArgs;
use crate::serve::{Measure, QueueDepth, Readers};

/// Interval at which the groups that take letters into a store are looked up: a client is made for each.
const GROUPS: Duration = Duration::from_secs(60);

/// A topic of dead letters, and the groups whose lag is asked for.
pub(crate) struct Measured {
    broker: Broker,
    queue_depth: QueueDepthReader,
    /// Lags by the name of the group.
    // Groups are only added: the lag of one whose ingest has ended still says what it has not read.
    lags: BTreeMap<String, KafkaLag>,
    /// When it was known last which groups take letters into a store.
    known: Option<Instant>,
}

impl Measured {
    /// Nothing is asked yet. Of a consumer that was named, its topic and its retry topics are looked at.
    pub(crate) fn new(
        rest: &str,
        shown: &str,
        args: &BrokerArgs,
        asked: &ServeAtBrokerArgs,
    ) -> Result<Self, CliError> {
        let broker = Broker::new(rest, shown.to_owned(), args)?;
        let mut topics: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for one in &asked.consumer {
            let stages = ladder(&asked.ladder).stages(&one.stream, &one.consumer);
            let stages = stages.map_err(|error| CliError::refused(error.to_string()))?;
            let of_group = topics.entry(one.consumer.clone()).or_default();
            of_group.push(one.stream.clone());
            of_group.extend(stages.into_iter().map(|stage| stage.topic));
        }
        let lag = |(group, topics): (String, _)| {
            let lag = KafkaLag::new(broker.brokers.clone(), &*group, topics);
            (group, lag)
        };
        let lags = topics.into_iter().map(lag).collect();
        let queue_depth = broker.letters(&AtKafkaArgs::default()).queue_depth();
        Ok(Self { broker, queue_depth, lags, known: None })
    }
}

impl Measure for Measured {
    async fn measure(&mut self) -> Result<QueueDepth, CliError> {
        let Broker { brokers, topic, .. } = &self.broker;
        let failed = |error| self.broker.failed(error);
        let found = self.queue_depth.read().await.map_err(failed)?;
        if self.known.is_none_or(|at| at.elapsed() >= GROUPS) {
            let log = self.broker.log();
            let marks = log.marks().await;
            // Every look asks until the groups were found once. After that a failure waits for the next turn.
            if marks.is_ok() || self.known.is_some() {
                self.known = Some(Instant::now());
            }
            let marks = match marks {
                // Those that are known are asked all the same, and the first has a name that is known.
                Err(error) if error.is_transient() || self.known.is_some() => {
                    tracing::warn!(%error, "it is looked for new groups later");
                    log.mark().await.ok().flatten().into_iter().collect()
                }
                marks => marks.map_err(failed)?,
            };
            for mark in marks {
                let lag = || KafkaLag::new(brokers.clone(), &*mark.by, [&**topic]);
                self.lags.entry(mark.by.clone()).or_insert_with(lag);
            }
        }
        let mut ends = BTreeMap::from([(topic.clone(), found.end_offset)]);
        let mut lag = Vec::new();
        for (group, of_group) in &self.lags {
            let read = of_group.read().await.map_err(|error| {
                CliError::failed(format!("{}: {}", self.broker.shown, chain(&error)))
            });
            // What a partition without a leader has is not known.
            for at in read?.into_iter().filter(|at| at.leaderless == 0) {
                lag.push((at.topic.clone(), group.clone(), at.lag));
                ends.insert(at.topic, at.end_offset);
            }
        }
        let by_partition = found.by_partition.into_iter();
        Ok(QueueDepth {
            by_part: by_partition.map(|(partition, n)| (partition.to_string(), n)).collect(),
            oldest: found.oldest,
            kept: found.retention,
            readers: Readers::Kafka { ends, lag },
        })
    }

    /// The clients find the brokers again by themselves.
    fn forget(&mut self) {}
}
