//! The dead letters of a stream: read, followed into a store and sent back, at real servers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fixture;

mod conformance {
    dlq_testkit::log_conformance!(crate::fixture::RedisLettersFixture);
    dlq_testkit::broker_conformance! { @each crate::fixture::RedisLettersFixture;
        reading:
            letters_are_listed_in_order,
            filters_mean_what_they_mean_in_a_store,
            groups_and_statistics_are_those_of_a_store,
            bounds_of_time_mean_what_they_say,
            g8_each_letter_is_shown_byte_for_byte,
            a_prefix_finds_what_begins_with_it,
            g2_copies_are_one_letter_and_no_bytes_are_lost,
            large_payloads_are_shown_whole,
            what_comes_later_is_seen,
            the_latest_are_peeked_at;
        ingest:
            each_letter_is_in_the_store_once,
            g1_killed_at_any_step_nothing_is_lost_and_all_is_told,
            g1_what_is_not_confirmed_comes_again_and_the_rest_does_not,
            a_future_that_is_dropped_loses_nothing,
            the_mark_is_there_from_the_first_moment,
            a_store_that_fails_is_waited_for,
            a_letter_that_the_store_refuses_is_set_aside,
            unreadable_entries_block_no_letter,
            a_restart_of_the_broker_is_waited_for;
    }
}
