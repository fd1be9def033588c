//! The letter of a message that a server has given up.

use std::collections::BTreeMap;
use std::sync::Arc;

use dlq_core::{
    Attempt, Cause, DeadLetter, Death, Delivery, Failure, Fingerprint, History, LetterId, Message,
    Origin, Position, Timestamp,
};

use super::advisory::{Advisory, Kind};
use crate::client::leader::Kept;
use crate::client::message_meta::MessageMeta;
use crate::consumer::source::Reading;

/// The message that an advisory is about, as a delivery to the consumer that did not handle it. Of one that is gone
/// nobody can say when it was published, and the time that stands for it keeps letters apart.
pub(super) fn delivery_of(
    reading: &Reading,
    advisory: &Advisory,
    found: Option<Kept>,
    published: Timestamp,
) -> Delivery {
    let delivered = u32::try_from(advisory.deliveries).unwrap_or(u32::MAX);
    let Some(found) = found else {
        let position = Position::Offset(advisory.sequence);
        let origin = Origin::new("nats", advisory.stream.as_str(), position)
            .with_cluster(reading.cluster.clone());
        let letter = LetterId::of(&origin, Some(published), reading.incoming.addressee.name());
        // Its subject is not known any more.
        return Delivery::new(Message::tombstone(advisory.stream.as_str()), origin)
            .with_consumer(Arc::clone(reading.incoming.addressee.name()))
            .with_death(Death { letter, generation: 0 })
            .with_deliveries(delivered);
    };
    let place = MessageMeta {
        stream: advisory.stream.clone(),
        delivered,
        sequence: found.sequence,
        published,
    };
    reading.message(&found.subject, found.headers, found.payload, place)
}

/// The letter of `delivery`.
pub(super) fn letter_of(delivery: &Delivery, advisory: &Advisory, has_payload: bool) -> DeadLetter {
    let kind = advisory.kind();
    let consumer = &advisory.calls_itself();
    let death = delivery.death(consumer);
    let mut history = History::new();
    // Only a consumer that refused the message has said that it failed; what was handed out often may never have run.
    if kind == Kind::Terminated {
        let text = advisory.reason.as_deref().unwrap_or("the consumer gave no reason");
        let failure = Failure::new(kind.class(), Cause::Error, kind.as_str(), text);
        history.push(Attempt {
            number: delivery.deliveries(),
            generation: death.generation,
            failure: failure.timed(advisory.timestamp, std::time::Duration::ZERO),
        });
    }
    let mut attributes = BTreeMap::from([("nats.advisory".to_owned(), kind.as_str().to_owned())]);
    if !has_payload {
        attributes.insert("nats.payload".to_owned(), "lost".to_owned());
    }
    let (message, origin) = (delivery.message().clone(), delivery.origin().clone());
    let fingerprint = Fingerprint::of(consumer, kind.reason(), history.last());
    let mut letter = DeadLetter::identified(
        death.letter,
        fingerprint,
        message,
        origin,
        consumer.as_str(),
        kind.reason(),
    );
    letter.generation = death.generation;
    letter.class = kind.class();
    letter.cause = history.last().map(|failure| failure.cause);
    letter.history = history;
    // Whether a handler ran is not known: what was fetched ahead counts as handed out, too. So there are no attempts.
    letter.deliveries = delivery.deliveries();
    letter.died_at = advisory.timestamp;
    letter.confirmed = advisory.is_confirmed();
    letter.attributes = attributes;
    letter.state.replays = delivery.replays();
    letter
}
