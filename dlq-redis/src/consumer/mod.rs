//! Streams as a transport: a consumer group, its delayed retries and its crash marks.
//!
//! ```no_run
//! # async fn open() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let client = dlq_redis::RedisClient::open("redis://localhost:6379").await?;
//! let opened = dlq_redis::RedisTransport::new("payments").name("billing").open(&client).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What a message is in, and what happens if the process dies then
//!
//! | state at the server | next step | if the process dies before it |
//! |---|---|---|
//! | in the stream, not handed out | `XREADGROUP >` on a connection of its own | nothing has happened |
//! | pending on this source, answer lost | looked for after every read error | comes again when the lease ends, counted once |
//! | pending on this source, waits or runs | lease renewed by owner and counter | another takes it over when the lease ends, counted once |
//! | pending, letter or retry record written | `XACK` | comes again; the same letter or record is recognised |
//! | pending on nobody, idle time set | taken over when the idle time reaches the lease | the same |
//! | pending on nobody, in the set of deferred entries | taken over when it is due | the same |
//! | record in the due set | claimed with lease and fence when due | claimed by any process of the group |
//! | record claimed | ended by its fence | claimed again when the lease ends |
//! | acknowledged | none | over |
//!
//! A name at the server belongs to one source and is never used again, so that owner and delivery counter together are a
//! fence. Names of the dead are removed once they have nothing pending.
//!
//! # What is not promised
//!
//! Replication is asynchronous. A fail-over can forget the last writes; since letter and acknowledgement are written in this
//! order to one slot, it forgets the acknowledgement first, and the message comes again.

mod calls;
mod keys;
mod marks;
mod place;
mod reader;
mod ready;
mod reclaim;
mod records;
mod retry_queue;
mod scripts;
mod settle;
mod shared;
mod source;
#[cfg(test)]
mod tests;
mod transport;
pub(crate) mod wire;
mod written;

pub(crate) use calls::millis;
pub(crate) use keys::Keys;
pub use marks::RedisCrashMarks;
pub(crate) use place::unique_name;
pub use reclaim::DLQ_REDIS_TRIMMED_TOTAL;
pub use retry_queue::RedisRetryQueue;
pub use settle::RedisSettle;
pub use source::RedisSource;
pub use transport::{RedisTransport, Start};
pub(crate) use written::{Written, WrittenFor};
