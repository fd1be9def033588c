//! Letters that arrive: deaths, retry records, and letters that are restored.

use dlq_core::store::rules::{self, Arrival, DedupKey};
use dlq_core::store::{Actor, Receipt};
use dlq_core::{DeadLetter, DelayedRetry, LetterId, Status};

use super::each;
use crate::{Alias, Changed, Depth, Needs, Row, Rows, Stop, Verb};

/// Writes deaths.
#[derive(Debug)]
pub(crate) struct Put(pub(crate) Vec<DeadLetter>);

impl Verb for Put {
    type Output = Vec<Receipt>;

    // The verb may run again after its answer was lost: a death that is there changes nothing (G2).
    fn needs(&self, needs: &mut Needs) {
        arriving(self.0.iter().map(|letter| letter.id), needs);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let now = rows.now();
        each(&self.0, |letter| bury(rows, rules::put(letter.clone(), now)))
    }
}

/// Writes a retry record.
#[derive(Debug)]
pub(crate) struct Enqueue(pub(crate) DelayedRetry);

impl Verb for Enqueue {
    type Output = ();

    fn needs(&self, needs: &mut Needs) {
        let death = self.0.delivery.death(&self.0.consumer);
        arriving([death.letter], needs);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let record = rules::retry_record(self.0.clone(), rows.now());
        record_arrives(rows, record).map(drop)
    }
}

/// Writes letters that were read from a store, with their state.
#[derive(Debug)]
pub(crate) struct Restore {
    pub(crate) letters: Vec<DeadLetter>,
    pub(crate) by: Actor,
}

impl Verb for Restore {
    type Output = Vec<Receipt>;
    // A second run would find the letters there, and its receipts would say that nothing was restored.
    const ONCE: bool = true;

    fn needs(&self, needs: &mut Needs) {
        arriving(self.letters.iter().map(|letter| letter.id), needs);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let now = rows.now();
        let receipts = each(&self.letters, |letter| {
            let letter = rules::restored(letter.clone(), now);
            if letter.state.status == Status::Retrying {
                record_arrives(rows, letter)
            } else {
                bury(rows, letter)
            }
        })?;
        let (subject, affected) = rules::restored_subject(&receipts);
        rows.note_action(&self.by, "restore", subject, affected, None);
        Ok(receipts)
    }
}

/// Names what is looked up for every letter that arrives. Whether somebody else has its key is asked only where the store
/// deduplicates, which is not known yet.
fn arriving(ids: impl IntoIterator<Item = LetterId>, needs: &mut Needs) {
    needs.dedup = true;
    for id in ids {
        needs.letter(id, Depth::Whole);
        needs.aliases.insert(id);
    }
}

/// Writes a letter whose state is the one that it gets where it is new.
fn bury(rows: &mut Rows, mut letter: DeadLetter) -> Result<Receipt, Stop> {
    let (id, now) = (letter.id, rows.now());
    let is_dedup = rows.is_dedup()?;
    let standing =
        rows.letter(id, Depth::Whole)?.map(|standing| standing.standing(&letter, is_dedup));
    if standing.is_none()
        && let Some(alias) = rows.alias(id)?
    {
        // It was merged before. The same death, or an earlier one, changes nothing.
        if letter.generation <= alias.generation {
            return Ok(Receipt::Merged(alias.row));
        }
        return merge(rows, alias.row, letter);
    }
    match rules::death_arrives(standing, letter.generation) {
        Arrival::Known => Ok(Receipt::Unchanged),
        Arrival::OutOfDate => Ok(Receipt::Superseded),
        Arrival::Conflict => {
            // The other id follows from the bytes, so that the same message finds its letter when it arrives again (G2). The
            // rules apply under that id too, since it may be taken as well.
            let other = id.conflicting(&letter.message);
            letter.id = other;
            Ok(beside(bury(rows, letter)?, other))
        }
        Arrival::News => {
            if let Some(mut row) = rows.take(id, Depth::Whole)? {
                rows.died_anew(&mut row, &letter)?;
                // The claim ends here: whoever still runs the former death must not overwrite this one.
                row.void();
                rules::replace(&mut row.letter, letter, now);
                rows.take_key(&mut row)?;
                rows.update(row, Changed::All);
            }
            Ok(Receipt::Reopened)
        }
        Arrival::New => {
            if is_dedup
                && let Some(key) = DedupKey::of(&letter)
                && let Some(owner) = rows.owner(&key)?
            {
                return merge(rows, owner, letter);
            }
            let mut row = Row::new(letter);
            // The key is taken in this attempt already, so that the next letter of the batch is merged into this one.
            rows.take_key(&mut row)?;
            rows.insert(row);
            Ok(Receipt::Stored)
        }
    }
}

/// Writes a retry record.
fn record_arrives(rows: &mut Rows, mut record: DeadLetter) -> Result<Receipt, Stop> {
    let (id, now) = (record.id, rows.now());
    let is_dedup = rows.is_dedup()?;
    let standing =
        rows.letter(id, Depth::Whole)?.map(|standing| standing.standing(&record, is_dedup));
    if standing.is_none()
        && let Some(alias) = rows.alias(id)?
        // The death that would follow this record is merged already, and a record never takes a death back.
        && alias.generation >= record.generation
    {
        return Ok(Receipt::Merged(alias.row));
    }
    match rules::record_arrives(standing, record.generation, record.attempts) {
        Arrival::Known => Ok(Receipt::Unchanged),
        Arrival::OutOfDate => Ok(Receipt::Superseded),
        Arrival::Conflict => {
            let other = id.conflicting(&record.message);
            record.id = other;
            Ok(beside(record_arrives(rows, record)?, other))
        }
        Arrival::News => {
            if let Some(mut row) = rows.take(id, Depth::Whole)? {
                // A higher generation leaves the operation and voids the claim, as a death does. A record of the same
                // generation is news only while nobody has claimed it, and goes on in its operation.
                if record.generation > row.letter.generation {
                    rows.died_anew(&mut row, &record)?;
                    row.void();
                }
                rules::take_record(&mut row.letter, record, now);
                rows.update(row, Changed::All);
            }
            Ok(Receipt::Reopened)
        }
        Arrival::New => {
            // A record takes no key: it is not dead, and records are not merged.
            rows.insert(Row::new(record));
            Ok(Receipt::Stored)
        }
    }
}

/// Returns the receipt of a letter that was kept beside another, under the id `other`.
fn beside(receipt: Receipt, other: LetterId) -> Receipt {
    match receipt {
        inner @ (Receipt::Conflicting(_) | Receipt::Merged(_)) => inner,
        _ => Receipt::Conflicting(other),
    }
}

/// Lets the letter that has the key of an original message take over another's death.
fn merge(rows: &mut Rows, owner: LetterId, death: DeadLetter) -> Result<Receipt, Stop> {
    let now = rows.now();
    let (id, generation) = (death.id, death.generation);
    // Nothing of the message is needed, as it is overwritten.
    let Some(mut row) = rows.take(owner, Depth::Head)? else {
        // Somebody deleted the owner by hand. The death must not be lost with it.
        let mut row = Row::new(death);
        rows.take_key(&mut row)?;
        rows.insert(row);
        return Ok(Receipt::Stored);
    };
    rows.died_anew(&mut row, &death)?;
    row.void();
    rules::merge(&mut row.letter, death, now);
    rows.take_key(&mut row)?;
    rows.update(row, Changed::All);
    // The alias remembers this death, so that it is known when it arrives again (G2).
    rows.set_alias(id, Alias { row: owner, generation });
    Ok(Receipt::Merged(owner))
}
