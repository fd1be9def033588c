//! Idempotency: a message is handled once per consumer and key, also when it is delivered again.
//!
//! # Where it goes
//!
//! Around the timeout, inside retry and permit: each attempt claims the key, and gives it back.
//!
//! # Example
//!
//! ```
//! use dlq_core::idempotency::memory::MemoryIdempotency;
//! use dlq_core::{Delivery, ErrorClass, Message, Origin, Position};
//! use dlq_tower::classify::ClassifyLayer;
//! use dlq_tower::idempotency::IdempotencyLayer;
//! use dlq_tower::stage::Done;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let store = MemoryIdempotency::new();
//! let mut service = ServiceBuilder::new()
//!     .layer(IdempotencyLayer::new(store, |delivery| delivery.message().key().cloned()))
//!     .layer(ClassifyLayer::new(|_: &std::io::Error| ErrorClass::Transient))
//!     .service(service_fn(|_: Delivery| async { Ok(()) }));
//!
//! let message = Message::new("payments", "{}").with_key("payment-7");
//! let delivery = Delivery::new(message, Origin::new("memory", "payments", Position::Offset(1)));
//! let first = service.ready().await.unwrap().call(delivery.clone()).await;
//! let second = service.ready().await.unwrap().call(delivery).await;
//! assert_eq!((first.unwrap(), second.unwrap()), (Done::Succeeded, Done::Duplicate));
//! # }
//! ```
//!
//! # What becomes of a message
//!
//! | its key is | the message |
//! |---|---|
//! | none (the function gives `None`) | is handled without a claim |
//! | new | is handled; the claim is extended while the handler runs |
//! | in flight | waits, see below; nothing is counted |
//! | done | is a duplicate; the handler does not run |
//!
//! A consumer that was renamed looks for its [former names](IdempotencyLayer::former_names) first: what is done or in flight
//! under one of them is so.
//!
//! A message whose key is in flight waits in the process, without a permit, and is run or a duplicate as soon as the key is
//! free or done: at once where it was in flight in the same layer, else when the store says so, which is asked after 100 ms and
//! then less and less often, at last every 5 s. It needs a [slot](crate::retry::InProcessDelays), of which half are kept for retries;
//! a message that finds none is deferred for the rest of the lease, at most for one of its own, and so is one that tries
//! whether an [outage](crate::consumer::OutagePolicy) is over. Who fails and is retried does not wake those who wait, and
//! frees the key until its next attempt all the same.
//!
//! # Attempts and crashes
//!
//! The claim remembers failed attempts, and claims that ended without a word. A run continues their count, so that a
//! message whose process died is not started over (G3); past [`max_crashes`](IdempotencyLayer::max_crashes) such ends
//! it is not run any more, and dies.
//!
//! The counts are those of the key's life, and messages that share the key at the same time share them. They start over
//! when a message of the key is dead and its letter is durable, whatever it died of, so that the next message with the key
//! has all its attempts. The consumer lets them, before it tells the broker; a stack composed by hand hands it
//! [`key_janitor`](IdempotencyLayer::key_janitor) for that, or calls [`start_over`](KeyJanitor::start_over) itself. Where nobody does they
//! stay with the key for a week after its last run: after a message that had no attempt left the next one dies of its first
//! failure, and after one that crashed too often every other dies unrun. (Those of a permanent failure start over with its
//! release, and again if it was not the first run.) As long as the letter cannot be written they stay: what was found to crash too
//! often is not run again, and what had no attempt left has one more run each time it comes. Nor are they used for a
//! message that is replayed: its letter counts its attempts and crashes instead. Its runs count at the key all the same, so
//! its death lets the counts start over as well, and with them those of a newer message of the key.
//!
//! Where a consumer finds that a failure was an [outage](crate::consumer::OutagePolicy)'s, the attempts of that run are taken
//! back before the message is given back (G10); where the store does not answer then, they count.
//!
//! The letter of a message that waits in the store is its row, which the settlement writes: there the counts start over
//! before the death is durable. Should the row not be settled then, the message comes again with the attempts of its row
//! and with its crash marks, and without what the key had counted.
//!
//! | if the process dies | the key | the message |
//! |---|---|---|
//! | while the claim is asked for | held or free | comes again; a claim that was written ends with its lease and counts a crash |
//! | while the handler runs | held | the same |
//! | after a run that failed, before the release | held | the same: the attempt is counted as a crash |
//! | after the release | free, with its counts | comes again, and goes on counting |
//! | after the release of the last run, before its letter is written | free, with its counts (at 0 after a permanent failure) | comes again, runs once more and dies of it; so it does when the letter could not be written |
//! | after the release of a run that an outage has failed, before its attempts are taken back | free, with its counts | comes again and goes on with those attempts |
//! | after it was found to have crashed too often, before its letter is written | free, with its counts | comes again and is given up again, unrun; so it is when the letter could not be written |
//! | after its letter was written, before the counts start over | free, with its counts | the same: its letter is there already |
//! | while the counts are made to start over | held or free | comes again; the claim ends with its lease and counts a crash, and then they start over |
//! | after the counts have started over, before the broker is told | free, counts at 0 | comes again and has its attempts and crashes once more; [crash marks](dlq_core::CrashMarks) go on counting |
//! | after the handler succeeded, before the key is done | held | comes again and runs again |
//!
//! The counts cannot start over while the key is in flight. A claim of a run that died ends with its lease, and is waited
//! for; one that is extended meanwhile is another message's, which goes on with the attempts. Where the store does not
//! answer, the message is not settled and comes again. What crashed too often dies the same death, unrun. Any other has one
//! more run, and mostly dies the same death; if it succeeds, its letter stays until it is replayed or dismissed.
//!
//! # On failure
//!
//! The key becomes done only when the handler has succeeded, and is free again when it failed, so that a retry or a
//! replay is never taken for a duplicate. A handler that is deferred or dropped midway gives its claim back uncounted;
//! giving back after a drop runs as a task of its own, unless the store is immediate. A consumer that stops waits for
//! such tasks, a second at most; past that, the claim ends with its lease and counts a crash. Without a consumer, wait
//! for [`drained`](IdempotencyLayer::drained).
//!
//! A key function that panics fails its message for good: without its key it is not handled.
//!
//! A store that does not answer when the key is claimed defers the message, and the consumer says that it is unwell until
//! it answers. One that does not answer when the key is to
//! become done changes nothing about the handler's success. The message is settled, and the store is told again by a task
//! of its own for as long as a lease. Where that fails, too, it is logged, and the key stays claimed until its lease ends;
//! the same message delivered again after that would run again.
//!
//! The mark is a second write after the handler's own effects. Between the two the process may die, and then the
//! message runs again: make the effect itself safe to repeat, or write both in one transaction. A handler that was cut
//! off by its timeout counts as failed, though what it had sent may still take effect.
//!
//! # How long
//!
//! A key that is done is known for [`keep`](IdempotencyLayer::keep), one that is not for a week after it was touched.
//! What is older is forgotten by the consumer: once a minute, some at a time, in the background. A stack composed by hand
//! hands [`key_janitor`](IdempotencyLayer::key_janitor) to [its consumer](crate::consumer::ConsumerBuilder::key_janitor), or calls
//! [`purge`](KeyJanitor::purge) itself; where nobody does, the keys grow without end.
//!
//! # Cost
//!
//! Two calls of the store per message with a key. A store that [is immediate](dlq_core::idempotency::Idempotency::immediate)
//! is called in place, and nothing is allocated while the handler does not wait; any other costs two allocations besides
//! its own, to which a [`BoxIdempotency`](dlq_core::idempotency::BoxIdempotency) adds one for each call. Nothing for
//! messages without a key.

mod answers;
mod claimed;
mod future;
mod janitor;
mod layer;
mod service;
mod waiters;

pub use future::ResponseFuture;
pub use janitor::KeyJanitor;
pub use layer::IdempotencyLayer;
pub use service::Idempotency;
