//! [`Source`] yields deliveries, [`Settle`] ends them: the two traits a transport implements for consuming.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::{DeadLetter, Delivery, History, Origin, Timestamp, TransportError, TransportErrorKind};

/// End of a delivery. The stack makes it and [`Settle`] carries it out.
///
/// Whoever makes a `Dead` or `DelayedRetry` for a delivery of the stream or the retry queue has *already* written the record
/// durably and had it confirmed. For a delivery of [`DeliveredFrom::Store`](crate::DeliveredFrom::Store) the record is the claimed row
/// itself, and settling is what writes it, in one conditional step.
///
/// A disposition may be added in a minor release. A transport [refuses](Self::unsupported) those that it does not know.
#[derive(Clone, Debug)]
#[must_use]
#[non_exhaustive]
pub enum Disposition {
    /// The handler succeeded.
    Succeeded,
    /// The message had been handled before; the handler did not run.
    Duplicate,
    /// It died, and this is its letter.
    Dead(Box<DeadLetter>),
    /// It waits elsewhere for its next attempt.
    DelayedRetry {
        /// When the next attempt may run.
        due: Timestamp,
        /// Every attempt so far.
        history: History,
        /// Handler runs so far in this generation.
        attempts: u32,
    },
    /// Not now: hand it out again after this time. Never counted as an attempt.
    Deferred {
        /// Minimum time to wait.
        after: Duration,
    },
}

impl Disposition {
    /// Returns the error with which a transport refuses a disposition that it does not know. The delivery is unsettled, so
    /// that the message comes again.
    #[must_use]
    pub fn unsupported(&self) -> TransportError {
        let text =
            "this version of the transport cannot carry its disposition out; upgrade the transport";
        TransportError::new(TransportErrorKind::Unexpected, "settle a delivery").with_detail(text)
    }
}

/// The one-shot handle by which a delivery is ended. It stays with the run loop.
///
/// Dropping it settles nothing: the broker hands the message out again when its lease ends.
pub trait Settle: fmt::Debug + Send + 'static {
    /// Tells the broker, and returns once it has confirmed. Where the broker keeps one position for many messages, as
    /// Kafka does, it returns once this is noted; the position is committed a moment later.
    ///
    /// # Errors
    ///
    /// When the broker did not confirm. The message is then to be taken as unsettled: it may come again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the broker has heard; the message may come again.
    fn settle(
        self,
        disposition: Disposition,
    ) -> impl Future<Output = Result<(), TransportError>> + Send;

    /// [`settle`](Self::settle) without a future, for a transport that need not wait for its broker; the handle is to be
    /// dropped then. `None` when it has to wait, and `settle` has to be called. Defaults to `None`.
    ///
    /// Only the end of a message that succeeded may be taken without the broker's confirmation: it comes again if the broker
    /// has not heard of it. [`close`](Source::close) waits for what is open.
    fn settle_now(&mut self, _disposition: &Disposition) -> Option<Result<(), TransportError>> {
        None
    }

    /// Extends the lease by its full length from now. Does nothing for a transport without leases.
    ///
    /// # Errors
    ///
    /// When the lease could not be extended; `Lost` when it is no longer ours.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the lease was extended; extending again is safe.
    fn extend(&mut self) -> impl Future<Output = Result<(), TransportError>> + Send;

    /// Returns the time after which the broker hands the message out again unless the lease is extended; `None` for no
    /// limit.
    fn lease(&self) -> Option<Duration>;
}

/// In which order effects of messages happen while one of them is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Ordering {
    /// In no order that can be promised.
    None,
    /// In source order per key, as long as one process consumes.
    Process,
    /// In source order per key, across processes: a partition has one owner at a time.
    Partition,
}

/// Capabilities of a transport. The transport declares them and the conformance suite checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The order it can keep.
    pub ordering: Ordering,
    /// True if the transport counts deliveries, so that crashes can be suspected.
    pub counts_deliveries: bool,
    /// True if a delivery counts that an orderly stop ended, as it does where everything handed out is counted. False for a
    /// transport that counts only processes that died.
    pub counts_stops: bool,
    /// True if the transport can hand a message out again after a delay.
    pub delayed_release: bool,
}

impl Capabilities {
    /// A transport that promises nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            ordering: Ordering::None,
            counts_deliveries: false,
            counts_stops: true,
            delayed_release: false,
        }
    }

    /// Sets the order it can keep. Defaults to [`Ordering::None`], with which a consumer refuses ordered handlers.
    #[must_use]
    pub const fn with_ordering(mut self, ordering: Ordering) -> Self {
        self.ordering = ordering;
        self
    }

    /// Sets whether it counts deliveries. Defaults to no.
    #[must_use]
    pub const fn with_counts_deliveries(mut self, yes: bool) -> Self {
        self.counts_deliveries = yes;
        self
    }

    /// Sets whether a delivery counts that an orderly stop ended. Defaults to yes.
    #[must_use]
    pub const fn with_counts_stops(mut self, yes: bool) -> Self {
        self.counts_stops = yes;
        self
    }

    /// Sets whether it can release with a delay. Defaults to no.
    #[must_use]
    pub const fn with_delayed_release(mut self, yes: bool) -> Self {
        self.delayed_release = yes;
        self
    }
}

/// Handlers that the deliveries of a source are for, by whose names letters and retry records are known.
pub trait Recipients: fmt::Debug + Send + Sync {
    /// Every name: those that they have, and those that they had before.
    fn names(&self) -> Vec<Arc<str>>;

    /// Returns true if a letter of `name` belongs to the handler that `delivery`, a message of the main stream, is for.
    fn is_own(&self, name: &str, delivery: &Delivery) -> bool;
}

/// Recipient of a source's deliveries, as the source knows it: by the name that it was given, and by the names of the
/// handlers once it [learns them](Source::bind).
#[derive(Clone, Debug)]
pub struct Addressee {
    name: Arc<str>,
    recipients: Option<Arc<dyn Recipients>>,
}

impl Addressee {
    /// Recipient with this name.
    #[must_use]
    pub fn new(name: Arc<str>) -> Self {
        Self { name, recipients: None }
    }

    /// Tells it the handlers. The log says so where none of them has the name that it was given: letters that are sent back
    /// to the handler look for a consumer called like it.
    #[must_use]
    pub fn with_recipients(mut self, recipients: Arc<dyn Recipients>) -> Self {
        let (consumer, handlers) = (&self.name, recipients.names());
        // One handler under another name is most likely a slip. With several, as in a router, no name could fit them
        // all.
        if let [handler] = &*handlers
            && handler != consumer
        {
            tracing::warn!(
                %consumer, %handler,
                "this consumer is not called like its handler, so that `dlq replay --to handler` does not reach it at the \
                 broker unless its letters name it; give it the name of the handler, or tell its sink"
            );
        } else if !handlers.contains(consumer) {
            tracing::info!(
                %consumer, ?handlers,
                "`dlq replay --to handler` reaches these handlers at the broker only where letters name this consumer, or \
                 whoever sends them does; tell its sink"
            );
        }
        self.hands_to(recipients);
        self
    }

    /// The same where no letter is sent to a handler, so that there is nothing to say.
    pub(crate) fn hands_to(&mut self, recipients: Arc<dyn Recipients>) {
        self.recipients = Some(recipients);
    }

    /// The name that it was given.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Every name, that one first.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        let mut names = vec![Arc::clone(&self.name)];
        let told = self.recipients.iter().flat_map(|recipients| recipients.names());
        names.extend(told.filter(|name| *name != self.name));
        names
    }

    /// As [`Recipients::is_own`]; and what died under the name that it was given, where no handler has that, is of whoever
    /// takes it now.
    #[must_use]
    pub fn is_own(&self, name: &str, delivery: &Delivery) -> bool {
        let is_known = |names: Vec<Arc<str>>| names.iter().any(|known| **known == *name);
        match &self.recipients {
            Some(recipients) if *name != *self.name || is_known(recipients.names()) => {
                recipients.is_own(name, delivery)
            }
            _ => *name == *self.name,
        }
    }
}

/// Yields deliveries with their settle handles.
pub trait Source: fmt::Debug + Send + 'static {
    /// The handle that ends one of its deliveries.
    type Settle: Settle;

    /// Returns the capabilities of the transport.
    fn capabilities(&self) -> Capabilities;

    /// Says whom the deliveries are for. A consumer does so when it is built, before it asks for the first. Does nothing
    /// by default, which is right for a transport that knows nobody by name.
    fn bind(&mut self, _recipients: Arc<dyn Recipients>) {}

    /// The next delivery; `None` when there will never be another.
    ///
    /// # Errors
    ///
    /// When the broker cannot be asked. A transient error may be followed by deliveries; after another kind the
    /// source has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: what it had fetched is yielded by the next call.
    fn next(
        &mut self,
    ) -> impl Future<Output = Result<Option<(Delivery, Self::Settle)>, TransportError>> + Send;

    /// Returns the time without [`next`](Self::next) after which [`keep_alive`](Self::keep_alive) has to be called for fetched
    /// messages; `None`, the default, for no limit.
    fn keep_alive_interval(&self) -> Option<Duration> {
        None
    }

    /// Sees that what was fetched and not yielded stays here while its consumer has no room for it, such as by extending
    /// leases. Yields nothing, and returns soon. Does nothing by default.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    fn keep_alive(&mut self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Stops fetching and gives back what was fetched but not yielded. Calling it twice is fine. What cannot be
    /// given back comes again.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

trait DynSettle: fmt::Debug + Send {
    fn settle_dyn(
        self: Box<Self>,
        disposition: Disposition,
    ) -> BoxFuture<'static, Result<(), TransportError>>;
    fn settle_now_dyn(&mut self, disposition: &Disposition) -> Option<Result<(), TransportError>>;
    fn extend_dyn(&mut self) -> BoxFuture<'_, Result<(), TransportError>>;
    fn lease_dyn(&self) -> Option<Duration>;
}

impl<S: Settle> DynSettle for S {
    fn settle_dyn(
        self: Box<Self>,
        disposition: Disposition,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        Box::pin((*self).settle(disposition))
    }

    fn settle_now_dyn(&mut self, disposition: &Disposition) -> Option<Result<(), TransportError>> {
        self.settle_now(disposition)
    }

    fn extend_dyn(&mut self) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(self.extend())
    }

    fn lease_dyn(&self) -> Option<Duration> {
        self.lease()
    }
}

/// Any settle handle, erased. Says so in the log when it is dropped without having been settled.
#[derive(Debug)]
#[must_use = "a delivery that is not settled comes again"]
pub struct SettleOnce {
    inner: Option<Box<dyn DynSettle>>,
    origin: Origin,
}

impl SettleOnce {
    /// Wraps the handle of `delivery`.
    pub fn new(settle: impl Settle, delivery: &Delivery) -> Self {
        // The origin is kept for the log alone, since the delivery itself may be gone when the handle is dropped.
        Self { inner: Some(Box::new(settle)), origin: delivery.origin().clone() }
    }

    /// [`settle`](Settle::settle), in a box that can be moved while it waits.
    ///
    /// # Errors
    ///
    /// As [`settle`](Settle::settle).
    #[must_use]
    pub fn settle_boxed(
        mut self,
        disposition: Disposition,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        match self.inner.take() {
            Some(inner) => inner.settle_dyn(disposition),
            // It was settled at once before.
            None => Box::pin(ready(Ok(()))),
        }
    }
}

impl Settle for SettleOnce {
    async fn settle(self, disposition: Disposition) -> Result<(), TransportError> {
        self.settle_boxed(disposition).await
    }

    fn settle_now(&mut self, disposition: &Disposition) -> Option<Result<(), TransportError>> {
        let settled = self.inner.as_mut()?.settle_now_dyn(disposition)?;
        // The handle is spent, so that dropping it does not tell of a forgotten delivery.
        self.inner = None;
        Some(settled)
    }

    async fn extend(&mut self) -> Result<(), TransportError> {
        match &mut self.inner {
            Some(inner) => inner.extend_dyn().await,
            None => Ok(()),
        }
    }

    fn lease(&self) -> Option<Duration> {
        self.inner.as_ref().and_then(|inner| inner.lease_dyn())
    }
}

impl Drop for SettleOnce {
    fn drop(&mut self) {
        if self.inner.is_some() {
            tracing::warn!(
                origin = %self.origin,
                "delivery dropped unsettled: the broker will hand it out again"
            );
        }
    }
}
