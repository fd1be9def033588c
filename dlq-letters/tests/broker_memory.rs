//! The broker in memory passes every check for the dead letters of brokers, and with a flaw it fails those that are about it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dlq_testkit::broker::{
    Flaw, MemoryFixture, ingest, killed, logs, reading, replay, run, targets,
};

mod conformance {
    dlq_testkit::broker_conformance!(dlq_testkit::broker::MemoryFixture);
    dlq_testkit::log_conformance!(dlq_testkit::broker::MemoryFixture);
}

/// Makes sure that a check fails at a broker with this flaw.
macro_rules! fails {
    ($flaw:ident: $check:path) => {{
        type Broken = MemoryFixture<{ Flaw::$flaw as usize }>;
        let checked = || run::<Broken, _>(stringify!($flaw), $check);
        let ended = catch_unwind(AssertUnwindSafe(checked));
        assert!(ended.is_err(), "{} did not notice {}", stringify!($check), stringify!($flaw));
    }};
}

#[test]
fn letters_that_are_read_wrongly_are_noticed() {
    fails!(ListsOutOfOrder: reading::letters_are_listed_in_order);
    fails!(ListsOutOfOrder: reading::the_latest_are_peeked_at);
    fails!(ListsEveryDeath: reading::g2_copies_are_one_letter_and_no_bytes_are_lost);
    fails!(ListsEveryDeath: reading::groups_and_statistics_are_those_of_a_store);
    fails!(ListsEveryDeath: reading::what_comes_later_is_seen);
    fails!(MergesConflicts: reading::g2_copies_are_one_letter_and_no_bytes_are_lost);
    fails!(MergesConflicts: reading::g8_each_letter_is_shown_byte_for_byte);
    fails!(ShowsSmallPayloads: reading::large_payloads_are_shown_whole);
    fails!(IgnoresServices: reading::filters_mean_what_they_mean_in_a_store);
    fails!(StopsAtUnreadable: reading::unreadable_entries_hide_no_letter);
}

#[test]
fn logs_that_are_read_wrongly_are_noticed() {
    fails!(StopsAtUnreadable: logs::every_entry_is_read_at_its_place);
    fails!(LeavesTrace: logs::a_reading_leaves_no_trace);
    fails!(IgnoresRange: logs::a_range_is_read_and_nothing_else);
    fails!(ShowsSmallPayloads: logs::g8_letters_are_whole_at_their_places);
}

#[test]
fn letters_that_are_sent_twice_are_noticed() {
    fails!(Repeats: replay::g6_what_was_sent_is_not_sent_again);
    fails!(Repeats: replay::g6_copies_of_a_death_are_sent_once);
    fails!(Repeats: replay::a_letter_is_sent_again_on_purpose_and_once_by_each_operation);
    fails!(Repeats: targets::g6_a_letter_is_sent_elsewhere);
    fails!(SendsFirst: killed::g6_killed_at_any_step_each_letter_arrives_once);
    fails!(SendsFirst: killed::g6_what_a_killed_replay_has_sent_is_not_pending_in_a_store);
    fails!(ReadsLedgerOnce: replay::g6_two_at_once_send_each_letter_once);
    fails!(ReadsLedgerOnce: killed::g6_stopped_at_any_step_it_sends_nothing_twice);
    fails!(FeedsSentAsPending: ingest::g6_what_was_sent_back_is_sent_in_the_store);
    fails!(FeedsSentAsPending: ingest::g6_what_a_running_replay_has_sent_is_not_pending_in_a_store);
}

#[test]
fn letters_that_are_lost_are_noticed() {
    fails!(Loses: replay::g6_what_was_sent_is_not_sent_again);
    fails!(Loses: replay::g6_two_at_once_send_each_letter_once);
    fails!(Loses: targets::g6_a_letter_is_sent_to_its_origin);
    fails!(MarksFirst: killed::g6_killed_at_any_step_each_letter_arrives_once);
    fails!(ConfirmsEarly: ingest::g1_killed_at_any_step_nothing_is_lost_and_all_is_told);
    fails!(ConfirmsEarly: ingest::g1_what_is_not_confirmed_comes_again_and_the_rest_does_not);
    fails!(LosesWhenDropped: ingest::a_future_that_is_dropped_loses_nothing);
    fails!(StopsAtUnreadable: reading::unreadable_entries_hide_no_letter);
}

#[test]
fn letters_that_come_in_another_order_or_changed_are_noticed() {
    fails!(SendsOutOfOrder: replay::the_oldest_are_sent_first);
    fails!(LosesHeaders: targets::g6_a_letter_is_sent_to_its_origin);
    fails!(LosesHeaders: targets::g8_whatever_it_holds_comes_out_byte_for_byte);
    fails!(ShowsSmallPayloads: targets::g8_whatever_it_holds_comes_out_byte_for_byte);
    fails!(IgnoresTarget: targets::g6_a_letter_is_sent_elsewhere);
}

#[test]
fn a_replay_that_does_not_do_as_it_is_told_is_noticed() {
    fails!(IgnoresCancel: replay::g6_cancelling_stops_at_once);
    fails!(IgnoresCancel: replay::g6_what_has_not_begun_does_not_begin);
    fails!(IgnoresRate: replay::a_rate_is_kept);
    fails!(IgnoresCap: replay::g7_a_letter_at_the_cap_is_not_sent);
    fails!(ForgetsPlan: replay::what_dies_after_the_plan_is_not_sent_with_it);
    fails!(PlansInEarnest: replay::a_plan_says_what_would_be_done_and_changes_nothing);
}

#[test]
fn a_feed_that_forgets_is_noticed() {
    fails!(ForgetsAgain: ingest::g1_what_is_not_confirmed_comes_again_and_the_rest_does_not);
    fails!(ForgetsAgain: ingest::g1_killed_at_any_step_nothing_is_lost_and_all_is_told);
    fails!(ForgetsStore: ingest::the_mark_is_there_from_the_first_moment);
}
