//! [`NatsOutbox`]: sends letters of a store back to streams.

mod send;
mod settle;
mod survey;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::jetstream::Context;
use async_nats::jetstream::context::GetStreamByNameErrorKind;
use dlq_core::outbox::{Address, Outbox, Outgoing, Sent, Settled, Survey};
use dlq_core::replay::Skipped;
use dlq_core::store::Target;
use dlq_core::{BindingKey, DeadLetter, StoreError, Timestamp};
use tokio::time::Instant;

use crate::client::domain::StreamDomain;
use crate::client::inboxes::Inboxes;
use crate::client::jetstream::JetStream;
use crate::client::names::is_subject;
use crate::client::streams::RetryStream;
use crate::dead::dispatch::{Dispatch, consumer_of};

/// Sends letters of a store back to the streams of one JetStream domain; an [`Outbox`].
///
/// | target | where a letter goes |
/// |---|---|
/// | origin | to its subject, in the stream where it was born |
/// | a subject | to that subject, in whichever stream keeps it |
/// | handler | to the retry queue of its consumer, with [`retry_stream`](Self::retry_stream) only |
///
/// ```no_run
/// # fn outboxes(client: &async_nats::Client) -> Result<(), dlq_core::StoreError> {
/// use dlq_core::outbox::Outboxes;
/// use dlq_nats::NatsOutbox;
///
/// let mut outboxes = Outboxes::new();
/// outboxes.add(NatsOutbox::new(client).cluster("eu"))?;
/// # Ok(()) }
/// ```
///
/// # Once
///
/// A letter has the `Nats-Msg-Id` `replay.LETTER.GENERATION.OPERATION`, so within the duplicate window of its stream the
/// server keeps it once, whoever sends it. Beyond the window, [`settle`](Outbox::settle) reads the stream from a minute
/// before the claim. It can say that a letter is not there only if the stream has `limits` retention and nothing was
/// removed from it since; otherwise the answer is unclear, and what was in flight when a sender was killed may come twice.
///
/// # What is refused
///
/// | the server says | result |
/// |---|---|
/// | the message is too large, the stream is another one, there is no stream | [`Sent::Refused`] |
/// | the stream is full, has no leader, or the server is away | [`Sent::Later`] |
/// | nothing, in the time-out of the client | [`Sent::Unknown`] |
///
/// A stream with interest retention forgets what none of its consumers wants. Letters that would be lost by that are
/// refused.
///
/// # Rights
///
/// To publish to the subjects that letters go to, and to `$JS.API.STREAM.INFO.STREAM` of their streams; for a subject that is
/// named, to `$JS.API.STREAM.NAMES`. A [survey](Outbox::survey) names those that are missing. What settle needs is noted
/// there: without it, it is unclear whether letters have arrived.
#[derive(Clone, Debug)]
#[must_use]
pub struct NatsOutbox {
    context: Context,
    /// See [`JetStream::api`].
    api: Option<&'static str>,
    cluster: Arc<str>,
    sender: Arc<str>,
    key: Option<BindingKey>,
    key_header: Option<String>,
    retries: Option<RetryStream>,
    /// The connections that letters go by, for each stream.
    dispatches: Arc<Mutex<HashMap<String, Dispatch>>>,
}

impl NatsOutbox {
    /// An outbox for the cluster `default`, with a sender of its own.
    pub fn new(jetstream: &impl JetStream) -> Self {
        let (context, api) = (jetstream.context(), jetstream.api());
        // No other client makes an inbox of this name.
        let sender = context.client().new_inbox().replace("_INBOX.", "nats-").into();
        Self {
            context,
            api,
            cluster: "default".into(),
            sender,
            key: None,
            key_header: None,
            retries: None,
            dispatches: Arc::default(),
        }
    }

    /// Sets the alias of the cluster; the same as the [consumer's](crate::NatsTransport::cluster_alias). Defaults to `default`.
    pub fn cluster(mut self, alias: impl Into<Arc<str>>) -> Self {
        self.cluster = alias.into();
        self
    }

    /// Sets the name of the sender. Defaults to one that no other has.
    pub fn sender(mut self, name: impl Into<Arc<str>>) -> Self {
        self.sender = name.into();
        self
    }

    /// Sets the secret by which letters are bound; the same as the
    /// [consumer's](crate::NatsTransport::binding_key). Defaults to none.
    pub fn binding_key(mut self, key: BindingKey) -> Self {
        self.key = Some(key);
        // The map is a new one: clones share the former, and what that keeps has the former key.
        self.dispatches = Arc::default();
        self
    }

    /// Sets the header that carries the key of a message; the same as the
    /// [consumer's](crate::NatsTransport::key_header). Defaults to none: letters with a key are then refused.
    pub fn key_header(mut self, name: impl Into<String>) -> Self {
        self.key_header = Some(name.into());
        self.dispatches = Arc::default();
        self
    }

    /// Sets the retry stream by which letters go to their handlers. Defaults to none.
    pub fn retry_stream(mut self, stream: RetryStream) -> Self {
        self.retries = Some(stream);
        self
    }

    /// The connection of what goes to a stream.
    async fn dispatch(&self, stream: &str) -> Dispatch {
        let lock = || self.dispatches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(stream) {
            return known.clone();
        }
        let home = StreamDomain::find(self.context.clone(), stream).await;
        let made = Dispatch {
            context: self.context.clone(),
            inboxes: Arc::new(Inboxes::new(home.clone())),
            home,
            key: self.key.clone(),
            key_header: self.key_header.clone(),
        };
        // Another task may have been faster; its inboxes are shared then.
        lock().entry(stream.to_owned()).or_insert(made).clone()
    }

    /// The streams that these addresses lead to.
    async fn keepers<'a>(
        &self,
        to: BTreeSet<&'a Address>,
    ) -> BTreeMap<&'a Address, Result<String, NoKeeper>> {
        let mut keepers = BTreeMap::new();
        for to in to {
            keepers.insert(to, self.keeper(to).await);
        }
        keepers
    }

    async fn keeper(&self, to: &Address) -> Result<String, NoKeeper> {
        if let Some(stream) = &to.stream {
            return Ok(stream.to_string());
        }
        let subject = &*to.subject;
        if !is_subject(subject) {
            let text = format!("`{subject}` is no subject that can be published to");
            return Err(NoKeeper::None(text + "; name one without wildcards"));
        }
        self.context.stream_by_subject(subject).await.map_err(|error| match error.kind() {
            GetStreamByNameErrorKind::NotFound | GetStreamByNameErrorKind::InvalidSubject => {
                let text =
                    format!("no stream keeps `{subject}`; create one, or name another subject");
                NoKeeper::None(text)
            }
            _ => NoKeeper::Unknown(format!("no stream is known that keeps `{subject}`: {error}")),
        })
    }
}

/// Reason why no stream is known for an address.
#[derive(Debug)]
enum NoKeeper {
    /// There is none.
    None(String),
    /// The server has not said.
    Unknown(String),
}

impl NoKeeper {
    fn why(&self) -> &str {
        let (Self::None(why) | Self::Unknown(why)) = self;
        why
    }
}

impl Outbox for NatsOutbox {
    fn transport(&self) -> &'static str {
        "nats"
    }

    fn cluster(&self) -> &str {
        &self.cluster
    }

    fn sender(&self) -> &str {
        &self.sender
    }

    fn route(&self, letter: &DeadLetter, to: &Target) -> Result<Address, Skipped> {
        let (origin, subject) = (&letter.origin, letter.message.subject());
        let address = |subject: &str| Address::new("nats", Arc::clone(&self.cluster), subject);
        match to {
            Target::Origin => {
                let is_here = origin.transport() == "nats" && origin.cluster() == &*self.cluster;
                let mut to = address(subject);
                to.stream = Some(origin.stream().into());
                (is_here && is_subject(subject)).then_some(to).ok_or(Skipped::NoOrigin)
            }
            Target::Subject(subject) => Ok(address(subject)),
            Target::Handler => {
                let consumer = Some(consumer_of(letter)).filter(|name| !name.is_empty());
                let (retries, consumer) =
                    self.retries.as_ref().zip(consumer).ok_or(Skipped::NoOrigin)?;
                let mut to = address(&retries.subject_for(consumer, subject));
                to.stream = Some(retries.name.as_str().into());
                to.consumer = Some(consumer.into());
                Ok(to)
            }
            _ => Err(Skipped::NoOrigin),
        }
    }

    async fn survey(&self, to: BTreeSet<Address>) -> Result<Survey, StoreError> {
        self.look(&to).await
    }

    async fn send(&self, batch: Vec<Outgoing>, until: Instant) -> Result<Vec<Sent>, StoreError> {
        self.send_all(&batch, until).await
    }

    async fn settle(
        &self,
        // The server knows repeats by the id of the letter, whoever has sent it.
        _: String,
        since: Timestamp,
        batch: Vec<Outgoing>,
    ) -> Result<Vec<Settled>, StoreError> {
        self.settle_all(since, &batch).await
    }
}
