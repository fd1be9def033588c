mod join;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dlq_core::protocol::Incoming;
use dlq_core::{
    Addressee, BoxCrashMarks, BoxRetryQueue, BoxSink, OpenError, Opened, SharedClock, StoreError,
    SystemClock, Transport, TransportError,
};

use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::ladder::{Ladder, Stage};
use crate::client::lock;
use crate::client::produce::Producer;
use crate::client::topics::{self, DlqTopic, RetryTopics, WantedTopic};
use crate::consumer::blocked::{Reason, Watch};
use crate::consumer::gauges::Gauges;
use crate::consumer::lines::{Concurrency, Lines};
use crate::consumer::poll::{Bounds, Poller};
use crate::consumer::reading::Reading;
use crate::consumer::rebalance::Hooks;
use crate::consumer::retry_queue::KafkaRetryQueue;
use crate::consumer::shared::{Phase, SourceState};
use crate::consumer::source::KafkaSource;
use crate::dead::sink::KafkaSink;

const OPENING: &str = "open a consumer";
/// Time that the client takes, besides a drain, until it polls again.
const POLLING: Duration = Duration::from_secs(60);
/// For how long a revoked partition may be kept at most: the client wants to be polled once a day.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60).saturating_sub(POLLING);

/// Record of a partition at which a group begins that has committed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// At the first record that is kept.
    Earliest,
    /// At the first that comes from now on, which is noted at once: what comes while the group is away is read later.
    Latest,
}

/// Description of topics and of a consumer of them, from which everything is opened that a consumer needs.
///
/// ```no_run
/// # async fn open() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use dlq_kafka::{Brokers, KafkaTransport};
///
/// let brokers = Brokers::at("localhost:9092");
/// let opened = KafkaTransport::new("payments").name("billing").open(&brokers).await?;
/// // `opened.source`, `opened.retry_queue`, `opened.dead_letters` and `opened.crash_marks` go to a stack composed by hand.
/// # Ok(())
/// # }
/// ```
///
/// A consumer (`Consumer::on` of `dlq-tower`) takes the description and the brokers, opens what it needs, and names itself and
/// its group after its handler. Processes that describe the same consumer are one consumer group, and share the partitions of
/// its topics and of its retry topics. Letters name the group too: those that are sent to their
/// [handler](crate::KafkaTarget::Handler) go to the group that wrote them.
///
/// The topics have to be there. Retry and dead-letter topics are created when
/// [that is asked for](Self::create_missing_topics); those that exist with settings that will not do are reported, never
/// changed.
#[derive(Clone, Debug)]
#[must_use]
pub struct KafkaTransport {
    topics: Vec<String>,
    name: Option<Arc<str>>,
    group: Option<String>,
    ladder: Option<Ladder>,
    retries: RetryTopics,
    dead: DlqTopic,
    creates: bool,
    concurrency: Concurrency,
    start: Start,
    bounds: Bounds,
    drain: Duration,
    id_header: Option<Arc<str>>,
    event_header: Option<Arc<str>>,
    clock: SharedClock,
}

impl KafkaTransport {
    /// Describes this topic.
    pub fn new(topic: impl Into<String>) -> Self {
        Self {
            topics: vec![topic.into()],
            group: None,
            name: None,
            ladder: Some(Ladder::new()),
            retries: RetryTopics::new(),
            dead: DlqTopic::new(),
            creates: false,
            concurrency: Concurrency::default(),
            start: Start::Earliest,
            bounds: Bounds {
                prefetch: 1_000,
                span: 100_000,
                waiting: 10_000,
                waiting_bytes: 64 * 1024 * 1024,
                commit: Duration::from_millis(100),
            },
            drain: Duration::from_secs(5),
            id_header: None,
            event_header: None,
            clock: SystemClock::shared(),
        }
    }

    /// Sets the name of the consumer. Defaults to the name of the handler.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Adds a topic.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topics.push(topic.into());
        self
    }

    /// Sets the consumer group (`group.id`). Defaults to the consumer's name.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Sets the retry topics. Defaults to stages of 30 s, 5 min and 1 h.
    pub fn ladder(mut self, ladder: Ladder) -> Self {
        self.ladder = Some(ladder);
        self
    }

    /// Goes without retry topics. Those that it had are read all the same, where they are named as by [`Ladder::new`].
    pub fn without_retries(mut self) -> Self {
        self.ladder = None;
        self
    }

    /// Sets how retry topics are created. Defaults to [`RetryTopics::new`].
    pub fn retry_topics(mut self, topics: RetryTopics) -> Self {
        self.retries = topics;
        self
    }

    /// Sets the topic of dead letters. Defaults to `<topic>.dlq`.
    pub fn dead_letter_topic(mut self, topic: DlqTopic) -> Self {
        self.dead = topic;
        self
    }

    /// Creates retry and dead-letter topics that are missing. Defaults to reporting them.
    pub fn create_missing_topics(mut self) -> Self {
        self.creates = true;
        self
    }

    /// Sets which records of a partition are in flight at the same time. Defaults to [`Concurrency::Unordered`].
    pub fn concurrency(mut self, concurrency: Concurrency) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets where the group begins in a partition of which it has committed nothing. Defaults to [`Start::Earliest`]. Always
    /// read from their beginning are retry topics, and partitions that are added while a process of the group runs; and a
    /// partition from its first record that is left, when what comes after the committed offset was deleted.
    ///
    /// A group that begins at the end logs how many records it passes over. Where that comes as a surprise, its commits are
    /// gone: somebody has deleted the group, or it was away for longer than brokers keep them
    /// (`offsets.retention.minutes`).
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets how many records are fetched ahead of the handlers; at least 1. Defaults to 1,000. The client fetches further
    /// ones into a buffer of its own (`queued.max.messages.kbytes`).
    pub fn prefetch(mut self, records: usize) -> Self {
        self.bounds.prefetch = records.max(1);
        self
    }

    /// Sets how far beyond the lowest record that is not done a partition is read, in offsets; at least 1. So much comes
    /// again after a crash at most. Defaults to 100,000.
    pub fn max_span(mut self, offsets: u64) -> Self {
        self.bounds.span = offsets.max(1);
        self
    }

    /// Sets how many retry records wait for their time in memory at most, and about how many bytes; those beyond wait at
    /// the brokers. As many records again may wait for the one before them of their key or partition, see
    /// [`Concurrency`]. Partitions have equal shares. Defaults to 10,000 and 64 MiB.
    pub fn max_waiting(mut self, records: usize, bytes: usize) -> Self {
        (self.bounds.waiting, self.bounds.waiting_bytes) = (records.max(1), bytes.max(1));
        self
    }

    /// Sets how often offsets are committed. What was done since the last time runs again after a crash. Defaults to
    /// 100 ms; at least 1 ms.
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.bounds.commit = interval.max(Duration::from_millis(1));
        self
    }

    /// Sets for how long what is in flight of a partition may end before the partition is given up. The whole group waits
    /// meanwhile, and `max.poll.interval.ms` is a minute more where that is longer than its five. Defaults to 5 s; at most
    /// a minute less than a day.
    pub fn drain(mut self, deadline: Duration) -> Self {
        self.drain = deadline.min(LONGEST);
        self
    }

    /// Takes the producer's id of a message from this header, e.g. `ce_id`; it stays a header. Defaults to none.
    pub fn id_header(mut self, name: impl Into<Arc<str>>) -> Self {
        self.id_header = Some(name.into());
        self
    }

    /// Takes the type of the event from this header, e.g. `ce_type`; it stays a header. Defaults to none.
    pub fn event_header(mut self, name: impl Into<Arc<str>>) -> Self {
        self.event_header = Some(name.into());
        self
    }

    /// Sets the clock that due times are compared with. Defaults to the machine's.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    fn named(&self, name: &str) -> Self {
        self.clone().name(name)
    }

    /// The consumer at these brokers.
    ///
    /// # Errors
    ///
    /// `Config` when the description has no name.
    fn at(&self, brokers: &Brokers) -> Result<Member, SetupError> {
        let name = self.name.clone().ok_or_else(|| {
            let topic = self.topics.first().map_or("", String::as_str);
            SetupError::Config(format!(
                "the consumer of `{topic}` has no name; give it that of its handler: `.name(…)`"
            ))
        })?;
        let group = self.group.clone().unwrap_or_else(|| name.to_string());
        Ok(Member { brokers: brokers.clone(), of: self.clone(), name, group })
    }

    /// Opens source, retry queue, dead-letter sink and crash marks.
    ///
    /// # Errors
    ///
    /// As [`source`](Self::source), [`retry_queue`](Self::retry_queue) and [`sink`](Self::sink).
    pub async fn open(&self, brokers: &Brokers) -> Result<Opened<KafkaSource>, OpenError> {
        Opened::open(self, brokers).await
    }

    /// Opens the source: creates missing retry topics where that is asked for, and joins the group.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the description has no name, a topic is missing, also two seconds later, a retry topic has
    /// settings that will not do, or a setting of the client is wrong; `Unavailable` when the brokers do not answer.
    pub async fn source(&self, brokers: &Brokers) -> Result<KafkaSource, TransportError> {
        let member = self.at(brokers).map_err(|error| error.for_transport(OPENING))?;
        member.source().await
    }

    /// Opens the retry queue, whose records the sources of this consumer read.
    ///
    /// # Errors
    ///
    /// As [`source`](Self::source); `InvalidConfig` also when this consumer goes [without retries](Self::without_retries).
    pub async fn retry_queue(&self, brokers: &Brokers) -> Result<KafkaRetryQueue, StoreError> {
        let member = self.at(brokers).map_err(|error| error.for_store("open a retry queue"))?;
        member.retry_queue().await
    }

    /// Opens the topic of dead letters of this consumer.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is missing, `InvalidConfig` when it has settings that will not do, `Unavailable` when the brokers
    /// do not answer.
    pub async fn sink(&self, brokers: &Brokers) -> Result<KafkaSink, StoreError> {
        let group = self.group.as_deref().or(self.name.as_deref());
        KafkaSink::make(brokers, self.dead.clone(), &self.topics, self.creates, group).await
    }
}

/// A consumer that is known by its name, at the brokers where it is a member of its group.
struct Member {
    brokers: Brokers,
    of: KafkaTransport,
    name: Arc<str>,
    group: String,
}

impl Member {
    /// The stages of each topic.
    fn stages(&self) -> Result<Vec<(String, Vec<Stage>)>, TransportError> {
        let Some(ladder) = &self.of.ladder else { return Ok(Vec::new()) };
        let stages = |topic: &String| Ok((topic.clone(), ladder.stages(topic, &self.group)?));
        let all = self.of.topics.iter().map(stages).collect::<Result<Vec<_>, TransportError>>()?;
        let is_ours = |stage: &&Stage| self.of.topics.contains(&stage.topic);
        // A partition is read either as a stage or as a source, so every message of such a topic would wait for the delay.
        match all.iter().flat_map(|(_, stages)| stages).find(is_ours) {
            None => Ok(all),
            Some(Stage { topic, .. }) => {
                let text = format!(
                    "`{topic}` is a topic of this consumer and a retry topic; give one of them another name"
                );
                Err(SetupError::Config(text).for_transport(OPENING))
            }
        }
    }

    async fn source(&self) -> Result<KafkaSource, TransportError> {
        let stages = self.stages()?;
        let wanted = self.wanted(&stages);
        let found = topics::ensure(&self.brokers, &wanted, self.of.creates).await;
        let found = found.map_err(|error| error.for_transport(OPENING))?;
        let shared = Arc::new(SourceState::new());
        // Stages of an earlier ladder are read on, since the messages that wait there were acknowledged (G1).
        let former = self.former(&stages).await.map_err(|error| error.for_transport(OPENING))?;
        let delays = stages.iter().flat_map(|(_, stages)| stages).chain(&former);
        let config = self.client().map_err(|error| error.for_transport(OPENING))?;
        let hooks = Hooks {
            shared: Arc::clone(&shared),
            group: self.group.clone(),
            stages: delays.map(|stage| (Arc::from(&*stage.topic), stage.delay)).collect(),
            drain: self.of.drain,
            reason: Reason::default(),
            is_leaving: AtomicBool::new(false),
        };
        let consumer = self.join(&config, hooks).map_err(|error| error.for_transport(OPENING))?;
        // The thread that polls closes the client, and a handle for crash marks must not keep it open. So it is weak.
        *lock(&shared.consumer) = Arc::downgrade(&consumer);
        let topics = wanted.into_iter().map(|topic| topic.name).collect();
        let watch = Watch::new(self.brokers.clone(), topics);
        let gauges = Gauges::new(&self.group);
        let poller = Poller::new(
            consumer,
            Arc::clone(&shared),
            self.of.bounds,
            self.of.start,
            found,
            watch,
            gauges.clone(),
        );
        // The thread owns it and drops it even in a panic, so the source ends and nobody waits for ever (G9).
        let ended = Ended(Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("dlq-kafka".to_owned());
        let started = thread.spawn(move || {
            let _ended = ended;
            poller.run();
        });
        started.map_err(|error| {
            SetupError::unavailable("start the thread that polls", error).for_transport(OPENING)
        })?;
        let reading = Reading {
            incoming: Incoming {
                addressee: Addressee::new(Arc::clone(&self.name)),
                key: self.brokers.binding_key().cloned(),
                id_header: self.of.id_header.clone(),
                event_header: self.of.event_header.clone(),
            },
            group: Arc::from(&*self.group),
            cluster: Arc::clone(self.brokers.cluster_shared()),
            is_shared: self.of.ladder.as_ref().is_some_and(Ladder::is_shared),
            former: former.into_iter().map(|stage| stage.topic).collect(),
            clock: self.of.clock.clone(),
        };
        let lines = Lines::new(self.of.concurrency);
        // A source writes only what waits longer than its stage, so most sources never need the client.
        let producer = Producer::unopened(&self.brokers);
        Ok(KafkaSource::new(shared, reading, lines, producer, self.of.bounds.prefetch, gauges))
    }

    fn wanted(&self, stages: &[(String, Vec<Stage>)]) -> Vec<WantedTopic> {
        let of = stages.iter().flat_map(|(topic, stages)| self.of.retries.wanted(stages, topic));
        self.of.topics.iter().map(|topic| WantedTopic::source(topic)).chain(of).collect()
    }

    async fn retry_queue(&self) -> Result<KafkaRetryQueue, StoreError> {
        const OPENING: &str = "open a retry queue";
        let wrong = |error: TransportError| SetupError::Config(error.to_string());
        let opened = async {
            if self.of.ladder.is_none() {
                let text = "this consumer goes without retries; leave out `without_retries`";
                return Err(SetupError::Config(text.to_owned()));
            }
            let stages = self.stages().map_err(wrong)?;
            let wanted = self.wanted(&stages);
            let found = topics::ensure(&self.brokers, &wanted, self.of.creates).await?;
            let producer = Producer::new(&self.brokers)?;
            let is_shared = self.of.ladder.as_ref().is_some_and(Ladder::is_shared);
            // A record names its group only where groups share the topics. Elsewhere everything in them is this
            // group's.
            let group = is_shared.then(|| Arc::from(&*self.group));
            Ok(KafkaRetryQueue::new(producer, stages, &found, group, self.of.clock.clone()))
        };
        opened.await.map_err(|error: SetupError| error.for_store(OPENING))
    }
}

impl Transport<Brokers> for KafkaTransport {
    type Source = KafkaSource;

    fn consumer_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn summary(&self) -> String {
        format!("Kafka topic {}", self.topics.join(", "))
    }

    async fn source(&self, brokers: &Brokers, name: &str) -> Result<KafkaSource, TransportError> {
        self.named(name).source(brokers).await
    }

    async fn retry_queue(
        &self,
        brokers: &Brokers,
        name: &str,
    ) -> Result<Option<BoxRetryQueue>, StoreError> {
        if self.ladder.is_none() {
            return Ok(None);
        }
        Ok(Some(BoxRetryQueue::new(self.named(name).retry_queue(brokers).await?)))
    }

    async fn dead_letters(&self, brokers: &Brokers, name: &str) -> Result<BoxSink, StoreError> {
        Ok(BoxSink::new(self.named(name).sink(brokers).await?))
    }

    async fn crash_marks(
        &self,
        _brokers: &Brokers,
        source: &mut KafkaSource,
    ) -> Result<Option<BoxCrashMarks>, StoreError> {
        Ok(Some(BoxCrashMarks::new(source.crash_marks())))
    }
}

/// Says that the thread has ended, however it did.
struct Ended(Arc<SourceState>);

impl Drop for Ended {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = "the thread that polls has panicked; this is a defect";
            let kind = dlq_core::TransportErrorKind::Unexpected;
            self.0.fail(TransportError::new(kind, "fetch records").with_detail(text));
        }
        self.0.advance(Phase::Left);
    }
}

#[cfg(test)]
#[path = "transport_tests.rs"]
mod tests;
