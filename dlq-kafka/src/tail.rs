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

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
/// How long brokers may take to say where partitions end.
pub(crate) const ANSWER: Duration = Duration::from_secs(1);
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

/// Whether a part is without a record.
pub(crate) type Found = Vec<(Span, bool)>;
/// A partition, up to where everything is done of it, and up to where something was found beyond.
type Resting = (Arc<Partition>, u64, i64);

/// Where a partition ends.
#[derive(Clone, Copy)]
enum End {
    At(i64),
    /// The client has heard of a leader that the brokers have not: what there is cannot be asked.
    Unheard,
    Unknown,
}

/// What a look has come to.
struct Looked {
    ends: Vec<(Resting, End)>,
    found: Result<Found, SetupError>,
}

type Look = JoinHandle<Result<Looked, KafkaError>>;

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
    pub(crate) fn watch<C: ConsumerContext + 'static>(
        &mut self,
        consumer: &Arc<BaseConsumer<C>>,
        shared: &Shared,
    ) {
        if let Some(look) = self.look.take_if(|look| look.is_finished()) {
            match look.join() {
                Ok(Ok(looked)) => self.take(looked),
                Ok(Err(error)) => {
                    self.due = Instant::now() + LATER;
                    tracing::debug!(%error, "it could not be found out where partitions end");
                }
                Err(_) => tracing::error!("a look at ends of partitions has panicked"),
            }
        }
        if self.look.is_some() || Instant::now() < self.due {
            return;
        }
        self.due = Instant::now() + EVERY;
        let rests = |(topic, number): &(Arc<str>, i32)| shared.find(topic, *number)?.rests_at();
        let is_paused = |(topic, number): &(Arc<str>, i32)| {
            shared.find(topic, *number).is_some_and(|it| it.is_paused.load(Ordering::Relaxed))
        };
        if let Some(error) = self.still.told(Instant::now(), rests, is_paused) {
            shared.queue().blocked = Some(error);
            shared.arrived.notify_one();
        }
        let resting = self.resting(shared);
        if !resting.is_empty() {
            self.begin(Arc::clone(consumer), resting);
        }
    }

    /// Partitions in which everything has been done for a while.
    fn resting(&mut self, shared: &Shared) -> Vec<Resting> {
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
        resting
    }

    /// A thread of its own waits for the brokers: one may be silent.
    fn begin<C: ConsumerContext + 'static>(
        &mut self,
        consumer: Arc<BaseConsumer<C>>,
        resting: Vec<Resting>,
    ) {
        let brokers = self.brokers.clone();
        let look = move || {
            let ends = ends(&consumer, resting)?;
            // Who leaves waits for it.
            drop(consumer);
            let spans: Vec<_> = ends.iter().filter_map(|(of, end)| beyond(of, *end)).collect();
            let found = if spans.is_empty() { Ok(Vec::new()) } else { find(&brokers, &spans) };
            Ok(Looked { ends, found })
        };
        let thread = std::thread::Builder::new().name("dlq-kafka-tail".to_owned());
        match thread.spawn(look) {
            Ok(look) => self.look = Some(look),
            Err(error) => tracing::warn!(%error, "a thread that looks could not be started"),
        }
    }

    fn take(&mut self, looked: Looked) {
        let now = Instant::now();
        let found = looked.found.unwrap_or_else(|error| {
            tracing::debug!(%error, "ends could not be looked at");
            Vec::new()
        });
        for (resting, end) in looked.ends {
            let span = beyond(&resting, end);
            let (partition, at, _) = resting;
            let place = (Arc::clone(&partition.topic), partition.number);
            match end {
                End::Unheard => self.still.seen(place.clone(), at, now),
                End::At(end) if u64::try_from(end).is_ok_and(|end| end <= at) => {
                    self.still.refuted(&place);
                }
                End::At(_) | End::Unknown => {}
            }
            let Some(span) = span else { continue };
            if let Some(known) = self.known.get_mut(&place) {
                known.1 = span.to;
            }
            match found.iter().find(|(of, _)| *of == span) {
                Some((_, true)) => partition.passes(at, span.to.unsigned_abs()),
                Some((_, false)) => self.still.seen(place, at, now),
                None => {}
            }
        }
    }
}

/// What of it was not looked at yet: what was is looked at again when more stands there.
fn beyond((partition, at, found): &Resting, end: End) -> Option<Span> {
    let (from, End::At(to)) = (i64::try_from(*at).ok()?, end) else { return None };
    let (topic, partition) = (Arc::clone(&partition.topic), partition.number);
    (from < to && *found < to).then_some(Span { topic, partition, from, to })
}

/// Where these end.
fn ends<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    resting: Vec<Resting>,
) -> Result<Vec<(Resting, End)>, KafkaError> {
    let mut list = TopicPartitionList::new();
    for (partition, ..) in &resting {
        list.add_partition_offset(&partition.topic, partition.number, Offset::End)?;
    }
    let ends = consumer.offsets_for_times(list, ANSWER)?;
    let end = |(partition, ..): &Resting| {
        let end = ends.find_partition(&partition.topic, partition.number);
        match end.map(|end| (end.error(), end.offset())) {
            Some((Ok(()), Offset::Offset(end))) => End::At(end),
            Some((Err(error), _))
                if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownLeaderEpoch) =>
            {
                End::Unheard
            }
            _ => End::Unknown,
        }
    };
    let ends: Vec<_> = resting.iter().map(end).collect();
    Ok(resting.into_iter().zip(ends).collect())
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

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::mocking::MockCluster;

    use super::*;
    use crate::blocked::Reason;
    use crate::shared::lock;

    #[test]
    fn g4_who_polls_waits_for_no_broker_that_is_silent() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders", 1, 1).unwrap();
        mock.broker_round_trip_time(1, LOOK * 10).unwrap();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", mock.bootstrap_servers());
        let consumer = Arc::new(config.create_with_context(Reason::default()).unwrap());
        let (shared, topic) = (Shared::new(), Arc::<str>::from("orders"));
        let partition = Partition::new(1, Arc::clone(&topic), 0, None);
        partition.found(Some((5, "")));
        partition.opened();
        lock(&shared.partitions).entry(topic).or_default().insert(0, Arc::new(partition));
        let mut tail = Tail::new(Brokers::at(mock.bootstrap_servers()));
        let mut watch = || {
            tail.due = Instant::now();
            tail.watch(&consumer, &shared);
            tail.look.is_some()
        };
        assert_eq!([watch(), watch()], [false, true], "once it has rested, it is asked elsewhere");
    }
}
