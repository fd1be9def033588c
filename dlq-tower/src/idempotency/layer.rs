use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::Delivery;
use dlq_core::idempotency::{BoxIdempotency, Idempotency as Store};
use tokio_util::task::TaskTracker;
use tower_layer::Layer;

use super::answers::Answers;
use super::waiters::Waiters;
use super::{Idempotency, KeyJanitor};

type Key = Arc<dyn Fn(&Delivery) -> Option<Bytes> + Send + Sync>;

/// State that every clone of one idempotent service shares.
pub(super) struct Inner<I> {
    pub(super) store: Arc<I>,
    pub(super) key: Key,
    pub(super) consumer: Option<Arc<str>>,
    /// The names that the consumer had before.
    pub(super) former: Arc<[Arc<str>]>,
    pub(super) lease: Duration,
    pub(super) keep: Duration,
    pub(super) max_crashes: u32,
    // Gives back the claims of handlers that were dropped midway.
    pub(super) tasks: TaskTracker,
    pub(super) answers: Answers,
    pub(super) waiters: Waiters,
}

impl<I> Clone for Inner<I> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            key: Arc::clone(&self.key),
            consumer: self.consumer.clone(),
            former: Arc::clone(&self.former),
            lease: self.lease,
            keep: self.keep,
            max_crashes: self.max_crashes,
            tasks: self.tasks.clone(),
            answers: self.answers.clone(),
            waiters: self.waiters.clone(),
        }
    }
}

impl<I: fmt::Debug> fmt::Debug for Inner<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("store", &self.store)
            .field("consumer", &self.consumer)
            .field("former", &self.former)
            .field("lease", &self.lease)
            .field("keep", &self.keep)
            .field("max_crashes", &self.max_crashes)
            .finish_non_exhaustive()
    }
}

/// Handles a message once per consumer and key. See the [module docs](super).
#[derive(Debug)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct IdempotencyLayer<I = BoxIdempotency> {
    shared: Inner<I>,
}

impl<I: Store> IdempotencyLayer<I> {
    /// Claims the key that `key` reads from the delivery in `store`. `None` handles the message without a claim.
    ///
    /// In a stack composed by hand, hand [`key_janitor`](Self::key_janitor) to the consumer: without it the counts of a dead message
    /// are left to the next one with its key, which may die of them unrun.
    ///
    /// A [`BoxIdempotency`] allocates at each call of the store; any other store does what it does itself.
    pub fn new<F>(store: I, key: F) -> Self
    where
        F: Fn(&Delivery) -> Option<Bytes> + Send + Sync + 'static,
    {
        Self::sharing(Arc::new(store), Arc::new(key))
    }

    /// The same with a store and a function that are shared already.
    pub(crate) fn sharing(store: Arc<I>, key: Key) -> Self {
        let tasks = TaskTracker::new();
        // Closed from the start: it still takes tasks, and waiting for it ends whenever there is none.
        tasks.close();
        Self {
            shared: Inner {
                store,
                key,
                consumer: None,
                former: Arc::default(),
                lease: Duration::from_secs(60),
                keep: Duration::from_secs(30 * 24 * 60 * 60),
                max_crashes: 5,
                tasks,
                answers: Answers::default(),
                waiters: Waiters::default(),
            },
        }
    }

    /// Sets the consumer's stable name, under which keys are claimed. Defaults to the name that the delivery carries.
    pub fn consumer(mut self, name: impl Into<Arc<str>>) -> Self {
        self.shared.consumer = Some(name.into());
        self
    }

    /// Sets the names that the consumer had before: a key that is done or in flight under one of them is so under its
    /// present name. Costs a look at the store for each name and message with a key, so drop a name once what was done
    /// under it need not be known any more ([`keep`](Self::keep)). Defaults to none.
    pub fn former_names(mut self, names: impl IntoIterator<Item = Arc<str>>) -> Self {
        self.shared.former = names.into_iter().collect();
        self
    }

    /// Sets how long a claim lasts without a word; it is extended at a third of it while the handler runs. Choose at
    /// most the transport's own lease. Defaults to 60 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.shared.lease = lease;
        self
    }

    /// Sets how long a key stays done. Choose at least as long as letters are kept, or a late replay runs again.
    /// Defaults to 30 days.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.shared.keep = keep;
        self
    }

    /// Sets after how many claims that ended without a word the message is given up; 0 for never. Defaults to 5.
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.shared.max_crashes = crashes;
        self
    }

    /// Returns the maintenance of the keys. A consumer does it for its handlers; for a stack composed by hand, [hand it
    /// over](crate::consumer::ConsumerBuilder::key_janitor).
    #[must_use]
    pub fn key_janitor(&self) -> KeyJanitor {
        KeyJanitor::new(self.shared.clone())
    }

    /// Waits until the claims of handlers that were dropped midway have been given back. For an orderly stop.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + 'static {
        let tasks = self.shared.tasks.clone();
        async move { tasks.wait().await }
    }
}

impl<I> Clone for IdempotencyLayer<I> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<S, I> Layer<S> for IdempotencyLayer<I> {
    type Service = Idempotency<S, I>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency::new(inner, Arc::new(self.shared.clone()))
    }
}
