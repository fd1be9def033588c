use std::fmt::Debug;
use std::future::Future;

use dlq_core::memory::{MemoryBroker, MemoryOutbox};
use dlq_core::outbox::Outbox;
use dlq_core::{DeadLetter, Message};

use crate::doubles::FaultyOutbox;
use crate::fixtures::letter;

/// A broker whose outbox is checked.
pub trait OutboxFixture: Debug + Sized + Send + Sync {
    /// The outbox.
    type Outbox: Outbox;

    /// Returns true if there is a broker to be had.
    #[must_use]
    fn is_available() -> bool {
        true
    }

    /// A broker, or a part of it, for one check.
    fn fresh(check: &'static str) -> impl Future<Output = Self> + Send;

    /// An outbox of this sender, with a connection of its own.
    fn outbox(&self, sender: &str) -> impl Future<Output = Self::Outbox> + Send;

    /// The `n`-th letter that was born at this broker, under the subject of all of them. Its payload says which it is.
    fn letter(&self, n: u64) -> DeadLetter;

    /// A letter that the broker refuses for good, or one that `outbox` is made to refuse.
    fn unacceptable(&self, outbox: &Self::Outbox, n: u64) -> DeadLetter;

    /// A consumer of this name begins to read where letters are born. Returns false where none can be seen.
    fn listen(&self, consumer: &str) -> impl Future<Output = bool> + Send;

    /// Waits until nothing that this outbox has handed to the broker can arrive any more, as after a lease.
    fn calm(&self, outbox: &Self::Outbox) -> impl Future<Output = ()> + Send;

    /// Everything that consumers see that arrived, in order.
    fn arrived(&self) -> impl Future<Output = Vec<Message>> + Send;
}

/// The broker in memory.
#[derive(Debug)]
pub struct MemoryOutboxFixture {
    broker: MemoryBroker,
}

impl OutboxFixture for MemoryOutboxFixture {
    type Outbox = FaultyOutbox<MemoryOutbox>;

    async fn fresh(_: &'static str) -> Self {
        Self { broker: MemoryBroker::new().stream("orders") }
    }

    async fn outbox(&self, sender: &str) -> Self::Outbox {
        FaultyOutbox::new(MemoryOutbox::new(&self.broker).sender(sender))
    }

    fn letter(&self, n: u64) -> DeadLetter {
        letter(n)
    }

    fn unacceptable(&self, outbox: &Self::Outbox, n: u64) -> DeadLetter {
        let letter = letter(n);
        outbox.refuse(letter.id);
        letter
    }

    async fn listen(&self, consumer: &str) -> bool {
        drop(self.broker.source(consumer));
        true
    }

    async fn calm(&self, _: &Self::Outbox) {}

    async fn arrived(&self) -> Vec<Message> {
        self.broker.messages()
    }
}
