use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use super::{Address, Outbox, Outgoing, Sent, Settled, Survey};
use crate::replay::Skipped;
use crate::store::Target;
use crate::{DeadLetter, StoreError, Timestamp};

type Erased<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The mirror of [`Outbox`] whose methods return boxed futures.
trait DynOutbox: Debug + Send + Sync {
    fn transport(&self) -> &str;
    fn cluster(&self) -> &str;
    fn sender(&self) -> &str;
    fn route(&self, letter: &DeadLetter, to: &Target) -> Result<Address, Skipped>;
    fn survey(&self, to: BTreeSet<Address>) -> Erased<'_, Survey>;
    fn send(&self, batch: Vec<Outgoing>, until: Instant) -> Erased<'_, Vec<Sent>>;
    fn settle(
        &self,
        sender: String,
        since: Timestamp,
        batch: Vec<Outgoing>,
    ) -> Erased<'_, Vec<Settled>>;
}

impl<T: Outbox> DynOutbox for T {
    fn transport(&self) -> &str {
        Outbox::transport(self)
    }

    fn cluster(&self) -> &str {
        Outbox::cluster(self)
    }

    fn sender(&self) -> &str {
        Outbox::sender(self)
    }

    fn route(&self, letter: &DeadLetter, to: &Target) -> Result<Address, Skipped> {
        Outbox::route(self, letter, to)
    }

    fn survey(&self, to: BTreeSet<Address>) -> Erased<'_, Survey> {
        Box::pin(Outbox::survey(self, to))
    }

    fn send(&self, batch: Vec<Outgoing>, until: Instant) -> Erased<'_, Vec<Sent>> {
        Box::pin(Outbox::send(self, batch, until))
    }

    fn settle(
        &self,
        sender: String,
        since: Timestamp,
        batch: Vec<Outgoing>,
    ) -> Erased<'_, Vec<Settled>> {
        Box::pin(Outbox::settle(self, sender, since, batch))
    }
}

/// Any outbox, erased. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BoxOutbox(Arc<dyn DynOutbox>);

impl BoxOutbox {
    /// Erases `outbox`.
    #[must_use]
    pub fn new(outbox: impl Outbox) -> Self {
        Self(Arc::new(outbox))
    }
}

impl Outbox for BoxOutbox {
    fn transport(&self) -> &str {
        self.0.transport()
    }

    fn cluster(&self) -> &str {
        self.0.cluster()
    }

    fn sender(&self) -> &str {
        self.0.sender()
    }

    fn route(&self, letter: &DeadLetter, to: &Target) -> Result<Address, Skipped> {
        self.0.route(letter, to)
    }

    async fn survey(&self, to: BTreeSet<Address>) -> Result<Survey, StoreError> {
        self.0.survey(to).await
    }

    async fn send(&self, batch: Vec<Outgoing>, until: Instant) -> Result<Vec<Sent>, StoreError> {
        self.0.send(batch, until).await
    }

    async fn settle(
        &self,
        sender: String,
        since: Timestamp,
        batch: Vec<Outgoing>,
    ) -> Result<Vec<Settled>, StoreError> {
        self.0.settle(sender, since, batch).await
    }
}
