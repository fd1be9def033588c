//! The dead letters of a stream: read, followed into a store and sent back, at real servers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fixture;

mod conformance {
    dlq_testkit::broker_conformance!(crate::fixture::RedisLettersFixture);
    dlq_testkit::log_conformance!(crate::fixture::RedisLettersFixture);
}
