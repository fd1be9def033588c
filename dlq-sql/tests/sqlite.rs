//! What the store on SQLite has to pass: the conformance suites, and what is its own.

#[path = "sqlite/batches.rs"]
mod batches;
#[path = "sqlite/checkup.rs"]
mod checkup;
#[path = "sqlite/failing.rs"]
mod failing;
#[path = "sqlite/file.rs"]
mod file;
#[path = "sqlite/fixture.rs"]
mod fixture;
#[path = "sqlite/migrating.rs"]
mod migrating;
#[path = "sqlite/opening.rs"]
mod opening;

dlq_testkit::store_conformance!(crate::fixture::SqliteFixture);
dlq_testkit::store_model!(crate::fixture::SqliteFixture, 60);

mod idempotency {
    dlq_testkit::idempotency_conformance!(crate::fixture::SqliteFixture);
}

/// The same without connections that only read.
mod in_memory {
    dlq_testkit::store_model!(crate::fixture::InMemoryFixture, 20);
}
