//! An adaptor for the retry policies of the `backoff` crate.
//!
//! That crate is unmaintained (RUSTSEC-2025-0012). The adaptor exists for programs that already have such policies;
//! nothing else needs it, and [`Backoff`] has the same curves.

use std::fmt;
use std::time::Duration;

use super::backoff::{Backoff, Delays};

/// Past this many attempts a policy of the `backoff` crate is taken to stay as it is.
const MAX_REPLAYED: u32 = 1000;

/// Adapts a policy of the `backoff` crate, made afresh for every question.
///
/// These policies are stateful; the delay after attempt *n* is the *n*th answer of a fresh one. Their randomness is
/// their own, so the seed is not used: make them without randomisation where the delay must be reproducible. A limit on
/// elapsed time never applies, because a fresh policy has waited for nothing yet; limit the attempts instead.
///
/// One question about attempt *n* costs *n* steps, at most a thousand: from there on the delay stays the same.
///
/// ```
/// use backoff::ExponentialBackoffBuilder;
/// use dlq_core::policy::adaptor::adapt;
/// use std::time::Duration;
///
/// let backoff = adapt(|| {
///     ExponentialBackoffBuilder::new()
///         .with_initial_interval(Duration::from_millis(100))
///         .with_multiplier(2.0)
///         .with_randomization_factor(0.0)
///         .build()
/// });
/// assert_eq!(backoff.delay(3, 0), Some(Duration::from_millis(400)));
/// ```
pub fn adapt<B, F>(make: F) -> Backoff
where
    B: ::backoff::backoff::Backoff + 'static,
    F: Fn() -> B + Send + Sync + 'static,
{
    Backoff::custom(Adapted { make })
}

struct Adapted<F> {
    make: F,
}

impl<F> fmt::Debug for Adapted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy of the backoff crate")
    }
}

impl<B, F> Delays for Adapted<F>
where
    B: ::backoff::backoff::Backoff,
    F: Fn() -> B + Send + Sync,
{
    fn delay(&self, attempt: u32, _: u64) -> Option<Duration> {
        let mut policy = (self.make)();
        // The function may hand out a clone of a policy that was in use before.
        policy.reset();
        (1..attempt.min(MAX_REPLAYED)).try_for_each(|_| policy.next_backoff().map(drop))?;
        policy.next_backoff()
    }
}
