use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use dlq_core::Delivery;
use pin_project_lite::pin_project;

use super::{Failed, HandlerFailure, HandlerOutput};
use crate::extract::{FromDelivery, Rejection};

/// A function that handles messages: what `#[dlq_handler]` makes, and any async function or closure of up to twelve
/// [extractors](crate::extract) that returns `Result<(), E>` or nothing. `Args` tells the two apart and is inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for the state `{S}`",
    label = "not a handler",
    note = "a handler is an async function of at most 12 extractors that returns `Result<(), E>` or nothing, and whose future is `Send`",
    note = "`State<T>` needs `.with_state(..)` on the handler; `#[dlq_handler]` on the function says which argument is at fault"
)]
pub trait HandlerFn<S, Args>: Clone + Send + Sync + 'static {
    /// The function's error.
    type Error: HandlerFailure;

    /// Takes the arguments from `delivery` and runs the function.
    fn run(
        &self,
        delivery: Delivery,
        state: &S,
    ) -> impl Future<Output = Result<(), Failed<Self::Error>>> + Send + 'static + use<Self, S, Args>;
}

pin_project! {
    /// A run of a function.
    #[project = RunProj]
    enum Run<F> {
        // It runs.
        Running { #[pin] future: F },
        // An argument could not be taken.
        Rejected { rejection: Option<Rejection> },
    }
}

impl<F> Run<F> {
    /// The run that `start` begins, if it can take its arguments.
    fn of(start: impl FnOnce() -> Result<F, Rejection>) -> Self {
        match start() {
            Ok(future) => Self::Running { future },
            Err(rejection) => Self::Rejected { rejection: Some(rejection) },
        }
    }
}

impl<F, R> Future for Run<F>
where
    F: Future<Output = R>,
    R: HandlerOutput,
{
    type Output = Result<(), Failed<R::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match self.project() {
            RunProj::Running { future } => {
                ready!(future.poll(cx)).into_result().map_err(Failed::Handler)
            }
            RunProj::Rejected { rejection } => Err(Failed::Rejected(
                rejection.take().expect("a future is not polled after it has completed"),
            )),
        })
    }
}

macro_rules! function {
    ($($argument:ident),*; $($last:ident)?) => {
        impl<F, Fut, R, S, $($argument,)* $($last)?> HandlerFn<S, ($($argument,)* $($last,)?)> for F
        where
            F: Fn($($argument,)* $($last)?) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = R> + Send + 'static,
            R: HandlerOutput,
            S: Send + Sync + 'static,
            $($argument: FromDelivery<S>,)*
            $($last: FromDelivery<S>,)?
        {
            type Error = R::Error;

            #[allow(unused_variables, reason = "a function without arguments takes nothing")]
            fn run(
                &self,
                delivery: Delivery,
                state: &S,
            ) -> impl Future<Output = Result<(), Failed<R::Error>>>
            + Send
            + 'static
            + use<F, Fut, R, S, $($argument,)* $($last)?> {
                Run::of(|| {
                    Ok(self(
                        $($argument::from_delivery(&delivery, state)?,)*
                        $($last::from_last(delivery, state)?)?
                    ))
                })
            }
        }
    };
}

// The last argument takes the delivery itself and not a reference, so that an extractor of the whole copies nothing.
function!(; );
function!(; A1);
function!(A1; A2);
function!(A1, A2; A3);
function!(A1, A2, A3; A4);
function!(A1, A2, A3, A4; A5);
function!(A1, A2, A3, A4, A5; A6);
function!(A1, A2, A3, A4, A5, A6; A7);
function!(A1, A2, A3, A4, A5, A6, A7; A8);
function!(A1, A2, A3, A4, A5, A6, A7, A8; A9);
function!(A1, A2, A3, A4, A5, A6, A7, A8, A9; A10);
function!(A1, A2, A3, A4, A5, A6, A7, A8, A9, A10; A11);
function!(A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11; A12);
