//! What the transport on Kafka has to pass: the conformance suite, and what is its own, all against a real broker.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fixture;
mod offsets;
mod sink;
mod waiting;

mod conformance {
    dlq_testkit::transport_conformance!(crate::fixture::KafkaFixture);
}
