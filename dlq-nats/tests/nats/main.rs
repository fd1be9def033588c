//! What the transport on NATS JetStream has to pass: the conformance suite, and what is its own, all against the real
//! server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod admin;
mod bad_input;
mod broker;
mod cluster;
mod domain;
mod dropping;
mod feed;
mod fixture;
mod idempotency;
mod leaf;
mod letters;
mod marks;
mod narrow;
mod opening;
mod outbox;
mod overdue;
mod promises;
mod raw;
mod refused;
mod replicated;
mod resuming;
mod retry_queue;
mod router;
mod settling;
mod sink;
mod unreadable;
mod versions;
mod waiting;
mod warnings;

mod conformance {
    dlq_testkit::transport_conformance!(crate::fixture::NatsFixture);
}

mod letters_conformance {
    dlq_testkit::broker_conformance!(crate::broker::NatsLettersFixture);
    dlq_testkit::log_conformance!(crate::broker::NatsLettersFixture);
}

/// The transport's suite where the server keeps no schedules, as before 2.12.
mod without_schedules {
    use crate::fixture::WithoutSchedules;
    use dlq_testkit::transport::{retry_queue, run};

    #[test]
    fn a_record_comes_when_it_is_due() {
        run::<WithoutSchedules, _>("due", retry_queue::a_record_comes_when_it_is_due);
    }

    #[test]
    fn a_record_does_not_block_others() {
        run::<WithoutSchedules, _>("others", retry_queue::a_record_does_not_block_others);
    }

    #[test]
    fn a_record_survives_a_restart_of_the_broker() {
        run::<WithoutSchedules, _>(
            "restart",
            retry_queue::a_record_survives_a_restart_of_the_broker,
        );
    }

    #[test]
    fn a_hop_written_twice_is_one_record() {
        run::<WithoutSchedules, _>("twice", retry_queue::a_hop_written_twice_is_one_record);
    }
}
