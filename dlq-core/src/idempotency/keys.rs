use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashTable;

use super::key::Key;
use crate::Timestamp;

/// Keys with what is known of them. An entry stays where it is while more come, and a new one is written into memory of
/// its own size: what grows by copying is an index of eight bytes each.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// Consumers by number. There are few: those that the program knows.
    consumers: Vec<Arc<str>>,
    index: HashTable<Indexed>,
    /// In pieces of [`PIECE`]. None where a key was forgotten.
    entries: Vec<Vec<Option<Entry>>>,
    /// Numbers of the entries that are none.
    free: Vec<u32>,
    /// The last token given out; shared by all keys, so that a forgotten key does not begin again.
    fence: u64,
}

/// Entries per allocation.
// A piece has its full capacity from the start, so that no entry is copied while the shard is locked.
const PIECE: usize = 64;

/// Keys that the index has room for from the start.
const FIRST: usize = 112;

#[derive(Clone, Copy, Debug)]
struct Indexed {
    hash: u32,
    number: u32,
}

impl Indexed {
    /// As the index wants it: from few bits many.
    #[inline]
    fn spread(&self) -> u64 {
        u64::from(self.hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    key: Key,
    pub(super) fence: u64,
    pub(super) phase: Phase,
    consumer: u32,
}

impl Entry {
    /// Returns true if the entry belongs to `key`.
    #[inline]
    pub(super) fn is(&self, key: &[u8]) -> bool {
        self.key.as_slice() == key
    }
}

/// State of a key.
#[derive(Debug)]
pub(super) enum Phase {
    /// In flight until the lease ends.
    Held {
        attempts: u32,
        crashes: u32,
        until: Timestamp,
    },
    Done {
        at: Timestamp,
        until: Timestamp,
    },
    Free {
        attempts: u32,
        crashes: u32,
        since: Timestamp,
    },
}

impl Keys {
    /// The number of the consumer.
    #[inline]
    fn consumer(&self, name: &Arc<str>) -> Option<u32> {
        // Mostly it is the very name that was seen before.
        let is = |known: &Arc<str>| Arc::ptr_eq(known, name) || known == name;
        self.consumers.iter().position(is).map(|number| number as u32)
    }

    /// The number of a consumer's key.
    #[inline]
    fn look_up(&self, hash: u32, consumer: u32, key: &[u8]) -> Option<u32> {
        let wanted = Indexed { hash, number: 0 };
        let is = |known: &Indexed| {
            known.hash == hash
                && at(&self.entries, known.number)
                    .is_some_and(|entry| entry.consumer == consumer && entry.is(key))
        };
        self.index.find(wanted.spread(), is).map(|known| known.number)
    }

    /// The number of the entry of `key`, which has this hash.
    pub(super) fn find(&self, hash: u32, consumer: &Arc<str>, key: &[u8]) -> Option<u32> {
        let consumer = self.consumer(consumer)?;
        self.look_up(hash_for(hash, consumer), consumer, key)
    }

    /// The same, of a free one if it is new.
    #[inline]
    pub(super) fn find_or_add(
        &mut self,
        hash: u32,
        consumer: &Arc<str>,
        key: &[u8],
        now: Timestamp,
    ) -> u32 {
        let consumer = self.consumer(consumer).unwrap_or_else(|| {
            self.consumers.push(Arc::clone(consumer));
            self.consumers.len() as u32 - 1
        });
        let hash = hash_for(hash, consumer);
        self.look_up(hash, consumer, key).unwrap_or_else(|| {
            let phase = Phase::Free { attempts: 0, crashes: 0, since: now };
            let number = self.add(Entry { key: Key::from(key), fence: 0, phase, consumer });
            let known = Indexed { hash, number };
            // The room is made with the first key, since a store has many of these and some may stay empty.
            if self.index.is_empty() {
                self.index.reserve(FIRST, Indexed::spread);
            }
            self.index.insert_unique(known.spread(), known, Indexed::spread);
            number
        })
    }

    /// Keeps `entry`, and says where.
    #[inline]
    fn add(&mut self, entry: Entry) -> u32 {
        if let Some(number) = self.free.pop() {
            self.entries[number as usize / PIECE][number as usize % PIECE] = Some(entry);
            return number;
        }
        if self.entries.last().is_none_or(|last| last.len() == PIECE) {
            self.entries.push(Vec::with_capacity(PIECE));
        }
        let pieces = self.entries.len() - 1;
        let last = &mut self.entries[pieces];
        last.push(Some(entry));
        (pieces * PIECE + last.len() - 1) as u32
    }

    /// The entry of this number.
    #[inline]
    pub(super) fn at(&mut self, number: u32) -> Option<&mut Entry> {
        self.entries.get_mut(number as usize / PIECE)?.get_mut(number as usize % PIECE)?.as_mut()
    }

    /// The entry of this number, which was just found, and the fence that is raised to claim it.
    #[inline]
    pub(super) fn claimed(&mut self, number: u32) -> (&mut u64, &mut Entry) {
        let entry = self.entries[number as usize / PIECE][number as usize % PIECE].as_mut();
        (&mut self.fence, entry.expect("an entry that was found is there"))
    }

    /// Returns the number of slots to look at, including empty ones.
    pub(super) fn entries(&self) -> usize {
        self.entries.last().map_or(0, |last| (self.entries.len() - 1) * PIECE + last.len())
    }

    /// Looks at the entries of these numbers, one after another in memory, and forgets those that have `ended`; returns how
    /// many. `hash` is what a key was added with.
    pub(super) fn forget(
        &mut self,
        numbers: Range<usize>,
        hash: impl Fn(&[u8]) -> u32,
        ended: impl Fn(&Entry) -> bool,
    ) -> usize {
        let mut forgotten = 0;
        for number in numbers.start..numbers.end.min(self.entries()) {
            let place = &mut self.entries[number / PIECE][number % PIECE];
            let Some(entry) = place.take_if(|entry| ended(entry)) else { continue };
            let number = number as u32;
            let known =
                Indexed { hash: hash_for(hash(entry.key.as_slice()), entry.consumer), number };
            let indexed = self.index.find_entry(known.spread(), |other| other.number == number);
            indexed.expect("what is kept is in the index").remove();
            // The number is given out again, so that memory follows the number of keys that are kept.
            self.free.push(number);
            forgotten += 1;
        }
        forgotten
    }
}

/// The hash of a consumer's key: one key of many consumers is not many keys of one hash.
#[inline]
fn hash_for(hash: u32, consumer: u32) -> u32 {
    // The multiplier spreads small numbers, as those of consumers are, over all bits.
    hash ^ consumer.wrapping_mul(0x9e37_79b9)
}

#[inline]
fn at(entries: &[Vec<Option<Entry>>], number: u32) -> Option<&Entry> {
    entries.get(number as usize / PIECE)?.get(number as usize % PIECE)?.as_ref()
}

// Each key that is kept costs this much, so a change of it is to be a decision.
const _: () = assert!(size_of::<Option<Entry>>() == 80);

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::EPOCH;

    fn names() -> [Arc<str>; 3] {
        ["a", "b", "c"].map(Arc::from)
    }

    fn hash_of(number: u32) -> u32 {
        // Many share one, and no two keys are one for it.
        number % 7
    }

    #[test]
    fn keys_stay_where_they_are_and_are_told_apart() {
        let (mut keys, names) = (Keys::default(), names());
        let mut numbers = Vec::new();
        for number in 0..500_u32 {
            for name in &names {
                let key = number.to_string();
                let new = keys.find_or_add(hash_of(number), name, key.as_bytes(), NOW);
                numbers.push((new, number, Arc::clone(name), key));
            }
        }
        for (index, (number, hash, name, key)) in numbers.iter().enumerate() {
            assert_eq!(*number as usize, index, "each is new");
            // The name is known by its text as well.
            let name = Arc::from(&**name);
            assert_eq!(keys.find(hash_of(*hash), &name, key.as_bytes()), Some(*number));
            assert_eq!(keys.find_or_add(hash_of(*hash), &name, key.as_bytes(), NOW), *number);
            assert!(keys.at(*number).is_some_and(|entry| entry.is(key.as_bytes())));
        }
        // Also where the hashes of two consumers meet.
        let one = keys.find_or_add(5, &names[0], b"k", NOW);
        assert_ne!(keys.find_or_add(hash_for(5, 1), &names[1], b"k", NOW), one);
        assert_eq!(keys.find(0, &Arc::from("d"), b"0"), None);
        assert_eq!(keys.find(hash_of(500), &names[0], b"500"), None);
    }

    #[test]
    fn what_is_forgotten_makes_room_and_nothing_else_goes() {
        let (mut keys, names) = (Keys::default(), names());
        for number in 0..300_u32 {
            keys.find_or_add(number, &names[0], number.to_string().as_bytes(), NOW);
        }
        let is_even = |entry: &Entry| entry.key.as_slice().last().is_some_and(|last| last % 2 == 0);
        let hash = |key: &[u8]| String::from_utf8_lossy(key).parse::<u32>().unwrap();
        assert_eq!(keys.entries(), 300);
        assert_eq!(keys.forget(0..101, hash, is_even), 51);
        assert_eq!(keys.forget(0..101, hash, is_even), 0);
        assert_eq!(keys.forget(101..usize::MAX, hash, is_even), 99);
        assert_eq!(keys.forget(300..400, hash, is_even), 0);
        for number in 0..300_u32 {
            let found = keys.find(number, &names[0], number.to_string().as_bytes());
            assert_eq!(found.is_some(), number % 2 == 1, "{number}");
            assert_eq!(keys.at(number).is_some(), number % 2 == 1, "{number}");
        }
        for number in 1000..1150_u32 {
            let taken = keys.find_or_add(number, &names[0], number.to_string().as_bytes(), NOW);
            assert!(taken < 300 && taken % 2 == 0, "{taken} was free");
        }
        assert_eq!(keys.find_or_add(9, &names[1], b"9", NOW), 300);
    }
}
