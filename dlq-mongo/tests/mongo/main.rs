//! Tests of the store on MongoDB against a server: the conformance suites, and tests of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bytes;
mod crashes;
mod faults;
mod fixture;
mod model;
mod opening;
mod pieces;
mod proxy;
mod race;
mod trips;
mod voided;

dlq_testkit::store_conformance!(crate::fixture::MongoFixture);
dlq_testkit::store_model!(crate::fixture::MongoFixture, 16);

mod idempotency {
    dlq_testkit::idempotency_conformance!(crate::fixture::MongoFixture);
}

/// The same by the clock of the server.
mod idempotency_by_its_own_time {
    dlq_testkit::idempotency_conformance!(crate::fixture::OwnTimeFixture);
}
