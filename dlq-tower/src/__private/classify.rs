use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use dlq_core::{BoxError, Cause, Classification, Classifier, Classify};

use crate::classify::Derived;
use crate::handler::{BoxClassifier, HandlerError, SelfDescribed, Unclassified};

/// Asks how errors of type `E` are judged when nobody says. Method look-up answers: it takes the first of the three
/// traits below that fits, in the order in which it adds and removes references to `&&ClassProbe<E>`.
pub struct ClassProbe<E>(PhantomData<fn() -> E>);

impl<E> ClassProbe<E> {
    /// Asks.
    pub const NEW: Self = Self(PhantomData);
}

impl<E> fmt::Debug for ClassProbe<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClassProbe")
    }
}

/// First: a [`HandlerError`] knows everything.
pub trait ViaHandlerError {
    /// Returns the classifier.
    fn judge(&self) -> BoxClassifier<HandlerError>;
}

impl ViaHandlerError for &ClassProbe<HandlerError> {
    fn judge(&self) -> BoxClassifier<HandlerError> {
        BoxClassifier::new(SelfDescribed)
    }
}

/// Second: an error that is classified.
pub trait ViaClassify {
    /// The error.
    type Error;

    /// Returns the classifier.
    fn judge(&self) -> BoxClassifier<Self::Error>;
}

impl<E: Classify + 'static> ViaClassify for &&ClassProbe<E> {
    type Error = E;

    fn judge(&self) -> BoxClassifier<E> {
        BoxClassifier::new(Derived)
    }
}

/// Last: any other error is transient.
pub trait ViaNothing {
    /// The error.
    type Error;

    /// Returns the classifier.
    fn judge(&self) -> BoxClassifier<Self::Error>;
}

impl<E: 'static> ViaNothing for ClassProbe<E> {
    type Error = E;

    fn judge(&self) -> BoxClassifier<E> {
        BoxClassifier::new(Unclassified)
    }
}

/// Makes the classifier that the attribute's `classify` names.
pub fn closure<E, F, R>(classify: F) -> BoxClassifier<E>
where
    E: Into<BoxError> + 'static,
    F: Fn(&E) -> R + Send + Sync + 'static,
    R: Into<Classification> + 'static,
{
    BoxClassifier::new(classify)
}

/// Gives the closure of the attribute's `terminal` its argument's type.
pub fn pattern<E, F: Fn(&E) -> bool>(terminal: F) -> F {
    terminal
}

/// Errors that fit `terminal` are permanent, all others as `judge` says.
pub fn classifier<E: 'static>(
    terminal: impl Fn(&E) -> bool + Send + Sync + 'static,
    judge: BoxClassifier<E>,
) -> BoxClassifier<E> {
    BoxClassifier::new(Terminal { terminal, judge })
}

struct Terminal<F, E> {
    terminal: F,
    judge: BoxClassifier<E>,
}

impl<F: Fn(&E) -> bool, E> Classifier<E> for Terminal<F, E> {
    fn classify(&self, error: &E) -> Classification {
        if (self.terminal)(error) {
            Classification::permanent()
        } else {
            self.judge.classify(error)
        }
    }

    fn cause(&self, error: &E) -> Cause {
        self.judge.cause(error)
    }

    fn type_name(&self, error: &E) -> &'static str {
        self.judge.type_name(error)
    }

    fn location(&self, error: &E) -> Option<String> {
        self.judge.location(error)
    }

    fn group(&self, error: &E) -> Option<String> {
        self.judge.group(error)
    }

    fn backtrace(&self, error: &E) -> Option<String> {
        self.judge.backtrace(error)
    }
}

/// Types that `retry_after` of the derive may name: a duration, or an optional one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not how long to wait",
    label = "not a duration",
    note = "`retry_after` names a field or an expression of type `Duration` or `Option<Duration>`, or a text such as \"10s\""
)]
pub trait RetryAfter {
    /// Returns the time to wait.
    fn retry_after(&self) -> Option<Duration>;
}

impl RetryAfter for Duration {
    fn retry_after(&self) -> Option<Duration> {
        Some(*self)
    }
}

impl<T: RetryAfter> RetryAfter for Option<T> {
    fn retry_after(&self) -> Option<Duration> {
        self.as_ref().and_then(RetryAfter::retry_after)
    }
}

impl<T: RetryAfter> RetryAfter for &T {
    fn retry_after(&self) -> Option<Duration> {
        (**self).retry_after()
    }
}

/// Transient, after the time that the error names, if it does.
pub fn retry_after(after: &impl RetryAfter) -> Classification {
    let judged = Classification::transient();
    after.retry_after().map_or(judged, |delay| judged.after(delay))
}
