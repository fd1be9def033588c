//! Vocabulary and decisions for consumers that must not lose a message.
//!
//! This crate knows no broker, no database and no `tower`. It has the words ([`Message`], [`Delivery`], [`Failure`],
//! [`DeadLetter`], …), the decisions (classification, [retry policies](policy), [fingerprints](fingerprint), the
//! [header protocol](protocol)), the traits that transports and stores implement ([`Source`], [`Settle`],
//! [`RetryQueue`], [`store`]) and in-memory implementations ([`memory`], [`idempotency::memory`]; a store in memory is in
//! `dlq-letters`).
//!
//! Most programs use it through `dlq-tower`, which re-exports it.

mod bytes_text;
mod clock;
mod crash_marks;
mod dead_letter;
mod delivery;
mod error;
mod failure;
mod filter;
mod finding;
pub mod fingerprint;
pub mod idempotency;
mod identity;
pub mod ingest;
pub mod log;
pub mod memory;
mod message;
mod origin;
pub mod outbox;
mod page;
pub mod policy;
pub mod protocol;
pub mod replay;
mod retry_queue;
pub mod search;
mod source;
pub mod store;
mod subject;
mod transport;

pub use clock::{Clock, InvalidTimestamp, SharedClock, SystemClock, Timestamp, TokioClock};
pub use crash_marks::{BoxCrashMarks, CrashMarks};
pub use dead_letter::{DeadLetter, LetterState, LetterSummary, Resolution, Status};
pub use delivery::{DeliveredFrom, Delivery};
pub use error::{BoxError, StoreError, StoreErrorKind, TransportError, TransportErrorKind};
pub use failure::{
    Attempt, Cause, Classification, Classifier, Classify, ErrorClass, Failure, History, MAX_CHAIN,
    MAX_TEXT, Reason, UnknownWord, bounded,
};
pub use filter::{Filter, searchable};
pub use finding::{Finding, Severity};
pub use fingerprint::Fingerprint;
pub use identity::{Binding, BindingKey, Death, InvalidId, LetterId, OperationId};
pub use message::{Header, Headers, Message};
pub use origin::{InvalidPosition, Origin, Position};
pub use page::{Cursor, InvalidCursor, Order, Page, PageRequest};
pub use policy::RetryPolicy;
pub use retry_queue::{BoxRetryQueue, DelayedRetry, RetryQueue};
pub use source::{
    Addressee, Capabilities, Disposition, Ordering, Recipients, Settle, SettleOnce, Source,
};
pub use store::{BoxSink, DeadLetters, Sink, Store};
pub use subject::{InvalidSubjectPattern, SubjectPattern};
pub use transport::{OpenError, Opened, Transport};
