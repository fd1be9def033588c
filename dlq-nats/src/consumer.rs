use std::sync::Arc;
use std::time::Duration;

use dlq_core::{Addressee, BindingKey, SharedClock, StoreError, SystemClock, TransportError};

use crate::durable::{Durable, Of};
use crate::error::SetupError;
use crate::home::Home;
use crate::jetstream::JetStream;
use crate::lane::NatsRetryLane;
use crate::names::token;
use crate::overdue::Overdue;
use crate::permissions::{self, read_from};
use crate::pull::Puller;
use crate::settle::Server;
use crate::source::{NatsSource, Reading, incoming};
use crate::streams::{self, RetryStream};

/// Where a consumer that the server does not know begins to read.
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

/// Describes a consumer of a stream: from it come the [source](NatsConsumer::source) and the
/// [retry lane](NatsConsumer::retry_lane) of a process.
///
/// Processes that describe the same consumer share its messages. Letters that come back are known by the names of the
/// handlers, which a [consumer](dlq_core::Source::yields_to) tells the source. Give it the name of the handler all the
/// same, where there is one handler: letters that are sent to their [handler](crate::NatsTarget::Handler) go to the consumer
/// of that name. Where there are several, tell the [sink](crate::NatsSink::consumer) the name of the consumer. Under another
/// name it begins anew, and who has the old one is the only one that hears the retry records of it: let a process run under
/// the old name until they are done, which `dlq check` tells.
///
/// At the server it is a durable pull consumer with explicit acknowledgement, without a limit of deliveries, without a
/// backoff, and without an `inactive_threshold`, after which the server would delete it. It is created when it is not
/// there; one that exists with other settings is reported, never changed. Its [lease](Self::with_lease) and its `max_batch`
/// are taken as they are.
#[derive(Clone, Debug)]
#[must_use]
pub struct NatsConsumer {
    stream: String,
    name: Arc<str>,
    durable: String,
    filters: Vec<String>,
    start: Start,
    lease: Duration,
    prefetch: usize,
    max_ack_pending: i64,
    cluster: Arc<str>,
    key: Option<BindingKey>,
    key_header: Option<Arc<str>>,
    event_header: Option<Arc<str>>,
    retries: Option<RetryStream>,
    clock: SharedClock,
}

impl NatsConsumer {
    /// The consumer called `name` of `stream`, which has to exist.
    pub fn new(stream: impl Into<String>, name: impl Into<Arc<str>>) -> Self {
        let name = name.into();
        Self {
            stream: stream.into(),
            durable: token(&name),
            name,
            filters: Vec::new(),
            start: Start::Earliest,
            lease: Duration::from_secs(60),
            prefetch: 32,
            max_ack_pending: 1_024,
            cluster: Arc::from("default"),
            key: None,
            key_header: None,
            event_header: None,
            retries: Some(RetryStream::new()),
            clock: SystemClock::shared(),
        }
    }

    /// Sets the name of the durable consumer at the server. Defaults to the consumer's name, in which characters other
    /// than letters, digits, `-` and `_` are written as `=` and their hexadecimal digits.
    pub fn with_durable(mut self, name: impl Into<String>) -> Self {
        self.durable = name.into();
        self
    }

    /// Adds a subject to read, such as `orders.*.created`. Defaults to all of the stream.
    pub fn with_filter(mut self, subject: impl Into<String>) -> Self {
        self.filters.push(subject.into());
        self
    }

    /// Sets where it begins when the server does not know it. Defaults to [`Start::Earliest`].
    pub fn with_start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets for how long a message stays with a process without a word (`ack_wait`). It is extended while the handler
    /// runs or the message waits, so that it only says how soon a dead process is noticed. A consumer that is there keeps
    /// its own, of at least a second or this. Defaults to 60 s.
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how many messages are fetched ahead; at least 1. Near the number of messages that are handled at once is
    /// right: what is fetched is kept from other processes. Defaults to 32.
    pub fn with_prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    /// Sets how many messages all processes together may have unsettled, those included that were given back for a time.
    /// Defaults to 1024, which is four times what one process has in hand unless told otherwise. Counts only when the
    /// consumer is created.
    pub fn with_max_ack_pending(mut self, messages: u32) -> Self {
        self.max_ack_pending = i64::from(messages.max(1));
        self
    }

    /// Sets the alias of the cluster, which is part of the identity of letters. Defaults to `default`.
    pub fn with_cluster(mut self, alias: impl Into<Arc<str>>) -> Self {
        self.cluster = alias.into();
        self
    }

    /// Sets the secret by which letters are bound that are sent back to the stream. With one no message is believed to be a
    /// letter that was not bound by it, and it is handled as a new one; the retry lane is not concerned. Give it to those
    /// who send letters back ([`NatsLetters::with_binding_key`](crate::NatsLetters::with_binding_key)) before the consumers.
    /// Defaults to none: then any publisher that knows payload and key of a message can claim the identity of its letter.
    pub fn with_binding_key(mut self, key: BindingKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Takes the key of a message from this header, which then is no header of the message. NATS has no keys; defaults to
    /// none.
    pub fn with_key_header(mut self, name: impl Into<Arc<str>>) -> Self {
        self.key_header = Some(name.into());
        self
    }

    /// Takes the type of the event from this header, e.g. `ce-type`; it stays a header. Defaults to none.
    pub fn with_event_header(mut self, name: impl Into<Arc<str>>) -> Self {
        self.event_header = Some(name.into());
        self
    }

    /// Sets the stream of the retry lane. Defaults to `DLQ_RETRY`; see [`RetryStream`].
    pub fn with_retries(mut self, stream: RetryStream) -> Self {
        self.retries = Some(stream);
        self
    }

    /// Goes without a retry lane: the stream for it is neither created nor read.
    pub fn without_retries(mut self) -> Self {
        self.retries = None;
        self
    }

    /// Sets the clock that due times are compared with. Defaults to the machine's.
    pub fn with_clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// What it is at the server: the consumer of the user's stream, then that of the retry lane.
    pub(crate) fn durables(&self) -> Vec<Durable> {
        let mut main =
            Durable::new(Of::Stream(self.stream.clone()), self.durable.clone(), self.lease);
        main.filters.clone_from(&self.filters);
        main.start = self.start;
        main.max_ack_pending = self.max_ack_pending;
        let mut durables = vec![main];
        if let Some(stream) = &self.retries {
            let of = Of::Own(Box::new(stream.config()));
            let mut retries = Durable::new(of, token(&self.name), self.lease);
            retries.filters = vec![format!("{}.{}.>", stream.prefix, token(&self.name))];
            durables.push(retries);
        }
        durables
    }

    /// Makes sure of stream and consumer at the server, and reads.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the stream of the retry lane or the consumer exist with settings that will not do, or the
    /// server says that the user may not fetch, acknowledge, or read what large records are made of; `Unavailable` when the
    /// server does not answer or there is no such stream.
    pub async fn source(&self, client: &impl JetStream) -> Result<NatsSource, TransportError> {
        const OPENING: &str = "open a consumer";
        let context = client.context();
        let mut pullers = Vec::new();
        let opened = async {
            let mut needs = Vec::new();
            for mut durable in self.durables() {
                durable.ensure(&context).await?;
                needs.extend(durable.needs(client.api()));
                pullers.push(Puller::new(context.clone(), durable, self.prefetch));
            }
            // What stands aside of a record is read from there.
            let aside = self.retries.as_ref().zip(client.api());
            needs.extend(aside.map(|(stream, api)| vec![read_from(api, &stream.name)]));
            permissions::require_each(&context.client(), needs).await
        };
        opened.await.map_err(|error| error.for_transport(OPENING))?;
        let reading = Reading {
            incoming: incoming(
                Addressee::new(Arc::clone(&self.name)),
                self.key.clone(),
                self.event_header.clone(),
            ),
            cluster: Arc::clone(&self.cluster),
            key_header: self.key_header.clone(),
            clock: self.clock.clone(),
        };
        let retries = self.retries.as_ref().map(|stream| Arc::from(stream.name.as_str()));
        let server = Server::new(context, self.lease, retries);
        let mut pullers = pullers.into_iter();
        let main = pullers.next();
        let retries = pullers.next().zip(self.retries.as_ref()).map(|(puller, stream)| {
            let [_, waiting, _] = stream.lane(&self.name);
            puller.with_overdue(Overdue::new(stream.config(), waiting, self.clock.clone()))
        });
        Ok(NatsSource::new(server, reading, main, retries))
    }

    /// The retry lane of this consumer; its sources hear the records.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the stream exists with other settings, the server says that the user may not publish to this
    /// consumer's part of it, or this consumer goes [without retries](Self::without_retries); `Unavailable` when the
    /// server does not answer.
    pub async fn retry_lane(&self, client: &impl JetStream) -> Result<NatsRetryLane, StoreError> {
        const OPENING: &str = "open a retry lane";
        let Some(stream) = &self.retries else {
            let text = "this consumer goes without retries; leave out `without_retries`";
            return Err(SetupError::Config(text.to_owned()).for_store(OPENING));
        };
        let context = client.context();
        let config = stream.config();
        let opened = async {
            let info = streams::ensure(&context, &config).await?;
            permissions::require(&context.client(), &stream.lane(&self.name)).await.map(|()| info)
        };
        let info = opened.await.map_err(|error| error.for_store(OPENING))?;
        let schedules = stream.schedules(&info);
        let home = Home::new(context, &stream.name);
        Ok(NatsRetryLane::new(home, stream.clone(), &self.name, schedules, self.clock.clone()))
    }
}
