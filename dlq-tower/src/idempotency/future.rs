use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::stage::{ClassifiedError, Done, IsDone, Setback};

type Once = Pin<Box<dyn Future<Output = Result<Done, Setback>> + Send>>;

pin_project! {
    /// One run, at most once per key.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        // There is no key.
        Plain { #[pin] inner: F },
        // Claims, runs, and tells the store how it ended.
        Claimed { once: Once },
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn plain(inner: F) -> Self {
        Self { state: State::Plain { inner } }
    }

    #[inline]
    pub(super) fn claimed(once: Once) -> Self {
        Self { state: State::Claimed { once } }
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<R, E>>,
    R: IsDone,
    E: ClassifiedError,
{
    type Output = Result<Done, Setback>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Plain { inner } => {
                inner.poll(cx).map(|outcome| outcome.map(R::into_done).map_err(E::into_setback))
            }
            StateProj::Claimed { once } => once.as_mut().poll(cx),
        }
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claimed = matches!(self.state, State::Claimed { .. });
        f.debug_struct("ResponseFuture").field("claimed", &claimed).finish_non_exhaustive()
    }
}
