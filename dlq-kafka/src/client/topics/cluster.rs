//! Requests to the brokers. Every request blocks, for at most [`PATIENCE`].

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::rules::topic_name;
use super::seen::{Look, Seen};
use crate::client::brokers::Brokers;
use crate::client::error::{SetupError, code, is_moving, is_refusal};

/// Time limit of one answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// For how long a broker may not have heard of what the others know: of a topic, who leads it, or its settings.
pub(crate) const SETTLING: Duration = Duration::from_secs(2);
/// Pause before the same request is sent again.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// Time limit of the first answer; it doubles with each further one.
const FIRST: Duration = Duration::from_millis(500);
/// Maximum number of events of the client that are searched for a cause.
const NEWS: usize = 64;

/// Runs what blocks where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SetupError> + Send + 'static,
) -> Result<T, SetupError> {
    spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(SetupError::Unavailable("the request was cut off".to_owned(), Some(error.into())))
    })
}

/// Keeps what a client tells of its troubles, among which is why brokers do not answer.
#[derive(Debug, Default)]
pub(crate) struct Troubles(Mutex<Option<(RDKafkaErrorCode, String)>>);

impl ClientContext for Troubles {
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "the client of Kafka is in trouble");
        let code = code(&error).unwrap_or(RDKafkaErrorCode::Unknown);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // That all are away says less than why one is.
        if known.as_ref().is_none_or(|_| is_refusal(code))
            && code != RDKafkaErrorCode::AllBrokersDown
        {
            *known = Some((code, reason.to_owned()));
        }
    }
}

impl ConsumerContext for Troubles {}

impl Troubles {
    fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Returns the trouble of a client, a refusal before anything else.
fn troubles(consumer: &BaseConsumer<Troubles>) -> Option<(RDKafkaErrorCode, String)> {
    for _ in 0..NEWS {
        // Nothing may come where there was news of another kind.
        drop(consumer.poll(Duration::ZERO));
    }
    consumer.context().0.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns the metadata of a topic, or of all topics. A refused login ends the wait; an answer means that earlier
/// trouble is over.
pub(crate) fn metadata(
    consumer: &BaseConsumer<Troubles>,
    topic: Option<&str>,
    patience: Duration,
) -> KafkaResult<Metadata> {
    let until = Instant::now() + patience;
    // The first wait is short, so that a refused login is noticed soon. A slow broker gets longer ones.
    let mut ask = FIRST;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match consumer.fetch_metadata(topic, ask.min(left)) {
            Err(error) if is_silent(&error) && ask < left => {
                if troubles(consumer).is_some_and(|(code, _)| is_refusal(code)) {
                    return Err(error);
                }
                ask *= 2;
            }
            Ok(answer) => {
                consumer.context().forget();
                return Ok(answer);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Makes the error of a failed request: with the cause that the client knows, and advice.
pub(crate) fn failed(
    brokers: &Brokers,
    consumer: &BaseConsumer<Troubles>,
    what: &str,
    error: KafkaError,
) -> SetupError {
    // A refusal of the request says more than any trouble of the client, so it is looked at first.
    if let Some(code) = code(&error).filter(|code| is_refusal(*code)) {
        return SetupError::Config(format!("{what}: {error}{}", allow(brokers, code)));
    }
    let asked = format!("{what} at `{}`", brokers.bootstrap());
    match troubles(consumer) {
        Some((code, reason)) if is_refusal(code) => {
            SetupError::Config(format!("{asked}: {reason}{}", allow(brokers, code)))
        }
        Some((_, reason)) => SetupError::Unavailable(
            format!("{asked}: {error}, {reason}; {}", brokers.reach()),
            Some(error.into()),
        ),
        None => SetupError::Unavailable(
            format!("{asked}: {error}; {}", brokers.reach()),
            Some(error.into()),
        ),
    }
}

/// Asks the brokers.
pub(crate) struct Cluster {
    brokers: Brokers,
    consumer: BaseConsumer<Troubles>,
    admin: Option<AdminClient<DefaultClientContext>>,
    /// The ids of the brokers that are there, as of the last look.
    pub(crate) ids: Vec<i32>,
}

impl Cluster {
    /// With the offsets of a group, if one is named. Nothing is asked yet.
    pub(crate) fn new(brokers: &Brokers, group: Option<&str>) -> Result<Self, SetupError> {
        // Asking for a topic would create it where brokers do so.
        let mut fixed =
            vec![("allow.auto.create.topics", "false"), ("enable.auto.commit", "false")];
        fixed.extend(group.map(|group| ("group.id", group)));
        let config = brokers.client(&[], &fixed)?;
        let consumer = BaseConsumer::from_config_and_context(&config, Troubles::default())
            .map_err(|error| SetupError::answered("make a client", error))?;
        Ok(Self { brokers: brokers.clone(), consumer, admin: None, ids: Vec::new() })
    }

    /// Makes the error of a failed request: with the cause that the client knows, and advice.
    pub(crate) fn failed(&self, what: &str, error: KafkaError) -> SetupError {
        failed(&self.brokers, &self.consumer, what, error)
    }

    /// The names of all topics that the user may see.
    pub(crate) fn names(&self) -> Result<Vec<String>, SetupError> {
        let metadata = metadata(&self.consumer, None, PATIENCE);
        let metadata =
            metadata.map_err(|error| self.failed("ask which topics there are", error))?;
        Ok(metadata.topics().iter().map(|topic| topic.name().to_owned()).collect())
    }

    /// The same as [`look`](Self::look), asked again until then of a topic that is missing or has no leader: the broker that
    /// answers may not have heard of it yet.
    pub(crate) fn look_until(&mut self, until: Instant, name: &str) -> Result<Look, SetupError> {
        loop {
            let found = self.look(name)?;
            let may_settle = match &found {
                Look::There(seen) => !seen.leaderless.is_empty(),
                Look::Missing => true,
                Look::Refused(_) => false,
            };
            if !may_settle || Instant::now() >= until {
                return Ok(found);
            }
            sleep(PAUSE);
        }
    }

    /// Returns the state of a topic, without its settings.
    pub(crate) fn look(&mut self, name: &str) -> Result<Look, SetupError> {
        let what = format!("ask for {}", topic_name(name));
        let metadata = metadata(&self.consumer, Some(name), PATIENCE);
        let metadata = metadata.map_err(|error| self.failed(&what, error))?;
        self.ids = metadata.brokers().iter().map(rdkafka::metadata::MetadataBroker::id).collect();
        let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == name) else {
            return Ok(Look::Missing);
        };
        match topic.error().map(RDKafkaErrorCode::from) {
            // Without a leader a topic is there all the same. `leaderless` tells which partitions have none.
            None | Some(RDKafkaErrorCode::LeaderNotAvailable) => {}
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                return Ok(Look::Missing);
            }
            Some(RDKafkaErrorCode::TopicAuthorizationFailed) => {
                return Ok(Look::Refused(format!(
                    "{}: the user may not see it; allow `Describe` on it",
                    topic_name(name)
                )));
            }
            Some(code) => return Err(self.failed(&what, KafkaError::MetadataFetch(code))),
        }
        let all = topic.partitions();
        Ok(Look::There(Seen {
            partitions: i32::try_from(all.len()).unwrap_or(i32::MAX),
            replication: all.iter().map(|one| one.replicas().len()).min().unwrap_or(0),
            leaderless: all.iter().filter(|one| one.leader() < 0).map(|one| one.id()).collect(),
            settings: None,
        }))
    }

    /// Offsets by one request to each broker: `at` is an end, or a time in milliseconds, for which it is that of the first
    /// record which is not older, or the end where there is none.
    pub(crate) fn offsets(
        &self,
        of: &[(&str, i32)],
        at: Offset,
    ) -> Result<Vec<Option<i64>>, SetupError> {
        let asking = |list| self.consumer.offsets_for_times(list, PATIENCE);
        self.listed("read offsets", of, at, asking)
    }

    /// Returns the committed offsets of the group, by one request; `None` for nothing.
    pub(crate) fn committed(
        &self,
        group: &str,
        of: &[(&str, i32)],
    ) -> Result<Vec<Option<i64>>, SetupError> {
        let asking = |list| self.consumer.committed_offsets(list, PATIENCE);
        self.listed(&format!("read the offsets of group `{group}`"), of, Offset::Invalid, asking)
    }

    fn listed(
        &self,
        what: &str,
        of: &[(&str, i32)],
        at: Offset,
        ask: impl Fn(TopicPartitionList) -> KafkaResult<TopicPartitionList>,
    ) -> Result<Vec<Option<i64>>, SetupError> {
        if of.is_empty() {
            return Ok(Vec::new());
        }
        let fail = |error| self.failed(what, error);
        let mut list = TopicPartitionList::with_capacity(of.len());
        for (topic, partition) in of {
            list.add_partition_offset(topic, *partition, at).map_err(fail)?;
        }
        let deadline = Instant::now() + PATIENCE;
        let answer = loop {
            let answer = ask(list.clone()).and_then(|answer| {
                // The request succeeds as a whole, and the error of a partition stands in the list.
                let moving = |one: &TopicPartitionListElem<'_>| one.error().err().filter(is_moving);
                // One partition on the move has all of them asked again, since the answer is used as a whole.
                let moving = answer.elements().iter().find_map(moving);
                moving.map_or(Ok(answer), Err)
            });
            match answer {
                Err(error) if is_moving(&error) && Instant::now() < deadline => sleep(PAUSE),
                answer => break answer.map_err(fail)?,
            }
        };
        let read = |(topic, partition): &(&str, i32)| {
            let Some(one) = answer.find_partition(topic, *partition) else { return Ok(None) };
            let named = |error| self.failed(&format!("{what}, {}", topic_name(topic)), error);
            one.error().map_err(named)?;
            Ok(match one.offset() {
                Offset::Offset(offset) => Some(offset),
                _ => None,
            })
        };
        of.iter().map(read).collect()
    }

    pub(super) fn admin(&mut self) -> Result<&AdminClient<DefaultClientContext>, SetupError> {
        // Most looks need no settings, and a second client costs threads and connections.
        if self.admin.is_none() {
            let config = self.brokers.client(&[], &[])?;
            let admin =
                config.create().map_err(|error| SetupError::answered("make a client", error))?;
            self.admin = Some(admin);
        }
        Ok(self.admin.as_ref().expect("it was made above"))
    }

    /// The settings of these, in their order; `None` where the user may not read them. Until then it is asked again where
    /// there are none: the broker that answers may not have heard of the topic.
    pub(crate) fn settings(
        &mut self,
        until: Instant,
        of: &[ResourceSpecifier<'_>],
    ) -> Result<Vec<Option<BTreeMap<String, String>>>, SetupError> {
        loop {
            let settings = self.settings_now(of)?;
            if settings.iter().all(Option::is_some) || Instant::now() >= until {
                return Ok(settings);
            }
            sleep(PAUSE);
        }
    }

    fn settings_now(
        &mut self,
        of: &[ResourceSpecifier<'_>],
    ) -> Result<Vec<Option<BTreeMap<String, String>>>, SetupError> {
        if of.is_empty() {
            return Ok(Vec::new());
        }
        let deadline = Instant::now() + PATIENCE;
        // Each try gets half of the time, so that one that met a silent broker leaves room for another.
        let once = AdminOptions::new().request_timeout(Some(PATIENCE / 2));
        let answers = loop {
            let asking = self.admin()?.describe_configs(of, &once);
            // This runs on a thread for blocking work, where a future may be waited for like this.
            match Handle::current().block_on(asking) {
                // It may have waited for a broker that is away, and knows by now which are not.
                Err(error) if is_silent(&error) && Instant::now() < deadline => sleep(PAUSE),
                answers => break answers.map_err(|error| self.failed("read settings", error))?,
            }
        };
        let read = |answer: rdkafka::admin::ConfigResourceResult| match answer {
            // The client gives nothing, and no error, where it is refused or the broker knows of no such topic; what is
            // there has settings.
            Ok(resource) if resource.entries.is_empty() => Ok(None),
            Ok(resource) => {
                let entries = resource.entries.into_iter();
                Ok(Some(entries.filter_map(|entry| Some((entry.name, entry.value?))).collect()))
            }
            Err(code) if is_refusal(code) => Ok(None),
            Err(code) => Err(self.failed("read settings", KafkaError::AdminOp(code))),
        };
        answers.into_iter().map(read).collect()
    }
}

/// Returns advice about a refusal.
fn allow(brokers: &Brokers, code: RDKafkaErrorCode) -> String {
    use RDKafkaErrorCode::{
        Authentication, GroupAuthorizationFailed, SaslAuthenticationFailed,
        TopicAuthorizationFailed, UnsupportedSASLMechanism,
    };
    match code {
        GroupAuthorizationFailed => "; allow `Describe` on the group".to_owned(),
        TopicAuthorizationFailed => "; allow `Describe` on the topic".to_owned(),
        Authentication | SaslAuthenticationFailed | UnsupportedSASLMechanism => brokers.login(),
        _ => String::new(),
    }
}

/// Returns true if a broker has not responded.
fn is_silent(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{BrokerTransportFailure, OperationTimedOut, RequestTimedOut};
    let silent = [BrokerTransportFailure, OperationTimedOut, RequestTimedOut];
    code(error).is_some_and(|code| silent.contains(&code))
}

pub(super) fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(PATIENCE)).operation_timeout(Some(PATIENCE))
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;

    use super::*;

    #[test]
    fn a_login_that_was_refused_before_an_answer_came_is_no_cause_of_what_comes_after() {
        let mock = MockCluster::new(1).unwrap();
        let brokers = Brokers::at(mock.bootstrap_servers());
        let cluster = Cluster::new(&brokers, None).unwrap();
        let silence = || {
            let silence = KafkaError::MetadataFetch(RDKafkaErrorCode::OperationTimedOut);
            cluster.failed("ask", silence)
        };
        let refused = KafkaError::Global(RDKafkaErrorCode::Authentication);
        cluster.consumer.context().error(refused, "the users are not loaded");
        assert!(matches!(silence(), SetupError::Config(_)), "{:?}", silence());
        metadata(&cluster.consumer, Some("orders"), PATIENCE).unwrap();
        assert!(matches!(silence(), SetupError::Unavailable(..)), "{:?}", silence());
    }
}
