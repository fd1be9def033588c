//! The dead letters of a stream: read, followed into a store and sent back, at real servers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod beside;
#[cfg(feature = "cluster")]
mod cluster;
mod failing;
mod fixture;
mod foreign;

mod redis_7 {
    dlq_testkit::broker_conformance!(crate::fixture::RedisLettersFixture);
    dlq_testkit::log_conformance!(crate::fixture::RedisLettersFixture);
}

/// The checks in which servers of other versions may differ: scripts, pages and ids.
macro_rules! elsewhere {
    ($name:ident, $which:ident) => {
        mod $name {
            type Fixture = crate::fixture::RedisLettersFixture<crate::fixture::$which>;

            dlq_testkit::log_conformance!(Fixture);
            dlq_testkit::broker_conformance! { @each Fixture;
                replay:
                    g6_what_was_sent_is_not_sent_again,
                    a_letter_is_sent_again_on_purpose_and_once_by_each_operation,
                    one_letter_does_not_stop_the_others;
                targets:
                    g6_a_letter_is_sent_to_its_origin,
                    g6_a_letter_is_sent_elsewhere,
                    g8_whatever_it_holds_comes_out_byte_for_byte,
                    a_target_that_is_not_there_is_refused;
                killed:
                    g6_stopped_at_any_step_it_sends_nothing_twice;
                ingest:
                    each_letter_is_in_the_store_once,
                    g1_what_is_not_confirmed_comes_again_and_the_rest_does_not,
                    the_mark_is_there_from_the_first_moment,
                    g6_what_a_running_replay_has_sent_is_not_pending_in_a_store;
            }
        }
    };
}

elsewhere!(redis_6_2, Redis6);
elsewhere!(valkey_9, Valkey9);
