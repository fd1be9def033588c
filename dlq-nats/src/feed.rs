//! [`NatsFeed`]: the letters of a [`DlqStream`](crate::DlqStream) as they come, for the store beside it.

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::jetstream::{Context, consumer};
use async_nats::{Client, Subject};
use bytes::Bytes;
use dlq_core::log::{Content, Entries, Entry};
use dlq_core::{Origin, Position, StoreError, StoreErrorKind, TransportErrorKind};
use futures_util::{FutureExt as _, TryStreamExt as _};
use tokio::time::{sleep, timeout};

use crate::durable::{Durable, Of};
use crate::error::SetupError;
use crate::jetstream::JetStream;
use crate::leader::{self, Which};
use crate::letters::{Passed, SentBack, StoredLetter, ledger_of};
use crate::permissions::{self, unanswered};
use crate::publish::unwritable;
use crate::pull::Puller;
use crate::ready::Fetched;
use crate::streams::{DlqStream, find};

const OPENING: &str = "open a feed of dead letters";
const READING: &str = "read dead letters";

/// Where a durable consumer says into which store its letters go.
const STORE: &str = "dlq.store";
const ACK: Bytes = Bytes::from_static(b"+ACK");
/// How many letters are fetched ahead.
const PREFETCH: usize = 512;
/// How long a feed that ends waits for a letter before it asks whether there are more.
const LOOK: Duration = Duration::from_millis(200);
/// How long a confirmation may take to be sent.
const PATIENCE: Duration = Duration::from_secs(5);

/// The letters of a [`DlqStream`] in the order in which they were written, by a durable consumer of that stream: what
/// was confirmed does not come again, to whichever process.
///
/// The consumer names the store that its letters go into, which is the mark by which it is known that there is one (see
/// [`ingest_marks`]); it was created with the mark in one step. Letters are acknowledged when they are
/// [confirmed](Entries::confirm); those of a process that died come again when their lease has ended.
///
/// A letter that was sent back before it comes says so, and how often: it is `sent` in the store, and not sent again unless
/// somebody asks for just that. Letters of a part of the stream that a replay has claimed and not marked since, because it
/// sends them now or was killed, are quarantined in the store, and their attribute `replays.unclear` says why; a replay out
/// of the stream that is run before the ingest finds out which have arrived.
///
/// Letters stay in the stream for as long as that keeps them.
#[derive(Debug)]
pub struct NatsFeed {
    client: Client,
    context: Context,
    stream: String,
    consumer: String,
    cluster: String,
    puller: Puller,
    ends: bool,
    /// Fetched and not yet yielded.
    taken: VecDeque<Fetched>,
    read: Vec<(Subject, Entry)>,
    /// What was sent back, so that it is not sent again from the store.
    sent: SentBack,
    /// Yielded and not yet confirmed.
    unconfirmed: Vec<Subject>,
    missed: u64,
}

/// A store into which the letters of a stream go.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestMark {
    /// The durable consumer that says so.
    pub consumer: String,
    /// The store.
    pub store: String,
    /// Up to which sequence its letters were confirmed; 0 for none yet.
    pub confirmed: u64,
}

impl NatsFeed {
    /// The feed of this stream into the store of this name, by the durable consumer called `consumer`, which is created
    /// when it is not there and then begins with the oldest letter. A `lease` says for how long a letter stays with a
    /// process that has died; a consumer that is there keeps its own. The name of the store must hold no secret.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such stream; `Conflict` when the letters of this consumer go into another store;
    /// `InvalidConfig` when the consumer exists with settings that will not do, or the server says that the user may not
    /// fetch, read or acknowledge; `Unavailable` when the server does not
    /// answer.
    pub async fn open(
        jetstream: &impl JetStream,
        stream: &DlqStream,
        consumer: &str,
        store: &str,
        lease: Duration,
    ) -> Result<Self, StoreError> {
        let context = jetstream.context();
        let (marks, first) = marks(&context, &stream.name).await?;
        let there = marks.iter().find(|(info, _)| info.name == consumer);
        match there {
            Some((_, Some(other))) if other.as_str() != store => {
                let text = format!(
                    "the letters of consumer `{consumer}` of stream `{}` go into {other}, asked was {store}; use that \
                     store, or delete the consumer: what the stream holds is then read again from its start",
                    stream.name
                );
                return Err(StoreError::new(StoreErrorKind::Conflict, OPENING).with_detail(text));
            }
            Some((_, None)) => {
                let text = format!(
                    "consumer `{consumer}` of stream `{}` is somebody else's: it names no store; give another name",
                    stream.name
                );
                return Err(StoreError::new(StoreErrorKind::Conflict, OPENING).with_detail(text));
            }
            _ => {}
        }
        let lease = there.map_or(lease, |(info, _)| info.config.ack_wait);
        let missed = there.map_or(0, |(info, _)| gone(info, first));
        let mut durable = Durable::new(Of::Stream(stream.name.clone()), consumer.to_owned(), lease);
        durable.filters = vec![format!("{}.>", stream.prefix)];
        durable.metadata = [(STORE.to_owned(), store.to_owned())].into();
        let sent = SentBack::in_bucket(ledger_of(stream));
        let opened = async {
            durable.ensure(&context).await?;
            let mut needed = durable.needs(jetstream.api());
            let read = |api| {
                let (letters, sent) = (&stream.name, sent.stream());
                [
                    format!("{api}.STREAM.MSG.GET.{letters}"),
                    format!("{api}.STREAM.INFO.{sent}"),
                    format!("{api}.STREAM.MSG.GET.{sent}"),
                    format!("{api}.CONSUMER.CREATE.{sent}.>"),
                    format!("{api}.CONSUMER.MSG.NEXT.{sent}.*"),
                ]
            };
            needed.extend(jetstream.api().into_iter().flat_map(read).map(|right| vec![right]));
            permissions::require_each(&context.client(), needed).await
        };
        opened.await.map_err(|error| error.for_store(OPENING))?;
        Ok(Self {
            client: context.client(),
            puller: Puller::new(context.clone(), durable, PREFETCH),
            context,
            stream: stream.name.clone(),
            consumer: consumer.to_owned(),
            cluster: "default".to_owned(),
            ends: false,
            taken: VecDeque::new(),
            read: Vec::new(),
            sent,
            unconfirmed: Vec::new(),
            missed,
        })
    }

    /// How many messages of the stream, letters or parts of them, were removed before this consumer could read them, at
    /// most, as it was found when the feed was opened: the stream keeps them for too short a time, or the consumer was away
    /// for too long. 0 for a consumer that has not confirmed any letter yet.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Sets how many letters are fetched ahead. Defaults to 512. What is fetched by a process that dies is not seen
    /// again before its lease has ended.
    #[must_use]
    pub fn with_prefetch(mut self, letters: usize) -> Self {
        self.puller = self.puller.with_prefetch(letters);
        self
    }

    /// Sets the bucket that says which letters were sent back, where it is
    /// [another](crate::NatsLetters::with_ledger) than the stream's with `_REPLAYS`. Rights to it are not asked for.
    #[must_use]
    pub fn with_ledger(mut self, bucket: impl Into<String>) -> Self {
        self.sent = SentBack::in_bucket(bucket);
        self
    }

    /// Ends when there are no more letters, also none that another process has in hand. Defaults to waiting for more.
    #[must_use]
    pub fn until_end(mut self) -> Self {
        self.ends = true;
        self
    }

    /// The next letter that was fetched; `None` when the feed has ended.
    async fn fetch(&mut self) -> Result<Option<Fetched>, StoreError> {
        loop {
            let next = tokio::select! {
                biased;
                next = self.puller.next() => next,
                () = sleep(LOOK), if self.ends => {
                    if self.is_at_end().await? {
                        return Ok(None);
                    }
                    continue;
                }
            };
            match next {
                Ok(fetched) => return Ok(fetched),
                // It is not helped by asking again.
                Err(error) if error.kind() == TransportErrorKind::Closed => {
                    let ended = StoreError::new(StoreErrorKind::Unexpected, READING);
                    return Err(ended.with_detail(error.to_string()));
                }
                Err(error) => return Err(unwritable(READING, error)),
            }
        }
    }

    /// The server that keeps the consumer may be behind, so that the leader of the stream has the last word.
    async fn is_at_end(&self) -> Result<bool, StoreError> {
        let stream = self.context.get_stream_no_info(&self.stream).await;
        let stream = stream.map_err(|error| unwritable(READING, error))?;
        let info = stream.consumer_info(&self.consumer).await;
        let info = info.map_err(|error| unwritable(READING, error))?;
        if info.num_pending > 0 || info.num_ack_pending > 0 {
            return Ok(false);
        }
        let last = Which::Last(&info.config.filter_subject);
        let last = leader::get(&self.context, READING, &self.stream, last).await?;
        Ok(last.is_none_or(|last| last.sequence <= info.delivered.stream_sequence))
    }

    async fn read(&self, fetched: &Fetched) -> Result<Entry, StoreError> {
        let Fetched { message, place, .. } = fetched;
        let content = match StoredLetter::read(&self.context, message, place).await {
            Ok(Some(stored)) => Content::Letter(Box::new(stored.letter)),
            Ok(None) => Content::Foreign,
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => Content::Damaged(error.to_string()),
        };
        let position = Position::Offset(place.sequence);
        let at = Origin::new("nats", self.stream.as_str(), position);
        let at = at.with_cluster(self.cluster.as_str());
        Ok(Entry { place: at, again: place.delivered > 1, content })
    }
}

impl Entries for NatsFeed {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        if self.taken.is_empty() && self.read.is_empty() {
            let Some(first) = self.fetch().await? else { return Ok(Vec::new()) };
            self.taken.push_back(first);
        }
        while self.taken.len() + self.read.len() < limit {
            match self.puller.next().now_or_never() {
                Some(Ok(Some(fetched))) => self.taken.push_back(fetched),
                _ => break,
            }
        }
        // What is being read stays where it is until it was.
        while let Some(fetched) = self.taken.front() {
            let fed = self.read(fetched).await?;
            self.read.push((fetched.reply.clone(), fed));
            self.taken.pop_front();
        }
        let letters = self.read.iter_mut().filter_map(|(_, fed)| match &mut fed.content {
            Content::Letter(letter) => Some((fed.place.position(), &mut **letter)),
            Content::Damaged(_) | Content::Foreign => None,
        });
        self.sent.mark(&self.context, letters).await?;
        // One line for all of them.
        let mut passed = Passed::default();
        for (_, fed) in &self.read {
            if let (Content::Foreign, Position::Offset(sequence)) =
                (&fed.content, fed.place.position())
            {
                passed.foreign(sequence);
            }
        }
        let (replies, fed) = std::mem::take(&mut self.read).into_iter().unzip();
        self.unconfirmed = replies;
        Ok(fed)
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        const CONFIRMING: &str = "confirm dead letters";
        let replies = std::mem::take(&mut self.unconfirmed);
        let sending = async {
            for reply in replies {
                let sent = self.client.publish(reply, ACK).await;
                sent.map_err(|error| unwritable(CONFIRMING, error))?;
            }
            self.client.flush().await.map_err(|error| unwritable(CONFIRMING, error))
        };
        // Without a connection the client would wait for one without end.
        timeout(PATIENCE, sending).await.unwrap_or_else(|_| {
            let why = unanswered(&self.client, "$JS.ACK.>");
            Err(StoreError::new(StoreErrorKind::Unavailable, CONFIRMING).with_detail(why))
        })
    }
}

/// Which stores the letters of this stream go into.
///
/// # Errors
///
/// `NotFound` when there is no such stream; `Unavailable` when the server does not answer.
pub async fn ingest_marks(
    jetstream: &impl JetStream,
    stream: &DlqStream,
) -> Result<Vec<IngestMark>, StoreError> {
    let context = jetstream.context();
    let (marks, _) = marks(&context, &stream.name).await?;
    Ok(marks
        .into_iter()
        .filter_map(|(info, store)| {
            let (consumer, confirmed) = (info.name, info.ack_floor.stream_sequence);
            store.map(|store| IngestMark { consumer, store, confirmed })
        })
        .collect())
}

type Marked = (consumer::Info, Option<String>);

/// How many sequences lie between what a consumer has confirmed and the first that its stream still has.
fn gone(info: &consumer::Info, first: u64) -> u64 {
    match info.ack_floor.stream_sequence {
        0 => 0,
        confirmed => first.saturating_sub(confirmed + 1),
    }
}

/// The consumers of the stream, and the store that each names; and the first sequence of the stream.
async fn marks(context: &Context, name: &str) -> Result<(Vec<Marked>, u64), StoreError> {
    let answer = |error: SetupError| error.for_store(OPENING);
    let Some(info) = find(context, name).await.map_err(answer)? else {
        let text = format!("there is no stream `{name}`");
        return Err(StoreError::new(StoreErrorKind::NotFound, OPENING).with_detail(text));
    };
    let first = info.state.first_sequence;
    let stream = context.get_stream_no_info(name).await;
    let stream = stream.map_err(|error| unwritable(OPENING, error))?;
    let consumers: Result<Vec<_>, _> = stream.consumers().try_collect().await;
    let consumers = consumers.map_err(|error| unwritable(OPENING, error))?;
    let marked = |info: consumer::Info| {
        let store = info.config.metadata.get(STORE).cloned();
        (info, store)
    };
    Ok((consumers.into_iter().map(marked).collect(), first))
}
