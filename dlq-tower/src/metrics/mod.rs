//! Metrics: counts what becomes of messages, through the `metrics` facade.
//!
//! | name | kind | labels | counts |
//! |---|---|---|---|
//! | `events_processed_total` | counter | `subject`, `status` | `success` and `dlq` once per message and run that ended so (see below), `duplicate` when the handler did not run, `failed` per failed attempt |
//! | `events_processing_duration_seconds` | histogram | `subject` | from when its future is first polled to the settlement, waits in the process included |
//! | `messages_in_dlq_total` | counter | `topic`, `class` | letters written |
//! | `dlq_messages_quarantined_total` | counter | `event`, `reason` | letters set aside; counted by the stores |
//!
//! # Where it goes
//!
//! Around [`DeadLetterLayer`](crate::dead_letter::DeadLetterLayer), inside the trace. What happens further inside
//! (failed attempts, letters) is counted by those layers; give them the same [`Recorder`], so that handles are looked
//! up once.
//!
//! # Example
//!
//! ```
//! use dlq_tower::metrics::{MetricsLayer, Recorder};
//! use dlq_tower::retry::RetryLayer;
//!
//! let recorder = Recorder::new();
//! let metrics = MetricsLayer::new().recorder(recorder.clone());
//! let retry = RetryLayer::never().recorder(recorder);
//! # let _ = (metrics, retry);
//! ```
//!
//! # On failure
//!
//! A message whose record could not be written is counted neither as success nor as dead: it is not settled, and comes
//! again. One whose settlement is not confirmed is counted, and once more when it comes again; so is a dead one that is
//! given back since the counts of its idempotency key could not start over.
//!
//! # Cost
//!
//! A look-up by subject per message, without a lock; one reading of the monotonic clock, which the first attempt inside
//! shares, and a second one where somebody records. No label carries an unbounded value: past
//! [1000 subjects](Recorder::SUBJECTS) further ones are counted as `other`. Handles are kept from the recorder that is
//! installed when a subject is first seen: install it before the first message.

mod future;
mod layer;
mod recorder;
mod service;

pub use dlq_core::store::DLQ_MESSAGES_QUARANTINED_TOTAL;
pub use future::ResponseFuture;
pub use layer::MetricsLayer;
pub use recorder::Recorder;
pub use service::Metrics;

/// Messages by subject and what became of them.
pub const EVENTS_PROCESSED_TOTAL: &str = "events_processed_total";
/// Time for which messages were in flight, by subject.
pub const EVENTS_PROCESSING_DURATION_SECONDS: &str = "events_processing_duration_seconds";
/// Letters written, by topic and class.
pub const MESSAGES_IN_DLQ_TOTAL: &str = "messages_in_dlq_total";
/// Letters whose identity was claimed by another payload, by topic.
pub const DLQ_CONFLICTING_LETTERS_TOTAL: &str = "dlq_conflicting_letters_total";
