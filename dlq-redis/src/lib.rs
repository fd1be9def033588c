//! Redis Streams as a transport, and Redis as a store of dead letters and of idempotency keys.

#[allow(dead_code, unused_imports, reason = "the rooms that use all of it follow")]
mod client;
pub mod store;

pub use client::{RedisClient, RedisConfig, RedisError, RedisErrorKind, ServerInfo};

/// The client that this crate works with.
pub use redis;
