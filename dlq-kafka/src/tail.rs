//! Ends of partitions where no record stands: the marks of transactions, and what was taken back.
//!
//! Such offsets never come, and so nothing is committed beyond them: a group that has done everything would be behind for
//! ever. So partitions in which everything is done are looked at now and then. Where one ends beyond what was received, a
//! second client reads from there, and where it comes to that end without a record, the end is committed. What it has not
//! seen is not believed: an end is asked for before it reads, it reads as the first client does, and nothing is said of a
//! partition of which something was received meanwhile. A replica that is behind ends before the end that the leader gave:
//! so it has to get past that, or nothing comes for a while after the replica's end. Should a record come from there all
//! the same, the commit goes back to it. Where a record is found, ours has to come too, see [`Standstill`]. A process that
//! dies before that commit has done everything, and the next one looks again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Message as _, Offset, TopicPartitionList};

use crate::blocked::looker;
use crate::brokers::Brokers;
use crate::error::SetupError;
use crate::partition::Partition;
use crate::shared::Shared;
use crate::standstill::Standstill;

/// How often partitions are looked at in which everything is done.
const EVERY: Duration = Duration::from_secs(1);
/// The same after the brokers did not answer.
const LATER: Duration = Duration::from_secs(15);
/// How long brokers may take to say where partitions end; nothing is fetched meanwhile.
const ANSWER: Duration = Duration::from_secs(1);
/// How long reading may take, and how long one partition is waited for at once.
const LOOK: Duration = Duration::from_secs(8);
const TURN: Duration = Duration::from_millis(10);
/// How long nothing comes at the end of a replica until there is nothing: it may be behind its leader.
pub(crate) const SURE: Duration = Duration::from_secs(2);
/// How much is read at once: there may be many records that were taken back.
const BYTES: &str = "1048576";

/// A part of a partition, without its last offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

type Looked = Vec<(Arc<Partition>, Span)>;
/// Whether a part is without a record.
pub(crate) type Found = Vec<(Span, bool)>;
type Look = JoinHandle<Result<Vec<(Arc<Partition>, Span, bool)>, SetupError>>;

/// Looks at the ends of partitions in which everything is done.
pub(crate) struct Tail {
    brokers: Brokers,
    /// Up to where each was done when it was looked at last, and up to where something was found beyond.
    known: HashMap<(Arc<str>, i32), (u64, i64)>,
    due: Instant,
    look: Option<Look>,
    still: Standstill,
}

impl Tail {
    pub(crate) fn new(brokers: Brokers) -> Self {
        let (known, due) = (HashMap::new(), Instant::now() + EVERY);
        Self { brokers, known, due, look: None, still: Standstill::default() }
    }

    /// Takes what a look has found, and begins the next when it is time.
    pub(crate) fn watch<C: ConsumerContext>(
        &mut self,
        consumer: &BaseConsumer<C>,
        shared: &Shared,
        paused: &HashSet<(Arc<str>, i32)>,
    ) {
        if let Some(look) = self.look.take_if(|look| look.is_finished()) {
            match look.join() {
                Ok(Ok(looked)) => {
                    for (partition, span, is_empty) in looked {
                        let from = span.from.unsigned_abs();
                        if is_empty {
                            partition.passes(from, span.to.unsigned_abs());
                        } else {
                            self.still.seen((span.topic, span.partition), from, Instant::now());
                        }
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "ends could not be looked at"),
                Err(_) => tracing::error!("a look at ends of partitions has panicked"),
            }
        }
        if self.look.is_some() || Instant::now() < self.due {
            return;
        }
        self.due = Instant::now() + EVERY;
        let rests = |(topic, number): &(Arc<str>, i32)| shared.find(topic, *number)?.rests_at();
        if let Some(error) = self.still.told(Instant::now(), rests, |place| paused.contains(place))
        {
            shared.queue().blocked = Some(error);
            shared.arrived.notify_one();
        }
        match self.ends(consumer, shared) {
            Ok(spans) if spans.is_empty() => {}
            Ok(spans) => self.begin(spans),
            Err(error) => {
                self.due = Instant::now() + LATER;
                tracing::debug!(%error, "it could not be found out where partitions end");
            }
        }
    }

    /// The ends of partitions in which everything has been done for a while, where they lie beyond that.
    fn ends<C: ConsumerContext>(
        &mut self,
        consumer: &BaseConsumer<C>,
        shared: &Shared,
    ) -> Result<Looked, KafkaError> {
        let before = std::mem::take(&mut self.known);
        let mut resting = Vec::new();
        for partition in shared.all() {
            let Some(at) = partition.rests_at() else { continue };
            let place = (Arc::clone(&partition.topic), partition.number);
            let known = before.get(&place).copied().filter(|(before, _)| *before == at);
            let (_, found) = *self.known.entry(place).or_insert(known.unwrap_or((at, 0)));
            if known.is_some() {
                resting.push((partition, at, found));
            }
        }
        if resting.is_empty() {
            return Ok(Vec::new());
        }
        let mut list = TopicPartitionList::new();
        for (partition, ..) in &resting {
            list.add_partition_offset(&partition.topic, partition.number, Offset::End)?;
        }
        let ends = consumer.offsets_for_times(list, ANSWER)?;
        let still = &mut self.still;
        let span = |(partition, at, found): (Arc<Partition>, u64, i64)| {
            let end = ends.find_partition(&partition.topic, partition.number)?;
            let place = (Arc::clone(&partition.topic), partition.number);
            let (from, to) = match (end.error(), end.offset()) {
                (Ok(()), Offset::Offset(end)) => (i64::try_from(at).ok()?, end),
                (Err(error), _) => {
                    // The client has heard of a leader that the brokers have not: what there is cannot be asked.
                    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownLeaderEpoch) {
                        still.seen(place, at, Instant::now());
                    }
                    return None;
                }
                _ => return None,
            };
            if to <= from {
                still.refuted(&place);
            }
            let span = Span { topic: place.0, partition: place.1, from, to };
            // What was looked at is looked at again when more stands there.
            (from < to && found < to).then_some((partition, span))
        };
        Ok(resting.into_iter().filter_map(span).collect())
    }

    fn begin(&mut self, looked: Looked) {
        for (_, span) in &looked {
            if let Some(known) = self.known.get_mut(&(Arc::clone(&span.topic), span.partition)) {
                known.1 = span.to;
            }
        }
        let brokers = self.brokers.clone();
        let look = move || {
            let spans: Vec<_> = looked.iter().map(|(_, span)| span.clone()).collect();
            let found = find(&brokers, &spans)?;
            let found = |span: &Span| found.iter().find(|(of, _)| of == span).map(|found| found.1);
            let with = |(partition, span): (_, Span)| {
                let is_empty = found(&span)?;
                Some((partition, span, is_empty))
            };
            Ok(looked.into_iter().filter_map(with).collect())
        };
        let thread = std::thread::Builder::new().name("dlq-kafka-tail".to_owned());
        match thread.spawn(look) {
            Ok(look) => self.look = Some(look),
            Err(error) => tracing::warn!(%error, "a thread that looks could not be started"),
        }
    }
}

/// Looks for records in these parts. What cannot be read is left out.
pub(crate) fn find(brokers: &Brokers, spans: &[Span]) -> Result<Found, SetupError> {
    let answered = |error| SetupError::answered("look at the ends of partitions", error);
    let consumer = looker(brokers, BYTES)?;
    let mut list = TopicPartitionList::new();
    let mut open = Vec::new();
    for span in spans {
        let from = Offset::Offset(span.from);
        list.add_partition_offset(&span.topic, span.partition, from).map_err(answered)?;
        if let Some(queue) = consumer.split_partition_queue(&span.topic, span.partition) {
            open.push((span, queue, None));
        }
    }
    consumer.assign(&list).map_err(answered)?;
    let until = Instant::now() + LOOK;
    let mut found = Vec::new();
    while !open.is_empty() && Instant::now() < until {
        // What is of no partition.
        let _ = consumer.poll(Duration::ZERO);
        // How far it has come, past what it gives to nobody.
        let come = consumer.position().map_err(answered)?;
        open.retain_mut(|(span, queue, ended)| {
            let is_empty = match queue.poll(TURN) {
                Some(Ok(message)) => message.offset() >= span.to,
                Some(Err(KafkaError::PartitionEOF(_))) => {
                    ended.get_or_insert_with(Instant::now);
                    return true;
                }
                Some(Err(_)) => return false,
                None => {
                    let come = come.find_partition(&span.topic, span.partition);
                    let is_past = come.is_some_and(
                        |come| matches!(come.offset(), Offset::Offset(come) if come >= span.to),
                    );
                    let is_over = |ended: &Instant| ended.elapsed() >= SURE;
                    if !is_past && !ended.as_ref().is_some_and(is_over) {
                        return true;
                    }
                    true
                }
            };
            found.push(((*span).clone(), is_empty));
            false
        });
    }
    Ok(found)
}
