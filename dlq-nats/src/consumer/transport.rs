use std::sync::Arc;
use std::time::Duration;

use dlq_core::{
    Addressee, BindingKey, BoxCrashMarks, BoxRetryQueue, BoxSink, OpenError, Opened, SharedClock,
    StoreError, SystemClock, Transport, TransportError,
};

use crate::client::domain::StreamDomain;
use crate::client::error::SetupError;
use crate::client::jetstream::JetStream;
use crate::client::names::token;
use crate::client::permissions::{self, read_from};
use crate::client::streams::{self, DlqStream, RetryStream};
use crate::consumer::durable::{Durable, Of};
use crate::consumer::marks::NatsCrashMarks;
use crate::consumer::overdue::Overdue;
use crate::consumer::pull::Puller;
use crate::consumer::retry_queue::NatsRetryQueue;
use crate::consumer::settle::Server;
use crate::consumer::source::{NatsSource, Reading, incoming};
use crate::dead::sink::NatsSink;

/// Message of the stream at which a consumer begins that the server does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// At the first message of the stream.
    Earliest,
    /// At the first message that is published from now on. A consumer that was deleted at the server while no process ran
    /// is created again like that, and what came in between is skipped: where that matters, begin at the
    /// [earliest](Self::Earliest).
    Latest,
    /// At the message with this sequence.
    At(u64),
}

/// Description of a stream and of a consumer of it, from which everything is opened that a consumer needs.
///
/// ```no_run
/// # async fn open() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use dlq_nats::{NatsTransport, async_nats};
///
/// let client = async_nats::connect("nats://localhost:4222").await?;
/// let payments = NatsTransport::new("PAYMENTS").subject("payments.>").name("billing");
/// let opened = payments.open(&client).await?;
/// // `opened.source`, `opened.retry_queue`, `opened.dead_letters` and `opened.crash_marks` go to a stack composed by hand.
/// # Ok(())
/// # }
/// ```
///
/// A consumer (`Consumer::on` of `dlq-tower`) takes the description and the client, opens what it needs, and names the durable
/// consumer after its handler. Processes that describe the same consumer share its messages. Letters name the consumer, and
/// those that are sent to their [handler](crate::NatsTarget::Handler) go to it, whichever of its handlers has failed; where a
/// [sink](crate::NatsSink::consumer) that was opened by hand was not told the name, they go to the consumer that is called
/// like the handler. Under another name a consumer begins anew, and the
/// retry records of the former name are heard by nobody else: let a process run under the former name until they are done,
/// which `dlq check` tells.
///
/// At the server it is a durable pull consumer with explicit acknowledgement, without a limit of deliveries, without a
/// backoff, and without an `inactive_threshold`, after which the server would delete it. It is created when it is missing;
/// one that exists with other settings is reported, never changed. Its [lease](Self::lease) and its `max_batch` are taken as
/// they are.
#[derive(Clone, Debug)]
#[must_use]
pub struct NatsTransport {
    stream: String,
    name: Option<Arc<str>>,
    durable: Option<String>,
    filters: Vec<String>,
    start: Start,
    lease: Duration,
    prefetch: usize,
    confirms: bool,
    max_ack_pending: i64,
    cluster: Arc<str>,
    key: Option<BindingKey>,
    key_header: Option<Arc<str>>,
    event_header: Option<Arc<str>>,
    retries: Option<RetryStream>,
    dead: DlqStream,
    marks: String,
    replicas: Option<usize>,
    clock: SharedClock,
}

impl NatsTransport {
    /// Describes the stream of this name, which has to exist.
    pub fn new(stream: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            durable: None,
            name: None,
            filters: Vec::new(),
            start: Start::Earliest,
            lease: Duration::from_secs(60),
            prefetch: 32,
            confirms: false,
            max_ack_pending: 1_024,
            cluster: Arc::from("default"),
            key: None,
            key_header: None,
            event_header: None,
            retries: Some(RetryStream::new()),
            dead: DlqStream::new(),
            marks: "DLQ_MARKS".to_owned(),
            replicas: None,
            clock: SystemClock::shared(),
        }
    }

    /// Sets the name of the consumer. Defaults to the name of the handler.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the name of the durable consumer at the server. Defaults to the consumer's name, in which characters other
    /// than letters, digits, `-` and `_` are written as `=` and their hexadecimal digits.
    pub fn durable(mut self, name: impl Into<String>) -> Self {
        self.durable = Some(name.into());
        self
    }

    /// Adds a subject to read, such as `orders.*.created`. Defaults to all of the stream.
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.filters.push(subject.into());
        self
    }

    /// Sets where it begins when the server does not know it. Defaults to [`Start::Earliest`].
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets for how long a message stays with a process without a word (`ack_wait`). It is extended while the handler
    /// runs or the message waits, so that it only says how soon a dead process is noticed. A consumer that is there keeps
    /// its own, of at least a second or this. Defaults to 60 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how many messages are fetched ahead; at least 1. Near the number of messages that are handled at once is
    /// right: what is fetched is kept from other processes. Defaults to 32.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    /// Sets whether the server has to confirm the acknowledgement of a message that succeeded. Otherwise it is sent and not
    /// awaited: what is lost with the connection comes again, and is a duplicate where it has an idempotency key. Letters and
    /// retry records, and the acknowledgements of their messages, are confirmed whatever is set. Defaults to false.
    pub fn confirm_acks(mut self, confirm: bool) -> Self {
        self.confirms = confirm;
        self
    }

    /// Sets how many messages all processes together may have unsettled, those included that were given back for a time.
    /// Defaults to 1024, which is four times what one process has in flight unless told otherwise. Counts only when the
    /// consumer is created.
    pub fn max_ack_pending(mut self, messages: u32) -> Self {
        self.max_ack_pending = i64::from(messages.max(1));
        self
    }

    /// Sets the alias of the cluster, which is part of the identity of letters. Defaults to `default`.
    pub fn cluster_alias(mut self, alias: impl Into<Arc<str>>) -> Self {
        self.cluster = alias.into();
        self
    }

    /// Sets the secret by which letters are bound that are sent back to the stream. With one no message is believed to be a
    /// letter that was not bound by it, and it is handled as a new one; the retry queue is not concerned. Give it to those
    /// who send letters back ([`NatsLetters::binding_key`](crate::NatsLetters::binding_key)) before the consumers.
    /// Defaults to none: then any publisher that knows payload and key of a message can claim the identity of its letter.
    pub fn binding_key(mut self, key: BindingKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Takes the key of a message from this header, which then is no header of the message. NATS has no keys; defaults to
    /// none.
    pub fn key_header(mut self, name: impl Into<Arc<str>>) -> Self {
        self.key_header = Some(name.into());
        self
    }

    /// Takes the type of the event from this header, e.g. `ce-type`; it stays a header. Defaults to none.
    pub fn event_header(mut self, name: impl Into<Arc<str>>) -> Self {
        self.event_header = Some(name.into());
        self
    }

    /// Sets the stream of the retry queue. Defaults to `DLQ_RETRY`; see [`RetryStream`].
    pub fn retry_stream(mut self, stream: RetryStream) -> Self {
        self.retries = Some(stream);
        self
    }

    /// Goes without a retry queue: the stream for it is neither created nor read.
    pub fn without_retries(mut self) -> Self {
        self.retries = None;
        self
    }

    /// Sets the stream of dead letters. Defaults to `DLQ`; see [`DlqStream`].
    pub fn dead_letter_stream(mut self, stream: DlqStream) -> Self {
        self.dead = stream;
        self
    }

    /// Sets the key-value bucket of crash marks. Defaults to `DLQ_MARKS`; see [`NatsCrashMarks`].
    pub fn crash_marks_bucket(mut self, bucket: impl Into<String>) -> Self {
        self.marks = bucket.into();
        self
    }

    /// Sets the number of servers that keep each stream and bucket which is created. Defaults to 1 or what the
    /// [`DlqStream`] and the [`RetryStream`] say; a cluster wants 3.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = Some(replicas);
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

    /// The name of the consumer.
    ///
    /// # Errors
    ///
    /// `Config` when there is none.
    fn own_name(&self) -> Result<&Arc<str>, SetupError> {
        self.name.as_ref().ok_or_else(|| {
            let stream = &self.stream;
            SetupError::Config(format!(
                "the consumer of `{stream}` has no name; give it that of its handler: `.name(…)`"
            ))
        })
    }

    fn retries(&self) -> Option<RetryStream> {
        let stream = self.retries.clone()?;
        Some(match self.replicas {
            Some(replicas) => stream.replicas(replicas),
            None => stream,
        })
    }

    /// The consumers at the server: that of the user's stream, then that of the retry stream.
    pub(crate) fn durables(&self, name: &str) -> Vec<Durable> {
        // A name may have characters that no consumer of the server may have, so it is encoded.
        let durable = self.durable.clone().unwrap_or_else(|| token(name));
        let mut main = Durable::new(Of::Stream(self.stream.clone()), durable, self.lease);
        main.filters.clone_from(&self.filters);
        main.start = self.start;
        main.max_ack_pending = self.max_ack_pending;
        let mut durables = vec![main];
        if let Some(stream) = self.retries() {
            let of = Of::Own(Box::new(stream.config()));
            let mut retries = Durable::new(of, token(name), self.lease);
            // All consumers share the stream, and each reads its own part only.
            retries.filters = vec![format!("{}.{}.>", stream.prefix, token(name))];
            durables.push(retries);
        }
        durables
    }

    /// Opens source, retry queue, dead-letter sink and crash marks.
    ///
    /// # Errors
    ///
    /// As [`source`](Self::source), [`retry_queue`](Self::retry_queue), [`NatsSink::open`] and [`NatsCrashMarks::open`].
    pub async fn open<C>(&self, client: &C) -> Result<Opened<NatsSource>, OpenError>
    where
        C: JetStream + Clone + Send + Sync + 'static,
    {
        Opened::open(self, client).await
    }

    /// Opens the source, and creates the consumer and the retry stream where they are missing.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the description has no name, the stream of the retry queue or the consumer exist with settings that will not do, or the
    /// server says that the user may not fetch, acknowledge, or read what large records are made of; `Unavailable` when the
    /// server does not answer or there is no such stream.
    pub async fn source(&self, client: &impl JetStream) -> Result<NatsSource, TransportError> {
        const OPENING: &str = "open a consumer";
        let context = client.context();
        let mut pullers = Vec::new();
        let name = self.own_name().map_err(|error| error.for_transport(OPENING))?;
        let stream = self.retries();
        let opened = async {
            let mut needs = Vec::new();
            // The user's stream comes first, so that nothing of ours is created where it is missing.
            for mut durable in self.durables(name) {
                durable.ensure(&context).await?;
                needs.extend(durable.needs(client.api()));
                pullers.push(Puller::new(context.clone(), durable, self.prefetch));
            }
            // What stands aside of a record is read from there.
            let aside = stream.as_ref().zip(client.api());
            needs.extend(aside.map(|(stream, api)| vec![read_from(api, &stream.name)]));
            // A server drops acknowledgements without the right to them in silence, so that rights are looked at once, at
            // the start.
            permissions::require_each(&context.client(), needs).await
        };
        opened.await.map_err(|error| error.for_transport(OPENING))?;
        let reading = Reading {
            incoming: incoming(
                Addressee::new(Arc::clone(name)),
                self.key.clone(),
                self.event_header.clone(),
            ),
            cluster: Arc::clone(&self.cluster),
            key_header: self.key_header.clone(),
            clock: self.clock.clone(),
        };
        let retries = stream.as_ref().map(|stream| Arc::from(stream.name.as_str()));
        let server = Server::new(context, self.lease, retries).confirming(self.confirms);
        let mut pullers = pullers.into_iter();
        let main = pullers.next();
        let retries = pullers.next().zip(stream).map(|(puller, stream)| {
            // Only records under a schedule can be overdue: what is handed out waits with its consumer.
            let [_, waiting, _] = stream.queue(name);
            puller.with_overdue(Overdue::new(stream.config(), waiting, self.clock.clone()))
        });
        Ok(NatsSource::new(server, reading, main, retries))
    }

    /// Opens the retry queue, whose records the sources of this consumer read.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the description has no name, the stream exists with other settings, the server says that the user may not publish to this
    /// consumer's part of it, or this consumer goes [without retries](Self::without_retries); `Unavailable` when the
    /// server does not answer.
    pub async fn retry_queue(&self, client: &impl JetStream) -> Result<NatsRetryQueue, StoreError> {
        const OPENING: &str = "open a retry queue";
        let Some(stream) = self.retries() else {
            let text = "this consumer goes without retries; leave out `without_retries`";
            return Err(SetupError::Config(text.to_owned()).for_store(OPENING));
        };
        let name = self.own_name().map_err(|error| error.for_store(OPENING))?;
        let context = client.context();
        let config = stream.config();
        let opened = async {
            let info = streams::ensure(&context, &config).await?;
            permissions::require(&context.client(), &stream.queue(name)).await.map(|()| info)
        };
        let info = opened.await.map_err(|error| error.for_store(OPENING))?;
        // The server's echo decides: before 2.12 it takes the setting and ignores it, and would store records that never
        // come.
        let schedules = stream.schedules(&info);
        let home = StreamDomain::new(context, &stream.name);
        Ok(NatsRetryQueue::new(home, stream, name, schedules, self.clock.clone()))
    }
}

impl<C> Transport<C> for NatsTransport
where
    C: JetStream + Clone + Send + Sync + 'static,
{
    type Source = NatsSource;

    fn consumer_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn summary(&self) -> String {
        match &self.filters[..] {
            [] => format!("NATS stream {}", self.stream),
            subjects => format!("NATS stream {}, subjects {}", self.stream, subjects.join(", ")),
        }
    }

    async fn source(&self, client: &C, name: &str) -> Result<NatsSource, TransportError> {
        self.named(name).source(client).await
    }

    async fn retry_queue(
        &self,
        client: &C,
        name: &str,
    ) -> Result<Option<BoxRetryQueue>, StoreError> {
        if self.retries.is_none() {
            return Ok(None);
        }
        Ok(Some(BoxRetryQueue::new(self.named(name).retry_queue(client).await?)))
    }

    async fn dead_letters(&self, client: &C, name: &str) -> Result<BoxSink, StoreError> {
        let stream = self.dead.clone();
        let stream = match self.replicas {
            Some(replicas) => stream.replicas(replicas),
            None => stream,
        };
        // By this its letters find it, whichever of its handlers has failed.
        Ok(BoxSink::new(NatsSink::open(client, stream).await?.consumer(name)))
    }

    async fn crash_marks(
        &self,
        client: &C,
        _source: &mut NatsSource,
    ) -> Result<Option<BoxCrashMarks>, StoreError> {
        let replicas = self.replicas.unwrap_or(self.dead.replicas);
        let marks = NatsCrashMarks::open(client, self.marks.as_str(), replicas).await?;
        Ok(Some(BoxCrashMarks::new(marks)))
    }
}
