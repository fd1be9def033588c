//! Types that the stages of a stack hand each other.
//!
//! Each stage has its own types, so that a stack in the wrong order does not compile:
//!
//! | stage | response | error |
//! |---|---|---|
//! | handler | `()` ([`IsHandled`]) | the handler's own |
//! | classify, panic guard, timeout, idempotency, permit | [`Done`] | [`Setback`] |
//! | retry | [`Verdict`] | none |
//! | dead-letter routing | [`Settlement`] | [`RouteError`] |

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::{
    Attempt, BoxError, Cause, Classification, Clock, Delivery, Disposition, ErrorClass, Failure,
    History, Reason, SharedClock, StoreError, StoreErrorKind, SystemClock, Timestamp,
};
use tokio::time::Instant;

/// An attempt ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Done {
    /// The handler succeeded.
    Succeeded,
    /// The message had been handled before; the handler did not run.
    Duplicate,
}

/// An attempt did not end well.
///
/// The retry stage makes another attempt or a death of `Failed`, a death of `Crashed` and a deferral of `Deferred`. It
/// waits for the end of `InFlight` while it has a slot for that, and defers the message otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Setback {
    /// The handler ran and failed; counts as the attempt it carries.
    Failed(Box<Attempt>),
    /// Earlier runs ended with the process too often, by the count of an idempotency store; the handler did not run.
    Crashed {
        /// Number of runs that did.
        crashes: u32,
    },
    /// Not now: the message is neither handled nor failed, and comes again. Never counted.
    Deferred {
        /// Minimum time to wait.
        after: Duration,
        /// Reason, for logs and metrics.
        why: &'static str,
    },
    /// A message with the same key is being handled; the handler did not run. Never counted. The retry stage waits for it.
    InFlight(Box<InFlight>),
}

type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A key that is in flight, and how to wait for its end.
#[derive(Clone)]
pub struct InFlight {
    remaining: Duration,
    why: &'static str,
    ended: Arc<dyn Fn() -> Ended + Send + Sync>,
}

impl InFlight {
    pub(crate) fn new(
        remaining: Duration,
        why: &'static str,
        ended: impl Fn() -> Ended + Send + Sync + 'static,
    ) -> Self {
        Self { remaining, why, ended: Arc::new(ended) }
    }

    /// Returns the longest time that the key stays in flight, if nobody extends it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// Returns where the key is in flight, for logs and metrics.
    #[must_use]
    pub fn why(&self) -> &'static str {
        self.why
    }

    /// Waits until the key seems to be free or done. It may be in flight again when it is claimed.
    pub(crate) fn ended(&self) -> Ended {
        (self.ended)()
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("remaining", &self.remaining)
            .field("why", &self.why)
            .finish_non_exhaustive()
    }
}

impl PartialEq for InFlight {
    fn eq(&self, other: &Self) -> bool {
        // How its end is waited for cannot be compared, and says nothing about the key.
        (self.remaining, self.why) == (other.remaining, other.why)
    }
}

impl Eq for InFlight {}

impl fmt::Display for Setback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(attempt) => {
                write!(f, "attempt {} failed: {}", attempt.number, attempt.failure)
            }
            Self::Crashed { crashes } => {
                write!(f, "not run: {crashes} earlier runs ended with the process")
            }
            Self::Deferred { after, why } => write!(f, "deferred for {after:?}: {why}"),
            Self::InFlight(in_flight) => {
                write!(f, "{} for at most {:?}", in_flight.why, in_flight.remaining)
            }
        }
    }
}

impl std::error::Error for Setback {}

/// Beyond the life of any process.
pub(crate) const NEVER: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

/// Returns the instant after this time, or never if no instant is that far.
pub(crate) fn instant_after(wait: Duration) -> Instant {
    // A sum that no `Instant` can hold would panic.
    Instant::now() + wait.min(NEVER)
}

/// Number of a run of the handler, and its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    number: u32,
    generation: u32,
    began: Instant,
}

thread_local! {
    /// A reading of the clock for whoever inside needs one next: a message, its attempt and its run begin together.
    static READING: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Leaves no reading behind that has grown old, also when what was to use it panics.
struct Unread;

impl Drop for Unread {
    #[inline]
    fn drop(&mut self) {
        READING.set(None);
    }
}

/// The time, as it was just read outside if it was.
#[inline]
pub(crate) fn reading() -> Instant {
    READING.take().unwrap_or_else(Instant::now)
}

/// Does `what`, in which the first who asks for a [`reading`] is given `now`.
#[inline]
pub(crate) fn with_reading<T>(now: Instant, what: impl FnOnce() -> T) -> T {
    READING.set(Some(now));
    let _unread = Unread;
    what()
}

impl Run {
    /// The run of `delivery` that begins now.
    #[inline]
    pub(crate) fn begin(delivery: &Delivery) -> Self {
        Self { number: delivery.attempt(), generation: delivery.generation(), began: reading() }
    }

    /// The run of `delivery` that `start` begins now.
    #[inline]
    pub(crate) fn around<T>(delivery: Delivery, start: impl FnOnce(Delivery) -> T) -> (Self, T) {
        let run = Self::begin(&delivery);
        (run, with_reading(run.began, || start(delivery)))
    }

    /// The run ended now, and failed.
    pub(crate) fn failed(self, failure: Failure, now: Timestamp) -> Setback {
        let failure = failure.timed(now, self.began.elapsed());
        let Self { number, generation, .. } = self;
        Setback::Failed(Box::new(Attempt { number, generation, failure }))
    }
}

/// The clock of a layer, which costs nothing to clone where it is the machine's.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerClock(Option<SharedClock>);

impl LayerClock {
    pub(crate) fn now(&self) -> Timestamp {
        self.0.as_deref().map_or_else(|| SystemClock.now(), Clock::now)
    }
}

impl From<SharedClock> for LayerClock {
    fn from(clock: SharedClock) -> Self {
        Self(Some(clock))
    }
}

impl From<BoxError> for Setback {
    /// Finds the setback in an error that a foreign layer boxed. Any other error is a transient failure of an unknown
    /// type; the retry stage sets which attempt it was and when.
    fn from(error: BoxError) -> Self {
        match error.downcast::<Self>() {
            Ok(setback) => *setback,
            Err(error) => {
                // An error that nobody has judged is retried rather than given up.
                let judged = Classification::transient();
                let failure = Failure::of_type(judged, "unknown", &*error);
                Self::Failed(Box::new(Attempt { number: 1, generation: 0, failure }))
            }
        }
    }
}

/// Errors of a classified service: [`Setback`], or a [`BoxError`] of a foreign layer around one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the error of a classified attempt",
    label = "this layer needs a classified service inside it",
    note = "put `ClassifyLayer` directly around the handler: `ClassifyLayer::derived()` for an error with `#[derive(Classify)]`, or `ClassifyLayer::new(|error: &YourError| …)`",
    note = "if it is the error of a layer: put `ClassifyErrorsLayer` around it, `.layer((ClassifyErrorsLayer::new(|error: &{Self}| …), layer))`"
)]
pub trait ClassifiedError: Send + 'static {
    /// Returns the setback that the error is, or carries in a box.
    fn into_setback(self) -> Setback;
}

impl ClassifiedError for Setback {
    fn into_setback(self) -> Setback {
        self
    }
}

impl ClassifiedError for BoxError {
    fn into_setback(self) -> Setback {
        self.into()
    }
}

/// The outcome of a classified service. What is not rare is written, not copied: a setback is several times as large.
#[inline]
pub(crate) fn classified<R: IsDone, E: ClassifiedError>(
    outcome: Result<R, E>,
) -> Result<Done, Setback> {
    match outcome {
        Ok(response) => Ok(response.into_done()),
        Err(error) => Err(setback(error)),
    }
}

#[cold]
#[inline(never)]
fn setback<E: ClassifiedError>(error: E) -> Setback {
    // Kept out of line, so that the path of a success stays short.
    error.into_setback()
}

/// The response of a handler that has not been classified yet: `()`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a handler returns",
    label = "`ClassifyLayer` goes directly around the handler, which returns `()`",
    note = "the order is, outermost first: trace, metrics, `DeadLetterLayer`, `RetryLayer`, permit, idempotency, timeout, panic guard, `ClassifyLayer`, handler"
)]
pub trait IsHandled: sealed::Sealed + Send + 'static {}

impl IsHandled for () {}

/// The response of a classified service.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the response of a classified attempt",
    label = "this layer needs a classified service inside it",
    note = "the order is, outermost first: trace, metrics, `DeadLetterLayer`, `RetryLayer`, permit, idempotency, timeout, panic guard, `ClassifyLayer`, handler",
    note = "if it is `()`: `ClassifyLayer` is missing between this layer and the handler",
    note = "if it is `Verdict` or `Settlement`: this layer stands outside `RetryLayer` or `DeadLetterLayer`; move it inside"
)]
pub trait IsDone: sealed::Sealed + Send + 'static {
    /// The response.
    fn into_done(self) -> Done;
}

impl IsDone for Done {
    fn into_done(self) -> Done {
        self
    }
}

/// Decision of the retry stage about a message in flight.
///
/// Dead-letter routing carries it out: it writes the letter or the retry record, and then makes the [`Settlement`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It is handled.
    Done(Done),
    /// It shall be tried again later, elsewhere than in this process' memory.
    Retry(Box<Postponed>),
    /// Not now; comes again, counts nothing.
    Defer {
        /// Minimum time to wait.
        after: Duration,
        /// Reason.
        why: &'static str,
    },
    /// It is dead.
    Dead(Box<GivenUp>),
}

/// A message whose next attempt is too far away to wait for in the process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Postponed {
    /// The consumer that failed.
    pub consumer: Arc<str>,
    /// Time to wait.
    pub after: Duration,
    /// Every attempt so far, those before this delivery included.
    pub history: History,
    /// Handler runs so far in this generation.
    pub attempts: u32,
}

/// A message that is given up, with all that is known about why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct GivenUp {
    /// The consumer that failed.
    pub consumer: Arc<str>,
    /// Reason why the message is given up.
    pub reason: Reason,
    /// Class of the last failure: whether another attempt could have succeeded.
    pub class: ErrorClass,
    /// Cause of the last failure; `None` when no attempt was made.
    pub cause: Option<Cause>,
    /// Every attempt, those before this delivery included.
    pub history: History,
    /// Handler runs in this generation.
    pub attempts: u32,
    /// Runs that ended with the process.
    pub crashes: u32,
}

impl GivenUp {
    /// Gives `delivery` up without running the handler. Its class is permanent: what was given up unseen is not to be
    /// sent back without somebody having looked.
    pub fn unattempted(delivery: &Delivery, consumer: Arc<str>, reason: Reason) -> Self {
        Self {
            consumer,
            reason,
            class: ErrorClass::Permanent,
            cause: delivery.history().last().map(|failure| failure.cause),
            history: delivery.history().clone(),
            // The delivery has the number of the run that would come next.
            attempts: delivery.attempt().saturating_sub(1),
            crashes: delivery.crashes(),
        }
    }
}

/// The response of a stack that ends in a verdict.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a verdict",
    label = "dead-letter routing needs a retry stage directly inside it",
    note = "`RetryLayer` is missing between `DeadLetterLayer` and the service it wraps; to give up after one attempt use `RetryLayer::never()`"
)]
pub trait IsVerdict: sealed::Sealed + Send + 'static {
    /// The verdict.
    fn into_verdict(self) -> Verdict;
}

impl IsVerdict for Verdict {
    fn into_verdict(self) -> Verdict {
        self
    }
}

/// An error that cannot occur: the retry stage turns every error into a verdict.
#[diagnostic::on_unimplemented(
    message = "`{Self}` would escape the retry stage",
    label = "dead-letter routing needs a service that cannot fail inside it",
    note = "`RetryLayer` is missing between `DeadLetterLayer` and the service it wraps"
)]
pub trait Never: Send + 'static {
    /// Proof that it cannot occur.
    fn never<T>(self) -> T;
}

impl Never for Infallible {
    fn never<T>(self) -> T {
        match self {}
    }
}

/// Settlement that the broker has to be told. Only dead-letter routing makes one, and for a death or a delayed retry only
/// after the record is durable: write, confirm, settle (G1).
#[derive(Clone)]
#[must_use = "a settlement that is dropped leaves the message unsettled"]
pub struct Settlement {
    // Two words in all, since every message has one.
    other: Option<Box<Disposition>>,
    // Where there is no other.
    done: Done,
}

impl Settlement {
    pub(crate) fn new(disposition: Disposition) -> Self {
        Self { other: Some(Box::new(disposition)), done: Done::Succeeded }
    }

    #[inline]
    pub(crate) fn done(done: Done) -> Self {
        Self { other: None, done }
    }

    /// Returns the disposition of the message.
    #[inline]
    pub fn disposition(&self) -> &Disposition {
        match (&self.other, self.done) {
            (Some(other), _) => other,
            (None, Done::Succeeded) => &Disposition::Succeeded,
            (None, Done::Duplicate) => &Disposition::Duplicate,
        }
    }

    /// Returns the disposition of the message, for [`Settle::settle`](dlq_core::Settle::settle).
    #[inline]
    pub fn into_disposition(self) -> Disposition {
        match (self.other, self.done) {
            (Some(other), _) => *other,
            (None, Done::Succeeded) => Disposition::Succeeded,
            (None, Done::Duplicate) => Disposition::Duplicate,
        }
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settlement").field("disposition", self.disposition()).finish()
    }
}

/// The response of a complete stack.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a settlement: this stack does not say where dead letters go",
    label = "a consumer needs a complete stack",
    note = "`DeadLetterLayer` is missing: put it around the retry stage, `DeadLetterLayer::new(sink)`"
)]
pub trait IsSettlement: sealed::Sealed + Send + 'static {
    /// The settlement.
    fn into_settlement(self) -> Settlement;
}

impl IsSettlement for Settlement {
    fn into_settlement(self) -> Settlement {
        self
    }
}

/// Dead-letter routing could not write. Nothing may be acknowledged: the message stays with the broker (G1).
#[derive(Debug)]
pub struct RouteError(Box<Unwritten>);

#[derive(Debug)]
struct Unwritten {
    /// Failure of the handler, in words, for which the message was to be written.
    cause: String,
    source: StoreError,
}

impl RouteError {
    pub(crate) fn new(cause: String, source: StoreError) -> Self {
        // Boxed: every message's result is moved through the layers, and hardly any is this error.
        Self(Box::new(Unwritten { cause, source }))
    }

    /// Returns the last failure of the handler, for which the message was to be written.
    #[must_use]
    pub fn cause(&self) -> &str {
        &self.0.cause
    }

    /// Returns true if the sink refused this letter, which says nothing about others; false if the sink itself is down.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        is_refusal(self.0.source.kind())
    }

    /// Returns the reason why it could not be written.
    #[must_use]
    pub fn store_error(&self) -> &StoreError {
        &self.0.source
    }
}

/// Returns true if an error of this kind concerns one letter, and false if it concerns the sink as such.
pub(crate) const fn is_refusal(kind: StoreErrorKind) -> bool {
    use StoreErrorKind::{Corrupt, Incompatible, Unavailable};
    // A kind that is not named here is taken for the letter's own trouble, so that it holds up no other letter (G4).
    !matches!(kind, Unavailable | Corrupt | Incompatible)
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a message could neither be handled ({}) nor be written as a dead letter",
            self.0.cause
        )
    }
}

impl std::error::Error for RouteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0.source)
    }
}

/// The error of a complete stack: [`RouteError`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the error of a complete stack",
    label = "this layer needs a complete stack inside it",
    note = "`DeadLetterLayer` is missing between this layer and the service it wraps"
)]
pub trait IsRouteError: sealed::Sealed + Send + 'static {
    /// The error.
    fn into_route_error(self) -> RouteError;
}

impl IsRouteError for RouteError {
    fn into_route_error(self) -> RouteError {
        self
    }
}

mod sealed {
    /// Keeps stage markers ours, so that a stage cannot be claimed without its layer.
    #[allow(unreachable_pub, reason = "named in the bounds of public traits")]
    pub trait Sealed {}
    impl Sealed for () {}
    impl Sealed for super::Done {}
    impl Sealed for super::Verdict {}
    impl Sealed for super::Settlement {}
    impl Sealed for super::RouteError {}
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_reading_is_used_once_and_does_not_grow_old() {
        let early = Instant::now();
        let used = with_reading(early, || [reading(), reading()]);
        assert_eq!(used[0], early);
        assert!(used[1] > early, "what comes next takes its own");
        with_reading(early, || ());
        assert!(reading() > early, "nobody used it");
        let panicked = catch_unwind(AssertUnwindSafe(|| with_reading(early, || panic!("inside"))));
        assert!(panicked.is_err() && reading() > early);
    }
}
