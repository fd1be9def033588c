//! Redis Streams as a transport, and Redis as a store of dead letters and of idempotency keys.
//!
//! | type | what it is |
//! |---|---|
//! | [`RedisClient`] | connections to a server, a cluster, or the master of sentinels |
//! | [`RedisTransport`] | description of a stream and its consumer group; opens the four below |
//! | [`RedisSource`] | messages of the group, and its retry records when they are due |
//! | [`RedisRetryQueue`] | delayed retries |
//! | [`RedisSink`] | stream of dead letters |
//! | [`RedisLetters`] | that stream as a log: read, or followed into a store |
//! | [`RedisReplay`] | sends letters of that stream back, each once |
//! | [`RedisOutbox`] | sends letters of a store back to streams, each once |
//! | [`RedisCrashMarks`] | marks by which a message is found that kills its process |
//! | [`store`] | letters in Redis, with every verb of the engine |
//! | [`RedisIdempotency`] | idempotency keys, by which a message is handled once |
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `cluster` | no | clusters |
//! | `sentinel` | no | the master that sentinels name |
//! | `tls` | no | `rediss://` |

mod client;
mod consumer;
mod dead;
pub mod idempotency;
mod outbox;
pub mod store;

pub use client::{RedisClient, RedisConfig, RedisError, RedisErrorKind, ServerInfo};
pub use consumer::{
    DLQ_REDIS_TRIMMED_TOTAL, RedisCrashMarks, RedisRetryQueue, RedisSettle, RedisSource,
    RedisTransport, Start,
};
pub use dead::{RedisEntries, RedisLetters, RedisReplay, RedisSink, RedisTarget, Replayed};
pub use idempotency::{IdempotencyConfig, RedisIdempotency};
pub use outbox::RedisOutbox;

/// The client that this crate works with.
pub use redis;
