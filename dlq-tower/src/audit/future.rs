use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use dlq_core::store::{Processed, ProcessedEvent};
use dlq_core::{Delivery, Disposition, Failure, SharedClock};
use metrics::counter;
use pin_project_lite::pin_project;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use super::AUDIT_LOST_TOTAL;
use crate::stage::{IsRouteError, IsSettlement, RouteError, Settlement};

pin_project! {
    /// A message in flight, noted when it is settled.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        // None when nothing is noted.
        note: Option<Note>,
    }
}

impl<F> ResponseFuture<F> {
    pub(super) fn new(inner: F, note: Option<Note>) -> Self {
        Self { inner, note }
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<R, E>>,
    R: IsSettlement,
    E: IsRouteError,
{
    type Output = Result<Settlement, RouteError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        Poll::Ready(match ready!(this.inner.poll(cx)) {
            Ok(response) => {
                let settlement = response.into_settlement();
                if let Some(note) = this.note.take() {
                    note.send(settlement.disposition());
                }
                Ok(settlement)
            }
            // It is not settled and comes again; then it is noted.
            Err(error) => Err(error.into_route_error()),
        })
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("noted", &self.note.is_some())
            .finish_non_exhaustive()
    }
}

/// Data of a row.
pub(super) struct Note {
    delivery: Delivery,
    rows: Sender<ProcessedEvent>,
    clock: SharedClock,
    began: Instant,
}

impl Note {
    pub(super) fn new(
        delivery: Delivery,
        rows: Sender<ProcessedEvent>,
        clock: SharedClock,
    ) -> Self {
        Self { delivery, rows, clock, began: Instant::now() }
    }

    /// Hands the row over, without waiting.
    fn send(self, disposition: &Disposition) {
        let before = self.delivery.attempt();
        let (status, consumer, attempt, error) = match disposition {
            Disposition::Succeeded | Disposition::Duplicate => {
                (Processed::Success, None, before, None)
            }
            Disposition::Dead(letter) => (
                Processed::Dlq,
                Some(letter.consumer.clone()),
                letter.attempts,
                Some(letter.error()),
            ),
            Disposition::DelayedRetry { history, attempts, .. } => {
                (Processed::Failed, None, *attempts, history.last().map(Failure::report))
            }
            // A deferred message was not processed. It is noted when it comes again.
            _ => return,
        };
        let message = self.delivery.message();
        let row = ProcessedEvent {
            event_id: message
                .id()
                .map_or_else(|| self.delivery.origin().to_string(), str::to_owned),
            subject: message.subject().to_owned(),
            consumer: consumer.unwrap_or_else(|| self.delivery.consumer().to_owned()),
            status,
            attempt,
            duration: self.began.elapsed(),
            at: self.clock.now(),
            error,
        };
        // Waiting for room would let a slow store hold up messages (G4). What is lost is counted.
        if self.rows.try_send(row).is_err() {
            counter!(AUDIT_LOST_TOTAL).increment(1);
        }
    }
}
