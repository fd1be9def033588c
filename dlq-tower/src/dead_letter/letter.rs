use std::collections::BTreeMap;

use dlq_core::protocol::names::PREVIOUS_TOPIC;
use dlq_core::{DeadLetter, Delivery, Fingerprint, LetterState, Reason};

use super::hook::guarded;
use super::route::Shared;
use crate::stage::GivenUp;

impl Shared {
    /// The letter of a message that was given up.
    pub(super) fn letter(&self, delivery: &Delivery, given_up: GivenUp) -> DeadLetter {
        let GivenUp { consumer, reason, class, cause, history, attempts, crashes } = given_up;
        let death = delivery.death(&consumer);
        // A run that ended with the process left no failure: earlier ones say nothing about why.
        let failure = history.last().filter(|_| reason != Reason::MaxCrashes);
        let fingerprint = Fingerprint::of(&consumer, reason, failure);
        DeadLetter {
            id: death.letter,
            generation: death.generation,
            message: delivery.message().clone(),
            origin: delivery.origin().clone(),
            consumer: consumer.to_string(),
            service: self.service_name.clone(),
            reason,
            class,
            cause,
            attempts,
            deliveries: delivery.deliveries(),
            crashes,
            escalations: delivery.escalations(),
            fingerprint,
            died_at: self.clock.now(),
            confirmed: true,
            attributes: self.attributes_of(delivery),
            state: LetterState { replays: delivery.replays(), ..LetterState::default() },
            history,
        }
    }

    fn attributes_of(&self, delivery: &Delivery) -> BTreeMap<String, String> {
        let value = |(name, of): &(String, super::layer::Attribute)| {
            Some((name.clone(), guarded("attribute", || of(delivery))??))
        };
        let mut attributes: BTreeMap<_, _> = self.attributes.iter().filter_map(value).collect();
        // Which stage gave up.
        let previous = delivery.previous();
        if previous != delivery.message().subject() {
            attributes.entry(PREVIOUS_TOPIC.to_owned()).or_insert_with(|| previous.to_owned());
        }
        attributes
    }
}
