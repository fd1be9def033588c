use dlq_core::store::rules::{self, Arrival};
use dlq_core::store::{Receipt, Sink};
use dlq_core::{DeadLetter, Escalation, LetterId, RetryLane, StoreError, Timestamp};

use super::SqliteStore;
use super::unit::Unit;
use crate::error::{During, Result};
use crate::row::{Changed, Row};

impl Sink for SqliteStore {
    async fn put(&self, letters: Vec<DeadLetter>) -> std::result::Result<Vec<Receipt>, StoreError> {
        let now = self.now();
        let put = move |unit: &mut Unit<'_>| {
            letters.iter().map(|letter| unit.bury(letter, now)).collect()
        };
        self.write(put).await.during("put letters")
    }
}

impl RetryLane for SqliteStore {
    async fn escalate(&self, escalation: Escalation) -> std::result::Result<(), StoreError> {
        let now = self.now();
        let record = rules::retry_record(escalation, now);
        let escalate = move |unit: &mut Unit<'_>| unit.record(record.clone(), now);
        self.write(escalate).await.during("escalate a message")
    }
}

impl Unit<'_> {
    fn bury(&mut self, letter: &DeadLetter, now: Timestamp) -> Result<Receipt> {
        let id = letter.id;
        let is_dedup = self.is_dedup()?;
        let is_merging = is_dedup || self.has_aliases()?;
        // Most letters are new: where nothing is merged, try that first.
        if !is_merging && self.insert_born(letter, now)? {
            return Ok(Receipt::Stored);
        }
        let row = self.whole(id)?;
        if row.is_none()
            && let Some(receipt) = self.merge_known(letter, now)?
        {
            return Ok(receipt);
        }
        let standing = row.as_ref().map(|row| row.standing(letter, is_dedup));
        match rules::death_arrives(standing, letter.generation) {
            Arrival::Known => Ok(Receipt::Unchanged),
            Arrival::OutOfDate => Ok(Receipt::Superseded),
            Arrival::Conflict => {
                let other = id.conflicting(&letter.message);
                let letter = DeadLetter { id: other, ..letter.clone() };
                Ok(match self.bury(&letter, now)? {
                    inner @ (Receipt::Conflicting(_) | Receipt::Merged(_)) => inner,
                    _ => Receipt::Conflicting(other),
                })
            }
            Arrival::News => {
                if let Some(mut row) = row {
                    self.died_anew(&mut row, now)?;
                    row.void();
                    rules::reopen(&mut row.letter, letter.clone(), now);
                    self.update(&mut row, Changed::All)?;
                    self.take_key(&mut row)?;
                }
                Ok(Receipt::Reopened)
            }
            Arrival::New => {
                if let Some(owner) = self.owner_of(letter)? {
                    return self.merge(owner, letter.clone(), now);
                }
                self.insert_born(letter, now)?;
                if is_dedup && let Some(mut row) = self.head(id)? {
                    self.take_key(&mut row)?;
                }
                Ok(Receipt::Stored)
            }
        }
    }

    fn insert_born(&mut self, letter: &DeadLetter, now: Timestamp) -> Result<bool> {
        self.insert(&Row::new(DeadLetter { state: rules::born(now), ..letter.clone() }))
    }

    fn record(&mut self, mut record: DeadLetter, now: Timestamp) -> Result<()> {
        let id = record.id;
        let is_dedup = self.is_dedup()?;
        let row = self.whole(id)?;
        if row.is_none()
            && let Some((_, generation)) = self.alias(id)?
            && generation >= record.generation
        {
            return Ok(());
        }
        let standing = row.as_ref().map(|row| row.standing(&record, is_dedup));
        match (rules::record_arrives(standing, record.generation, record.attempts), row) {
            (Arrival::Known | Arrival::OutOfDate, _) => Ok(()),
            (Arrival::Conflict, _) => {
                record.id = id.conflicting(&record.message);
                self.record(record, now)
            }
            (Arrival::News, Some(mut row)) => {
                if record.generation > row.letter.generation {
                    self.died_anew(&mut row, now)?;
                    row.void();
                }
                rules::take_record(&mut row.letter, record, now);
                self.update(&mut row, Changed::All)
            }
            (Arrival::New | Arrival::News, _) => self.insert(&Row::new(record)).map(|_| ()),
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
