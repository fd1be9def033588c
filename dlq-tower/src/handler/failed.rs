use std::fmt;
use std::sync::Arc;

use dlq_core::{BoxError, Cause, Classification, Classifier};

use crate::extract::Rejection;

/// Reason why a run of a handler's function did not succeed.
#[derive(Debug)]
pub enum Failed<E> {
    /// An argument could not be taken; the function did not run.
    Rejected(Rejection),
    /// The function returned an error.
    Handler(E),
}

impl<E: Into<BoxError>> From<Failed<E>> for BoxError {
    fn from(failed: Failed<E>) -> Self {
        match failed {
            Failed::Rejected(rejection) => Box::new(rejection),
            Failed::Handler(error) => error.into(),
        }
    }
}

/// Judges rejections itself, and leaves the function's errors to `C`. For a [`service`](super::service()) that is composed
/// by hand.
#[derive(Clone, Copy, Debug)]
pub struct Judge<C>(pub C);

impl<E, C: Classifier<E>> Classifier<Failed<E>> for Judge<C> {
    fn classify(&self, failed: &Failed<E>) -> Classification {
        match failed {
            // The same bytes are rejected at the next attempt too.
            Failed::Rejected(_) => Classification::permanent(),
            Failed::Handler(error) => self.0.classify(error),
        }
    }

    fn cause(&self, failed: &Failed<E>) -> Cause {
        match failed {
            Failed::Rejected(rejection) => rejection.cause(),
            Failed::Handler(error) => self.0.cause(error),
        }
    }

    fn type_name(&self, failed: &Failed<E>) -> &'static str {
        match failed {
            Failed::Rejected(rejection) => rejection.kind(),
            Failed::Handler(error) => self.0.type_name(error),
        }
    }

    fn location(&self, failed: &Failed<E>) -> Option<String> {
        match failed {
            Failed::Rejected(_) => None,
            Failed::Handler(error) => self.0.location(error),
        }
    }

    fn group(&self, failed: &Failed<E>) -> Option<String> {
        match failed {
            Failed::Rejected(_) => None,
            Failed::Handler(error) => self.0.group(error),
        }
    }

    fn backtrace(&self, failed: &Failed<E>) -> Option<String> {
        match failed {
            Failed::Rejected(_) => None,
            Failed::Handler(error) => self.0.backtrace(error),
        }
    }
}

/// Any classifier of `E`, erased: what the attribute names in the type of a builder.
pub struct BoxClassifier<E>(Arc<dyn Classifier<E> + Send + Sync>);

impl<E> BoxClassifier<E> {
    pub(crate) fn new(classifier: impl Classifier<E> + Send + Sync + 'static) -> Self {
        Self(Arc::new(classifier))
    }
}

impl<E> Clone for BoxClassifier<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E> fmt::Debug for BoxClassifier<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxClassifier").finish_non_exhaustive()
    }
}

impl<E> Classifier<E> for BoxClassifier<E> {
    fn classify(&self, error: &E) -> Classification {
        self.0.classify(error)
    }

    fn cause(&self, error: &E) -> Cause {
        self.0.cause(error)
    }

    fn type_name(&self, error: &E) -> &'static str {
        self.0.type_name(error)
    }

    fn location(&self, error: &E) -> Option<String> {
        self.0.location(error)
    }

    fn group(&self, error: &E) -> Option<String> {
        self.0.group(error)
    }

    fn backtrace(&self, error: &E) -> Option<String> {
        self.0.backtrace(error)
    }
}
