use std::sync::Arc;

use super::{MemoryBroker, MemorySink, MemorySource};
use crate::{BoxCrashMarks, BoxRetryQueue, BoxSink, StoreError, Transport, TransportError};

/// Description of a stream of a [`MemoryBroker`], from which everything is opened that a consumer needs.
///
/// ```
/// use dlq_core::memory::{MemoryBroker, MemorySink, MemoryTransport};
/// use dlq_core::Opened;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlq_core::OpenError> {
/// let dead = MemorySink::new();
/// let payments = MemoryTransport::new("payments").name("billing").sink(dead.clone());
/// let opened = Opened::open(&payments, &MemoryBroker::new()).await?;
/// # drop(opened);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct MemoryTransport {
    stream: Arc<str>,
    name: Option<Arc<str>>,
    sink: MemorySink,
}

impl MemoryTransport {
    /// Describes the stream of this name.
    pub fn new(stream: impl Into<Arc<str>>) -> Self {
        Self { stream: stream.into(), name: None, sink: MemorySink::new() }
    }

    /// Sets the name of the consumer, which is that of its group. Defaults to the name of the handler.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the stream of dead letters. Defaults to one that nobody else reads.
    pub fn sink(mut self, sink: MemorySink) -> Self {
        self.sink = sink;
        self
    }

    fn broker(&self, broker: &MemoryBroker) -> MemoryBroker {
        broker.clone().stream(Arc::clone(&self.stream))
    }
}

impl Transport<MemoryBroker> for MemoryTransport {
    type Source = MemorySource;

    fn consumer_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn summary(&self) -> String {
        format!("stream {} in memory", self.stream)
    }

    async fn source(
        &self,
        broker: &MemoryBroker,
        name: &str,
    ) -> Result<MemorySource, TransportError> {
        Ok(self.broker(broker).source(name))
    }

    async fn retry_queue(
        &self,
        broker: &MemoryBroker,
        _name: &str,
    ) -> Result<Option<BoxRetryQueue>, StoreError> {
        Ok(Some(BoxRetryQueue::new(self.broker(broker).retry_queue())))
    }

    async fn dead_letters(
        &self,
        _broker: &MemoryBroker,
        _name: &str,
    ) -> Result<BoxSink, StoreError> {
        Ok(BoxSink::new(self.sink.clone()))
    }

    /// Returns `None`: nothing survives the process whose crashes would be counted.
    async fn crash_marks(
        &self,
        _broker: &MemoryBroker,
        _source: &mut MemorySource,
    ) -> Result<Option<BoxCrashMarks>, StoreError> {
        Ok(None)
    }
}
