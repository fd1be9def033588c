//! What the store on Postgres has to pass, against a real server: the conformance suites, and what is its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod at_size;
mod bytes;
mod cancelling;
mod check;
mod claiming;
mod counting;
mod dropped;
mod durable;
mod faults;
mod fixture;
mod foreign;
#[cfg(target_os = "linux")]
mod full_disk;
mod in_doubt;
mod large;
mod long_work;
mod migrating;
mod model;
mod opening;
mod own_time;
mod plans;
mod pooler;
mod proxy;
mod racing;
mod silence;
mod standby;
mod tables;
mod waking;

dlq_testkit::store_conformance!(crate::fixture::PostgresFixture);
dlq_testkit::store_model!(crate::fixture::PostgresFixture, 24);

mod idempotency {
    dlq_testkit::idempotency_conformance!(crate::fixture::PostgresFixture);
}

/// The same by the clock of the database.
mod idempotency_by_its_own_time {
    dlq_testkit::idempotency_conformance!(crate::fixture::OwnTimeFixture);
}
