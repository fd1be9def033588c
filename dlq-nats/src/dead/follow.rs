//! A stream of dead letters that is followed into a store, by a durable consumer.

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::{Context, consumer};
use bytes::Bytes;
use dlq_core::log::{Content, Entries, Entry, IngestMark};
use dlq_core::{StoreError, StoreErrorKind, TransportErrorKind};
use futures_util::{FutureExt as _, TryStreamExt as _};
use tokio::time::{Instant, sleep, timeout};

use super::entries::sequence;
use super::reading::READING;
use super::sent::SentBack;
use super::watch::moment;
use super::{NatsLetters, PREFETCH, Passed, StoredLetter};
use crate::client::buckets::stream_of;
use crate::client::error::SetupError;
use crate::client::leader::{self, Which};
use crate::client::permissions::{self, unanswered};
use crate::client::publish::unwritable;
use crate::client::streams::find;
use crate::consumer::durable::{Durable, Of};
use crate::consumer::pull::Puller;
use crate::consumer::ready::Fetched;
use crate::consumer::settle::PROGRESS;

const OPENING: &str = "follow dead letters";

/// Metadata of a durable consumer that names the store into which its letters go.
const STORE: &str = "dlq.store";
const ACK: Bytes = Bytes::from_static(b"+ACK");
/// Time that a reading with an end waits for a letter before it asks whether there are more.
const LOOK: Duration = Duration::from_millis(200);
/// Time that a confirmation may take to be sent.
const PATIENCE: Duration = Duration::from_secs(5);

/// Entries that a durable consumer hands out.
#[derive(Debug)]
pub(super) struct Follow {
    letters: NatsLetters,
    puller: Puller,
    /// Fetched and not yet yielded.
    taken: VecDeque<Fetched>,
    read: Vec<(Subject, Entry)>,
    /// Letters that were sent back, so that they are not sent again from the store.
    sent: SentBack,
    /// Yielded and not yet confirmed.
    unconfirmed: Vec<Subject>,
    missed: u64,
    /// The time when the leases of what was fetched were kept last.
    kept: Instant,
}

impl Follow {
    pub(super) async fn open(
        letters: &NatsLetters,
        store: &str,
        lease: Duration,
    ) -> Result<Self, StoreError> {
        let NatsLetters { context, api, stream, consumer, .. } = letters;
        let (marks, first) = marked(context, &stream.name).await?;
        let there = marks.iter().find(|(info, _)| info.name == *consumer);
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
        let mut durable = Durable::new(Of::Stream(stream.name.clone()), consumer.clone(), lease);
        durable.filters = vec![format!("{}.>", stream.prefix)];
        // The mark is created with the consumer in one step, so that no letter goes into a store before it is there (G6).
        durable.metadata = [(STORE.to_owned(), store.to_owned())].into();
        // Nothing is read yet: the ledger is read after the mark is there, so that a replay and this follower see each
        // other.
        let sent = SentBack::of(letters);
        let opened = async {
            // Of two that create it at once for different stores, the slower one is refused for the metadata that it
            // finds.
            durable.ensure(context).await?;
            let mut needed = durable.needs(*api);
            let read = |api: &str| {
                let mut rights = vec![format!("{api}.STREAM.MSG.GET.{}", stream.name)];
                if !letters.has_other_ledger {
                    let sent = stream_of(&letters.ledger);
                    rights.extend([
                        format!("{api}.STREAM.INFO.{sent}"),
                        format!("{api}.STREAM.MSG.GET.{sent}"),
                        format!("{api}.CONSUMER.CREATE.{sent}.>"),
                        format!("{api}.CONSUMER.MSG.NEXT.{sent}.*"),
                    ]);
                }
                rights
            };
            needed.extend(api.iter().flat_map(|api| read(api)).map(|right| vec![right]));
            permissions::require_each(&context.client(), needed).await
        };
        opened.await.map_err(|error| error.for_store(OPENING))?;
        Ok(Self {
            puller: Puller::new(context.clone(), durable, PREFETCH).with_prefetch(letters.prefetch),
            letters: letters.clone(),
            taken: VecDeque::new(),
            read: Vec::new(),
            sent,
            unconfirmed: Vec::new(),
            missed,
            kept: Instant::now(),
        })
    }

    pub(super) fn missed(&self) -> u64 {
        self.missed
    }

    /// The next letter that was fetched; `None` when there are no more.
    async fn fetch(&mut self) -> Result<Option<Fetched>, StoreError> {
        loop {
            let next = tokio::select! {
                biased;
                next = self.puller.next() => next,
                () = sleep(LOOK), if self.letters.ends => {
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
        let stream = self.letters.context.get_stream_no_info(&self.letters.stream.name).await;
        let stream = stream.map_err(|error| unwritable(READING, error))?;
        let info = stream.consumer_info(&self.letters.consumer).await;
        let info = info.map_err(|error| unwritable(READING, error))?;
        if info.num_pending > 0 || info.num_ack_pending > 0 {
            return Ok(false);
        }
        let last = Which::Last(&info.config.filter_subject);
        let last =
            leader::get(&self.letters.context, READING, &self.letters.stream.name, last).await?;
        Ok(last.is_none_or(|last| last.sequence <= info.delivered.stream_sequence))
    }

    /// Keeps the leases of what was fetched while something else is waited for. What it cannot keep comes again.
    async fn keep_alive(&mut self) {
        if self.kept.elapsed() < self.puller.keep_alive_interval() {
            return;
        }
        self.kept = Instant::now();
        let client = self.letters.context.client();
        let replies = self.read.iter().map(|(reply, _)| reply.clone());
        let sending = async {
            for reply in replies {
                let _ = client.publish(reply, PROGRESS).await;
            }
        };
        let _ = timeout(PATIENCE, sending).await;
        self.puller.keep_alive().await;
    }

    async fn read(&self, fetched: &Fetched) -> Result<Entry, StoreError> {
        let Fetched { message, place, .. } = fetched;
        let content = match StoredLetter::read(&self.letters.context, message, place).await {
            Ok(Some(stored)) => Content::Letter(Box::new(stored.letter)),
            Ok(None) => Content::Foreign,
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => Content::Damaged(error.to_string()),
        };
        let at = self.letters.place(place.sequence);
        Ok(Entry { place: at, again: place.delivered > 1, content })
    }
}

impl Entries for Follow {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        // What a dropped future has left is yielded first, and nothing more is waited for then.
        if self.taken.is_empty() && self.read.is_empty() {
            let Some(first) = self.fetch().await? else { return Ok(Vec::new()) };
            self.taken.push_back(first);
        }
        while self.taken.len() + self.read.len() < limit {
            // Only what is here already joins the batch: letters that have come are not held back for more.
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
        // Nothing is said of a letter before all is known: a future that is dropped has changed none.
        let mut has_waited = false;
        loop {
            let entries: Vec<&Entry> = self.read.iter().map(|(_, entry)| entry).collect();
            let Some(claim) = self.sent.awaited(&entries).await? else { break };
            if !has_waited {
                has_waited = true;
                tracing::warn!(
                    lease = ?claim.lease(),
                    "a replay sends letters of these; where it died, it is waited until its lease ends"
                );
            }
            self.keep_alive().await;
            sleep(moment(&claim)).await;
        }
        self.sent.say_all(self.read.iter_mut().map(|(_, entry)| entry));
        // One line for all of them.
        let mut passed = Passed::default();
        for (_, fed) in &self.read {
            if let Content::Foreign = fed.content {
                passed.foreign(sequence(fed.place.position()));
            }
        }
        let (replies, fed) = std::mem::take(&mut self.read).into_iter().unzip();
        self.unconfirmed = replies;
        Ok(fed)
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        const CONFIRMING: &str = "confirm dead letters";
        // The replies are gone from here after an error, too: their letters come again, which changes nothing in a store
        // (G2).
        let (client, replies) =
            (self.letters.context.client(), std::mem::take(&mut self.unconfirmed));
        let sending = async {
            for reply in replies {
                let sent = client.publish(reply, ACK).await;
                sent.map_err(|error| unwritable(CONFIRMING, error))?;
            }
            // The server answers no acknowledgement here. One that it does not hear has its letter come again, too.
            client.flush().await.map_err(|error| unwritable(CONFIRMING, error))
        };
        // Without a connection the client would wait for one without end.
        timeout(PATIENCE, sending).await.unwrap_or_else(|_| {
            let why = unanswered(&client, "$JS.ACK.>");
            Err(StoreError::new(StoreErrorKind::Unavailable, CONFIRMING).with_detail(why))
        })
    }
}

/// Returns the stores into which the letters of a stream go.
pub(super) async fn marks(context: &Context, stream: &str) -> Result<Vec<IngestMark>, StoreError> {
    let (marks, _) = marked(context, stream).await?;
    let mark = |(info, store): Marked| {
        let confirmed = info.ack_floor.stream_sequence;
        store.map(|store| IngestMark::new(info.name, store, confirmed))
    };
    Ok(marks.into_iter().filter_map(mark).collect())
}

type Marked = (consumer::Info, Option<String>);

/// Returns the number of sequences between the last that a consumer has confirmed and the first that its stream still has.
fn gone(info: &consumer::Info, first: u64) -> u64 {
    match info.ack_floor.stream_sequence {
        // It has confirmed nothing, so that nobody knows from where on it should have read.
        0 => 0,
        confirmed => first.saturating_sub(confirmed + 1),
    }
}

/// The consumers of the stream, and the store that each names; and the first sequence of the stream.
async fn marked(context: &Context, name: &str) -> Result<(Vec<Marked>, u64), StoreError> {
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
