//! Batches of a partition, one after the other.
//!
//! An idempotent client of librdkafka (2.12) has five messages of a partition under way, or one batch. While more are ready,
//! its thread asks without a pause whether they may go, and takes a processor for that. So what comes while a batch is under
//! way is kept here, and given to the client, in its order, once the client may send it. Batches grow with the load then, and
//! nothing waits where there is none, as with Nagle's algorithm for TCP (RFC 896).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::BaseRecord;

use super::reports::{Opaque, Waiting};
use super::{FULL, Native};
use crate::client::lock;

/// Number of records of a partition that the client has under way in several batches.
const APART: usize = 5;
/// Time for which records are kept, give or take a look. Longer waits are left to the client, which also gives up.
pub(super) const KEPT: Duration = Duration::from_secs(1);

/// A record with all that is its own.
pub(super) struct Entry {
    pub(super) key: Option<Bytes>,
    pub(super) value: Option<Bytes>,
    pub(super) headers: OwnedHeaders,
    pub(super) waiting: Waiting,
    /// When it came: a queue that is full is not waited for without end.
    pub(super) since: Instant,
}

/// Records that the client did not accept, and the reason.
pub(super) struct Refused {
    pub(super) error: KafkaError,
    entry: Entry,
}

/// Gives the client a record.
pub(super) fn give(
    client: &Native,
    topic: &str,
    partition: Option<i32>,
    batch: Option<Arc<Batch>>,
    entry: Entry,
) -> Result<(), Box<Refused>> {
    let Entry { key, value, headers, waiting, since } = entry;
    let opaque = Box::new(Opaque { waiting, batch });
    let mut record = BaseRecord::<[u8], [u8], _>::with_opaque_to(topic, opaque);
    (record.key, record.payload) = (key.as_deref(), value.as_deref());
    (record.headers, record.partition) = (Some(headers), partition);
    match client.send(record) {
        Ok(()) => Ok(()),
        Err((error, record)) => {
            // The client gives back what it did not take, so that a record can be given to it again as it was.
            let headers = record.headers.unwrap_or_default();
            let waiting = record.delivery_opaque.waiting;
            Err(Box::new(Refused { error, entry: Entry { key, value, headers, waiting, since } }))
        }
    }
}

pub(super) fn is_full(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(Code::QueueFull)
}

/// Batches of a client: for each topic by the number of the partition.
pub(super) struct Batches {
    /// Time after the first record of a batch in which another record still joins it: the client waits for as long
    /// (`linger.ms`).
    joins: Duration,
    /// `None` once nobody hears any more that one is confirmed.
    topics: RwLock<Option<HashMap<String, Vec<Arc<Batch>>>>>,
}

impl Batches {
    pub(super) fn new(joins: Duration) -> Self {
        Self { joins, topics: RwLock::new(Some(HashMap::new())) }
    }

    pub(super) fn of(&self, topic: &str, partition: Option<i32>) -> Option<Arc<Batch>> {
        let at = usize::try_from(partition?).ok()?;
        {
            let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(batch) = topics.as_ref()?.get(topic).and_then(|of| of.get(at)) {
                return Some(Arc::clone(batch));
            }
        }
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        let of = topics.as_mut()?.entry(topic.to_owned()).or_default();
        // Batches are found by their place, so those of lower numbers are made too.
        for partition in i32::try_from(of.len()).ok()?..=partition? {
            of.push(Arc::new(Batch::new(topic, partition, self.joins)));
        }
        of.get(at).cloned()
    }

    /// Gives the client what has been kept for too long, and what it had no room for. Whether it has none still.
    pub(super) fn look(&self, client: &Native) -> bool {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        let mut is_full = false;
        for batch in topics.iter().flat_map(HashMap::values).flatten() {
            if lock(&batch.state).is_overdue() {
                is_full |= batch.go_on(client);
            }
        }
        is_full
    }

    /// From now on nothing is kept.
    pub(super) fn close(&self, client: Option<&Native>) {
        // Taken out first: whoever comes from now on finds no batch and gives its record to the client at once.
        let topics = self.topics.write().unwrap_or_else(PoisonError::into_inner).take();
        for batch in topics.iter().flat_map(HashMap::values).flatten() {
            lock(&batch.state).is_closed = true;
            match client {
                Some(client) => drop(batch.go_on(client)),
                // Whoever waits for one of these hears that the producer was closed.
                None => lock(&batch.state).kept.clear(),
            }
        }
    }
}

/// Records of a partition that are under way, and those that wait for them.
pub(super) struct Batch {
    topic: String,
    partition: i32,
    joins: Duration,
    state: Mutex<State>,
}

struct State {
    under_way: usize,
    /// When the batch began that others join.
    begun: Instant,
    kept: VecDeque<Entry>,
    /// Somebody gives what was kept: what comes meanwhile goes behind it.
    gives: bool,
    is_closed: bool,
}

impl State {
    fn is_free(&self) -> bool {
        self.under_way < APART && !self.kept.is_empty()
    }

    fn is_overdue(&self) -> bool {
        self.is_free() || !self.kept.is_empty() && self.begun.elapsed() >= KEPT
    }
}

impl Batch {
    fn new(topic: &str, partition: i32, joins: Duration) -> Self {
        let (kept, begun) = (VecDeque::new(), Instant::now());
        let state = State { under_way: 0, begun, kept, gives: false, is_closed: false };
        Self { topic: topic.to_owned(), partition, joins, state: Mutex::new(state) }
    }

    /// Gives the client a record, now or, behind others, with the next batch.
    pub(super) fn add(self: &Arc<Self>, client: &Native, entry: Entry) -> Result<(), KafkaError> {
        let mut state = lock(&self.state);
        let is_busy = state.under_way >= APART && state.begun.elapsed() >= self.joins;
        // It goes behind what is kept or being given, so that the records of a partition keep their order.
        if state.gives || !state.is_closed && (is_busy || !state.kept.is_empty()) {
            state.kept.push_back(entry);
            return Ok(());
        }
        if state.under_way == 0 {
            state.begun = Instant::now();
        }
        state.under_way += 1;
        drop(state);
        let given = self.give(client, entry);
        // It is not under way after all, which may be what the next batch waits for.
        if given.is_err() && self.ended() {
            self.go_on(client);
        }
        given.map_err(|refused| refused.error)
    }

    fn give(self: &Arc<Self>, client: &Native, entry: Entry) -> Result<(), Box<Refused>> {
        give(client, &self.topic, Some(self.partition), Some(Arc::clone(self)), entry)
    }

    /// Notes that a record has ended. Returns true if the next batch may go.
    pub(super) fn ended(&self) -> bool {
        let mut state = lock(&self.state);
        state.under_way = state.under_way.saturating_sub(1);
        state.is_free()
    }

    /// Gives the client what was kept. Whether it has no room for it.
    pub(super) fn go_on(self: &Arc<Self>, client: &Native) -> bool {
        {
            let mut state = lock(&self.state);
            if state.gives || state.kept.is_empty() {
                return false;
            }
            // The lock is not held while the client is given records: its call may block, and reports need the lock to be
            // counted.
            (state.gives, state.begun) = (true, Instant::now());
        }
        loop {
            let mut state = lock(&self.state);
            let Some(entry) = state.kept.pop_front() else {
                state.gives = false;
                return false;
            };
            if entry.waiting.is_closed() {
                // Nobody waits for it any more, and so nothing is settled by it.
                continue;
            }
            state.under_way += 1;
            drop(state);
            let Err(refused) = self.give(client, entry) else { continue };
            let Refused { error, entry } = *refused;
            let mut state = lock(&self.state);
            state.under_way = state.under_way.saturating_sub(1);
            // It goes back in front, so that the order stays. `Batches::look` tries it again.
            if is_full(&error) && entry.since.elapsed() < FULL && !state.is_closed {
                state.kept.push_front(entry);
                state.gives = false;
                return true;
            }
            drop(state);
            // Who does not wait any more does not want to know.
            let _ = entry.waiting.send(Err(error));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::client::brokers::Brokers;
    use crate::client::produce::reports::Told;
    use crate::client::produce::{Client, client};

    /// A client that reaches nobody, so that what it is given stays under way.
    fn offline(brokers: &Brokers) -> (Client, Arc<Batch>) {
        let client = client(brokers, true).unwrap();
        let batch = client.batches.as_ref().unwrap().of("orders", Some(2)).unwrap();
        (client, batch)
    }

    fn nowhere() -> Brokers {
        Brokers::at("127.0.0.1:1")
    }

    #[must_use]
    pub(in super::super) fn add(client: &Client, batch: &Arc<Batch>, count: usize) -> Vec<Told> {
        let one = |_| {
            let ((waiting, told), headers) = (oneshot::channel(), OwnedHeaders::new());
            let since = Instant::now();
            let entry = Entry { key: None, value: None, headers, waiting, since };
            batch.add(&client.producer, entry).unwrap();
            told
        };
        (0..count).map(one).collect()
    }

    /// Returns the number of records under way and the number of kept ones.
    pub(in super::super) fn counted(batch: &Batch) -> (usize, usize) {
        let state = lock(&batch.state);
        (state.under_way, state.kept.len())
    }

    /// As many as the client has under way, a while ago.
    pub(in super::super) fn sent(client: &Client, batch: &Arc<Batch>) -> Vec<Told> {
        let told = add(client, batch, APART);
        lock(&batch.state).begun -= batch.joins;
        told
    }

    #[tokio::test]
    async fn what_comes_while_a_batch_is_under_way_goes_with_the_next_one() {
        let (client, batch) = offline(&nowhere());
        let _sent = sent(&client, &batch);
        let _kept = add(&client, &batch, 2);
        lock(&batch.state).under_way += 3;
        for left in (APART..APART + 3).rev() {
            assert!(!batch.ended());
            assert_eq!(counted(&batch), (left, 2));
        }
        // Now the client may send another one. Nothing goes before what was kept.
        assert!(batch.ended());
        let _behind = add(&client, &batch, 1);
        assert_eq!(counted(&batch), (APART - 1, 3));
        assert!(!batch.go_on(&client.producer));
        assert_eq!(counted(&batch), (APART + 2, 0));
        let _joined = add(&client, &batch, 1);
        assert_eq!(counted(&batch), (APART + 3, 0), "what comes at once joins it");
        let other = client.batches.as_ref().unwrap().of("orders", Some(1)).unwrap();
        let _apart = add(&client, &other, 1);
        assert_eq!(
            (other.partition, counted(&other)),
            (1, (1, 0)),
            "no partition waits for another"
        );
    }

    #[tokio::test]
    async fn what_comes_while_others_are_given_goes_behind_them() {
        let (client, batch) = offline(&nowhere());
        lock(&batch.state).gives = true;
        let _kept = add(&client, &batch, 1);
        assert_eq!(counted(&batch), (0, 1));
        assert!(!batch.go_on(&client.producer), "one gives at a time");
        assert_eq!(counted(&batch), (0, 1));
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_written() {
        let (client, batch) = offline(&nowhere());
        let _sent = sent(&client, &batch);
        let mut told = add(&client, &batch, 3);
        told.remove(1);
        assert!(!batch.go_on(&client.producer));
        assert_eq!(counted(&batch), (APART + 2, 0));
    }

    #[tokio::test]
    async fn few_records_never_wait_for_each_other() {
        let (client, batch) = offline(&nowhere());
        for under_way in 1..=APART {
            let _sent = add(&client, &batch, 1);
            lock(&batch.state).begun -= KEPT;
            assert_eq!(counted(&batch), (under_way, 0));
        }
    }

    #[tokio::test]
    async fn nothing_is_kept_for_long() {
        let (client, batch) = offline(&nowhere());
        let batches = client.batches.as_ref().unwrap();
        let _sent = sent(&client, &batch);
        let _kept = add(&client, &batch, 3);
        assert!(!batches.look(&client.producer));
        assert_eq!(counted(&batch), (APART, 3));
        lock(&batch.state).begun -= KEPT;
        assert!(!batches.look(&client.producer));
        assert_eq!(counted(&batch), (APART + 3, 0));
    }

    #[tokio::test]
    async fn a_batch_is_joined_for_as_long_as_the_client_waits() {
        let (_client, batch) = offline(&nowhere());
        assert_eq!(batch.joins, Duration::from_millis(1));
        for name in ["linger.ms", "queue.buffering.max.ms"] {
            let (_client, batch) = offline(&nowhere().with(name, "12.5"));
            assert_eq!(batch.joins, Duration::from_micros(12_500));
        }
    }

    #[tokio::test]
    async fn a_queue_that_is_full_is_waited_for_and_not_for_ever() {
        let (client, batch) = offline(&nowhere().with("queue.buffering.max.messages", "5"));
        let batches = client.batches.as_ref().unwrap();
        let _sent = sent(&client, &batch);
        let mut told = add(&client, &batch, 2);
        lock(&batch.state).begun -= KEPT;
        assert!(batches.look(&client.producer), "there is no room");
        assert_eq!(counted(&batch), (APART, 2));
        lock(&batch.state).begun -= KEPT;
        lock(&batch.state).kept[0].since -= FULL;
        assert!(batches.look(&client.producer));
        assert_eq!(counted(&batch), (APART, 1));
        assert!(is_full(&told.remove(0).await.unwrap().unwrap_err()));
        batches.close(Some(&client.producer));
        assert!(is_full(&told.remove(0).await.unwrap().unwrap_err()));
        assert_eq!(counted(&batch), (APART, 0));
    }

    #[tokio::test]
    async fn nothing_is_kept_once_nobody_hears_of_confirmations() {
        let (client, batch) = offline(&nowhere());
        let batches = client.batches.as_ref().unwrap();
        let _sent = sent(&client, &batch);
        let _kept = add(&client, &batch, 3);
        batches.close(Some(&client.producer));
        let _given = add(&client, &batch, 1);
        assert_eq!(counted(&batch), (APART + 4, 0));
        assert!(batches.of("orders", Some(2)).is_none());
    }
}
