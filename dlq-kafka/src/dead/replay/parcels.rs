use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::replay::{ReplayOutcome, Skipped};
use dlq_core::{DeadLetter, StoreError};
use futures_util::StreamExt;
use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::time::Instant;

use super::super::ledger::{Ledger, Marks};
use super::super::picture::{LetterPosition, Row};
use super::super::reading::Whole;
use super::super::send::now;
use super::Replayed;
use super::run::Run;
use crate::client::error::SetupError;
use crate::dead::dispatch::{OutgoingRecord, REPLAYING, closed, not_taken};
use crate::dead::session::Broken;

/// Maximum number of letters in a transaction.
const BATCH: u32 = 500;
/// After how many bytes of payload no letter is added to a transaction.
const BYTES: usize = 8 * 1024 * 1024;
/// A letter that is ready to be sent, and its mark.
pub(super) struct Parcel<'a> {
    pub(super) row: &'a Row,
    pub(super) letter: OutgoingRecord,
    pub(super) mark: OutgoingRecord,
    /// For which time it is sent, as the ledger says.
    pub(super) times: u32,
}

impl<'a, T: FnMut(&Replayed) + Send> Run<'a, T> {
    /// Splits parcels after a failed transaction. Everything in a transaction fails at once, so halves are tried until
    /// it is known which letter cannot be sent.
    pub(super) fn set_aside(&mut self, mut parcels: Vec<Parcel<'a>>, blamed: &[usize], code: Code) {
        if let [number] = blamed {
            // A parcel is two records of the transaction: its letter and its mark.
            let parcel = parcels.remove(number / 2);
            let topic = &parcel.letter.topic;
            let error = not_taken(topic, code);
            self.tell(parcel.row, ReplayOutcome::Failed(error));
            return self.parts.push_front(parcels);
        }
        let half = parcels.split_off(parcels.len() / 2);
        // Both go to the front, the first half last, so letters keep their order.
        self.parts.push_front(half);
        self.parts.push_front(parcels);
    }

    pub(super) fn close_topic(&mut self, parcels: Vec<Parcel<'a>>, code: Code) {
        let mut topics: BTreeMap<Arc<str>, Vec<Parcel<'a>>> = BTreeMap::new();
        for parcel in parcels {
            topics.entry(Arc::clone(&parcel.letter.topic)).or_default().push(parcel);
        }
        // The error does not say which topic it is of, so each is tried alone.
        if topics.len() > 1 {
            return topics.into_values().for_each(|parcels| self.parts.push_front(parcels));
        }
        for (topic, parcels) in topics {
            for parcel in &parcels {
                self.tell(parcel.row, ReplayOutcome::Failed(closed(&topic, code)));
            }
            self.closed.insert(topic, code);
        }
    }

    /// The next letters, when their turn has come, with their payloads.
    pub(super) async fn pack(
        &mut self,
        ledger: &Option<Ledger>,
    ) -> Result<Vec<Parcel<'a>>, Broken> {
        // Under a rate a transaction has the letters of a quarter of a second, so that they flow evenly.
        let size = self.replay.rules.rate.map_or(BATCH, |rate| (rate / 4).clamp(1, BATCH));
        self.stop.wait_until(self.turn).await;
        if self.is_stopped() {
            return Err(Broken::Stopped);
        }
        let count = self.rows.len().min(size as usize);
        let mut rows: Vec<&'a Row> = self.rows.iter().take(count).copied().collect();
        let letters = self.replay.letters.whole(&rows);
        let (mut letters, mut bytes) = (pin!(letters), 0);
        let mut whole: HashMap<LetterPosition, Whole<'a>> = HashMap::new();
        let mut is_all = true;
        while let Some(read) = letters.next().await {
            let (place, read) = read.map_err(|error| {
                Broken::Server(SetupError::Unavailable(error.to_string(), Some(error.into())))
            })?;
            let payload = read.as_ref().ok().and_then(|letter| letter.message.payload());
            bytes += payload.map_or(0, |payload| payload.len());
            whole.insert(place, read);
            if self.is_stopped() {
                return Err(Broken::Stopped);
            }
            // Bounded by bytes as well, since all payloads of a transaction are in memory at the same time.
            if bytes > BYTES {
                is_all = false;
                break;
            }
        }
        if !is_all {
            // What was not come to is for the next time; what has gone is found out then.
            rows.retain(|row| whole.contains_key(&row.place));
            self.rows.retain(|row| !whole.contains_key(&row.place));
        } else {
            self.rows.drain(..count);
        }
        let mut parcels = Vec::new();
        for row in rows {
            let letter = match whole.remove(&row.place) {
                Some(Ok(letter)) => letter,
                Some(Err(why)) => {
                    self.tell(row, ReplayOutcome::Failed(why.error(REPLAYING)));
                    continue;
                }
                None => {
                    self.tell(row, ReplayOutcome::Skipped(Skipped::Gone));
                    continue;
                }
            };
            let times = ledger.as_ref().map_or(1, |ledger| next_time(row, ledger.marks()));
            match self.parcel(row, &letter, times) {
                Ok(parcel) => parcels.push(parcel),
                Err(error) => self.tell(row, ReplayOutcome::Failed(error)),
            }
        }
        if let Some(rate) = self.replay.rules.rate {
            let count = u32::try_from(parcels.len()).unwrap_or(BATCH);
            // The turn begins now at the earliest: time that went by without letters is not made up for by a burst.
            self.turn = self.turn.max(Instant::now()) + Duration::from_secs(1) * count / rate;
        }
        Ok(parcels)
    }

    fn parcel(
        &self,
        row: &'a Row,
        letter: &DeadLetter,
        times: u32,
    ) -> Result<Parcel<'a>, StoreError> {
        let at = now();
        // Others may have sent it since it was read, so that only what it came with counts of that.
        let known = next_time(row, self.marks) - 1;
        let count = row.letter.state.replays.saturating_sub(known).saturating_add(times);
        let place = (row.place.partition, row.place.offset);
        let outgoing = self.shipment.pack(letter, place, count, at)?;
        // The topic is not asked again for each letter: every try would cost a transaction.
        if let Some(code) = self.closed.get(&outgoing.topic) {
            return Err(closed(&outgoing.topic, *code));
        }
        let mark = self.shipment.mark(&row.letter, &outgoing.topic, times, at)?;
        Ok(Parcel { row, letter: outgoing, mark, times })
    }
}

/// For which time it would be sent now.
pub(super) fn next_time(row: &Row, marks: &Marks) -> u32 {
    marks.get(&row.letter.death()).map_or(0, |mark| mark.times).saturating_add(1)
}
