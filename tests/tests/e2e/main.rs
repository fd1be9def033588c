//! End to end: a real consumer on a real store, killed and restarted.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod crash_table;
mod graceful;
mod history;
mod kafka;
mod kafka_group;
mod kafka_moving;
mod kill;
mod nats;
mod random;
mod redis;
mod servers;
mod victim;
mod world;
