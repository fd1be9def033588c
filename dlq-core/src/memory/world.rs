use std::collections::{BTreeMap, BTreeSet, HashMap, hash_map};
use std::sync::Arc;

use crate::outbox::Once;
use crate::protocol::{Incoming, split};
use crate::{
    Binding, Death, DelayedRetry, DeliveredFrom, Delivery, History, Message, Origin, Position,
    Timestamp,
};

/// Everything the broker holds. Pure: the callers bring the time.
#[derive(Debug, Default)]
pub(super) struct World {
    streams: BTreeMap<Arc<str>, Stream>,
    /// The last proof of a hand-out.
    fence: u64,
    /// When each letter was sent back.
    sent: HashMap<Once, Timestamp>,
}

#[derive(Debug, Default)]
struct Stream {
    log: Vec<Message>,
    groups: BTreeMap<Arc<str>, Group>,
}

/// A consumer group: its place in the stream, and what it has not settled.
#[derive(Debug, Default)]
struct Group {
    /// Number of messages of the log that were handed out.
    taken: usize,
    entries: BTreeMap<Key, Entry>,
    /// When each entry can be handed out: when it is due, or when its lease ends.
    line: BTreeSet<(Timestamp, Key)>,
    records: Records,
}

/// Every retry record that was ever written, settled ones included.
#[derive(Debug, Default)]
struct Records {
    known: HashMap<Hop, u64>,
    last: u64,
}

/// A hop of a death: how often it was delayed, and sent back before. With the bytes of its message, since another one may
/// claim the same death.
type Hop = (Death, u32, u32, Binding);

/// An unsettled message of a group. Main messages are named by their place in the log, records by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Main(usize),
    Record(u64),
}

#[derive(Debug)]
struct Entry {
    at: Timestamp,
    /// Proof of the hand-out, while it is out.
    out: Option<u64>,
    deliveries: u32,
    record: Option<Record>,
}

#[derive(Debug)]
struct Record {
    delivery: Delivery,
    /// Consumer of the record; a group may have several.
    consumer: Arc<str>,
    death: Death,
    history: History,
    attempts: u32,
}

/// A message that was handed out.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) key: Key,
    pub(super) fence: u64,
    pub(super) delivery: Delivery,
}

/// A message that is no longer in the hands of whoever speaks of it.
#[derive(Debug)]
pub(super) struct Lost;

impl World {
    pub(super) fn publish(&mut self, stream: &Arc<str>, message: Message) -> Position {
        let log = &mut self.stream(stream).log;
        log.push(message);
        position(log.len() - 1)
    }

    /// Publishes a letter that is sent back, unless it was before.
    pub(super) fn send_back(
        &mut self,
        once: Once,
        stream: &Arc<str>,
        message: Message,
        now: Timestamp,
    ) {
        if let hash_map::Entry::Vacant(vacant) = self.sent.entry(once) {
            vacant.insert(now);
            self.publish(stream, message);
        }
    }

    /// When a letter was sent back, if it was.
    pub(super) fn sent_back(&self, once: &Once) -> Option<Timestamp> {
        self.sent.get(once).copied()
    }

    /// The names of the groups that read a stream.
    pub(super) fn groups(&self, stream: &str) -> Vec<Arc<str>> {
        self.streams
            .get(stream)
            .map_or_else(Vec::new, |stream| stream.groups.keys().cloned().collect())
    }

    pub(super) fn messages(&self, stream: &str) -> Vec<Message> {
        self.streams.get(stream).map(|stream| stream.log.clone()).unwrap_or_default()
    }

    fn stream(&mut self, name: &Arc<str>) -> &mut Stream {
        self.streams.entry(Arc::clone(name)).or_default()
    }

    fn group(&mut self, stream: &Arc<str>, group: &Arc<str>) -> &mut Group {
        self.stream(stream).groups.entry(Arc::clone(group)).or_default()
    }

    /// From now on there is such a group, whether or not it was handed anything.
    pub(super) fn join(&mut self, stream: &Arc<str>, group: &Arc<str>) {
        self.group(stream, group);
    }

    fn existing(&self, stream: &str, group: &str) -> Option<&Group> {
        self.streams.get(stream)?.groups.get(group)
    }

    /// Moves a group to a place in the log; `None` is its end.
    pub(super) fn seek(&mut self, stream: &Arc<str>, group: &Arc<str>, to: Option<u64>) {
        let end = self.stream(stream).log.len();
        let first = |to: u64| usize::try_from(to.saturating_sub(1)).unwrap_or(usize::MAX);
        // Only the place in the log moves. What the group has in flight, or waits for, stays its own.
        self.group(stream, group).taken = to.map_or(end, first).min(end);
    }

    /// Hands out up to `limit` messages of the group that `incoming` is of: first those that come again, then new ones.
    pub(super) fn hand_out(
        &mut self,
        stream: &Arc<str>,
        incoming: &Incoming,
        limit: usize,
        now: Timestamp,
        until: Timestamp,
    ) -> Vec<Handed> {
        let group = incoming.addressee.name();
        let mut fence = self.fence;
        let Stream { log, groups } = self.streams.entry(Arc::clone(stream)).or_default();
        let place = groups.entry(Arc::clone(group)).or_default();
        // What comes again goes first. Otherwise a steady stream of new messages would keep it waiting for ever.
        let due: Vec<_> =
            place.line.iter().take_while(|(at, _)| *at <= now).take(limit).copied().collect();
        let mut handed = Vec::new();
        for (_, key) in due {
            // What comes again goes out with a new proof, so that whoever had it before cannot settle it any more.
            place.change(key, |entry| {
                fence += 1;
                entry.out = Some(fence);
                entry.at = until;
                entry.deliveries = entry.deliveries.saturating_add(1);
            });
            handed.push((key, fence));
        }
        while handed.len() < limit && place.taken < log.len() {
            fence += 1;
            let entry = Entry { at: until, out: Some(fence), deliveries: 1, record: None };
            let key = Key::Main(place.taken);
            place.insert(key, entry);
            handed.push((key, fence));
            place.taken += 1;
        }
        self.fence = fence;
        handed
            .into_iter()
            .filter_map(|(key, fence)| {
                let entry = self.existing(stream, group)?.entries.get(&key)?;
                let delivery = self.delivery(stream, incoming, key, entry)?;
                Some(Handed { key, fence, delivery })
            })
            .collect()
    }

    fn delivery(
        &self,
        stream: &Arc<str>,
        incoming: &Incoming,
        key: Key,
        entry: &Entry,
    ) -> Option<Delivery> {
        let delivery = match (key, &entry.record) {
            (Key::Main(index), _) => {
                let message = self.streams.get(stream)?.log.get(index)?.clone();
                let origin = Origin::new("memory", Arc::clone(stream), position(index));
                incoming.message(message, origin, split)
            }
            (Key::Record(_), Some(record)) => {
                let delayed_retries = record.delivery.delayed_retries().saturating_add(1);
                record
                    .delivery
                    .clone()
                    .with_consumer(Arc::clone(&record.consumer))
                    .with_delivered_from(DeliveredFrom::Retry)
                    .with_death(record.death)
                    .with_history(record.history.clone())
                    .with_attempt(record.attempts.saturating_add(1))
                    .with_delayed_retries(delayed_retries)
            }
            (Key::Record(_), None) => return None,
        };
        Some(delivery.with_deliveries(entry.deliveries))
    }

    /// When the next message of a group can be handed out.
    pub(super) fn next_due(&self, stream: &str, group: &str) -> Option<Timestamp> {
        self.existing(stream, group)?.line.first().map(|(at, _)| *at)
    }

    /// Changes what somebody holds, if they still do.
    fn held<T>(
        &mut self,
        stream: &Arc<str>,
        group: &Arc<str>,
        key: Key,
        fence: u64,
        change: impl FnOnce(&mut Group) -> T,
    ) -> Result<T, Lost> {
        let group = self.group(stream, group);
        // The end of the lease does not count: until the message is handed out again nobody else has it.
        let held = group.entries.get(&key).is_some_and(|entry| entry.out == Some(fence));
        if held { Ok(change(group)) } else { Err(Lost) }
    }

    pub(super) fn extend(
        &mut self,
        (stream, group): (&Arc<str>, &Arc<str>),
        key: Key,
        fence: u64,
        until: Timestamp,
    ) -> Result<(), Lost> {
        self.held(stream, group, key, fence, |group| group.change(key, |entry| entry.at = until))
    }

    /// Ends a hand-out for good.
    pub(super) fn acknowledge(
        &mut self,
        (stream, group): (&Arc<str>, &Arc<str>),
        key: Key,
        fence: u64,
    ) -> Result<(), Lost> {
        self.held(stream, group, key, fence, |group| group.remove(key))
    }

    /// Gives a message back, to be handed out again at `at`.
    pub(super) fn release(
        &mut self,
        (stream, group): (&Arc<str>, &Arc<str>),
        key: Key,
        fence: u64,
        at: Timestamp,
    ) -> Result<(), Lost> {
        self.held(stream, group, key, fence, |group| {
            // The proof is void from here on: who had the message cannot settle it a second time.
            group.change(key, |entry| (entry.at, entry.out) = (at, None));
        })
    }

    /// Ends every lease of a group.
    pub(super) fn crash(&mut self, stream: &Arc<str>, group: &Arc<str>, now: Timestamp) {
        let group = self.group(stream, group);
        let out: Vec<_> =
            group.entries.iter().filter(|(_, e)| e.out.is_some()).map(|(key, _)| *key).collect();
        for key in out {
            group.change(key, |entry| (entry.at, entry.out) = (now, None));
        }
    }

    /// The group that a record belongs to: the one that has the consumer's name, or else the one that has the message in
    /// hand, whatever its handler is called; `None` where several have.
    pub(super) fn group_of(&self, stream: &str, delayed_retry: &DelayedRetry) -> Option<Arc<str>> {
        let DelayedRetry { delivery, consumer, .. } = delayed_retry;
        let groups = &self.streams.get(stream)?.groups;
        let mut holders = groups.iter().filter(|(_, group)| group.holds(delivery));
        match (groups.get_key_value(consumer), holders.next(), holders.next()) {
            (Some((name, _)), ..) | (None, Some((name, _)), None) => Some(Arc::clone(name)),
            _ => None,
        }
    }

    pub(super) fn enqueue(
        &mut self,
        stream: &Arc<str>,
        group: &Arc<str>,
        delayed_retry: DelayedRetry,
    ) {
        let DelayedRetry { delivery, consumer, due, history, attempts } = delayed_retry;
        let death = delivery.death(&consumer);
        let group = self.group(stream, group);
        let binding = Binding::of(&death.letter, delivery.message());
        let hop = delivery.delayed_retries().saturating_add(1);
        // A death may be sent back several times, and each time has hops of its own.
        let identity = (death, hop, delivery.replays(), binding);
        let record = Record { delivery, consumer, death, history, attempts };
        // A settled hop is still known: a writer that did not get its answer writes again, and must not make the message run
        // twice.
        if let Some(number) = group.records.known.get(&identity) {
            let key = Key::Record(*number);
            // A record that is out belongs to whoever has it. Otherwise the one that knows of more attempts stands
            // (G3).
            let knows_less = |entry: &Entry| {
                let known = entry.record.as_ref().map_or(0, |record| record.attempts);
                entry.out.is_none() && known < record.attempts
            };
            if group.entries.get(&key).is_some_and(knows_less) {
                group.change(key, |entry| (entry.at, entry.record) = (due, Some(record)));
            }
            return;
        }
        group.records.last += 1;
        group.records.known.insert(identity, group.records.last);
        let entry = Entry { at: due, out: None, deliveries: 0, record: Some(record) };
        group.insert(Key::Record(group.records.last), entry);
    }

    /// Everything a group has not settled, what it has not been handed yet included.
    pub(super) fn pending(&self, stream: &str, group: &str) -> usize {
        let Some(stream) = self.streams.get(stream) else { return 0 };
        match stream.groups.get(group) {
            Some(group) => group.entries.len() + stream.log.len().saturating_sub(group.taken),
            None => stream.log.len(),
        }
    }

    /// The messages that a group has not settled.
    pub(super) fn unsettled_messages(&self, stream: &str, group: &str) -> Vec<Message> {
        let Some(stream) = self.streams.get(stream) else { return Vec::new() };
        let none = Group::default();
        let group = stream.groups.get(group).unwrap_or(&none);
        let entry = |(key, entry): (&Key, &Entry)| match (key, &entry.record) {
            (Key::Main(index), _) => stream.log.get(*index).cloned(),
            (Key::Record(_), record) => {
                record.as_ref().map(|record| record.delivery.message().clone())
            }
        };
        let fresh = stream.log.iter().skip(group.taken).cloned();
        group.entries.iter().filter_map(entry).chain(fresh).collect()
    }

    /// Returns the messages that a group has not settled: the position in the log where each was born, and the way by
    /// which it comes.
    pub(super) fn unsettled(&self, stream: &str, group: &str) -> Vec<(Position, DeliveredFrom)> {
        let Some(stream) = self.streams.get(stream) else { return Vec::new() };
        let none = Group::default();
        let group = stream.groups.get(group).unwrap_or(&none);
        let entry = |(key, entry): (&Key, &Entry)| match (key, &entry.record) {
            (Key::Main(index), _) => Some((position(*index), DeliveredFrom::Main)),
            (Key::Record(_), record) => record
                .as_ref()
                .map(|record| (record.delivery.origin().position().clone(), DeliveredFrom::Retry)),
        };
        let fresh =
            (group.taken..stream.log.len()).map(|index| (position(index), DeliveredFrom::Main));
        group.entries.iter().filter_map(entry).chain(fresh).collect()
    }
}

impl Group {
    /// Returns true if somebody has the message in flight, by whichever way it came.
    fn holds(&self, delivery: &Delivery) -> bool {
        let place = delivery.origin().position();
        self.entries.iter().any(|(key, entry)| {
            let is_own = match (key, &entry.record) {
                (Key::Main(index), _) => position(*index) == *place,
                (Key::Record(_), Some(record)) => record.delivery.origin().position() == place,
                (Key::Record(_), None) => return false,
            };
            entry.out.is_some() && is_own
        })
    }

    fn insert(&mut self, key: Key, entry: Entry) {
        self.line.insert((entry.at, key));
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: Key) {
        if let Some(entry) = self.entries.remove(&key) {
            self.line.remove(&(entry.at, key));
        }
    }

    fn change(&mut self, key: Key, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.entries.get_mut(&key) {
            // The line is ordered by `at`, so the entry leaves it before that changes.
            self.line.remove(&(entry.at, key));
            change(entry);
            self.line.insert((entry.at, key));
        }
    }
}

/// Positions count from 1.
fn position(index: usize) -> Position {
    Position::Offset(index as u64 + 1)
}
