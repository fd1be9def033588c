use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::protocol::{Incoming, RetryRecord};
use dlq_core::{Death, Delivery, LetterId, Message, Origin, SharedClock, Timestamp};

use crate::client::record::Record;
use crate::client::wire::{self, Unpacked};

/// Rules for reading the records of one consumer.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) incoming: Incoming,
    pub(crate) group: Arc<str>,
    pub(crate) cluster: Arc<str>,
    /// True if several groups share the retry topics.
    pub(crate) is_shared: bool,
    /// Topics that were stages once, going by their names.
    pub(crate) former: Arc<[String]>,
    pub(crate) clock: SharedClock,
}

/// Meaning of a record for the consumer.
#[derive(Debug)]
pub(crate) enum Read {
    /// A message, of its topic or sent back to it.
    Message(Delivery),
    /// A message that waits for its next attempt, and what to do about one that waits longer than its stage.
    Record { delivery: Delivery, due: Timestamp, again: Option<Box<Again>> },
    /// A retry record of another group, in a topic that several share. One that names no group is of a handler that this
    /// group does not have, and of which nobody knows whether another has it.
    NotOurs { unclaimed: Option<String> },
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
        let mut message = Message::tombstone(topic).with_payload(value).with_headers(headers);
        if let Some(key) = key {
            message = message.with_key(key);
        }
        if let Some(at) = timestamp {
            message = message.with_published_at(at);
        }
        // Any producer can copy our headers, so a claim to be a letter is believed only where its binding fits (G2).
        self.incoming.message(message, origin, wire::split_ours)
    }

    fn record(&self, record: Record, stands: Origin, delay: Duration) -> Read {
        let Unpacked { message, decoded, origin, group, .. } = wire::unpack(&record, &self.cluster);
        let now = self.clock.now();
        let due = wire::due(&decoded, record.timestamp, delay, now);
        let was_stage = || self.former.iter().any(|topic| *topic == *record.topic);
        if origin.is_none() && self.is_shared && was_stage() {
            // Nothing says that it is for us; in a topic of its own it can be for nobody else.
            return Read::NotOurs { unclaimed: None };
        }
        let Some(origin) = origin else {
            // Somebody else wrote it. It is a message, and it waits as one of this topic does.
            // Written again it would be another message, since it is known by where it stands.
            return Read::Record { delivery: self.message(record, stands), due, again: None };
        };
        // The record is another group's although its topic is shared. Run here as well, it would be handled twice.
        if !self.is_for_us(group.as_deref(), decoded.consumer.as_deref()) {
            return Read::NotOurs { unclaimed: decoded.consumer.filter(|_| group.is_none()) };
        }
        let (death, stage) = (decoded.death().map(Death::next), Arc::clone(&record.topic));
        let retry = RetryRecord { message, decoded, origin, death, stage };
        let delivery = self.incoming.record(retry, || stands);
        // A record with a name that the client cannot write would lose that header, so it waits where it stands (G8).
        let again = wire::again(due, record.timestamp, delay, now)
            .filter(|_| wire::is_writable(&record))
            .map(|at| Box::new(Again { record, at }));
        Read::Record { delivery, due, again }
    }

    /// The letters that may be asked for when it is marked, of one that may have killed its process: whose of the
    /// handlers it is turns out later.
    pub(crate) fn suspect(&self, delivery: &Delivery) -> Vec<LetterId> {
        // What was handed out once has killed nobody, and is not marked.
        if delivery.deliveries() <= 1 {
            return Vec::new();
        }
        // A source may have several handlers, and the identity of a death names its handler.
        let names = self.incoming.addressee.names();
        let letters = names.iter().map(|name| delivery.death(name).letter);
        letters.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns true if a record belongs to this group. A record that names no group, such as a letter that was sent to
    /// its handler, belongs to its consumer. In a topic of its own the group has everything, whatever its consumer was
    /// called when the record was written.
    fn is_for_us(&self, group: Option<&str>, consumer: Option<&str>) -> bool {
        match (group, consumer) {
            (Some(group), _) => *group == *self.group,
            (None, Some(consumer)) if self.is_shared => {
                self.incoming.addressee.names().iter().any(|name| **name == *consumer)
            }
            (None, _) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::protocol::{Replay, names, on_replay};
    use dlq_core::{Addressee, DeadLetter, Headers, OperationId, Position, SystemClock};
    use dlq_testkit::doubles::Called;
    use dlq_testkit::fixtures::letter_of;

    use super::*;

    fn reading() -> Reading {
        Reading {
            incoming: Incoming::new(Addressee::new("billing".into())),
            group: "billing".into(),
            cluster: "default".into(),
            is_shared: false,
            former: Arc::new([]),
            clock: SystemClock::shared(),
        }
    }

    fn stands() -> Origin {
        Origin::new("kafka", "orders", Position::Offset(99)).with_partition(1)
    }

    fn letter() -> DeadLetter {
        let at = Timestamp::from_millis(1_790_000_000_000);
        let message = Message::new("orders", "1").with_key("k").with_published_at(at);
        let mut letter = letter_of(message, 1);
        letter.origin = Origin::new("kafka", "orders", Position::Offset(7)).with_partition(3);
        letter.consumer = "billing".to_owned();
        letter.id = LetterId::of(&letter.origin, Some(at), "billing");
        letter
    }

    fn sent_back(letter: &DeadLetter) -> Headers {
        let at = Timestamp::from_millis(1_790_000_001_000);
        let operation = OperationId::of("ana", at, 1);
        on_replay(letter, &Replay { operation, count: 3, from: "orders.dlq/0/1".to_owned(), at })
    }

    fn record(letter: &DeadLetter, headers: Headers) -> Record {
        Record {
            topic: "orders".into(),
            partition: 1,
            offset: 99,
            timestamp: Some(Timestamp::from_millis(1_790_000_002_000)),
            key: letter.message.key().cloned(),
            value: letter.message.payload().cloned(),
            headers,
            unreadable_headers: 0,
        }
    }

    fn read(letter: &DeadLetter, headers: Headers, stage: Option<Duration>) -> Delivery {
        match reading().read(record(letter, headers), stands(), stage) {
            Read::Message(delivery) | Read::Record { delivery, .. } => delivery,
            Read::NotOurs { .. } => panic!("it is ours"),
        }
    }

    #[test]
    fn g9_a_record_that_says_no_group_is_claimed_by_name_or_told() {
        let reading = Reading {
            incoming: Incoming {
                addressee: Addressee::new("pay".into())
                    .with_recipients(Arc::new(Called::by(["pay.charge", "pay.charge.once"]))),
                ..reading().incoming
            },
            group: "pay".into(),
            is_shared: true,
            ..reading()
        };
        let read = |consumer: &str, group: Option<&str>| {
            let letter = letter().with_consumer(consumer);
            let mut headers = sent_back(&letter);
            let rest = group.map(|group| format!(r#"{{"group":"{group}"}}"#));
            rest.into_iter().for_each(|rest| headers.append(wire::REST, rest));
            match reading.read(record(&letter, headers), stands(), Some(Duration::ZERO)) {
                Read::Record { delivery, .. } => Ok(delivery.consumer().to_owned()),
                Read::NotOurs { unclaimed } => Err(unclaimed),
                Read::Message(_) => panic!("it is a retry record"),
            }
        };
        for own in ["pay", "pay.charge", "pay.charge.once"] {
            assert_eq!(read(own, None), Ok(own.to_owned()));
        }
        assert_eq!(read("ship", None), Err(Some("ship".to_owned())), "it is told");
        assert_eq!(read("ship", Some("ship")), Err(None), "its group has it");
        assert_eq!(read("pay.gone", Some("pay")), Ok("pay.gone".to_owned()));
    }

    #[test]
    fn g2_an_absurd_generation_is_not_believed() {
        let letter = letter();
        let read = |generation: u32, stage| {
            let mut headers = sent_back(&letter);
            headers.set(names::DLQ_GENERATION, generation.to_string());
            read(&letter, headers, stage)
        };
        for stage in [None, Some(Duration::ZERO)] {
            let known = read(4, stage);
            assert_eq!(known.death("billing"), Death { letter: letter.id, generation: 5 });
            assert_eq!((known.origin(), known.replays()), (&letter.origin, 3));
            assert_eq!(known.message(), &letter.message);
            let own = read(Death::MAX_GENERATION, stage);
            assert_eq!((own.origin(), own.generation()), (&stands(), 0));
        }
    }
}
