use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::MemoryBroker;
use crate::outbox::{Address, Outbox, Outgoing, Sent, Settled, Survey};
use crate::protocol::on_replay;
use crate::replay::{Skipped, Subscriber};
use crate::store::Target;
use crate::{DeadLetter, Message, StoreError, StoreErrorKind, Timestamp};

/// Sends letters back to a [`MemoryBroker`], and remembers for ever what it sent: a letter arrives exactly once, whoever
/// repeats it. Clones, and the outboxes of other handles on the broker, share what was sent.
///
/// A letter goes to the stream that its origin names, or under another subject to the stream of the broker's handle.
#[derive(Clone, Debug)]
#[must_use]
pub struct MemoryOutbox {
    broker: MemoryBroker,
    cluster: Arc<str>,
    sender: Arc<str>,
}

impl MemoryOutbox {
    /// The outbox of a broker, for the cluster `default` and with `memory` as its sender.
    pub fn new(broker: &MemoryBroker) -> Self {
        Self { broker: broker.clone(), cluster: "default".into(), sender: "memory".into() }
    }

    /// Sets the alias of the cluster. Defaults to `default`, as in the origins of the broker's messages.
    pub fn cluster(mut self, alias: impl Into<Arc<str>>) -> Self {
        self.cluster = alias.into();
        self
    }

    /// Sets the name of the sender. Defaults to `memory`.
    pub fn sender(mut self, name: impl Into<Arc<str>>) -> Self {
        self.sender = name.into();
        self
    }

    fn stream<'a>(&'a self, to: &'a Address) -> &'a Arc<str> {
        to.stream.as_ref().unwrap_or_else(|| self.broker.stream_name())
    }
}

impl Outbox for MemoryOutbox {
    fn transport(&self) -> &'static str {
        "memory"
    }

    fn cluster(&self) -> &str {
        &self.cluster
    }

    fn sender(&self) -> &str {
        &self.sender
    }

    fn route(&self, letter: &DeadLetter, to: &Target) -> Result<Address, Skipped> {
        let (origin, cluster) = (&letter.origin, &self.cluster);
        let address = |subject| Address::new("memory", Arc::clone(cluster), subject);
        match to {
            Target::Handler => Err(Skipped::NoOrigin),
            Target::Subject(subject) => Ok(address(Arc::from(subject.as_str()))),
            Target::Origin if origin.transport() == "memory" && origin.cluster() == &**cluster => {
                let subject = Arc::clone(letter.message.subject_shared());
                Ok(Address { stream: Some(origin.stream().into()), ..address(subject) })
            }
            Target::Origin => Err(Skipped::NoOrigin),
        }
    }

    async fn survey(&self, to: BTreeSet<Address>) -> Result<Survey, StoreError> {
        let world = self.broker.world();
        let mut survey = Survey::default();
        for stream in to.iter().map(|to| self.stream(to)) {
            survey.subscribers.extend(world.groups(stream).into_iter().map(|group| Subscriber {
                stream: stream.to_string(),
                consumer: group.to_string(),
            }));
        }
        Ok(survey)
    }

    async fn send(&self, batch: Vec<Outgoing>, until: Instant) -> Result<Vec<Sent>, StoreError> {
        let mut sent = Vec::with_capacity(batch.len());
        for Outgoing { letter, to, replay, once } in batch {
            if Instant::now() >= until {
                let late = StoreError::new(StoreErrorKind::Unavailable, "send a letter back");
                sent.push(Sent::Later(late.with_detail("its time was over before its turn came")));
                continue;
            }
            let now = self.broker.now();
            let message = readdressed(&letter.message, &to);
            // It is a new message of the stream. Its headers say where and when it was born.
            let message = message.with_headers(on_replay(&letter, &replay)).with_published_at(now);
            // The broker remembers what it took, so that a repeat is confirmed and makes no second message.
            self.broker.world().send_back(once, self.stream(&to), message, now);
            sent.push(Sent::Confirmed);
        }
        self.broker.notify();
        Ok(sent)
    }

    async fn settle(
        &self,
        _: String,
        _: Timestamp,
        batch: Vec<Outgoing>,
    ) -> Result<Vec<Settled>, StoreError> {
        let world = self.broker.world();
        let settled = |outgoing: &Outgoing| {
            // The broker remembers for ever, so neither the former sender nor its time matters here.
            let at = world.sent_back(&outgoing.once);
            at.map_or(Settled::Not, Settled::Arrived)
        };
        Ok(batch.iter().map(settled).collect())
    }
}

/// The same message under the subject of this address.
fn readdressed(message: &Message, to: &Address) -> Message {
    if message.subject() == &*to.subject {
        return message.clone();
    }
    let mut other =
        Message::tombstone(Arc::clone(&to.subject)).with_payload(message.payload().cloned());
    if let Some(id) = message.id() {
        other = other.with_id(id);
    }
    if let Some(event) = message.event() {
        other = other.with_event(event);
    }
    if let Some(key) = message.key() {
        other = other.with_key(key.clone());
    }
    other
}
