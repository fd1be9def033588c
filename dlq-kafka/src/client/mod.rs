//! The cluster: clients for producing, for transactions and for questions, topics, groups, records and headers.

pub(crate) mod aside;
pub(crate) mod brokers;
pub(crate) mod error;
pub(crate) mod groups;
pub(crate) mod ladder;
pub(crate) mod produce;
pub(crate) mod reach;
pub(crate) mod record;
pub(crate) mod topics;
pub(crate) mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::config::RDKafkaLogLevel;

/// Locks a mutex, also one whose holder has panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes on a log line of the client.
pub(crate) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error => tracing::error!(facility, "{message}"),
        RDKafkaLogLevel::Warning => tracing::warn!(facility, "{message}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => tracing::info!(facility, "{message}"),
        RDKafkaLogLevel::Debug => tracing::debug!(facility, "{message}"),
    }
}
