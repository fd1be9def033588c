//! Records and topics that cannot be read while the rest can: a topic that is gone or may not be read, records that the
//! client cannot decompress.
//!
//! The client reports such an error with neither topic nor partition, and some of them once only. So whoever hears one
//! has a second client look, on a thread of its own: it asks for each topic, and reads a little of each partition from
//! where we stand. What it finds is told, and told again while it is so. The rest is read meanwhile, nothing that is in
//! the way is passed over, and a process that dies loses nothing: no offset is committed beyond what it handled.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dlq_core::{TransportError, TransportErrorKind};
use rdkafka::Offset;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::lock;
use crate::consumer::shared::SourceState;
use crate::consumer::side_reader::{Seen, looker, read_at};

/// Interval of checks while something is blocked.
const AGAIN: Duration = Duration::from_secs(3);
/// Interval of reports. A consumer considers its source healthy again after half a minute without a report.
const TOLD: Duration = Duration::from_secs(20);
/// Time limit of one request of a check.
const ASKING: Duration = Duration::from_secs(2);

/// Text that the client logs about an error besides its code, just before it returns the error.
#[derive(Debug, Default)]
pub(crate) struct Reason(Mutex<Option<String>>);

impl Reason {
    /// Returns true if the reason differs from the last one.
    pub(crate) fn heard(&self, reason: &str) -> bool {
        let mut last = lock(&self.0);
        let is_news = last.as_deref() != Some(reason);
        *last = Some(reason.to_owned());
        is_news
    }

    pub(crate) fn of(&self, error: &KafkaError) -> String {
        match &*lock(&self.0) {
            Some(reason) => format!("{error}: {reason}"),
            None => error.to_string(),
        }
    }
}

impl ClientContext for Reason {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(facility, "{message}");
    }

    fn error(&self, _: KafkaError, reason: &str) {
        self.heard(reason);
    }
}

impl ConsumerContext for Reason {}

/// Returns true if an error concerns some topic without naming it.
pub(crate) fn is_of_a_topic(code: Code) -> bool {
    is_of_records(code)
        || matches!(
            code,
            Code::TopicAuthorizationFailed
                | Code::UnknownPartition
                | Code::UnknownTopic
                | Code::UnknownTopicOrPartition
        )
}

/// Returns true if an error concerns existing records that the client cannot interpret.
pub(crate) fn is_of_records(code: Code) -> bool {
    matches!(
        code,
        Code::NotImplemented
            | Code::BadCompression
            | Code::BadMessage
            | Code::InvalidMessage
            | Code::MessageSizeTooLarge
    )
}

/// Blocked items and the remedy for each, with their errors.
type Reasons = Vec<(Code, String)>;

/// Has it looked at while something may be in the way.
pub(crate) struct Watch {
    brokers: Brokers,
    topics: Vec<String>,
    look: Option<JoinHandle<Result<Reasons, SetupError>>>,
    looked: Option<Instant>,
    /// Text that the client has logged since the last check began.
    said: Option<String>,
    /// Blocked items that were found last, and the time at which they were reported.
    found: Vec<String>,
    told: Option<Instant>,
}

impl Watch {
    pub(crate) fn new(brokers: Brokers, topics: Vec<String>) -> Self {
        let (look, looked, said, found, told) = (None, None, None, Vec::new(), None);
        Self { brokers, topics, look, looked, said, found, told }
    }

    /// The client has told of an error that is of some topic.
    pub(crate) fn heard(&mut self, said: String) {
        self.said = Some(said);
    }

    /// Takes what a look has found, and begins the next when there is a reason to.
    pub(crate) fn watch(&mut self, shared: &SourceState) {
        if let Some(look) = self.look.take_if(|look| look.is_finished()) {
            match look.join() {
                Ok(Ok(found)) => {
                    self.tell(found.into_iter().map(|(_, why)| why).collect(), shared);
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "it could not be found out what cannot be read");
                }
                Err(_) => tracing::error!("a look at what cannot be read has panicked"),
            }
        }
        // The client repeats what it says of a blocked partition. The interval keeps each of these from starting a look.
        let is_due = self.looked.is_none_or(|at| at.elapsed() >= AGAIN);
        if self.look.is_some() || !is_due || (self.said.is_none() && self.found.is_empty()) {
            return;
        }
        // What the client says while this look runs is a reason for the next one.
        (self.looked, self.said) = (Some(Instant::now()), None);
        let (brokers, topics) = (self.brokers.clone(), self.topics.clone());
        let from = |partition: &Arc<crate::consumer::partition::Partition>| {
            let next = partition.next().and_then(|next| i64::try_from(next).ok());
            let offset = next.map_or(Offset::Beginning, Offset::Offset);
            (Arc::clone(&partition.topic), partition.number, offset)
        };
        let places: Vec<_> = shared.all().iter().map(from).collect();
        let thread = std::thread::Builder::new().name("dlq-kafka-look".to_owned());
        match thread.spawn(move || find(&brokers, &topics, &places)) {
            Ok(look) => self.look = Some(look),
            Err(error) => tracing::warn!(%error, "a thread that looks could not be started"),
        }
    }

    fn tell(&mut self, mut found: Vec<String>, shared: &SourceState) {
        // The client tells of an error that the look does not find, so its own text is reported.
        if found.is_empty() {
            found.extend(self.said.clone());
        }
        if found.is_empty() {
            if !std::mem::take(&mut self.found).is_empty() {
                tracing::info!("everything can be read again");
            }
            self.told = None;
            return shared.queue().blocked = None;
        }
        // News is told at once. The same is repeated only so often that the consumer goes on calling its source unhealthy.
        let is_told = self.told.is_some_and(|at| at.elapsed() < TOLD);
        if is_told && found == self.found {
            return;
        }
        let error = TransportError::new(TransportErrorKind::Unavailable, "fetch records");
        shared.queue().blocked = Some(error.with_detail(found.join("; ")));
        shared.arrived.notify_one();
        (self.found, self.told) = (found, Some(Instant::now()));
    }
}

/// Looks at topics and at partitions, each from where it is to be read.
pub(crate) fn find(
    brokers: &Brokers,
    topics: &[String],
    places: &[(Arc<str>, i32, Offset)],
) -> Result<Reasons, SetupError> {
    let answered = |error| SetupError::answered("look at what cannot be read", error);
    // One record of each partition answers the question, so little is fetched.
    let consumer = looker(brokers, "1024")?;
    let mut found = Vec::new();
    let mut gone = Vec::new();
    for topic in topics {
        let metadata = consumer.fetch_metadata(Some(topic), ASKING).map_err(answered)?;
        let error = metadata.topics().iter().find_map(|topic| topic.error());
        if let Some(error) = error.map(Code::from).filter(|code| is_of_a_topic(*code)) {
            found.push((error, of_topic(topic, error)));
            gone.push(topic);
        }
    }
    // A topic that is gone was told above, and its partitions may give no answer for as long as the look may last.
    let there = places.iter().filter(|(topic, ..)| !gone.iter().any(|gone| **gone == **topic));
    let there = there.map(|place| (place.clone(), place)).collect();
    read_at(&consumer, there, |place, polled, _| match polled {
        None => Seen::Nothing,
        Some(Ok(_) | Err(KafkaError::PartitionEOF(_))) => Seen::Enough,
        Some(Err(error)) => match blocked(place, &error, consumer.context()) {
            None => Seen::Nothing,
            Some(why) => {
                // Two partitions of a topic that may not be read are one thing to do.
                if !found.contains(&why) {
                    found.push(why);
                }
                Seen::Enough
            }
        },
    })
    .map_err(answered)?;
    found.sort_by(|(_, one), (_, other)| one.cmp(other));
    Ok(found)
}

/// Returns why a place cannot be read, if this error says so.
fn blocked(
    (topic, number, offset): &(Arc<str>, i32, Offset),
    error: &KafkaError,
    reason: &Reason,
) -> Option<(Code, String)> {
    let from = match offset {
        Offset::Offset(offset) => format!("from offset {offset} on"),
        _ => "from its beginning on".to_owned(),
    };
    // Other errors are of a broker that is away, and tell nothing about the records.
    let code = error.rdkafka_error_code().filter(|code| is_of_a_topic(*code))?;
    let said = reason.of(error);
    let why = match code {
        Code::TopicAuthorizationFailed | Code::UnknownTopic | Code::UnknownTopicOrPartition => {
            of_topic(topic, code)
        }
        Code::NotImplemented if said.contains("codec 0x4") => format!(
            "topic `{topic}`, partition {number}, cannot be read {from}: its records are compressed with zstd, which this \
             build does not read; build with the feature `zstd` of `dlq-kafka` ({said})"
        ),
        _ => format!("topic `{topic}`, partition {number}, cannot be read {from}: {said}"),
    };
    Some((code, why))
}

fn of_topic(topic: &str, code: Code) -> String {
    match code {
        Code::TopicAuthorizationFailed => {
            format!("topic `{topic}` may not be read by this user; allow `Read` on it")
        }
        Code::UnknownTopic | Code::UnknownTopicOrPartition => {
            format!("topic `{topic}` is not there; create it again")
        }
        code => format!("topic `{topic}` cannot be read: {}", KafkaError::MetadataFetch(code)),
    }
}
