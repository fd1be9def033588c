use std::sync::Arc;
use std::time::{Duration, Instant};

use dlq_core::{Delivery, Disposition, LetterId, Settle, TransportError, TransportErrorKind};
use tokio::time::timeout;

use crate::shared::{Line, Phase, Place, Returned, Shared};

/// How long leaving the group may take whoever settles the last delivery of a closed source.
const LEAVING: Duration = Duration::from_secs(5);
/// When a delivery that was dropped comes again: soon, and not so soon that it keeps the process busy.
const DROPPED: Duration = Duration::from_secs(1);

/// Ends a delivery of a [`KafkaSource`](crate::KafkaSource).
///
/// A record that is done is noted in the process, and its partition's offset is committed a moment later: a process that
/// dies in between hands it out again. A record that is deferred stays in the process. When the partition was given to
/// another process meanwhile, nothing that is said counts any more, and the other has the record.
#[derive(Debug)]
pub struct KafkaSettle {
    shared: Arc<Shared>,
    place: Place,
    line: Option<Line>,
    /// Until it is settled.
    delivery: Option<Delivery>,
    /// Under which identity its runs are marked, of a suspect.
    suspect: Option<LetterId>,
}

impl KafkaSettle {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        place: Place,
        line: Option<Line>,
        delivery: Delivery,
        suspect: Option<LetterId>,
    ) -> Self {
        let shared = Arc::clone(shared);
        Self { shared, place, line, delivery: Some(delivery), suspect }
    }

    fn give_back(&mut self, after: Duration) {
        let Some(delivery) = self.delivery.take() else { return };
        let now = Instant::now();
        // Some thirty years.
        let due = now.checked_add(after).unwrap_or(now + Duration::from_secs(1 << 30));
        let (place, line) = (self.place.clone(), self.line.take());
        self.shared.give_back(Returned { delivery, place, due, line });
    }

    fn done(&mut self) -> Result<(), TransportError> {
        self.delivery = None;
        if let Some(line) = self.line.take() {
            self.shared.release(line);
        }
        self.place.partition.done(self.place.sequence).map_err(|_| {
            let text = "its partition was given to another process, which has the record now";
            TransportError::new(TransportErrorKind::Lost, "settle a record").with_detail(text)
        })
    }
}

impl Settle for KafkaSettle {
    async fn settle(mut self, disposition: Disposition) -> Result<(), TransportError> {
        let settled = match disposition {
            Disposition::Deferred { after } => {
                self.give_back(after);
                Ok(())
            }
            _ => self.done(),
        };
        let shared = Arc::clone(&self.shared);
        drop(self);
        if shared.in_hand() == 0 && shared.phase() == Phase::Closing {
            // The last word of a closed source: whoever waits for it may end the process next.
            let _ = timeout(LEAVING, shared.until_left()).await;
        }
        settled
    }

    /// There is no lease: a partition is ours until it is revoked.
    async fn extend(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn lease(&self) -> Option<Duration> {
        None
    }
}

impl Drop for KafkaSettle {
    fn drop(&mut self) {
        self.give_back(DROPPED);
        if let Some(letter) = self.suspect {
            self.place.partition.end(self.place.offset);
            self.shared.cleared(letter, &self.place);
        }
        self.shared.came_back(&self.place);
    }
}
