use std::collections::BTreeMap;

use dlq_core::protocol::names::PREVIOUS_TOPIC;
use dlq_core::{DeadLetter, Delivery, Fingerprint, Reason};

use super::hook::guarded;
use super::route::Inner;
use crate::stage::GivenUp;

impl Inner {
    /// The letter of a message that was given up.
    pub(super) fn letter(&self, delivery: &Delivery, given_up: GivenUp) -> DeadLetter {
        let GivenUp { consumer, reason, class, cause, history, attempts, crashes } = given_up;
        let death = delivery.death(&consumer);
        // A run that ended with the process left no failure: earlier ones say nothing about why.
        let failure = history.last().filter(|_| reason != Reason::MaxCrashes);
        let fingerprint = Fingerprint::of(&consumer, reason, failure);
        let mut letter = DeadLetter::identified(
            death.letter,
            fingerprint,
            delivery.message().clone(),
            delivery.origin().clone(),
            &*consumer,
            reason,
        );
        letter.generation = death.generation;
        letter.service.clone_from(&self.service_name);
        letter.class = class;
        letter.cause = cause;
        letter.history = history;
        letter.attempts = attempts;
        letter.deliveries = delivery.deliveries();
        letter.crashes = crashes;
        letter.delayed_retries = delivery.delayed_retries();
        letter.died_at = self.clock.now();
        letter.attributes = self.attributes_of(delivery);
        letter.state.replays = delivery.replays();
        letter
    }

    fn attributes_of(&self, delivery: &Delivery) -> BTreeMap<String, String> {
        let value = |(name, of): &(String, super::layer::Attribute)| {
            Some((name.clone(), guarded("attribute", || of(delivery))??))
        };
        let mut attributes: BTreeMap<_, _> = self.attributes.iter().filter_map(value).collect();
        // Which stage gave up.
        let previous = delivery.previous();
        if previous != delivery.message().subject() {
            // An attribute of this name that the user has declared wins.
            attributes.entry(PREVIOUS_TOPIC.to_owned()).or_insert_with(|| previous.to_owned());
        }
        attributes
    }
}
