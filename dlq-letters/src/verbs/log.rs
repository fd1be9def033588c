//! Letters that are read from a log, which come to what a store that had got them in this order would have.

use dlq_core::store::rules::{self, Arrival, Standing};
use dlq_core::{DeadLetter, LetterId};

use super::each;
use crate::log::Note;
use crate::{Changed, Depth, Needs, Row, Rows, Stop, Verb};

/// Adds entries of a log, in their order.
///
/// It differs from a put in three points: the state is the log's, also when a letter died again; bytes are compared by the
/// digest in the [note](Note), since payloads may not be here; and so the id of a conflicting letter stands in the note.
#[derive(Debug)]
pub(crate) struct Add(pub(crate) Vec<(DeadLetter, Note)>);

/// Additions of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Added {
    /// Number of letters that were not there.
    pub(crate) new: u64,
    /// Number of letters whose identity belongs to one with other bytes.
    pub(crate) conflicts: u64,
}

impl Verb for Add {
    type Output = Added;

    fn needs(&self, needs: &mut Needs) {
        for (letter, _) in &self.0 {
            needs.letter(letter.id, Depth::Head);
        }
    }

    fn decide(&self, rows: &mut Rows) -> Result<Added, Stop> {
        let each = each(&self.0, |(letter, note)| arrive(rows, letter.clone(), note.clone()))?;
        let sum = |all: Added, (is_new, conflicts): (bool, bool)| Added {
            new: all.new + u64::from(is_new),
            conflicts: all.conflicts + u64::from(conflicts),
        };
        Ok(each.into_iter().fold(Added::default(), sum))
    }
}

/// Adds a letter, and returns whether it was not there, and whether another one has its identity.
fn arrive(rows: &mut Rows, mut letter: DeadLetter, mut note: Note) -> Result<(bool, bool), Stop> {
    let claimed = letter.id;
    loop {
        let id = letter.id;
        let standing = rows.letter(id, Depth::Head)?.map(|row| standing(row, &note));
        match rules::death_arrives(standing, letter.generation) {
            Arrival::Known | Arrival::OutOfDate => return Ok((false, id != claimed)),
            // The id under which it is kept may be taken as well: headers that claim an identity can be forged.
            Arrival::Conflict => letter.id = note.next_id(id),
            Arrival::New => {
                note.write(&mut letter);
                rows.insert(Row::new(letter));
                return Ok((true, id != claimed));
            }
            Arrival::News => {
                if let Some(mut row) = rows.take(id, Depth::Head)? {
                    // When it was first seen and how often it was sent back stay.
                    let before = &row.letter.state;
                    letter.state.created_at = before.created_at;
                    letter.state.replays = letter.state.replays.max(before.replays);
                    letter.state.retry_count = letter.state.retry_count.max(before.retry_count);
                    note.write(&mut letter);
                    row.letter = letter;
                    rows.update(row, Changed::All);
                }
                return Ok((false, id != claimed));
            }
        }
    }
}

fn standing(row: &Row, note: &Note) -> Standing {
    Standing {
        generation: row.letter.generation,
        // A log has letters only: no retry records, and nobody claims its letters.
        is_record: false,
        is_claimed: false,
        attempts: row.letter.attempts,
        has_same_bytes: Note::of(&row.letter).is_some_and(|there| there.has_bytes_of(note)),
    }
}

/// Copies rows of a reading into another store, as they are.
#[derive(Debug)]
pub(crate) struct Carry(pub(crate) Vec<DeadLetter>);

impl Verb for Carry {
    type Output = ();

    fn needs(&self, needs: &mut Needs) {
        for letter in &self.0 {
            needs.letter(letter.id, Depth::Head);
        }
    }

    fn decide(&self, rows: &mut Rows) -> Result<(), Stop> {
        each(&self.0, |letter| {
            if rows.letter(letter.id, Depth::Head)?.is_none() {
                rows.insert(Row::new(letter.clone()));
            }
            Ok(())
        })
        .map(drop)
    }
}

/// Forgets rows of a reading.
#[derive(Debug)]
pub(crate) struct Forget(pub(crate) Vec<LetterId>);

impl Verb for Forget {
    type Output = ();

    fn needs(&self, needs: &mut Needs) {
        for id in &self.0 {
            needs.letter(*id, Depth::Head);
        }
    }

    fn decide(&self, rows: &mut Rows) -> Result<(), Stop> {
        each(&self.0, |id| {
            if let Some(row) = rows.take(*id, Depth::Head)? {
                rows.remove(&row);
            }
            Ok(())
        })
        .map(drop)
    }
}
