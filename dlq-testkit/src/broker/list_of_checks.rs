/// Makes each check for the dead letters of a broker a test, in one module per group.
///
/// Takes a type that implements [`BrokerFixture`](crate::broker::BrokerFixture). To check two brokers in one file, call it
/// in two modules.
#[macro_export]
macro_rules! broker_conformance {
    ($fixture:ty) => {
        $crate::broker_conformance! { @each $fixture;
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
                the_latest_are_peeked_at,
                unreadable_entries_hide_no_letter,
                a_pointer_is_shown_with_its_message;
            replay:
                g6_what_was_sent_is_not_sent_again,
                g6_two_at_once_send_each_letter_once,
                g6_cancelling_stops_at_once,
                g6_what_has_not_begun_does_not_begin,
                g6_copies_of_a_death_are_sent_once,
                g7_a_letter_at_the_cap_is_not_sent,
                a_death_after_a_replay_is_news,
                the_oldest_are_sent_first,
                a_rate_is_kept,
                a_letter_is_sent_again_on_purpose_and_once_by_each_operation,
                a_filter_says_which,
                a_plan_says_what_would_be_done_and_changes_nothing,
                what_dies_after_the_plan_is_not_sent_with_it,
                one_letter_does_not_stop_the_others;
            targets:
                g6_a_letter_is_sent_to_its_origin,
                g6_a_letter_is_sent_elsewhere,
                g6_a_letter_is_sent_to_its_handler_and_to_nobody_else,
                g8_whatever_it_holds_comes_out_byte_for_byte,
                a_target_that_is_not_there_is_refused;
            killed:
                g6_killed_at_any_step_each_letter_arrives_once,
                g6_stopped_at_any_step_it_sends_nothing_twice,
                g6_what_a_killed_replay_has_sent_is_not_pending_in_a_store;
            ingest:
                each_letter_is_in_the_store_once,
                g1_killed_at_any_step_nothing_is_lost_and_all_is_told,
                g1_what_is_not_confirmed_comes_again_and_the_rest_does_not,
                a_future_that_is_dropped_loses_nothing,
                the_mark_is_there_from_the_first_moment,
                a_store_that_fails_is_waited_for,
                a_letter_that_the_store_refuses_is_set_aside,
                unreadable_entries_block_no_letter,
                g6_what_was_sent_back_is_sent_in_the_store,
                g6_what_a_running_replay_has_sent_is_not_pending_in_a_store,
                a_restart_of_the_broker_is_waited_for;
        }
    };
    (@each $fixture:ty; $($group:ident: $($check:ident),+;)+) => {
        $(
            mod $group {
                #[allow(unused_imports, reason = "a fixture may be named by an absolute path")]
                use super::*;

                $(
                    #[test]
                    fn $check() {
                        $crate::broker::run::<$fixture, _>(
                            concat!(stringify!($group), "_", stringify!($check)),
                            $crate::broker::$group::$check,
                        );
                    }
                )+
            }
        )+
    };
}

/// Makes each check for a broker's [`Log`](dlq_core::log::Log) a test, beside those of
/// [`broker_conformance!`](crate::broker_conformance).
///
/// Takes a type that implements [`LogFixture`](crate::broker::LogFixture).
#[macro_export]
macro_rules! log_conformance {
    ($fixture:ty) => {
        $crate::broker_conformance! { @each $fixture;
            logs:
                every_entry_is_read_at_its_place,
                a_reading_leaves_no_trace,
                a_range_is_read_and_nothing_else,
                a_reading_for_ever_goes_on,
                g8_letters_are_whole_at_their_places;
        }
    };
}
