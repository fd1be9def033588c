use std::convert::Infallible;

use dlq_core::BoxError;

/// Types that a handler's function may return: `Result<(), E>` or nothing. `E` is any error, also a text.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a handler returns",
    label = "a handler returns `Result<(), E>`, or nothing if it cannot fail",
    note = "`E` is anything that `Box<dyn Error + Send + Sync>` can be made from: an error type of yours with `#[derive(Classify)]`, or `dlq_tower::handler::HandlerError`"
)]
pub trait HandlerOutput: sealed::Sealed + Send {
    /// The handler's error.
    type Error: HandlerFailure;

    /// As a result.
    ///
    /// # Errors
    ///
    /// When the handler failed.
    fn into_result(self) -> Result<(), Self::Error>;
}

impl HandlerOutput for () {
    type Error = Infallible;

    fn into_result(self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl<E: HandlerFailure> HandlerOutput for Result<(), E> {
    type Error = E;

    fn into_result(self) -> Self {
        self
    }
}

/// Errors that a handler may return: anything that `Box<dyn Error + Send + Sync>` can be made from.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an error that a handler can return",
    label = "not an error",
    note = "implement `std::error::Error` for it, e.g. with `thiserror`, and `#[derive(Classify)]`; texts are errors too",
    note = "for errors of any type, return `Result<(), dlq_tower::handler::HandlerError>`"
)]
pub trait HandlerFailure: Into<BoxError> + Send + 'static {}

#[diagnostic::do_not_recommend]
impl<E: Into<BoxError> + Send + 'static> HandlerFailure for E {}

mod sealed {
    #[allow(unreachable_pub, reason = "named in the bounds of a public trait")]
    pub trait Sealed {}
    impl Sealed for () {}
    impl<E> Sealed for Result<(), E> {}
}
