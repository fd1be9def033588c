//! One batch of a partition after the other.
//!
//! An idempotent client of librdkafka (2.12) has five messages of a partition under way, or one batch. While more are ready,
//! its thread asks without a pause whether they may go, and takes a processor for that. So what comes while a batch is under
//! way is kept here, and given to the client once all of the batch is confirmed. Batches grow with the load then, and
//! nothing waits where there is none, as with Nagle's algorithm for TCP (RFC 896).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::BaseRecord;

use super::Native;
use super::reports::{Opaque, Waiting};
use crate::shared::lock;

/// How many of a partition the client has under way in several batches.
const APART: usize = 5;
/// What comes so soon after the first of a batch still goes with it: the client waits for as long (`linger.ms`).
const JOINS: Duration = Duration::from_millis(1);
/// How long anything is kept. What takes longer is for the client to wait for, and to give up.
pub(super) const KEPT: Duration = Duration::from_secs(1);

/// A record with all that is its own.
pub(super) struct Entry {
    pub(super) key: Option<Bytes>,
    pub(super) value: Option<Bytes>,
    pub(super) headers: OwnedHeaders,
    pub(super) waiting: Waiting,
}

/// What the client did not take, and why.
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
    let Entry { key, value, headers, waiting } = entry;
    let opaque = Box::new(Opaque { waiting, batch });
    let mut record = BaseRecord::<[u8], [u8], _>::with_opaque_to(topic, opaque);
    (record.key, record.payload) = (key.as_deref(), value.as_deref());
    (record.headers, record.partition) = (Some(headers), partition);
    match client.send(record) {
        Ok(()) => Ok(()),
        Err((error, record)) => {
            let headers = record.headers.unwrap_or_default();
            let waiting = record.delivery_opaque.waiting;
            Err(Box::new(Refused { error, entry: Entry { key, value, headers, waiting } }))
        }
    }
}

pub(super) fn is_full(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(Code::QueueFull)
}

/// Those of a client: of each topic by the number of the partition. `None` once nobody hears any more that one is confirmed.
pub(super) struct Batches(RwLock<Option<HashMap<String, Vec<Arc<Batch>>>>>);

impl Batches {
    pub(super) fn new() -> Self {
        Self(RwLock::new(Some(HashMap::new())))
    }

    pub(super) fn of(&self, topic: &str, partition: Option<i32>) -> Option<Arc<Batch>> {
        let at = usize::try_from(partition?).ok()?;
        {
            let topics = self.0.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(batch) = topics.as_ref()?.get(topic).and_then(|of| of.get(at)) {
                return Some(Arc::clone(batch));
            }
        }
        let mut topics = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let of = topics.as_mut()?.entry(topic.to_owned()).or_default();
        for partition in i32::try_from(of.len()).ok()?..=partition? {
            of.push(Arc::new(Batch::new(topic, partition)));
        }
        of.get(at).cloned()
    }

    /// Gives the client what has been kept for too long, and what it had no room for.
    pub(super) fn look(&self, client: &Native) {
        let topics = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for batch in topics.iter().flat_map(HashMap::values).flatten() {
            if lock(&batch.state).is_overdue() {
                batch.go_on(client);
            }
        }
    }

    /// From now on nothing is kept.
    pub(super) fn close(&self, client: Option<&Native>) {
        let topics = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        for batch in topics.iter().flat_map(HashMap::values).flatten() {
            lock(&batch.state).is_closed = true;
            match client {
                Some(client) => batch.go_on(client),
                None => lock(&batch.state).kept.clear(),
            }
        }
    }
}

/// What of a partition is under way, and what waits for it.
pub(super) struct Batch {
    topic: String,
    partition: i32,
    state: Mutex<State>,
}

struct State {
    under_way: usize,
    begun: Instant,
    kept: VecDeque<Entry>,
    is_closed: bool,
}

impl State {
    fn keeps(&self) -> bool {
        !self.is_closed && self.under_way >= APART && self.begun.elapsed() >= JOINS
    }

    fn is_overdue(&self) -> bool {
        !self.kept.is_empty() && (self.under_way == 0 || self.begun.elapsed() >= KEPT)
    }
}

impl Batch {
    fn new(topic: &str, partition: i32) -> Self {
        let (kept, begun) = (VecDeque::new(), Instant::now());
        let state = State { under_way: 0, begun, kept, is_closed: false };
        Self { topic: topic.to_owned(), partition, state: Mutex::new(state) }
    }

    /// Gives the client a record, now or with the next batch.
    pub(super) fn add(self: &Arc<Self>, client: &Native, entry: Entry) -> Result<(), KafkaError> {
        let mut state = lock(&self.state);
        if state.keeps() {
            state.kept.push_back(entry);
            return Ok(());
        }
        if state.under_way == 0 {
            state.begun = Instant::now();
        }
        state.under_way += 1;
        drop(state);
        self.give(client, entry).map_err(|refused| refused.error)
    }

    fn give(self: &Arc<Self>, client: &Native, entry: Entry) -> Result<(), Box<Refused>> {
        let batch = Some(Arc::clone(self));
        let given = give(client, &self.topic, Some(self.partition), batch, entry);
        if given.is_err() {
            lock(&self.state).under_way -= 1;
        }
        given
    }

    /// What became of one is known. After the last of a batch the next one goes.
    pub(super) fn ended(self: &Arc<Self>, client: Option<&Native>) {
        let mut state = lock(&self.state);
        state.under_way = state.under_way.saturating_sub(1);
        let goes_on = state.under_way == 0 && !state.kept.is_empty();
        drop(state);
        if let Some(client) = client
            && goes_on
        {
            self.go_on(client);
        }
    }

    fn go_on(self: &Arc<Self>, client: &Native) {
        let mut state = lock(&self.state);
        let mut next = std::mem::take(&mut state.kept).into_iter();
        (state.begun, state.under_way) = (Instant::now(), state.under_way + next.len());
        drop(state);
        while let Some(entry) = next.next() {
            match self.give(client, entry) {
                Ok(()) => {}
                Err(refused) if is_full(&refused.error) => {
                    let mut state = lock(&self.state);
                    state.under_way -= next.len();
                    let newer = std::mem::take(&mut state.kept);
                    state.kept = std::iter::once(refused.entry).chain(next).chain(newer).collect();
                    return;
                }
                // Who does not wait any more does not want to know.
                Err(refused) => drop(refused.entry.waiting.send(Err(refused.error))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::brokers::Brokers;
    use crate::produce::{Client, client};

    /// A client that reaches nobody, so that what it is given stays under way.
    fn offline() -> (Client, Arc<Batch>) {
        let client = client(&Brokers::at("127.0.0.1:1"), true).unwrap();
        let batch = client.batches.as_ref().unwrap().of("orders", Some(2)).unwrap();
        (client, batch)
    }

    fn add(client: &Client, batch: &Arc<Batch>, count: usize) {
        for _ in 0..count {
            let (waiting, _) = oneshot::channel();
            let headers = OwnedHeaders::new();
            batch
                .add(&client.producer, Entry { key: None, value: None, headers, waiting })
                .unwrap();
        }
    }

    /// How many are under way, and how many are kept.
    fn counted(batch: &Batch) -> (usize, usize) {
        let state = lock(&batch.state);
        (state.under_way, state.kept.len())
    }

    /// As many as the client has under way, a while ago.
    fn sent(client: &Client, batch: &Arc<Batch>) {
        add(client, batch, APART);
        lock(&batch.state).begun -= JOINS;
    }

    #[tokio::test]
    async fn what_comes_while_a_batch_is_under_way_goes_with_the_next_one() {
        let (client, batch) = offline();
        sent(&client, &batch);
        add(&client, &batch, 3);
        assert_eq!(counted(&batch), (APART, 3));
        for left in (1..APART).rev() {
            batch.ended(Some(&client.producer));
            assert_eq!(counted(&batch), (left, 3));
        }
        batch.ended(Some(&client.producer));
        assert_eq!(counted(&batch), (3, 0));
        let other = client.batches.as_ref().unwrap().of("orders", Some(1)).unwrap();
        add(&client, &other, 1);
        assert_eq!(
            (other.partition, counted(&other)),
            (1, (1, 0)),
            "no partition waits for another"
        );
    }

    #[tokio::test]
    async fn few_records_never_wait_for_each_other() {
        let (client, batch) = offline();
        for under_way in 1..=APART {
            add(&client, &batch, 1);
            lock(&batch.state).begun -= KEPT;
            assert_eq!(counted(&batch), (under_way, 0));
        }
    }

    #[tokio::test]
    async fn nothing_is_kept_for_long() {
        let (client, batch) = offline();
        let batches = client.batches.as_ref().unwrap();
        sent(&client, &batch);
        add(&client, &batch, 3);
        batches.look(&client.producer);
        assert_eq!(counted(&batch), (APART, 3));
        lock(&batch.state).begun -= KEPT;
        batches.look(&client.producer);
        assert_eq!(counted(&batch), (APART + 3, 0));
    }

    #[tokio::test]
    async fn nothing_is_kept_once_nobody_hears_of_confirmations() {
        let (client, batch) = offline();
        let batches = client.batches.as_ref().unwrap();
        sent(&client, &batch);
        add(&client, &batch, 3);
        batches.close(Some(&client.producer));
        add(&client, &batch, 1);
        assert_eq!(counted(&batch), (APART + 4, 0));
        assert!(batches.of("orders", Some(2)).is_none());
    }
}
