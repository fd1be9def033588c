use dlq_core::store::rules::{self, Arrival};
use dlq_core::store::{Receipt, Sink};
use dlq_core::{DeadLetter, Escalation, LetterId, RetryLane, Status, StoreError, Timestamp};

use super::SqliteStore;
use super::unit::Unit;
use crate::error::{During, Result};
use crate::row::{Changed, Row};

impl Sink for SqliteStore {
    async fn put(&self, letters: Vec<DeadLetter>) -> std::result::Result<Vec<Receipt>, StoreError> {
        let now = self.now();
        let put = move |unit: &mut Unit<'_>| {
            let put = |letter: &DeadLetter| unit.bury(rules::put(letter.clone(), now), now);
            letters.iter().map(put).collect()
        };
        self.write(put).await.during("put letters")
    }
}

impl RetryLane for SqliteStore {
    async fn escalate(&self, escalation: Escalation) -> std::result::Result<(), StoreError> {
        let now = self.now();
        let record = rules::retry_record(escalation, now);
        let escalate = move |unit: &mut Unit<'_>| unit.record(record.clone(), now).map(|_| ());
        self.write(escalate).await.during("escalate a message")
    }
}

impl Unit<'_> {
    pub(super) fn restore(&mut self, letter: DeadLetter, now: Timestamp) -> Result<Receipt> {
        let letter = rules::restored(letter, now);
        if letter.state.status == Status::Retrying {
            self.record(letter, now)
        } else {
            self.bury(letter, now)
        }
    }

    /// A letter whose state is the one that it gets where it is new.
    fn bury(&mut self, mut letter: DeadLetter, now: Timestamp) -> Result<Receipt> {
        let id = letter.id;
        let is_dedup = self.is_dedup()?;
        let is_merging = is_dedup || self.has_aliases()?;
        // Most letters are new: where nothing is merged, try that first.
        if !is_merging {
            let row = Row::new(letter);
            if self.insert(&row)? {
                return Ok(Receipt::Stored);
            }
            letter = row.letter;
        }
        let row = self.whole(id)?;
        if row.is_none()
            && let Some(receipt) = self.merge_known(&letter, now)?
        {
            return Ok(receipt);
        }
        let standing = row.as_ref().map(|row| row.standing(&letter, is_dedup));
        match rules::death_arrives(standing, letter.generation) {
            Arrival::Known => Ok(Receipt::Unchanged),
            Arrival::OutOfDate => Ok(Receipt::Superseded),
            Arrival::Conflict => {
                let other = id.conflicting(&letter.message);
                letter.id = other;
                Ok(match self.bury(letter, now)? {
                    inner @ (Receipt::Conflicting(_) | Receipt::Merged(_)) => inner,
                    _ => Receipt::Conflicting(other),
                })
            }
            Arrival::News => {
                if let Some(mut row) = row {
                    self.died_anew(&mut row, &letter, now)?;
                    row.void();
                    rules::replace(&mut row.letter, letter, now);
                    self.update(&mut row, Changed::All)?;
                    self.take_key(&mut row)?;
                }
                Ok(Receipt::Reopened)
            }
            Arrival::New => {
                if let Some(owner) = self.owner_of(&letter)? {
                    return self.merge(owner, letter, now);
                }
                self.insert(&Row::new(letter))?;
                if is_dedup && let Some(mut row) = self.head(id)? {
                    self.take_key(&mut row)?;
                }
                Ok(Receipt::Stored)
            }
        }
    }

    fn record(&mut self, mut record: DeadLetter, now: Timestamp) -> Result<Receipt> {
        let id = record.id;
        let is_dedup = self.is_dedup()?;
        let row = self.whole(id)?;
        if row.is_none()
            && let Some((owner, generation)) = self.alias(id)?
            && generation >= record.generation
        {
            return Ok(Receipt::Merged(owner));
        }
        let standing = row.as_ref().map(|row| row.standing(&record, is_dedup));
        match (rules::record_arrives(standing, record.generation, record.attempts), row) {
            (Arrival::Known, _) => Ok(Receipt::Unchanged),
            (Arrival::OutOfDate, _) => Ok(Receipt::Superseded),
            (Arrival::Conflict, _) => {
                let other = id.conflicting(&record.message);
                record.id = other;
                Ok(match self.record(record, now)? {
                    inner @ (Receipt::Conflicting(_) | Receipt::Merged(_)) => inner,
                    _ => Receipt::Conflicting(other),
                })
            }
            (Arrival::News, Some(mut row)) => {
                if record.generation > row.letter.generation {
                    self.died_anew(&mut row, &record, now)?;
                    row.void();
                }
                rules::take_record(&mut row.letter, record, now);
                self.update(&mut row, Changed::All)?;
                Ok(Receipt::Reopened)
            }
            (Arrival::New | Arrival::News, _) => {
                self.insert(&Row::new(record))?;
                Ok(Receipt::Stored)
            }
        }
    }

    /// The row of the same original message, where letters are deduplicated.
    fn owner_of(&mut self, letter: &DeadLetter) -> Result<Option<LetterId>> {
        if !self.is_dedup()? {
            return Ok(None);
        }
        self.owner_of_key(crate::row::dedup_key(letter))
    }
}
