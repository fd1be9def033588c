//! Processing audit: one row per message that was handled, failed or dead-lettered, kept in a store.
//!
//! # Where it goes
//!
//! Around [`DeadLetterLayer`](crate::dead_letter::DeadLetterLayer), beside metrics. [`audit`] makes a layer and a
//! writer; the layer hands rows over without waiting, the writer puts them into the store in batches.
//! [`Consumer`](crate::consumer::Consumer) does both when asked for a
//! [processing audit](crate::consumer::ConsumerBuilder::processing_audit).
//!
//! # Example
//!
//! ```
//! use dlq_letters::memory::MemoryStore;
//! use dlq_tower::audit::audit;
//! use tokio_util::sync::CancellationToken;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let (layer, writer) = audit(MemoryStore::new());
//! let stop = CancellationToken::new();
//! stop.cancel();
//! writer.run(stop).await; // in a task of its own, beside the run loop
//! # drop(layer);
//! # }
//! ```
//!
//! # On failure
//!
//! The audit never holds a message up, and so it can lose rows: those that are still on their way when the process
//! dies (at most [`CAPACITY`] and one batch), and those that find no room because the store is slow or does not answer.
//! The latter are counted in `dlq_audit_lost_total`. A message whose settlement is not confirmed has a row, and another one
//! when it comes again.
//!
//! # Cost
//!
//! Two clock readings and one row per message; a write per [`BATCH`] rows or [`LINGER`].

mod future;
mod layer;
mod service;
mod writer;

use std::time::Duration;

use dlq_core::store::Maintenance;
use tokio::sync::mpsc;

pub use future::ResponseFuture;
pub use layer::AuditLayer;
pub use service::Audit;
pub use writer::AuditWriter;

/// Number of rows that may be on their way to the store.
pub const CAPACITY: usize = 8192;
/// Maximum number of rows that are written at once.
pub const BATCH: usize = 512;
/// Time that a row waits for others to be written with.
pub const LINGER: Duration = Duration::from_millis(200);
/// Rows that were lost, in all.
pub const AUDIT_LOST_TOTAL: &str = "dlq_audit_lost_total";

/// A layer that notes what becomes of messages, and the writer that puts the notes into `store`.
pub fn audit<U: Maintenance>(store: U) -> (AuditLayer, AuditWriter<U>) {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    (AuditLayer::new(sender), AuditWriter::new(store, receiver))
}
