//! What the store on SQLite has to pass.

#[path = "sqlite/fixture.rs"]
mod fixture;

dlq_testkit::store_conformance!(crate::fixture::SqliteFixture);
dlq_testkit::store_model!(crate::fixture::SqliteFixture, 60);
mod idempotency {
    dlq_testkit::idempotency_conformance!(crate::fixture::SqliteFixture);
}
