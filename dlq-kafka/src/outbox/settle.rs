use std::time::Duration;

use dlq_core::outbox::{Outgoing, Settled};
use dlq_core::{StoreError, StoreErrorKind, Timestamp};
use tokio::time::Instant;

use super::send::{Failed, why};
use super::{KafkaOutbox, PREFIX, ledger};
use crate::client::aside::aside;
use crate::client::error::SetupError;
use crate::dead::PATIENCE;
use crate::dead::dispatch::{REPLAYING, refused};

/// Greatest difference between the clocks of the broker and of the store.
const SKEW: Duration = Duration::from_secs(60);

impl KafkaOutbox {
    pub(super) async fn settle_all(
        &self,
        sender: &str,
        since: Timestamp,
        batch: &[Outgoing],
    ) -> Result<Vec<Settled>, StoreError> {
        if !sender.starts_with(PREFIX) {
            return Err(refused(format!(
                "`{sender}` is no sender of an outbox, whose names begin with `{PREFIX}`; it is not taken over"
            )));
        }
        if sender == &*self.sender {
            // What it has open itself is ended by the next session.
            drop(self.session.lock().await.take());
        } else {
            // The session is opened only to fence that sender off, and is closed at once.
            let taken = self.open_session(sender).await;
            drop(taken.map_err(|error| error.for_store(REPLAYING))?);
        }
        // The sender is fenced and commits nothing any more, so what it has committed stands before this record (G6).
        let own = self.mark().await?;
        let (topic, lookup) = (&self.ledger, &self.lookup);
        let failed = |error: SetupError| error.for_store(REPLAYING);
        let partitions = lookup.partitions(topic).await.map_err(failed)?;
        let begin = partitions.get(&0).map_or(0, |bounds| bounds.begin);
        // The claim has the time of the store and the ledger that of the broker, which may differ a little.
        let from = lookup.since(topic, &partitions, since.before(SKEW)).await.map_err(failed)?;
        let from = from.get(&0).copied().unwrap_or(begin);
        let (brokers, name) = (self.brokers.clone(), topic.clone());
        // On a thread of its own, as a silent client would keep the runtime from ending.
        let read = aside(PATIENCE * 20, move || ledger::read(&brokers, &name, from, own)).await;
        let silent = || SetupError::Unavailable(format!("read topic `{topic}`: no answer"), None);
        let said = read.unwrap_or_else(|| Err(silent())).map_err(failed)?;
        // A ledger that is older than the claim has a record from before it, or had one.
        let is_short = from <= begin && said.first.is_none_or(|first| first > since.after(SKEW));
        let mut settled = Vec::with_capacity(batch.len());
        for one in batch {
            settled.push(match said.arrived.get(&one.once) {
                Some(at) => {
                    self.known().arrived(one.once);
                    Settled::Arrived(*at)
                }
                // `Not` would have the letter sent again, so it is said only where the ledger would know.
                None if is_short => Settled::Unclear(format!(
                    "topic `{topic}`, which says what was sent, does not go back to that time; it keeps 7 days unless its \
                     settings were changed or it was made anew"
                )),
                None => Settled::Not,
            });
        }
        Ok(settled)
    }

    /// Writes a record to the ledger and returns its offset: everything that was committed before stands before it.
    pub(super) async fn mark(&self) -> Result<i64, StoreError> {
        let unavailable = |text: String| {
            StoreError::new(StoreErrorKind::Unavailable, REPLAYING).with_detail(text)
        };
        let mut turn = self.session.lock().await;
        let mut tries = 0;
        loop {
            tries += 1;
            let held = match turn.take() {
                Some(held) => held,
                None => {
                    let opened = self.open_session(&self.sender).await;
                    opened.map_err(|error| error.for_store(REPLAYING))?
                }
            };
            let marker = ledger::marker(&self.ledger, &self.sender)?;
            match self.transact(&held, vec![marker], Instant::now() + PATIENCE).await {
                Ok(written) => {
                    *turn = Some(held);
                    let own = written.first().map(|(_, offset)| *offset);
                    return own.ok_or_else(|| unavailable("nothing was written".to_owned()));
                }
                // The session had ended before, or ends with it: another one may do.
                Err(_) if tries == 1 => {}
                Err(Failed::Unknown(text)) => return Err(unavailable(text)),
                Err(Failed::Broken(broken)) => {
                    return Err(match broken {
                        crate::dead::session::Broken::Refused(error) => error.for_store(REPLAYING),
                        broken => unavailable(why(&broken, &self.ledger)),
                    });
                }
            }
        }
    }
}
