use std::any::type_name;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::error::Error;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use dlq_core::{BoxError, Classification, Classifier, Classify};

/// Any error of a handler, with its class and where it arose. For handlers without an error type of their own.
///
/// `?` makes one of any error, as transient; [`ResultExt`] says otherwise:
///
/// ```
/// use dlq_tower::handler::{HandlerError, ResultExt};
///
/// async fn import(line: bytes::Bytes) -> Result<(), HandlerError> {
///     let text = std::str::from_utf8(&line).permanent()?;
///     let count: u32 = text.trim().parse().permanent()?;
///     std::fs::read("counts").map(drop)?; // transient
///     if count == 0 {
///         return Err(HandlerError::msg("nothing was counted").permanent());
///     }
///     Ok(())
/// }
/// # let _ = import;
/// ```
///
/// Where `RUST_BACKTRACE` or `RUST_LIB_BACKTRACE` asks for it, the backtrace of the place where it was made ends up in
/// the letter as well.
///
/// It is not an [`Error`] itself, so that `?` can make it of every error; [`as_ref`](Self::as_ref) gives the error
/// inside.
pub struct HandlerError(Box<Inner>);

struct Inner {
    error: BoxError,
    error_type: &'static str,
    judged: Classification,
    group: Option<String>,
    location: &'static Location<'static>,
    backtrace: Backtrace,
}

impl HandlerError {
    #[track_caller]
    fn of(error: BoxError, error_type: &'static str) -> Self {
        let (judged, location) = (Classification::transient(), Location::caller());
        // This costs next to nothing unless the environment asks for backtraces.
        let backtrace = Backtrace::capture();
        Self(Box::new(Inner { error, error_type, judged, group: None, location, backtrace }))
    }

    /// Makes one of an error, as transient.
    #[must_use]
    #[track_caller]
    pub fn new<E: Error + Send + Sync + 'static>(error: E) -> Self {
        Self::of(Box::new(error), type_name::<E>())
    }

    /// Makes one of a message, as transient.
    #[must_use]
    #[track_caller]
    pub fn msg(message: impl Into<String>) -> Self {
        Self::of(message.into().into(), "message")
    }

    /// Makes one of an error that knows its own class.
    #[must_use]
    #[track_caller]
    pub fn classified<E: Error + Classify + Send + Sync + 'static>(error: E) -> Self {
        // Both are asked for before the error is boxed, which hides its type.
        let (judged, group) = (error.classify(), error.group());
        let mut made = Self::new(error);
        made.0.judged = judged;
        made.0.group = group;
        made
    }

    /// No attempt will succeed: the message is given up.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.0.judged = Classification::permanent();
        self
    }

    /// Another attempt may succeed.
    #[must_use]
    pub fn transient(mut self) -> Self {
        self.0.judged = Classification::transient();
        self
    }

    /// Another attempt may succeed after this time, which wins over the policy's delay.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.0.judged = Classification::transient().after(delay);
        self
    }

    /// Its class.
    pub fn classification(&self) -> Classification {
        self.0.judged
    }

    /// The error inside, if it is an `E`.
    #[must_use]
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.0.error.downcast_ref()
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    #[track_caller]
    fn from(error: E) -> Self {
        Self::new(error)
    }
}

impl From<HandlerError> for BoxError {
    fn from(error: HandlerError) -> Self {
        error.0.error
    }
}

impl AsRef<dyn Error + Send + Sync + 'static> for HandlerError {
    fn as_ref(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0.error
    }
}

impl Classify for HandlerError {
    fn classify(&self) -> Classification {
        self.0.judged
    }

    fn group(&self) -> Option<String> {
        self.0.group.clone()
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.error, f)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerError")
            .field("error", &self.0.error)
            .field("judged", &self.0.judged)
            .field("location", &format_args!("{}", self.0.location))
            .finish_non_exhaustive()
    }
}

/// Reads everything that a [`HandlerError`] knows of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelfDescribed;

impl Classifier<HandlerError> for SelfDescribed {
    fn classify(&self, error: &HandlerError) -> Classification {
        error.0.judged
    }

    fn type_name(&self, error: &HandlerError) -> &'static str {
        error.0.error_type
    }

    fn location(&self, error: &HandlerError) -> Option<String> {
        Some(error.0.location.to_string())
    }

    fn group(&self, error: &HandlerError) -> Option<String> {
        error.0.group.clone()
    }

    fn backtrace(&self, error: &HandlerError) -> Option<String> {
        let captured = error.0.backtrace.status() == BacktraceStatus::Captured;
        captured.then(|| error.0.backtrace.to_string())
    }
}

/// Says what kind of failure an error is, where it arises. For results of any error.
pub trait ResultExt<T>: Sized + sealed::Sealed {
    /// No attempt will succeed: the message is given up.
    ///
    /// # Errors
    ///
    /// When the result is an error, which is then of this class.
    fn permanent(self) -> Result<T, HandlerError>;

    /// Another attempt may succeed.
    ///
    /// # Errors
    ///
    /// When the result is an error, which is then of this class.
    fn transient(self) -> Result<T, HandlerError>;

    /// Another attempt may succeed after this time, which wins over the policy's delay.
    ///
    /// # Errors
    ///
    /// When the result is an error, which is then of this class.
    fn retry_after(self, delay: Duration) -> Result<T, HandlerError>;
}

// Neither `map_err` nor `into`, which would hide the caller: `from` is tracked, closures and `into` are not.
impl<T, E> ResultExt<T> for Result<T, E>
where
    HandlerError: From<E>,
{
    #[track_caller]
    fn permanent(self) -> Result<T, HandlerError> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(HandlerError::from(error).permanent()),
        }
    }

    #[track_caller]
    fn transient(self) -> Result<T, HandlerError> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(HandlerError::from(error).transient()),
        }
    }

    #[track_caller]
    fn retry_after(self, delay: Duration) -> Result<T, HandlerError> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(HandlerError::from(error).retry_after(delay)),
        }
    }
}

mod sealed {
    #[allow(unreachable_pub, reason = "named in the bounds of a public trait")]
    pub trait Sealed {}
    impl<T, E> Sealed for Result<T, E> {}
}
