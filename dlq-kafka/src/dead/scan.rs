use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use tokio::sync::mpsc;

use super::lookup::config;
use super::range::Span;
use super::records::{Batch, Records};
use crate::Brokers;
use crate::client::error::{SetupError, is_refusal};
use crate::client::reach::SURE;
use crate::client::record::Record;

/// The client wants a group even where nobody joins one and nothing is committed.
const GROUP: &str = "dlq.letters";
/// For how long nothing may come before it is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which a reader notices that nobody listens any more.
const TICK: Duration = Duration::from_millis(100);
/// At most so many records, or about so many bytes, are handed over at once.
const RECORDS: usize = 256;
const BYTES: usize = 1024 * 1024;
/// Number of batches that may wait to be taken.
const BATCHES: usize = 2;
/// Number of bytes of all partitions, and of one at least, that wait for records of others. A pause throws away what the client
/// has fetched ahead, so that of one it is more than a broker sends at once.
const AHEAD: usize = 32 * 1024 * 1024;
const AHEAD_OF_ONE: usize = 2 * 1024 * 1024;

/// Order of records of different partitions; those of a partition keep theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequence {
    AsItComes,
    /// The record with the earliest timestamp first, then that of the lowest partition: the same for every reader. For scans
    /// that end.
    ByTime {
        /// Number of bytes of all partitions that may wait for others.
        ahead: usize,
    },
}

impl Sequence {
    pub(super) const BY_TIME: Self = Self::ByTime { ahead: AHEAD };
}

/// Scan of a topic, in the order of each partition: spans of at most one after the other in rounds, each to its end
/// before the next.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) brokers: Brokers,
    pub(super) topic: Arc<str>,
    pub(super) rounds: Vec<Vec<Span>>,
    pub(super) sequence: Sequence,
    /// True if the scan waits for records that do not exist yet.
    pub(super) follow: bool,
}

impl Scan {
    /// Reads on a thread of its own, which ends with the scan or soon after nobody listens any more.
    pub(super) fn run(self) -> Result<Records, SetupError> {
        let (sender, receiver) = mpsc::channel(BATCHES);
        let is_endless =
            self.follow && self.rounds.iter().flatten().any(|span| span.to == u64::MAX);
        let topic = Arc::clone(&self.topic);
        let reader = move || {
            let tell = |error| drop(sender.blocking_send(Err(error)));
            let consumer = match self.consumer() {
                Ok(consumer) => consumer,
                Err(error) => return tell(error),
            };
            if let Err(Stop::Failed(error)) = Reader::new(&self, &consumer, &sender).run() {
                tell(error);
            }
            // Before the client is closed, which takes its time.
            drop(sender);
        };
        let started = std::thread::Builder::new().name("dlq-letters".to_owned()).spawn(reader);
        started.map_err(|error| {
            let text = format!("a thread that reads `{topic}` cannot be started: {error}");
            SetupError::Unavailable(text, Some(error.into()))
        })?;
        Ok(Records::new(topic, is_endless, receiver))
    }

    fn consumer(&self) -> Result<BaseConsumer, SetupError> {
        let consumer = config(&self.brokers)?.set("group.id", GROUP).create();
        consumer.map_err(|error| scan_failed(self, error))
    }
}

/// Records of each partition that wait for those of others.
struct Queues {
    records: BTreeMap<u32, VecDeque<Record>>,
    bytes: BTreeMap<u32, usize>,
    paused: BTreeSet<u32>,
    /// Number of bytes of a partition at which it is paused.
    ahead: usize,
}

impl Queues {
    fn new(ahead: usize) -> Self {
        let (records, bytes, paused) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { records, bytes, paused, ahead }
    }

    fn add(&mut self, record: Record) {
        *self.bytes.entry(record.partition).or_default() += record.size();
        self.records.entry(record.partition).or_default().push_back(record);
    }

    /// Returns the first of all records, if no partition that is still open can have an earlier one.
    fn next(&mut self, open: &BTreeMap<u32, Span>) -> Option<Record> {
        let is_there = |of: &u32| self.records.get(of).is_some_and(|records| !records.is_empty());
        // A partition without a record at hand may still bring an earlier one. Without this the order would depend on who
        // reads.
        if !open.keys().all(is_there) {
            return None;
        }
        let first =
            |(of, records): (&u32, &VecDeque<Record>)| Some((records.front()?.timestamp, *of));
        let (_, partition) = self.records.iter().filter_map(first).min()?;
        let record = self.records.get_mut(&partition)?.pop_front()?;
        if let Some(bytes) = self.bytes.get_mut(&partition) {
            *bytes = bytes.saturating_sub(record.size());
        }
        Some(record)
    }

    /// Returns the partitions to pause and to resume, and marks them so. One is paused only after a record of it has come: a
    /// pause may be lost while the client begins to fetch a partition.
    fn turned(&mut self, open: &BTreeMap<u32, Span>) -> Vec<(Vec<u32>, bool)> {
        let (mut paused, mut resumed) = (Vec::new(), Vec::new());
        for (partition, bytes) in &self.bytes {
            if !open.contains_key(partition) {
                self.paused.remove(partition);
            } else if *bytes >= self.ahead && self.paused.insert(*partition) {
                paused.push(*partition);
            } else if *bytes < self.ahead / 2 && self.paused.remove(partition) {
                // It comes at half, since each pause throws away what the client has fetched ahead.
                resumed.push(*partition);
            }
        }
        let turned = [(paused, true), (resumed, false)].into_iter();
        turned.filter(|(partitions, _)| !partitions.is_empty()).collect()
    }
}

/// Reason why a reader ends early.
enum Stop {
    Failed(SetupError),
    NobodyListens,
}

/// Result of polling the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Took,
    Nothing,
}

struct Reader<'a> {
    scan: &'a Scan,
    consumer: &'a BaseConsumer,
    sender: &'a mpsc::Sender<Result<Batch, SetupError>>,
    /// Spans that are being read, by partition; `from` moves on.
    open: BTreeMap<u32, Span>,
    /// Time at which a replica came to its end before the end of its leader, by partition. A replica that lags goes on;
    /// if nothing comes, the missing records were compacted away.
    ends: BTreeMap<u32, Instant>,
    queues: Option<Queues>,
    batch: Vec<Record>,
    bytes: usize,
    /// When something came last.
    heard: Instant,
    /// Last error of the client that explains why nothing comes.
    news: Option<KafkaError>,
}

impl<'a> Reader<'a> {
    fn new(
        scan: &'a Scan,
        consumer: &'a BaseConsumer,
        sender: &'a mpsc::Sender<Result<Batch, SetupError>>,
    ) -> Self {
        let queues = match scan.sequence {
            Sequence::AsItComes => None,
            Sequence::ByTime { ahead } => {
                // The partitions of a round share the memory, and only one round is read at a time.
                let partitions = scan.rounds.iter().map(Vec::len).max().unwrap_or(0);
                Some(Queues::new((ahead / partitions.max(1)).max(AHEAD_OF_ONE)))
            }
        };
        Self {
            scan,
            consumer,
            sender,
            open: BTreeMap::new(),
            ends: BTreeMap::new(),
            queues,
            batch: Vec::new(),
            bytes: 0,
            heard: Instant::now(),
            news: None,
        }
    }

    fn run(&mut self) -> Result<(), Stop> {
        for round in &self.scan.rounds {
            self.round(round)?;
        }
        self.hand_over()
    }

    fn round(&mut self, spans: &[Span]) -> Result<(), Stop> {
        let spans = spans.iter().filter(|span| span.len() > 0);
        self.open = spans.map(|span| (span.partition, *span)).collect();
        if self.open.is_empty() {
            return Ok(());
        }
        let failed = |error| Stop::Failed(scan_failed(self.scan, error));
        let mut assigned = TopicPartitionList::new();
        for span in self.open.values() {
            let from = Offset::Offset(i64::try_from(span.from).unwrap_or(i64::MAX));
            let partition = i32::try_from(span.partition).unwrap_or(i32::MAX);
            assigned.add_partition_offset(&self.scan.topic, partition, from).map_err(failed)?;
        }
        // The client keeps the pause of a partition that was done in a round before. Ended before it is assigned: where one is
        // resumed while the client begins to fetch it, either may be lost, and nothing ever comes.
        self.consumer.resume(&assigned).map_err(failed)?;
        self.consumer.assign(&assigned).map_err(failed)?;
        self.heard = Instant::now();
        self.ends.clear();
        while !self.open.is_empty() {
            if self.step()? == Turn::Took {
                continue;
            }
            let is_sure = |(partition, ended): (&u32, &Instant)| {
                (ended.elapsed() >= SURE).then_some(*partition)
            };
            for partition in self.ends.iter().filter_map(is_sure).collect::<Vec<_>>() {
                self.ends.remove(&partition);
                self.finish(partition)?;
            }
        }
        self.put_in_order()
    }

    fn step(&mut self) -> Result<Turn, Stop> {
        // With records in the batch nothing is waited for: they go to the listener as soon as the client has no more
        // at hand.
        let wait = if self.batch.is_empty() { TICK } else { Duration::ZERO };
        let taken = match self.consumer.poll(wait) {
            Some(Ok(message)) => {
                let offset = u64::try_from(message.offset()).unwrap_or(0);
                let partition = u32::try_from(message.partition()).unwrap_or(0);
                // After a round the client may still deliver what it had fetched of the one before, which was read already.
                let open = self.open.get(&partition).filter(|open| offset >= open.from);
                let is_ours = open.is_some_and(|open| offset < open.to);
                let record = is_ours.then(|| Record::of(&message, Arc::clone(&self.scan.topic)));
                open.map(|_| Ok((partition, offset, record)))
            }
            Some(Err(error)) => Some(Err(error)),
            None if !self.batch.is_empty() => {
                self.hand_over()?;
                return Ok(Turn::Nothing);
            }
            None => {
                // Looked at only where nothing came: a batch that cannot be handed over shows the same at once.
                if self.sender.is_closed() {
                    return Err(Stop::NobodyListens);
                }
                // A reading without an end may hear nothing for days, and is told of an outage by the client.
                if !self.scan.follow && self.heard.elapsed() > PATIENCE {
                    return Err(Stop::Failed(self.silence()));
                }
                return Ok(Turn::Nothing);
            }
        };
        match taken {
            // Of a partition that is done.
            None => {}
            Some(Ok((partition, offset, record))) => self.take(partition, offset, record)?,
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                self.heard = Instant::now();
                let partition = u32::try_from(partition).unwrap_or(0);
                if !self.scan.follow {
                    self.end(partition)?;
                }
            }
            Some(Err(error)) => self.hear(error)?,
        }
        Ok(Turn::Took)
    }

    fn take(&mut self, partition: u32, offset: u64, record: Option<Record>) -> Result<(), Stop> {
        self.heard = Instant::now();
        let Some(open) = self.open.get_mut(&partition) else { return Ok(()) };
        self.ends.remove(&partition);
        // A record beyond the span shows that nothing more of the span comes.
        let reached = offset.saturating_add(1).min(open.to);
        open.from = reached;
        match (record, &mut self.queues) {
            (Some(record), Some(queues)) => queues.add(record),
            (Some(record), None) => self.push(record)?,
            (None, _) => {}
        }
        let is_done = self.open.get(&partition).is_some_and(|open| open.len() == 0);
        if is_done {
            self.finish(partition)?;
        }
        self.put_in_order()
    }

    fn push(&mut self, record: Record) -> Result<(), Stop> {
        self.bytes += record.value.as_ref().map_or(0, |value| value.len());
        self.batch.push(record);
        if self.batch.len() >= RECORDS || self.bytes >= BYTES { self.hand_over() } else { Ok(()) }
    }

    /// Takes what is known to come next from the queues. Partitions that are far ahead of another are paused.
    fn put_in_order(&mut self) -> Result<(), Stop> {
        loop {
            let Some(queues) = &mut self.queues else { return Ok(()) };
            let Some(record) = queues.next(&self.open) else { break };
            self.push(record)?;
        }
        let Some(queues) = &mut self.queues else { return Ok(()) };
        for (partitions, is_paused) in queues.turned(&self.open) {
            let mut list = TopicPartitionList::new();
            for partition in partitions {
                let partition = i32::try_from(partition).unwrap_or(i32::MAX);
                list.add_partition(&self.scan.topic, partition);
            }
            let told =
                if is_paused { self.consumer.pause(&list) } else { self.consumer.resume(&list) };
            told.map_err(|error| Stop::Failed(scan_failed(self.scan, error)))?;
        }
        Ok(())
    }

    /// The replica that is read has no more of a partition. What is missing up to where that is to be read may be marks of
    /// transactions and what was taken back, which the client passes over, or what this replica does not have yet.
    fn end(&mut self, partition: u32) -> Result<(), Stop> {
        let Some(open) = self.open.get(&partition) else { return Ok(()) };
        let number = i32::try_from(partition).unwrap_or(i32::MAX);
        // The position also passes what the client steps over, so it shows whether the end of the span is reached.
        let come = self.consumer.position().ok();
        let come =
            come.and_then(|come| come.find_partition(&self.scan.topic, number)?.offset().to_raw());
        if come.and_then(|come| u64::try_from(come).ok()).is_some_and(|come| come >= open.to) {
            return self.finish(partition);
        }
        self.ends.insert(partition, Instant::now());
        Ok(())
    }

    /// A partition is done; nothing more is fetched of it.
    fn finish(&mut self, partition: u32) -> Result<(), Stop> {
        self.ends.remove(&partition);
        if self.open.remove(&partition).is_none() {
            return Ok(());
        }
        // The assignment stays, so the other partitions go on; what still comes of this one is dropped by `step`.
        let mut done = TopicPartitionList::new();
        done.add_partition(&self.scan.topic, i32::try_from(partition).unwrap_or(i32::MAX));
        let paused = self.consumer.pause(&done);
        paused.map_err(|error| Stop::Failed(scan_failed(self.scan, error)))
    }

    fn hand_over(&mut self) -> Result<(), Stop> {
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        let sent = self.sender.blocking_send(Ok(batch)).map_err(|_| Stop::NobodyListens);
        // It may have waited for its listener, which is not the cluster's fault.
        self.heard = Instant::now();
        self.ends.values_mut().for_each(|ended| *ended = self.heard);
        sent
    }

    fn hear(&mut self, error: KafkaError) -> Result<(), Stop> {
        use RDKafkaErrorCode::{
            AllBrokersDown, BadMessage, Fatal, GroupAuthorizationFailed, NotImplemented,
            TopicAuthorizationFailed, UnknownPartition, UnknownTopic, UnknownTopicOrPartition,
        };
        match error.rdkafka_error_code() {
            // Nothing is asked of the group.
            Some(GroupAuthorizationFailed) => Ok(()),
            Some(NotImplemented) => Err(Stop::Failed(SetupError::Unreadable(format!(
                "read `{}`: {error}; its records are compressed in a way that this program was built without; zstd is the feature `zstd` of dlq-kafka",
                self.scan.topic
            )))),
            Some(TopicAuthorizationFailed) => Err(Stop::Failed(SetupError::Forbidden(format!(
                "read `{}`: {error}; allow `Read` on it",
                self.scan.topic
            )))),
            Some(code)
                if is_refusal(code)
                    || matches!(
                        code,
                        BadMessage
                            | Fatal
                            | UnknownPartition
                            | UnknownTopic
                            | UnknownTopicOrPartition
                    ) =>
            {
                Err(Stop::Failed(scan_failed(self.scan, error)))
            }
            // A reading without an end tells of it and goes on, since the client connects again by itself.
            Some(AllBrokersDown) if self.scan.follow => {
                self.hand_over()?;
                let error = scan_failed(self.scan, error);
                self.sender.blocking_send(Err(error)).map_err(|_| Stop::NobodyListens)
            }
            // The client goes on by itself.
            _ => {
                self.news = Some(error);
                Ok(())
            }
        }
    }

    fn silence(&mut self) -> SetupError {
        let (topic, at) = (&self.scan.topic, self.scan.brokers.bootstrap());
        let open = self.open.values();
        let open: Vec<String> =
            open.map(|open| format!("{}@{}", open.partition, open.from)).collect();
        let open = open.join(", ");
        let text =
            format!("nothing came of `{topic}` at {at} for {PATIENCE:?} (partition@offset {open})");
        match self.news.take() {
            Some(error) => SetupError::Unavailable(format!("{text}: {error}"), Some(error.into())),
            None => SetupError::Unavailable(text, None),
        }
    }
}

fn scan_failed(scan: &Scan, error: KafkaError) -> SetupError {
    SetupError::answered(&format!("read `{}` at {}", scan.topic, scan.brokers.bootstrap()), error)
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{FutureProducer, FutureRecord};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn g8_what_stands_far_apart_in_a_partition_is_read_round_after_round() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders.dlq", 1, 1).unwrap();
        let at = mock.bootstrap_servers();
        let mut config = ClientConfig::new();
        let producer: FutureProducer = config.set("bootstrap.servers", &at).create().unwrap();
        let record = || FutureRecord::<[u8], [u8]>::to("orders.dlq").payload(b"letter");
        let written = (0..9).map(|_| producer.send(record(), PATIENCE));
        futures_util::future::try_join_all(written).await.unwrap();
        let round = |from| vec![Span { partition: 0, from, to: from + 1 }];
        let rounds = vec![round(0), round(4), round(8)];
        let topic = "orders.dlq".into();
        let mut records = Scan {
            brokers: Brokers::at(&at),
            topic,
            rounds,
            sequence: Sequence::AsItComes,
            follow: false,
        }
        .run()
        .unwrap();
        for wanted in [Some(0), Some(4), Some(8), None] {
            assert_eq!(records.next().await.unwrap().map(|record| record.offset), wanted);
        }
    }

    /// A pause that was made in one round has ended in the next, however the client's threads come to run.
    #[tokio::test(flavor = "multi_thread")]
    async fn g8_round_after_round_is_read_whatever_the_client_does_meanwhile() {
        const ROUNDS: u64 = 200;
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders.dlq", 2, 1).unwrap();
        let at = mock.bootstrap_servers();
        let mut config = ClientConfig::new();
        let producer: FutureProducer = config.set("bootstrap.servers", &at).create().unwrap();
        let record = |n: i32| {
            FutureRecord::<[u8], [u8]>::to("orders.dlq").payload(b"letter").partition(n % 2)
        };
        let written = (0..2 * ROUNDS as i32).map(|n| producer.send(record(n), PATIENCE));
        futures_util::future::try_join_all(written).await.unwrap();
        let span = |partition, from| Span { partition, from, to: from + 1 };
        let rounds = (0..ROUNDS).map(|from| vec![span(0, from), span(1, from)]).collect();
        let topic = "orders.dlq".into();
        let scan = Scan {
            brokers: Brokers::at(&at),
            topic,
            rounds,
            sequence: Sequence::AsItComes,
            follow: false,
        };
        let mut records = scan.run().unwrap();
        let mut read = 0;
        while records.next().await.unwrap().is_some() {
            read += 1;
        }
        assert_eq!(read, 2 * ROUNDS);
    }

    /// A partition is far ahead of the other, and more of it waits than may be kept.
    #[tokio::test(flavor = "multi_thread")]
    async fn g8_records_come_by_their_time_however_the_partitions_do() {
        const EACH: u64 = 60;
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders.dlq", 2, 1).unwrap();
        let at = mock.bootstrap_servers();
        let mut config = ClientConfig::new();
        let producer: FutureProducer = config.set("bootstrap.servers", &at).create().unwrap();
        let payload = vec![b'x'; 75_000];
        // Those of partition 0 are later than those of partition 1, but for the first.
        let time = |partition: u64, n: u64| match (partition, n) {
            (0, 0) => 1_000,
            (0, _) => 2_000 + n.cast_signed() / 2,
            _ => 1_000 + n.cast_signed(),
        };
        for n in 0..EACH {
            for partition in 0..2 {
                let record = FutureRecord::<[u8], [u8]>::to("orders.dlq").payload(&payload);
                let record = record.partition(partition as i32).timestamp(time(partition, n));
                producer.send(record, PATIENCE).await.unwrap();
            }
        }
        let spans = [0, 1].map(|partition| Span { partition, from: 0, to: EACH });
        let scan = Scan {
            brokers: Brokers::at(&at),
            topic: "orders.dlq".into(),
            rounds: vec![spans.to_vec()],
            sequence: Sequence::ByTime { ahead: AHEAD_OF_ONE },
            follow: false,
        };
        let mut records = scan.run().unwrap();
        let mut wanted: Vec<_> =
            (0..2).flat_map(|of| (0..EACH).map(move |n| (time(of, n), of, n))).collect();
        wanted.sort_unstable();
        let mut found = Vec::new();
        while let Some(record) = records.next().await.unwrap() {
            found.push((u64::from(record.partition), record.offset));
        }
        let wanted: Vec<_> = wanted.into_iter().map(|(_, partition, n)| (partition, n)).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn who_is_far_ahead_is_paused_until_there_is_room() {
        let record = |partition, at| Record {
            topic: "orders.dlq".into(),
            partition,
            offset: 0,
            timestamp: Some(dlq_core::Timestamp::from_millis(at)),
            key: None,
            value: Some(vec![0; 100].into()),
            headers: dlq_core::Headers::new(),
            unreadable_headers: 0,
        };
        let mut open = BTreeMap::new();
        for partition in 0..2 {
            open.insert(partition, Span { partition, from: 0, to: 9 });
        }
        let mut queues = Queues::new(1_000);
        (0..3).for_each(|n| queues.add(record(1, 50 + n)));
        assert_eq!(queues.turned(&open), [(vec![1], true)]);
        assert!(queues.turned(&open).is_empty(), "told once");
        assert!(queues.next(&open).is_none(), "the other may have an earlier one");
        (0..3).for_each(|n| queues.add(record(0, n * 50)));
        let mut found = Vec::new();
        while let Some(next) = queues.next(&open) {
            found.push((next.partition, next.timestamp.unwrap().as_nanos() / 1_000_000));
        }
        assert_eq!(found, [(0, 0), (0, 50), (1, 50), (1, 51), (1, 52)]);
        assert_eq!(queues.turned(&open), [(vec![1], false)]);
        open.clear();
        assert_eq!(queues.next(&open).map(|next| next.partition), Some(0), "what is left");
    }

    /// As one that follows the leader which has said where the partition ends.
    #[tokio::test(flavor = "multi_thread")]
    async fn g8_a_replica_that_is_behind_is_read_to_the_end_that_its_leader_has() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders.dlq", 1, 1).unwrap();
        let at = mock.bootstrap_servers();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &at).set("linger.ms", "0");
        let producer: FutureProducer = config.create().unwrap();
        let write = async |count: u32| {
            for _ in 0..count {
                let record = FutureRecord::<[u8], [u8]>::to("orders.dlq").payload(b"letter");
                producer.send(record, PATIENCE).await.unwrap();
            }
        };
        write(3).await;
        let rounds = vec![vec![Span { partition: 0, from: 0, to: 5 }]];
        let scan = || {
            let (topic, rounds) = ("orders.dlq".into(), rounds.clone());
            Scan {
                brokers: Brokers::at(&at),
                topic,
                rounds,
                sequence: Sequence::AsItComes,
                follow: false,
            }
            .run()
            .unwrap()
        };
        let offset =
            async |records: &mut Records| records.next().await.unwrap().map(|record| record.offset);
        // What was compacted away never comes.
        let mut short = scan();
        for wanted in [Some(0), Some(1), Some(2), None] {
            assert_eq!(offset(&mut short).await, wanted);
        }
        let mut records = scan();
        for wanted in 0..3 {
            assert_eq!(offset(&mut records).await, Some(wanted));
        }
        write(2).await;
        for wanted in [Some(3), Some(4), None] {
            assert_eq!(offset(&mut records).await, wanted);
        }
    }
}
