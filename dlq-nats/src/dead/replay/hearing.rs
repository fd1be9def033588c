//! Consumers that receive what is sent.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::future::ready;
use std::sync::Mutex;

use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::jetstream::stream::{Info, RetentionPolicy, Source};
use async_nats::jetstream::{Context, consumer};
use dlq_core::{DeadLetter, StoreError};
use futures_util::TryStreamExt;

use super::super::picture::Row;
use super::super::scan::SCANS;
use super::super::send::{NatsTarget, Shipment};
use super::run::lock;
use crate::client::names::token;
use crate::client::publish::unwritable;
use crate::client::streams::find;
use crate::client::subjects::covers;
use crate::dead::dispatch::REPLAYING;

/// A consumer of a stream, or a stream that copies it, and what it listens to.
#[derive(Debug)]
pub(crate) struct Hears {
    pub(crate) name: String,
    filters: Vec<String>,
}

impl Hears {
    fn new(name: String, filters: impl IntoIterator<Item = String>) -> Self {
        let mut filters: Vec<String> =
            filters.into_iter().filter(|filter| !filter.is_empty()).collect();
        if filters.is_empty() {
            filters.push(">".to_owned());
        }
        Self { name, filters }
    }

    pub(crate) fn hears(&self, subject: &str) -> bool {
        self.filters.iter().any(|filter| covers(filter, subject))
    }
}

/// The consumers of a stream.
pub(crate) async fn consumers(context: &Context, stream: &str) -> Result<Vec<Hears>, StoreError> {
    let stream = context.get_stream_no_info(stream).await;
    let stream = stream.map_err(|error| unwritable(REPLAYING, error))?;
    // Who only looks hears nothing.
    let is_subscriber =
        |found: &consumer::Info| ready(found.config.description.as_deref() != Some(SCANS));
    let found = stream.consumers().try_filter(is_subscriber).map_ok(|found| {
        let config = found.config;
        let filters = config.filter_subjects.into_iter().chain([config.filter_subject]);
        Hears::new(found.name, filters)
    });
    found.try_collect().await.map_err(|error| unwritable(REPLAYING, error))
}

/// Every stream.
pub(crate) async fn streams(context: &Context) -> Result<Vec<Info>, StoreError> {
    context.streams().try_collect().await.map_err(|error| unwritable(REPLAYING, error))
}

/// Returns those of these streams that copy messages from this one.
pub(crate) fn copies<'a>(all: &'a [Info], of: &'a str) -> impl Iterator<Item = Hears> + 'a {
    all.iter().flat_map(move |info| {
        let sources = info.config.sources.iter().flatten().chain(&info.config.mirror);
        // A source of another domain or account only has the name of this stream.
        let sources = sources.filter(move |source| source.name == of && source.external.is_none());
        sources.map(|source| Hears::new(info.config.name.clone(), taken(source)))
    })
}

/// Returns the subjects that a stream takes from another one.
fn taken(source: &Source) -> impl Iterator<Item = String> {
    let transforms = source.subject_transforms.iter().map(|transform| transform.source.clone());
    transforms.chain(source.filter_subject.clone())
}

/// Destinations by stream: whose letters go to which subject.
pub(super) type Addressed<'a> = BTreeMap<&'a str, BTreeSet<(Cow<'a, str>, &'a str)>>;

pub(super) fn addressed<'a>(shipment: &'a Shipment, rows: &[&'a Row]) -> Addressed<'a> {
    let mut streams = Addressed::new();
    for Row { letter, .. } in rows {
        if let Some(stream) = shipment.stream_for(letter) {
            let subject = shipment.subject_for(letter);
            streams.entry(stream).or_default().insert((subject, shipment.consumer_for(letter)));
        }
    }
    streams
}

/// Returns true if a stream keeps messages only while somebody wants them: it confirms and forgets what nobody wants.
pub(crate) fn is_choosy(info: &Info) -> bool {
    // Under which subjects it looks for them is not known where it changes them.
    info.config.retention == RetentionPolicy::Interest && info.config.subject_transform.is_none()
}

pub(crate) fn unwanted(stream: &str, subject: &str) -> String {
    format!(
        "stream `{stream}` keeps only what its consumers want, and none of them wants `{subject}`, which would be lost: \
         start the one that wants it first, or name another target"
    )
}

/// Receivers of what a run sends, for streams that would lose it otherwise.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// Consumers that do not read the retry stream.
    deaf: BTreeSet<String>,
    /// Streams that are not there, as far as this context leads: another domain would take a letter and handle it, and
    /// whoever looks for it later would not find it here.
    absent: HashSet<String>,
    /// Streams that copy those that are choosy.
    copies: HashMap<String, Vec<Hears>>,
    /// The consumers of those that are choosy, as they were when they were last asked for.
    consumers: Mutex<HashMap<String, Vec<Hears>>>,
}

impl Hearing {
    pub(super) async fn of(shipment: &Shipment, rows: &[&Row]) -> Result<Self, StoreError> {
        let context = &shipment.dispatch.context;
        let mut hearing = Self { deaf: deaf(shipment, rows).await?, ..Self::default() };
        for (name, letters) in addressed(shipment, rows) {
            let info = find(context, name).await.map_err(|error| error.for_store(REPLAYING))?;
            // Its letters fail, each by itself: the others have streams that are there.
            if info.is_none() {
                hearing.absent.insert(name.to_owned());
            }
            let Some(info) = info.filter(is_choosy) else { continue };
            hearing.look(context, &info).await?;
            // Streams are listed only where no consumer wants a letter: not every user may list them.
            if letters.iter().any(|(subject, _)| !hearing.is_heard(name, subject)) {
                // A user who may not list streams sends fewer letters, and none that would be forgotten.
                let all = streams(context).await.unwrap_or_default();
                hearing.copies.insert(name.to_owned(), copies(&all, name).collect());
            }
        }
        Ok(hearing)
    }

    /// Looks again who listens to a stream.
    pub(super) async fn look(&self, context: &Context, info: &Info) -> Result<(), StoreError> {
        if is_choosy(info) {
            let name = &info.config.name;
            let found = consumers(context, name).await?;
            lock(&self.consumers).insert(name.clone(), found);
        }
        Ok(())
    }

    fn is_heard(&self, stream: &str, subject: &str) -> bool {
        let hears = |all: &Vec<Hears>| all.iter().any(|one| one.hears(subject));
        lock(&self.consumers).get(stream).is_none_or(hears)
            || self.copies.get(stream).is_some_and(hears)
    }

    /// Returns the reason why nobody would receive a letter, if so.
    pub(super) fn lacks(&self, shipment: &Shipment, letter: &DeadLetter) -> Option<String> {
        let consumer = shipment.consumer_for(letter);
        if self.deaf.contains(consumer) {
            return Some(unread(consumer));
        }
        let (stream, subject) = (shipment.stream_for(letter)?, shipment.subject_for(letter));
        if self.absent.contains(stream) {
            return Some(format!(
                "there is no stream `{stream}`; create it, name another target, or say in which JetStream domain it is"
            ));
        }
        (!self.is_heard(stream, &subject)).then(|| unwanted(stream, &subject))
    }
}

pub(crate) fn unread(consumer: &str) -> String {
    format!(
        "no consumer called `{consumer}` reads the retry stream, so that nobody would hear it; start it, or if the handler \
         is another one's, say whose (`NatsReplay::consumer`, `--handler-consumer`)"
    )
}

/// Consumers whose letters nobody would hear in the retry stream.
pub(super) async fn deaf(
    shipment: &Shipment,
    rows: &[&Row],
) -> Result<BTreeSet<String>, StoreError> {
    let mut deaf = BTreeSet::new();
    let NatsTarget::Handler(retries) = &shipment.target else { return Ok(deaf) };
    let stream = shipment.dispatch.context.get_stream_no_info(&retries.name).await;
    let stream = stream.map_err(|error| unwritable(REPLAYING, error))?;
    let consumers: HashSet<&str> =
        rows.iter().map(|row| shipment.consumer_for(&row.letter)).collect();
    for consumer in consumers {
        match stream.consumer_info(token(consumer)).await {
            Ok(_) => {}
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => {
                deaf.insert(consumer.to_owned());
            }
            Err(error) => return Err(unwritable(REPLAYING, error)),
        }
    }
    Ok(deaf)
}
