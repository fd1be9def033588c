#![doc = include_str!("../README.md")]

pub use dlq_macros::{ClassifyOfTowerDlq as Classify, dlq_handler_of_tower_dlq as dlq_handler};
pub use dlq_tower::{
    InvalidConfig, audit, catch_panic, classify, concurrency, consumer, core, dead_letter, extract,
    handler, idempotency, metrics, retry, router, stage, store_source, timeout, trace,
};

#[doc(hidden)]
pub use dlq_tower::__private;

/// Brokers and stores that last as long as the process, for tests and examples.
pub mod memory {
    pub use dlq_letters::memory::MemoryStore;
    pub use dlq_tower::core::idempotency::memory::MemoryIdempotency;
    pub use dlq_tower::core::memory::{
        MemoryBroker, MemoryOutbox, MemoryRetryQueue, MemorySink, MemorySource, MemoryTransport,
    };
}

#[cfg(feature = "kafka")]
pub use dlq_kafka as kafka;
#[cfg(feature = "mongo")]
pub use dlq_mongo as mongo;
#[cfg(feature = "nats")]
pub use dlq_nats as nats;
#[cfg(feature = "redis")]
pub use dlq_redis as redis;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use dlq_sql as sql;
#[cfg(feature = "testkit")]
pub use dlq_testkit as testkit;

/// The names that most consumers need.
pub mod prelude {
    pub use crate::consumer::Consumer;
    pub use crate::core::{DeadLetters, ErrorClass, Filter, Message, RetryPolicy};
    #[cfg(feature = "json")]
    pub use crate::extract::Json;
    pub use crate::extract::{Attempt, State};
    pub use crate::handler::handler;
    pub use crate::router::Router;
    pub use crate::{Classify, dlq_handler};

    #[cfg(feature = "kafka")]
    pub use crate::kafka::{Brokers, KafkaTransport};
    #[cfg(feature = "nats")]
    pub use crate::nats::NatsTransport;
    #[cfg(feature = "redis")]
    pub use crate::redis::{RedisClient, RedisTransport};
}
