/// Makes each check for transports a test, in one module per group.
///
/// Takes a type that implements [`TransportFixture`](crate::transport::TransportFixture). To check two transports in
/// one file, call it in two modules.
#[macro_export]
macro_rules! transport_conformance {
    ($fixture:ty) => {
        $crate::transport_conformance! { @each $fixture;
            delivering:
                every_message_is_delivered,
                a_waiting_source_hears_of_a_message,
                bytes_are_exact,
                a_first_delivery_is_plain,
                identity_survives_redelivery,
                dropping_next_loses_nothing,
                order_is_as_declared,
                order_survives_a_crash;
            settling:
                what_is_settled_does_not_come_again,
                every_end_is_an_end,
                what_is_not_settled_comes_again,
                a_dropped_delivery_comes_again,
                a_deferred_message_comes_later,
                deferring_without_delay_is_quick,
                a_deferred_message_survives_a_crash,
                extending_keeps_the_lease,
                a_late_word_does_no_harm,
                a_late_deferral_loses_nothing,
                a_restart_of_the_broker_loses_nothing;
            closing:
                closing_gives_back,
                a_closed_source_has_ended,
                an_unused_source_can_be_closed,
                what_was_yielded_can_be_settled_after_closing;
            groups:
                each_consumer_gets_every_message,
                consumers_do_not_settle_for_each_other,
                processes_of_one_consumer_share,
                a_process_inherits_from_a_dead_one;
            retry_queue:
                a_record_comes_when_it_is_due,
                a_record_does_not_block_others,
                a_record_continues_the_count,
                a_record_keeps_the_message,
                a_second_hop_counts_on,
                a_record_is_heard_by_its_consumer_only,
                a_record_survives_a_crash,
                an_unsettled_record_comes_again,
                a_hop_written_twice_is_one_record,
                a_hop_tried_again_is_one_record,
                a_record_survives_a_restart_of_the_broker;
        }
        $crate::end_to_end_conformance! { $fixture }
    };
    (@each $fixture:ty; $($group:ident: $($check:ident),+;)+) => {
        $(
            mod $group {
                use super::*;

                $(
                    #[test]
                    fn $check() {
                        $crate::transport::run::<$fixture, _>(
                            stringify!($check),
                            $crate::transport::$group::$check,
                        );
                    }
                )+
            }
        )+
    };
}

/// The part of [`transport_conformance!`](crate::transport_conformance) that runs whole consumers.
#[cfg(feature = "explorer")]
#[doc(hidden)]
#[macro_export]
macro_rules! end_to_end_conformance {
    ($fixture:ty) => {
        $crate::transport_conformance! { @each $fixture;
            end_to_end:
                each_message_is_handled_or_dead,
                a_crash_in_the_middle_loses_nothing;
        }
    };
}

/// Whole consumers are left out: the feature `explorer` is off.
#[cfg(not(feature = "explorer"))]
#[doc(hidden)]
#[macro_export]
macro_rules! end_to_end_conformance {
    ($fixture:ty) => {};
}
