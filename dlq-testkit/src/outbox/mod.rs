//! Checks for outboxes, and the macro that makes each a visible test.
//!
//! A broker describes itself by an [`OutboxFixture`] and calls [`outbox_conformance!`](crate::outbox_conformance) once:
//!
//! ```
//! dlq_testkit::outbox_conformance!(dlq_testkit::outbox::MemoryOutboxFixture);
//! # fn main() {}
//! ```

mod checks;
mod fixture;

pub use checks::{
    a_letter_goes_back_as_it_was, a_letter_of_another_cluster_has_no_address,
    a_refused_letter_concerns_it_alone, g6_a_killed_send_is_settled_truthfully,
    g6_settle_says_what_arrived, g6_what_is_sent_twice_arrives_once,
    nothing_is_sent_after_its_time, the_survey_names_who_listens,
};
pub use fixture::{MemoryOutboxFixture, OutboxFixture};

use crate::account::Entry;

/// Runs one check with a fixture of its own, where the broker can be had.
///
/// # Panics
///
/// When the check fails.
pub fn run<F: OutboxFixture, R: Future<Output = ()>>(
    check: &'static str,
    body: impl FnOnce(F) -> R,
) {
    if Entry::new::<F>("outbox", check).begin(F::is_available()) {
        crate::run(check, async { body(F::fresh(check).await).await });
    }
}

/// Makes each check for outboxes a test.
#[macro_export]
macro_rules! outbox_conformance {
    ($fixture:ty) => {
        $crate::outbox_conformance! { @each $fixture;
            g6_what_is_sent_twice_arrives_once,
            g6_settle_says_what_arrived,
            g6_a_killed_send_is_settled_truthfully,
            a_refused_letter_concerns_it_alone,
            a_letter_goes_back_as_it_was,
            a_letter_of_another_cluster_has_no_address,
            nothing_is_sent_after_its_time,
            the_survey_names_who_listens,
        }
    };
    (@each $fixture:ty; $($check:ident,)+) => {
        $(
            #[test]
            fn $check() {
                $crate::outbox::run::<$fixture, _>(stringify!($check), $crate::outbox::$check);
            }
        )+
    };
}
