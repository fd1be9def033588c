use super::super::rules::{self, Arrival, DedupKey};
use super::super::{Receipt, Sink};
use super::MemoryStore;
use super::row::Row;
use super::world::World;
use crate::{DeadLetter, Escalation, LetterId, RetryLane, Status, StoreError, Timestamp};

impl Sink for MemoryStore {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        let now = self.now();
        let mut world = self.world();
        let put = |letter| world.bury(rules::put(letter, now), now);
        Ok(letters.into_iter().map(put).collect())
    }
}

impl RetryLane for MemoryStore {
    async fn escalate(&self, escalation: Escalation) -> Result<(), StoreError> {
        let now = self.now();
        self.world().record(rules::retry_record(escalation, now), now);
        Ok(())
    }
}

impl World {
    pub(super) fn restore(&mut self, letter: DeadLetter, now: Timestamp) -> Receipt {
        let letter = rules::restored(letter, now);
        if letter.state.status == Status::Retrying {
            self.record(letter, now)
        } else {
            self.bury(letter, now)
        }
    }

    fn bury(&mut self, mut letter: DeadLetter, now: Timestamp) -> Receipt {
        let id = letter.id;
        let row = self.rows.get(&id).map(|row| row.standing(&letter, self.dedup));
        if row.is_none()
            && let Some(receipt) = self.merge_known(&letter, now)
        {
            return receipt;
        }
        match rules::death_arrives(row, letter.generation) {
            Arrival::Known => Receipt::Unchanged,
            Arrival::OutOfDate => Receipt::Superseded,
            Arrival::Conflict => {
                let other = id.conflicting(&letter.message);
                letter.id = other;
                match self.bury(letter, now) {
                    inner @ (Receipt::Conflicting(_) | Receipt::Merged(_)) => inner,
                    _ => Receipt::Conflicting(other),
                }
            }
            Arrival::News => {
                self.change(id, |world, row| {
                    world.died_anew(row, &letter, now);
                    row.void();
                    rules::replace(&mut row.letter, letter, now);
                });
                self.take_key(id);
                Receipt::Reopened
            }
            Arrival::New => match self.owner_of(&letter) {
                Some(owner) => self.merge(owner, letter, now),
                None => {
                    self.insert(Row::new(letter));
                    self.take_key(id);
                    Receipt::Stored
                }
            },
        }
    }

    fn record(&mut self, mut record: DeadLetter, now: Timestamp) -> Receipt {
        let id = record.id;
        let row = self.rows.get(&id).map(|row| row.standing(&record, self.dedup));
        if row.is_none()
            && let Some(alias) = self.aliases.get(&id)
            && alias.generation >= record.generation
        {
            return Receipt::Merged(alias.row);
        }
        match rules::record_arrives(row, record.generation, record.attempts) {
            Arrival::Known => Receipt::Unchanged,
            Arrival::OutOfDate => Receipt::Superseded,
            Arrival::Conflict => {
                let other = id.conflicting(&record.message);
                record.id = other;
                match self.record(record, now) {
                    inner @ (Receipt::Conflicting(_) | Receipt::Merged(_)) => inner,
                    _ => Receipt::Conflicting(other),
                }
            }
            Arrival::News => {
                self.change(id, |world, row| {
                    if record.generation > row.letter.generation {
                        world.died_anew(row, &record, now);
                        row.void();
                    }
                    rules::take_record(&mut row.letter, record, now);
                });
                Receipt::Reopened
            }
            Arrival::New => {
                self.insert(Row::new(record));
                Receipt::Stored
            }
        }
    }

    /// The row of the same original message, where letters are deduplicated.
    fn owner_of(&self, letter: &DeadLetter) -> Option<LetterId> {
        if !self.dedup {
            return None;
        }
        self.keys.get(&DedupKey::of(letter)?).copied()
    }
}
