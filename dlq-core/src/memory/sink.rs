use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::Receipt;
use crate::store::rules::{Arrival, Standing, death_arrives, same_bytes};
use crate::{DeadLetter, LetterId, Sink, StoreError};

/// A stream of dead letters in memory, as a broker would keep it: letters go in and are read, and nothing else happens
/// to them. Clones share the letters.
///
/// For everything that can be done with letters see `MemoryStore` of `dlq-letters`.
#[derive(Clone, Debug, Default)]
pub struct MemorySink {
    letters: Arc<Mutex<BTreeMap<LetterId, DeadLetter>>>,
}

impl MemorySink {
    /// No letters yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Every letter in its latest generation, in the order of their ids.
    #[must_use]
    pub fn letters(&self) -> Vec<DeadLetter> {
        self.lock().values().cloned().collect()
    }

    /// Returns a letter.
    #[must_use]
    pub fn get(&self, id: LetterId) -> Option<DeadLetter> {
        self.lock().get(&id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LetterId, DeadLetter>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for MemorySink {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        let mut stored = self.lock();
        Ok(letters.into_iter().map(|letter| bury(&mut stored, letter)).collect())
    }
}

fn bury(stored: &mut BTreeMap<LetterId, DeadLetter>, mut letter: DeadLetter) -> Receipt {
    let standing = stored.get(&letter.id).map(|there| Standing {
        generation: there.generation,
        is_record: false,
        is_claimed: false,
        attempts: there.attempts,
        has_same_bytes: same_bytes(&there.message, &letter.message),
    });
    match death_arrives(standing, letter.generation) {
        Arrival::Known => Receipt::Unchanged,
        Arrival::OutOfDate => Receipt::Superseded,
        Arrival::New => {
            stored.insert(letter.id, letter);
            Receipt::Stored
        }
        Arrival::News => {
            stored.insert(letter.id, letter);
            Receipt::Reopened
        }
        Arrival::Conflict => {
            // A copy of this very message is found again under the same id, which follows from its bytes.
            letter.id = letter.id.conflicting(&letter.message);
            let id = letter.id;
            match bury(stored, letter) {
                deeper @ Receipt::Conflicting(_) => deeper,
                _ => Receipt::Conflicting(id),
            }
        }
    }
}
