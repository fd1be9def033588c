#![doc = include_str!("../README.md")]

mod builder;
mod cluster;
mod error;
mod folder;
mod install;
mod kafka;
mod maven;
mod mongo;
mod nats;
mod port;
mod postgres;
mod process;
mod redis;
mod require;
mod running;
mod service;
pub mod tools;
mod wheel;
pub mod wire;

pub use builder::{Builder, start, start_cluster};
pub use cluster::{Cluster, View};
pub use error::{Error, ErrorKind};
pub use folder::cache;
pub use install::ensure_installed;
pub use kafka::{KAFKA_VERSION, Kafka, KafkaCluster};
pub use mongo::{MONGO_VERSION, Mongo};
pub use nats::{NATS_VERSION, Nats, NatsCluster};
pub use postgres::Postgres;
pub use redis::{Redis, RedisCluster, RedisSentinel, Sentinels};
pub use require::{
    Skip, or_skip, require, require_chromium, require_cluster, require_pgbouncer, require_promtool,
};
pub use running::Running;
pub use service::Service;
