//! From an advisory to a letter that is confirmed.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::Context;
use dlq_core::store::{BoxStore, Maintenance as _, ProcessedEvent, Receipt};
use dlq_core::{Addressee, DeadLetter, Sink as _, StoreError, StoreErrorKind, Timestamp};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::OPERATION;
use super::advisory::Advisory;
use super::domain::Domain;
use super::letter::{delivery_of, letter_of};
use super::metrics::Topics;
use super::recent::Recent;
use super::report::{Counts, Event};
use super::watch::Watch;
use super::written::{SKEW, Written};
use crate::NatsSink;
use crate::client::buckets::timestamp;
use crate::client::leader::{self, Which};
use crate::client::server_time::ServerTime;
use crate::client::streams::find;
use crate::consumer::source::Reading;

/// Number of deaths that are remembered, so that a second report costs nothing.
const REMEMBERED: usize = 64 * 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A death whose letter is written.
#[derive(Clone, Copy, Debug)]
struct Death {
    /// When it was told of: the ears hear the same words.
    told: Timestamp,
    /// When the message was published: sequences begin again in a stream that is deleted and made again. Of one that was
    /// gone what stood for it.
    published: Timestamp,
}

/// For how long a letter may be on its way that another router writes of a message which it has read in time.
const LATE: Duration = Duration::from_secs(10);
/// Age of a death from which its letter is written although nobody can see whether there is one.
const UNSEEN: Duration = Duration::from_secs(20);
/// In how many turns ears work at deaths: those that hear the same words do so one after the other.
const TURNS: usize = 1024;

/// Outcome for an advisory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routed {
    /// It made a letter.
    New,
    /// There was one, or there is to be none.
    Nothing,
    /// The message is gone, and somebody else may be writing its letter: it is to be asked again so much later.
    NotYet(Duration),
}

/// State that all subscribers share.
#[derive(Debug)]
pub(super) struct RouterState {
    pub(super) context: Context,
    pub(super) sink: NatsSink,
    /// The store that has each letter too.
    store: Option<BoxStore>,
    pub(super) reading: Reading,
    pub(super) watch: Watch,
    pub(super) counts: Counts,
    topics: Topics,
    domain: Domain,
    written: Written,
    time: ServerTime,
    /// The `max_deliver` that consumers are expected to have.
    pub(super) expected: Option<u32>,
    /// Tells all of its parts to end.
    pub(super) stop: CancellationToken,
    recent: Mutex<Recent<About, Death>>,
    turns: Box<[tokio::sync::Mutex<()>]>,
}

type About = (String, String, u64);

impl RouterState {
    pub(super) fn new(
        context: Context,
        (sink, store): (NatsSink, Option<BoxStore>),
        reading: Reading,
        watch: Watch,
        domain: Domain,
        expected: Option<u32>,
    ) -> Self {
        let recent = Mutex::new(Recent::new(REMEMBERED));
        let (counts, topics, stop) =
            (Counts::default(), Topics::default(), CancellationToken::new());
        let written = Written::default();
        let time = ServerTime::new(context.clone(), &sink.stream().name);
        let turns = (0..TURNS).map(|_| tokio::sync::Mutex::new(())).collect();
        Self {
            context,
            sink,
            store,
            reading,
            watch,
            counts,
            topics,
            domain,
            written,
            time,
            expected,
            stop,
            recent,
            turns,
        }
    }

    /// Writes the letter that an advisory tells of, and returns once it is confirmed. Tries until `patience` is over, or
    /// the router is to end. What is about a message that is gone can be told to come again later, unless nobody `waits`.
    pub(super) async fn route(
        &self,
        advisory: &Advisory,
        waits: bool,
        patience: Duration,
    ) -> Result<Routed, StoreError> {
        let until = Instant::now() + patience;
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.try_route(advisory, waits, until).await {
                Ok(routed) => return Ok(routed),
                Err(error) => error,
            };
            self.counts.count(Event::Failed);
            // A try that could only begin after the limit is not waited for.
            let is_over = Instant::now() + pause > until;
            if is_over || self.stop.run_until_cancelled(sleep(pause)).await.is_none() {
                // The stream of advisories hands it out again; what a plain ear gives up, the durable one may still hear.
                self.counts.count(Event::GivenUp);
                return Err(error);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn is_ours(&self, advisory: &Advisory) -> Result<bool, StoreError> {
        let is_watched = self.watch.includes(&advisory.stream, &advisory.consumer);
        Ok(is_watched && self.domain.includes(&self.context, advisory.domain.as_deref()).await?)
    }

    /// When the stream was created in which the message stood that is gone; `None` when that one is gone, too.
    async fn created(&self, advisory: &Advisory) -> Result<Option<Timestamp>, StoreError> {
        match find(&self.context, &advisory.stream).await {
            Ok(info) => {
                let created = info.map(|info| timestamp(info.created));
                Ok(created.filter(|created| *created <= advisory.timestamp))
            }
            // Two letters are better than none.
            Err(error) if self.age(advisory).await? > UNSEEN => {
                tracing::warn!(%error, "it may have two letters");
                Ok(None)
            }
            Err(error) => Err(error.for_store(OPERATION)),
        }
    }

    /// Returns the age of the advisory, by the servers' time.
    async fn age(&self, advisory: &Advisory) -> Result<Duration, StoreError> {
        Ok(self.time.now().await?.since(advisory.timestamp))
    }

    async fn turn(&self, about: &About) -> tokio::sync::MutexGuard<'_, ()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(about);
        // The number of locks is fixed: two deaths that share one wait for each other, and nothing else comes of it.
        let turn = usize::try_from(hash % self.turns.len() as u64).unwrap_or_default();
        self.turns[turn].lock().await
    }

    async fn try_route(
        &self,
        advisory: &Advisory,
        waits: bool,
        until: Instant,
    ) -> Result<Routed, StoreError> {
        if !self.is_ours(advisory).await? {
            self.counts.count(Event::Ignored);
            return Ok(Routed::Nothing);
        }
        let about = advisory.about();
        // The ears hear the same words at once: whoever comes second finds the death among those that are known.
        let turn = self.turn(&about).await;
        let before = lock(&self.recent).get(&about).copied();
        if before.is_some_and(|before| before.told == advisory.timestamp) {
            self.counts.count(Event::Known);
            return Ok(Routed::Nothing);
        }
        let at = Which::At(advisory.sequence);
        let found = leader::get(&self.context, OPERATION, &advisory.stream, at).await?;
        // What came into the stream later is another one, of a stream that was made again.
        let found = found.filter(|found| advisory.is_left || found.time <= told_by(advisory));
        let mut published = advisory.timestamp;
        let is_known = if let Some(found) = &found {
            published = found.time;
            before.is_some_and(|before| before.published == published)
        } else if advisory.is_left {
            // Somebody has handled or removed it since it was found.
            return Ok(Routed::Nothing);
        } else if let Some(created) = self.created(advisory).await? {
            published = created;
            // Of two of one sequence nobody can say that they are different ones.
            before.is_some_and(|before| before.published >= created)
        } else {
            false
        };
        if is_known {
            self.counts.count(Event::Known);
            return Ok(Routed::Nothing);
        }
        if found.is_none() {
            let age = self.age(advisory).await?;
            let late = LATE.saturating_sub(age);
            // Another router may have read the message in time: its letter, with the payload, is waited for.
            if waits && !late.is_zero() {
                return Ok(Routed::NotYet(late));
            }
            // Those behind may be about others.
            drop(turn);
            let looking = self.written.has(&self.context, self.sink.stream(), advisory);
            match timeout_at(until, looking).await.unwrap_or_else(|_| Err(unseen())) {
                Ok(true) => {
                    self.counts.count(Event::Known);
                    let death = Death { told: advisory.timestamp, published };
                    lock(&self.recent).insert(about, death);
                    return Ok(Routed::Nothing);
                }
                Ok(false) => {}
                // Two letters are better than none.
                Err(error) if age > UNSEEN => tracing::warn!(%error, "it may have two letters"),
                Err(error) => return Err(error),
            }
        }
        let mut reading = self.reading.clone();
        // A router writes for many consumers, so that the name is that of the advisory.
        reading.incoming.addressee = Addressee::new(Arc::from(advisory.calls_itself()));
        let has_payload = found.is_some();
        let delivery = delivery_of(&reading, advisory, found, published);
        let letter = letter_of(&delivery, advisory, has_payload);
        let class = letter.class;
        if let Some(store) = &self.store {
            // An error leaves the stream without the letter as well, so that the advisory comes again and both are
            // written.
            keep(store, &letter).await?;
        }
        let receipts = self.sink.put(vec![letter]).await?;
        let is_new = receipts.first() != Some(&Receipt::Unchanged);
        self.counts.count(if is_new { Event::Routed } else { Event::Known });
        if is_new {
            self.topics.letter_written(delivery.message().subject(), class);
        }
        if is_new && !has_payload {
            self.counts.count(Event::WithoutPayload);
            tracing::error!(
                stream = advisory.stream,
                consumer = advisory.consumer,
                sequence = advisory.sequence,
                kind = advisory.kind().as_str(),
                "a message has left its stream before it could be read: its letter has no payload"
            );
        }
        // The death is known only once its letter is confirmed: what fails before is tried when it is heard again (G1).
        lock(&self.recent).insert(about, Death { told: advisory.timestamp, published });
        Ok(if is_new { Routed::New } else { Routed::Nothing })
    }
}

/// Writes a letter into a store, before the stream has it: of a message that is gone it is not asked for again once the stream
/// has its letter. A router that dies in between writes both once more, which changes nothing but the audit.
async fn keep(store: &BoxStore, letter: &DeadLetter) -> Result<(), StoreError> {
    let receipts = store.put(vec![letter.clone()]).await?;
    let is_news =
        receipts.first().is_some_and(|it| !matches!(it, Receipt::Unchanged | Receipt::Superseded));
    if is_news {
        store.record_processed(vec![ProcessedEvent::dead_lettered(letter)]).await?;
    }
    Ok(())
}

/// Until when a message was published that had died when this was said, as any of the servers has the time.
fn told_by(advisory: &Advisory) -> Timestamp {
    advisory.timestamp.after(SKEW)
}

fn unseen() -> StoreError {
    let text = "whether there is a letter of it could not be seen in time";
    StoreError::new(StoreErrorKind::Unavailable, OPERATION).with_detail(text)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
