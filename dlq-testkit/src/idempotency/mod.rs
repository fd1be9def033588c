//! Checks for idempotency stores, and the macro that makes each a visible test.
//!
//! ```
//! dlq_testkit::idempotency_conformance!(dlq_testkit::idempotency::MemoryIdempotencyFixture);
//! # fn main() {}
//! ```

mod fixture;

pub mod claims;
pub mod keeping;

pub use fixture::{IdempotencyCheck, IdempotencyFixture, MemoryIdempotencyFixture, run};

/// Makes each check for idempotency stores a test, in one module per group.
///
/// Takes a type that implements [`IdempotencyFixture`].
#[macro_export]
macro_rules! idempotency_conformance {
    ($fixture:ty) => {
        $crate::idempotency_conformance! { @each $fixture;
            claims:
                a_new_key_is_ours,
                a_key_in_flight_is_not_ours,
                a_done_key_stays_done,
                looking_up_tells_and_changes_nothing,
                handles_know_their_store,
                a_failed_key_is_new_again,
                an_unused_claim_counts_nothing,
                an_ended_lease_counts_a_crash,
                a_death_starts_the_counts_over,
                attempts_of_an_outage_are_taken_back,
                an_extended_lease_holds,
                the_former_owner_is_fenced,
                a_late_owner_still_owns,
                saying_it_twice_changes_nothing,
                keys_are_told_apart,
                any_bytes_are_a_key,
                many_claimers_get_a_key_once;
            keeping:
                a_done_key_is_forgotten_in_time,
                counts_start_over_after_success,
                purging_forgets_what_has_ended,
                purging_keeps_to_its_limit,
                fences_grow_across_purging,
                keys_outlive_a_handle;
        }
    };
    (@each $fixture:ty; $($group:ident: $($check:ident),+;)+) => {
        $($crate::idempotency_conformance!(@group $fixture; $group; $($check),+);)+
    };
    (@group $fixture:ty; $group:ident; $($check:ident),+) => {
        mod $group {
            #[allow(unused_imports, reason = "a fixture may be named by an absolute path")]
            use super::*;

            $(
                #[test]
                fn $check() {
                    $crate::idempotency::run::<$fixture, _>(
                        concat!(stringify!($group), "_", stringify!($check)),
                        $crate::idempotency::$group::$check,
                    );
                }
            )+
        }
    };
}
