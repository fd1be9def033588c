//! What the transport on Kafka has to pass: the conformance suite, and what is its own, all against a real broker.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod access;
mod admin;
mod bad_input;
mod broker;
mod changing;
mod feed;
mod feed_blocked;
mod feed_ends;
mod fixture;
mod fixture_bad_input;
mod fixture_feed;
mod fixture_letters;
mod fixture_reading;
mod fixture_replay;
mod fixture_topics;
mod gauges;
mod lag;
mod leaderless;
mod letters;
mod login;
mod marks;
mod names;
mod offsets;
mod outbox;
mod refused;
mod regressions;
mod share_group;
mod silent;
mod sink;
mod topic;
mod topics;
mod unwritable;
mod waiting;

mod conformance {
    dlq_testkit::transport_conformance!(crate::fixture::KafkaFixture);
}

mod letters_conformance {
    dlq_testkit::broker_conformance!(crate::broker::KafkaLettersFixture);
    dlq_testkit::log_conformance!(crate::broker::KafkaLettersFixture);
}
