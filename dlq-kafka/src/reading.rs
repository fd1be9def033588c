use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::{
    Addressee, Death, Delivery, Headers, Lane, LetterId, Message, Origin, SharedClock, Timestamp,
};

use crate::record::Record;
use crate::wire::{self, Unpacked};

/// How records of one consumer are read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) addressee: Addressee,
    pub(crate) group: Arc<str>,
    pub(crate) cluster: Arc<str>,
    pub(crate) id_header: Option<Arc<str>>,
    pub(crate) event_header: Option<Arc<str>>,
    /// Whether several groups have the same retry topics.
    pub(crate) is_shared: bool,
    /// Topics that were stages once, going by their names.
    pub(crate) former: Arc<[String]>,
    pub(crate) clock: SharedClock,
}

/// What a record is to the consumer.
#[derive(Debug)]
pub(crate) enum Read {
    /// A message, of its topic or sent back to it.
    Message(Delivery),
    /// A message that waits for its next attempt, and what to do about one that waits longer than its stage.
    Record { delivery: Delivery, due: Timestamp, again: Option<Box<Again>> },
    /// A retry record of another group, in a topic that several share.
    NotOurs,
}

/// A record that waits longer than its stage: it would hold up what stands behind it there.
#[derive(Debug)]
pub(crate) struct Again {
    /// As it stands.
    pub(crate) record: Record,
    /// When it is written into the stage again, behind what stands there now.
    pub(crate) at: Timestamp,
}

impl Reading {
    /// `stage` is the delay of a retry topic.
    pub(crate) fn read(&self, record: Record, origin: Origin, stage: Option<Duration>) -> Read {
        match stage {
            None => Read::Message(self.message(record, origin)),
            Some(delay) => self.record(record, origin, delay),
        }
    }

    fn message(&self, record: Record, origin: Origin) -> Delivery {
        let Record { topic, timestamp, key, value, headers, .. } = record;
        let named = |name: &Option<Arc<str>>| {
            name.as_ref().and_then(|name| headers.get_str(name)).map(Arc::<str>::from)
        };
        let (id, event) = (named(&self.id_header), named(&self.event_header));
        let is_plain = !headers.iter().any(|header| header.name == wire::VERSION);
        let sent = |headers: Headers, at: Option<Timestamp>| {
            let mut sent = Message::tombstone(topic).with_payload(value).with_headers(headers);
            if let Some(key) = key {
                sent = sent.with_key(key);
            }
            if let Some(at) = at {
                sent = sent.with_published_at(at);
            }
            if let Some(id) = id {
                sent = sent.with_id(id);
            }
            if let Some(event) = event {
                sent = sent.with_event(event);
            }
            sent
        };
        let consumer = Arc::clone(self.addressee.name());
        if is_plain {
            return Delivery::to(consumer, sent(headers, timestamp), origin);
        }
        // Headers that claim an identity are believed where they fit the message (G2).
        let (producers, decoded) = wire::split_ours(&headers);
        let read = Delivery::to(consumer, sent(headers, timestamp), origin);
        match decoded.death_of(&read, &self.addressee) {
            None => read,
            Some(Death { letter, generation }) => {
                let born = &decoded.original;
                let origin = match (&born.topic, born.partition, born.offset) {
                    (Some(topic), Some(partition), Some(position)) => {
                        dlq_core::Origin::new("kafka", topic.as_str(), position)
                            .with_partition(partition)
                            .with_cluster(Arc::clone(&self.cluster))
                    }
                    _ => read.origin().clone(),
                };
                let mut message = read.message().clone().with_headers(producers);
                if let Some(at) = born.timestamp {
                    message = message.with_published_at(at);
                }
                Delivery::to(Arc::clone(self.addressee.name()), message, origin)
                    .with_death(Death { letter, generation: generation.saturating_add(1) })
                    .with_replays(decoded.replays.unwrap_or(0))
            }
        }
    }

    fn record(&self, record: Record, stands: Origin, delay: Duration) -> Read {
        let Unpacked { message, decoded, origin, group, .. } = wire::unpack(&record, &self.cluster);
        let now = self.clock.now();
        let due = wire::due(&decoded, record.timestamp, delay, now);
        let was_stage = || self.former.iter().any(|topic| *topic == *record.topic);
        if origin.is_none() && self.is_shared && was_stage() {
            // Nothing says that it is for us; in a topic of its own it can be for nobody else.
            return Read::NotOurs;
        }
        let Some(origin) = origin else {
            // Somebody else wrote it. It is a message, and it waits as one of this topic does.
            // Written again it would be another message, since it is known by where it stands.
            return Read::Record { delivery: self.message(record, stands), due, again: None };
        };
        if !self.is_for_us(group.as_deref(), decoded.consumer.as_deref()) {
            return Read::NotOurs;
        }
        // By the name of the handler that failed, which is the one to run it again.
        let failed = decoded.consumer.map(Arc::from);
        let mut delivery = Delivery::new(message, origin)
            .with_consumer(failed.unwrap_or_else(|| Arc::clone(self.addressee.name())))
            .with_lane(Lane::Retry)
            .with_previous(stands.stream())
            .with_attempt(decoded.attempts.unwrap_or(0).saturating_add(1))
            .with_escalations(decoded.escalations.unwrap_or(1))
            .with_replays(decoded.replays.unwrap_or(0));
        if let Some(letter) = decoded.letter {
            let generation = decoded.generation.unwrap_or(0).saturating_add(1);
            delivery = delivery.with_death(Death { letter, generation });
        }
        if let Some(history) = decoded.history {
            delivery = delivery.with_history(history);
        }
        let again = wire::again(due, record.timestamp, delay, now)
            .filter(|_| wire::is_writable(&record))
            .map(|at| Box::new(Again { record, at }));
        Read::Record { delivery, due, again }
    }

    /// The letters that may be asked for when it is marked, of one that may have killed its process: whose of the
    /// handlers it is turns out later.
    pub(crate) fn suspect(&self, delivery: &Delivery) -> Vec<LetterId> {
        if delivery.deliveries() <= 1 {
            return Vec::new();
        }
        let names = self.addressee.names();
        let letters = names.iter().map(|name| delivery.death(name).letter);
        letters.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Whether a record is of this group; one that does not say so, such as a letter that was sent to its handler, is its
    /// consumer's. In a topic of its own the group has everything, whatever its consumer was called when that was written.
    fn is_for_us(&self, group: Option<&str>, consumer: Option<&str>) -> bool {
        match (group, consumer) {
            (Some(group), _) => *group == *self.group,
            (None, Some(consumer)) if self.is_shared => {
                self.addressee.names().iter().any(|name| **name == *consumer)
            }
            (None, _) => true,
        }
    }
}
