use std::sync::Arc;
use std::time::{Duration, Instant};

use dlq_core::{
    Delivery, Disposition, LetterId, Reason, Settle, TransportError, TransportErrorKind,
};
use tokio::time::timeout;

use crate::consumer::shared::{DeliveryPosition, Line, Phase, Returned, SourceState};

/// Time limit for leaving the group while the last delivery of a closed source is settled.
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
    shared: Arc<SourceState>,
    place: DeliveryPosition,
    line: Option<Line>,
    /// Until it is settled.
    delivery: Option<Delivery>,
    /// Under which identities its runs may be marked, of a suspect.
    suspect: Vec<LetterId>,
    /// It is noted that it is done.
    is_noted: bool,
    /// It is done because it kills: its marks go with the commit that passes it. Until then it may be handed out to another
    /// owner, who has to know (G3).
    kills: bool,
    /// It is not in flight any more.
    is_back: bool,
}

impl KafkaSettle {
    pub(crate) fn new(
        shared: &Arc<SourceState>,
        place: DeliveryPosition,
        line: Option<Line>,
        delivery: Delivery,
        suspect: Vec<LetterId>,
    ) -> Self {
        let shared = Arc::clone(shared);
        let delivery = Some(delivery);
        let (is_noted, kills, is_back) = (false, false, false);
        Self { shared, place, line, delivery, suspect, is_noted, kills, is_back }
    }

    fn give_back(&mut self, after: Duration) {
        let Some(delivery) = self.delivery.take() else { return };
        let now = Instant::now();
        // Beyond what the platform's clock can express, some thirty years stand for never.
        let due = now.checked_add(after).unwrap_or(now + Duration::from_secs(1 << 30));
        // The line stays with the delivery: the next record of it must not overtake the one that was given back (G5).
        let (place, line) = (self.place.clone(), self.line.take());
        self.shared.give_back(Returned { delivery, place, due, line });
    }

    fn done(&mut self, disposition: &Disposition) -> Result<(), TransportError> {
        if self.is_noted {
            return Ok(());
        }
        // Without it `come_back` has nothing to give back.
        self.delivery = None;
        // The line is free even where the partition went: `Lines::release` passes over what waits there.
        if let Some(line) = self.line.take() {
            self.shared.release(line);
        }
        self.place.partition.done(self.place.sequence).map_err(|_| {
            let text = "its partition was given to another process, which has the record now";
            TransportError::new(TransportErrorKind::Lost, "settle a record").with_detail(text)
        })?;
        self.is_noted = true;
        self.kills =
            matches!(disposition, Disposition::Dead(letter) if letter.reason == Reason::MaxCrashes);
        Ok(())
    }

    /// It is not in flight any more; was nothing said of it, it comes again. Whether its mark goes then is not known here, for
    /// what was found to kill is given back unrun: who wrote the mark ends it.
    fn come_back(&mut self) {
        if std::mem::replace(&mut self.is_back, true) {
            return;
        }
        // Only a delivery that was neither settled nor given back is still here.
        self.give_back(DROPPED);
        if !self.suspect.is_empty() {
            // A record that is done needs no mark.
            // One that kills keeps it until the position has passed it, for an owner that gets it again.
            if self.is_noted && !self.kills {
                self.place.partition.end(self.place.offset, 0);
            }
            // What comes again here stays registered, so whoever wrote its mark can end it.
            if self.is_noted || self.place.partition.is_leaving() {
                self.shared.cleared(&self.suspect, &self.place);
            }
        }
        self.shared.came_back(&self.place);
    }

    /// Returns true if this was the last delivery of a closed source: whoever waits for it may end the process next.
    /// Called after it is no longer in flight.
    fn was_last(&self) -> bool {
        self.shared.in_flight() == 0 && self.shared.phase() == Phase::Closing
    }
}

impl Settle for KafkaSettle {
    async fn settle(mut self, disposition: Disposition) -> Result<(), TransportError> {
        let settled = match disposition {
            Disposition::Deferred { after } => {
                // What is suspected counts on: whoever gives it back takes that off again.
                let times = |delivery: Delivery| match delivery.deliveries() {
                    0 | 1 => delivery,
                    times => delivery.with_deliveries(times.saturating_add(1)),
                };
                self.delivery = self.delivery.take().map(times);
                self.give_back(after);
                Ok(())
            }
            done @ (Disposition::Succeeded
            | Disposition::Duplicate
            | Disposition::Dead(_)
            | Disposition::DelayedRetry { .. }) => self.done(&done),
            unknown => Err(unknown.unsupported()),
        };
        self.come_back();
        // The process may end after this answer, so it comes when the last commit was made and the group was left.
        if self.was_last() {
            // The settlement stands even if the group is not left in time: at worst the record runs again elsewhere.
            let _ = timeout(LEAVING, self.shared.until_left()).await;
        }
        settled
    }

    fn settle_now(&mut self, disposition: &Disposition) -> Option<Result<(), TransportError>> {
        let settled = match disposition {
            Disposition::Succeeded
            | Disposition::Duplicate
            | Disposition::Dead(_)
            | Disposition::DelayedRetry { .. } => self.done(disposition),
            _ => return None,
        };
        self.come_back();
        // `None` has the caller come again by `settle`, which may wait and notes nothing twice.
        (!self.was_last()).then_some(settled)
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
        self.come_back();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use dlq_core::{Message, Origin, Position};
    use futures_util::poll;

    use super::*;
    use crate::consumer::partition::{Partition, Received};

    fn open() -> Arc<Partition> {
        let partition = Partition::new(1, "orders".into(), 0, None);
        partition.found(Some((5, "")));
        partition.opened();
        Arc::new(partition)
    }

    /// A record that was found to kill is given back until its letter can be written, and must not run meanwhile.
    #[tokio::test]
    async fn g3_the_mark_of_what_is_given_back_stays_until_it_is_ended() {
        use dlq_core::CrashMarks as _;

        let (shared, partition) = (Arc::new(SourceState::new()), open());
        let marks = crate::consumer::marks::KafkaCrashMarks::new(Arc::clone(&shared));
        let suspect = |shared: &Arc<SourceState>| {
            let mut settle = in_flight(shared, &partition, 5);
            let letter = settle.delivery.as_ref().unwrap().death("billing").letter;
            shared.suspect(&[letter], &settle.place);
            settle.suspect = vec![letter];
            (settle, letter)
        };
        let (settle, letter) = suspect(&shared);
        assert_eq!(partition.begin(5).ok(), Some(0));
        settle.settle(Disposition::Deferred { after: DROPPED }).await.unwrap();
        assert_eq!(partition.begin(5).ok(), Some(1), "it was given back");
        drop(suspect(&shared));
        assert_eq!(partition.begin(5).ok(), Some(2), "it was dropped");
        marks.end(letter, 0).await.unwrap();
        assert_eq!(partition.begin(5).ok(), Some(0), "its run has ended");
        let (settle, _) = suspect(&shared);
        settle.settle(DONE).await.unwrap();
        assert_eq!(partition.begin(5).ok(), Some(0), "it is done");
        assert!(shared.suspected(letter).is_none());
        let (settle, _) = suspect(&shared);
        let mut dead = dlq_testkit::fixtures::letter(5);
        dead.reason = Reason::MaxCrashes;
        settle.settle(Disposition::Dead(Box::new(dead))).await.unwrap();
        assert_eq!(
            partition.begin(5).ok(),
            Some(1),
            "whoever is handed it before it is passed has to know"
        );
        let (settle, _) = suspect(&shared);
        partition.leave();
        drop(settle);
        assert!(shared.suspected(letter).is_none(), "nothing is kept of what went");
    }

    fn in_flight(
        shared: &Arc<SourceState>,
        partition: &Arc<Partition>,
        offset: u64,
    ) -> KafkaSettle {
        let mut received = Received::default();
        partition.receive([(offset, &mut received)].into_iter());
        let place = DeliveryPosition {
            partition: Arc::clone(partition),
            sequence: received.sequence,
            offset,
        };
        assert!(shared.yielded(&place));
        let origin = Origin::new("kafka", "orders", Position::Offset(offset));
        let delivery = Delivery::new(Message::new("orders", "x"), origin);
        KafkaSettle::new(shared, place, None, delivery, Vec::new())
    }

    const DONE: Disposition = Disposition::Succeeded;

    #[tokio::test]
    async fn g1_the_last_word_of_a_closed_source_waits_until_its_group_was_left() {
        let (shared, partition) = (Arc::new(SourceState::new()), open());
        let [mut first, mut last] = [5, 6].map(|offset| in_flight(&shared, &partition, offset));
        shared.advance(Phase::Closing);
        assert!(matches!(first.settle_now(&DONE), Some(Ok(()))));
        assert!(last.settle_now(&DONE).is_none(), "it has to wait");
        assert_eq!(
            (shared.in_flight(), partition.rests_at()),
            (0, Some(7)),
            "the thread may leave"
        );
        assert!(partition.close(true).is_some());
        let mut settled = pin!(last.settle(DONE));
        assert!(poll!(settled.as_mut()).is_pending());
        shared.advance(Phase::Left);
        assert!(settled.await.is_ok(), "it was noted before");
    }

    #[test]
    fn what_is_said_at_once_is_said_once_and_not_of_a_partition_that_went() {
        let (shared, partition) = (Arc::new(SourceState::new()), open());
        let [mut first, mut second] = [5, 6].map(|offset| in_flight(&shared, &partition, offset));
        let later = Disposition::Deferred { after: DROPPED };
        assert!(first.settle_now(&later).is_none(), "it is given back by the other way");
        assert!(matches!(first.settle_now(&DONE), Some(Ok(()))));
        drop(first);
        assert_eq!((shared.in_flight(), shared.queue().returned.len()), (1, 0));
        partition.close(true);
        assert!(matches!(second.settle_now(&DONE), Some(Err(_))), "another has it now");
        drop(second);
        assert_eq!((shared.in_flight(), shared.queue().returned.len()), (0, 0));
    }
}
