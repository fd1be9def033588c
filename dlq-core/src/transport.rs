//! [`Transport`]: the description of a stream, from which everything is opened that a consumer needs of a broker.

use std::future::Future;

use crate::{
    BoxCrashMarks, BoxRetryQueue, BoxSink, Source, StoreError, TransportError, TransportErrorKind,
};

/// A description of a stream or of topics, from which a consumer opens its source, its retry queue, its dead-letter sink and
/// its crash marks.
///
/// `C` is the client: what the description does not say, as addresses and credentials. Every part is opened by itself, so
/// that a consumer which replaces one never creates it at the broker.
///
/// # Errors
///
/// Each method fails when the broker does not answer (`Unavailable`), or when what exists there has settings that will not
/// do, or the user lacks a right (`InvalidConfig`). Opening again is safe: what exists is used, never changed.
///
/// # Cancel safety
///
/// Dropping a future leaves open which streams or topics were created; opening again takes them over.
pub trait Transport<C: ?Sized>: Send + Sync + 'static {
    /// The messages.
    type Source: Source;

    /// The name of the consumer, if the description has one. Otherwise it is the name of the handler.
    fn consumer_name(&self) -> Option<&str>;

    /// The broker, the stream and what else an operator looks for in the log, as `NATS stream PAYMENTS`.
    fn summary(&self) -> String;

    /// Opens the source of the consumer called `name`.
    fn source(
        &self,
        client: &C,
        name: &str,
    ) -> impl Future<Output = Result<Self::Source, TransportError>> + Send;

    /// Opens the queue of delayed retries. `None` if the description goes without: then the store keeps them, if
    /// there is one, or the broker holds the message back and forgets its attempts.
    fn retry_queue(
        &self,
        client: &C,
        name: &str,
    ) -> impl Future<Output = Result<Option<BoxRetryQueue>, StoreError>> + Send;

    /// Opens the stream of dead letters.
    fn dead_letters(
        &self,
        client: &C,
        name: &str,
    ) -> impl Future<Output = Result<BoxSink, StoreError>> + Send;

    /// Opens the crash marks of this source.
    fn crash_marks(
        &self,
        client: &C,
        source: &mut Self::Source,
    ) -> impl Future<Output = Result<Option<BoxCrashMarks>, StoreError>> + Send;
}

/// An opened [`Transport`]: its parts, for a stack that is composed by hand.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened<S> {
    /// The messages.
    pub source: S,
    /// The delayed retries.
    pub retry_queue: Option<BoxRetryQueue>,
    /// The stream of dead letters.
    pub dead_letters: BoxSink,
    /// The marks of suspects.
    pub crash_marks: Option<BoxCrashMarks>,
}

/// The reason why a transport was not opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum OpenError {
    /// The source was not opened.
    Source(#[from] TransportError),
    /// The retry queue, the stream of dead letters or the crash marks were not opened.
    Store(#[from] StoreError),
}

impl OpenError {
    /// True if opening again may succeed later, as when the broker did not respond. False if a setting, a right or what exists
    /// at the broker has to change first.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Source(error) => error.is_transient(),
            Self::Store(error) => error.is_transient(),
        }
    }
}

impl<S: Source> Opened<S> {
    /// Opens all parts of a transport, whose description has the name of the consumer.
    ///
    /// The dead letters come first and the source last, so that nothing is fetched that cannot be settled.
    ///
    /// # Errors
    ///
    /// As [`Transport`] says; `InvalidConfig` also when the description has no name.
    pub async fn open<C, T>(transport: &T, client: &C) -> Result<Self, OpenError>
    where
        C: Sync + ?Sized,
        T: Transport<C, Source = S>,
    {
        // If a later part fails, the earlier ones stay at the broker, and opening again takes them over.
        let name = transport.consumer_name().ok_or_else(unnamed)?;
        let dead_letters = transport.dead_letters(client, name).await?;
        let retry_queue = transport.retry_queue(client, name).await?;
        let mut source = transport.source(client, name).await?;
        let crash_marks = transport.crash_marks(client, &mut source).await?;
        Ok(Self { source, retry_queue, dead_letters, crash_marks })
    }
}

fn unnamed() -> TransportError {
    TransportError::new(TransportErrorKind::InvalidConfig, "open a transport")
        .with_detail("it has no name; give it that of its handler: `.name(…)`")
}
