//! Check that a cluster responds and has a topic.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;

use crate::client::brokers::Brokers;
use crate::client::error::{SetupError, is_moving, is_refusal};
use crate::client::topics::SETTLING;

/// Time limit for a cluster to respond.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Interval of requests within that time, so that a refusal ends the wait.
const ASK: Duration = Duration::from_millis(500);
/// For how long nothing comes after the end of a replica until there is nothing: it may be behind its leader.
pub(crate) const SURE: Duration = Duration::from_secs(2);
/// Pause before the same request is sent again.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of events of the client that are searched for a refusal.
const NEWS: usize = 256;
/// Maximum number of topics that an error about a missing topic suggests.
const NAMED: usize = 10;

/// The last thing that a client complained of.
#[derive(Debug, Default)]
pub(crate) struct Heard(Mutex<Option<(RDKafkaErrorCode, String)>>);

impl Heard {
    pub(crate) fn hear(&self, error: &KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        tracing::debug!(?code, reason, "the client complains");
        let mut last = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // That all are away says less than why; and after a refusal the connection ends.
        let was_refused = last.as_ref().is_some_and(|(code, _)| is_refusal(*code));
        if code != RDKafkaErrorCode::AllBrokersDown && (is_refusal(code) || !was_refused) {
            *last = Some((code, reason.to_owned()));
        }
    }

    fn last(&self) -> Option<(RDKafkaErrorCode, String)> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

impl ClientContext for Heard {
    fn error(&self, error: KafkaError, reason: &str) {
        self.hear(&error, reason);
    }
}

impl ConsumerContext for Heard {}

/// Asks again while a group or a partition has just become another broker's, for at most [`PATIENCE`] and a little.
pub(crate) fn patiently<T>(ask: impl Fn() -> KafkaResult<T>) -> KafkaResult<T> {
    let begun = Instant::now();
    loop {
        match ask() {
            Err(error) if begun.elapsed() < PATIENCE && is_moving(&error) => {
                std::thread::sleep(PAUSE);
            }
            answer => return answer,
        }
    }
}

/// Returns the current start and end of a partition.
pub(crate) fn watermarks<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: i32,
) -> KafkaResult<(i64, i64)> {
    patiently(|| consumer.fetch_watermarks(topic, partition, PATIENCE))
}

/// Sends a request about a group, waiting at most so long. The client goes on looking for the group's coordinator if it
/// is refused, so a refusal ends the wait.
pub(crate) fn of_group<C: ConsumerContext, T>(
    consumer: &BaseConsumer<C>,
    heard: &Heard,
    what: &str,
    ask: impl Fn(Duration) -> KafkaResult<T>,
) -> Result<T, SetupError> {
    let (begun, mut patience) = (Instant::now(), ASK);
    loop {
        let error = match ask(patience) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        // The client answers a refused request with a timeout, and says why only to who polls it.
        if let Some(why) = refusal(consumer, heard, Yields::Nothing) {
            return Err(SetupError::Config(format!(
                "{what}: {why}; allow `Describe` on the group"
            )));
        }
        // Silence and a group on the move may pass. Any other error is an answer, and asking again gets the same.
        let is_silent = error.rdkafka_error_code() == Some(RDKafkaErrorCode::OperationTimedOut);
        if begun.elapsed() >= PATIENCE || !(is_silent || is_moving(&error)) {
            return Err(SetupError::answered(what, error));
        }
        if is_silent {
            // The first waits are short, so that a refusal is heard soon. A slow broker gets longer ones.
            patience = (patience * 2).min(PATIENCE);
        } else {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Source of the events of a polled client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Yields {
    /// News only: it has joined nothing.
    Nothing,
    /// Records, which are for who reads: it is not polled here.
    Records,
}

/// Returns the reason why the cluster refuses us, if it does. Complaints of the client are received by polling, and a
/// client that has joined nothing yields nothing else.
fn refusal<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    heard: &Heard,
    yields: Yields,
) -> Option<String> {
    // The number is bounded: a client in trouble tells of it as fast as it is polled.
    if yields == Yields::Nothing {
        for _ in 0..NEWS {
            drop(consumer.poll(Duration::ZERO));
        }
    }
    heard.last().filter(|(code, _)| is_refusal(*code)).map(|(_, why)| why)
}

/// The partitions of a topic that exists, once the cluster answers. Blocks for at most [`PATIENCE`] and a little. One broker
/// may not have heard of a topic yet that the others know.
pub(crate) fn partitions<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    heard: &Heard,
    brokers: &Brokers,
    topic: &str,
    yields: Yields,
) -> Result<Vec<i32>, SetupError> {
    let bootstrap = brokers.bootstrap();
    let mut unsettled: Option<Instant> = None;
    loop {
        let metadata = metadata(consumer, heard, brokers, topic, yields)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let error = found.and_then(|found| found.error()).map(RDKafkaErrorCode::from);
        match (found, error) {
            (Some(found), None) if !found.partitions().is_empty() => {
                return Ok(found.partitions().iter().map(|partition| partition.id()).collect());
            }
            // A right that is missing is not waited for, unlike a topic that one broker has not heard of yet.
            (_, Some(code)) if is_refusal(code) => {
                let text = format!("topic `{topic}` at {bootstrap}: {code}");
                return Err(SetupError::Config(text));
            }
            _ if unsettled.get_or_insert_with(Instant::now).elapsed() < SETTLING => {
                std::thread::sleep(PAUSE);
            }
            (_, Some(RDKafkaErrorCode::UnknownTopicOrPartition) | None) => {
                let others = others(consumer);
                let text = format!("there is no topic `{topic}` at {bootstrap}{others}");
                return Err(SetupError::NotFound(text));
            }
            (_, Some(code)) => {
                let text = format!("topic `{topic}` at {bootstrap}: {code}");
                return Err(SetupError::Unavailable(text, None));
            }
        }
    }
}

/// Returns the metadata of a topic, once the cluster responds.
fn metadata<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    heard: &Heard,
    brokers: &Brokers,
    topic: &str,
    yields: Yields,
) -> Result<Metadata, SetupError> {
    let (begun, bootstrap) = (Instant::now(), brokers.bootstrap());
    loop {
        let error = match consumer.fetch_metadata(Some(topic), ASK) {
            Ok(metadata) => return Ok(metadata),
            Err(error) => error,
        };
        if let Some(why) = refusal(consumer, heard, yields) {
            let text = format!("{bootstrap} refuses us: {why}{}", brokers.login());
            return Err(SetupError::Config(text));
        }
        if begun.elapsed() >= PATIENCE {
            // The error of the request is a timeout. What the client has complained of meanwhile says more.
            let why = heard.last().map_or_else(|| error.to_string(), |(_, why)| why);
            let within = PATIENCE.as_secs();
            let text = format!("no broker at {bootstrap} answered within {within} s: {why}");
            return Err(SetupError::Unavailable(text, None));
        }
    }
}

/// Returns the existing topics: those that sound like dead letters first.
fn others<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> String {
    let Ok(metadata) = consumer.fetch_metadata(None, PATIENCE) else { return String::new() };
    let names = metadata.topics().iter().map(|topic| topic.name().to_owned());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with("__")).collect();
    let is_other = |name: &String| {
        let name = name.to_ascii_lowercase();
        !["dlq", "dlt", "dead"].iter().any(|word| name.contains(word))
    };
    names.sort_by_cached_key(|name| (is_other(name), name.clone()));
    if names.is_empty() {
        return " (there are no topics)".to_owned();
    }
    let more = if names.len() > NAMED { " and others" } else { "" };
    names.truncate(NAMED);
    format!(" (there are {}{more})", names.join(", "))
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
    use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

    use super::*;

    /// After it took over, until its followers have asked it once.
    #[test]
    fn a_new_leader_that_knows_no_end_yet_is_asked_again() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("dead", 1, 1).unwrap();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", mock.bootstrap_servers());
        let consumer: BaseConsumer = config.create().unwrap();
        let unknown = [rdkafka::types::RDKafkaRespErr::RD_KAFKA_RESP_ERR_OFFSET_NOT_AVAILABLE; 20];
        mock.request_errors(rdkafka::types::RDKafkaApiKey::ListOffsets, &unknown);
        assert_eq!(watermarks(&consumer, "dead", 0).unwrap(), (0, 0));
    }

    #[test]
    fn a_topic_that_one_broker_has_not_heard_of_is_asked_for_again() {
        use rdkafka::types::RDKafkaRespErr::{
            RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, RD_KAFKA_RESP_ERR_NO_ERROR,
            RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        };
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("dead", 1, 1).unwrap();
        let brokers = Brokers::at(mock.bootstrap_servers());
        let config = brokers.client(&[], &[]).unwrap();
        let consumer: BaseConsumer<Heard> = config.create_with_context(Heard::default()).unwrap();
        let ask = || partitions(&consumer, consumer.context(), &brokers, "dead", Yields::Nothing);
        assert_eq!(ask().unwrap(), [0]);
        for error in
            [RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART, RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE]
        {
            mock.topic_error("dead", error).unwrap();
            let found = std::thread::scope(|scope| {
                let asking = scope.spawn(ask);
                // It is asked many times meanwhile.
                std::thread::sleep(PAUSE * 4);
                mock.topic_error("dead", RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
                asking.join().unwrap()
            });
            assert_eq!(found.unwrap(), [0]);
        }
        mock.topic_error("dead", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).unwrap();
        assert!(matches!(ask(), Err(SetupError::NotFound(_))));
    }

    #[test]
    fn g1_who_is_asked_slowly_keeps_what_was_fetched() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("dead", 1, 1).unwrap();
        let brokers = Brokers::at(mock.bootstrap_servers());
        let mut config = brokers.client(&[], &[]).unwrap();
        let producer: BaseProducer = config.create().unwrap();
        for _ in 0..3 {
            producer.send(BaseRecord::<(), [u8]>::to("dead").payload(b"x")).unwrap();
        }
        producer.flush(PATIENCE).unwrap();
        config.set("group.id", "dead");
        let consumer: BaseConsumer<Heard> = config.create_with_context(Heard::default()).unwrap();
        let mut all = TopicPartitionList::new();
        all.add_partition_offset("dead", 0, Offset::Beginning).unwrap();
        consumer.assign(&all).unwrap();
        let until = Instant::now() + PATIENCE * 4;
        let next = || {
            let polled = || consumer.poll(Duration::from_millis(100))?.ok();
            while Instant::now() < until {
                if let Some(message) = polled() {
                    return message.offset();
                }
            }
            panic!("nothing comes")
        };
        assert_eq!(next(), 0);
        // Late by far, also for who is not run for a while.
        mock.broker_round_trip_time(1, ASK * 4).unwrap();
        let asked = partitions(&consumer, consumer.context(), &brokers, "dead", Yields::Records);
        assert!(matches!(asked, Err(SetupError::Unavailable(..))), "{asked:?}");
        mock.broker_round_trip_time(1, Duration::ZERO).unwrap();
        assert_eq!((next(), next()), (1, 2));
    }

    #[test]
    fn a_refusal_is_not_forgotten_for_the_end_of_its_connection() {
        let heard = Heard::default();
        for (code, reason) in [
            (RDKafkaErrorCode::BrokerTransportFailure, "disconnected"),
            (RDKafkaErrorCode::Authentication, "wrong password"),
            (RDKafkaErrorCode::BrokerTransportFailure, "disconnected"),
            (RDKafkaErrorCode::AllBrokersDown, "all are away"),
        ] {
            heard.hear(&KafkaError::Global(code), reason);
        }
        assert_eq!(heard.last().unwrap().1, "wrong password");
    }
}
