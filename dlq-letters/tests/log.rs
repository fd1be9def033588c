//! A log that is read into an engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlq_core::log::{Content, Entries, Entry, IngestMark, Log, Outline, Range};
use dlq_core::store::{Letters, Sink as _};
use dlq_core::{
    Binding, DeadLetter, ErrorClass, Filter, LetterId, Message, Order, Origin, PageRequest,
    Position, Reason, Status, StoreError, Timestamp,
};
use dlq_letters::log::{Reading, carry, fill, retain};
use dlq_letters::memory::MemoryStore;

/// Letters in their order, and how many were fetched by their places.
#[derive(Clone, Debug, Default)]
struct Letterbox(Vec<DeadLetter>, Arc<AtomicUsize>);

#[derive(Debug)]
struct Read(std::vec::IntoIter<Entry>);

impl Entries for Read {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        Ok(self.0.by_ref().take(limit).collect())
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn place(n: usize) -> Origin {
    Origin::new("memory", "DLQ", Position::Offset(n as u64))
}

impl Log for Letterbox {
    type Entries = Read;

    async fn marks(&self) -> Result<Vec<IngestMark>, StoreError> {
        Ok(Vec::new())
    }

    async fn read(&self, range: Range) -> Result<Read, StoreError> {
        let entry = |(n, letter): (usize, &DeadLetter)| {
            let mut letter = letter.clone();
            letter.state.created_at = Timestamp::from_millis(n as i64);
            let content = if range.headers_only {
                let binding = Binding::of(&letter.id, &letter.message);
                let payload_size = letter.message.payload().map(|payload| payload.len() as u64);
                letter.message = letter.message.with_payload(None);
                Content::Outline(Box::new(Outline { letter, payload_size, binding }))
            } else {
                Content::Letter(Box::new(letter))
            };
            Entry { place: place(n), again: false, content }
        };
        let foreign = Entry { place: place(1_000), again: false, content: Content::Foreign };
        let all: Vec<_> = self.0.iter().enumerate().map(entry).chain([foreign]).collect();
        Ok(Read(all.into_iter()))
    }

    async fn follow(&self, _: String, _: Duration) -> Result<Read, StoreError> {
        unreachable!("it is only read")
    }

    async fn at(&self, places: Vec<Origin>) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        self.1.fetch_add(places.len(), Ordering::Relaxed);
        let letter = |wanted: &Origin| {
            let n = (0..self.0.len()).find(|n| place(*n) == *wanted)?;
            self.0.get(n).cloned()
        };
        Ok(places.iter().map(letter).collect())
    }
}

fn letter(number: u64, message: Message, generation: u32) -> DeadLetter {
    let origin = Origin::new("memory", "orders", Position::Offset(number));
    let mut letter = DeadLetter::new(message, origin, "a", Reason::Exhausted);
    letter.generation = generation;
    letter.class = ErrorClass::Transient;
    letter.attempts = 1;
    letter.deliveries = 1;
    letter
}

fn text(payload: &'static str) -> Message {
    Message::new("s", payload)
}

fn large(byte: u8) -> Message {
    Message::new("s", vec![byte; 5_000])
}

async fn reading(letters: impl IntoIterator<Item = DeadLetter>) -> Reading<Letterbox> {
    let log = Letterbox(letters.into_iter().collect(), Arc::default());
    Reading::of(log, Range::all()).await.unwrap()
}

async fn whole(letters: &impl Letters) -> Vec<DeadLetter> {
    let page = PageRequest::new().order(Order::OldestFirst);
    let page = letters.list(Filter::new(), page).await.unwrap();
    letters.get_all(page.letters.iter().map(|letter| letter.id).collect()).await.unwrap()
}

async fn read(letters: impl IntoIterator<Item = DeadLetter>) -> Vec<(Vec<u8>, u32)> {
    let letters = whole(&reading(letters).await).await;
    let mut rows: Vec<_> = letters
        .iter()
        .map(|letter| (letter.message.payload().unwrap().to_vec(), letter.generation))
        .collect();
    rows.sort();
    rows
}

#[tokio::test]
async fn g2_messages_that_claim_one_identity_are_all_read() {
    let one = || letter(1, text("one"), 0);
    let of = |key: &'static str, generation| letter(1, text("x").with_key(key), generation);
    assert_eq!(read([one(), of("a", 0), of("b", 0)]).await.len(), 3, "two keys");
    let later = [one(), of("a", 4), of("a", 5), letter(1, text("one"), 1)];
    assert_eq!(
        read(later).await,
        [(b"one".to_vec(), 1), (b"x".to_vec(), 5)],
        "at a later generation"
    );
    let absurd = [letter(1, text("one"), u32::MAX), one(), letter(1, text("one"), 1)];
    assert_eq!(read(absurd).await, [(b"one".to_vec(), 1), (b"one".to_vec(), u32::MAX)]);
    // Somebody else has the id under which it would be kept.
    let other = of("a", 0);
    let taken = letter(1, text("taken"), 0).with_id(other.id.conflicting(&other.message));
    assert_eq!(read([one(), taken, other.clone(), other]).await.len(), 3, "the id is taken");
}

#[tokio::test]
async fn g2_bytes_that_are_not_kept_are_told_apart() {
    let all = [letter(1, large(1), 0), letter(1, large(1), 0), letter(1, large(2), 0)];
    let reading = reading(all.clone()).await;
    // The ids are those that a store gives that has the whole payloads.
    let store = MemoryStore::new();
    for letter in &all {
        store.put(vec![letter.clone()]).await.unwrap();
    }
    let ids = |letters: Vec<DeadLetter>| -> BTreeMap<LetterId, Message> {
        letters.into_iter().map(|letter| (letter.id, letter.message)).collect()
    };
    let found = ids(whole(&reading).await);
    assert_eq!(found.len(), 2);
    assert_eq!(found, ids(whole(&store).await));
}

#[tokio::test]
async fn large_payloads_are_fetched_when_a_letter_is_asked_for() {
    let mut dead = letter(1, large(7), 0);
    dead.attributes.insert("tenant".to_owned(), "t0".to_owned());
    let reading = reading([dead.clone(), letter(2, text("small"), 0)]).await;
    let page = reading.list(Filter::new(), PageRequest::new()).await.unwrap();
    let sizes: Vec<_> = page.letters.iter().map(|letter| letter.payload_size).collect();
    assert_eq!(sizes, [Some(5), Some(5_000)], "newest first");
    assert_eq!(page.letters[1].attributes, dead.attributes, "nothing of ours is shown");
    let groups = reading.groups(Filter::new(), 10).await.unwrap();
    assert!(groups.iter().all(|group| group.sample.attributes.len() <= 1), "{groups:?}");
    assert_eq!(reading.log().1.load(Ordering::Relaxed), 0, "nothing was fetched to list them");
    let found = reading.get(dead.id).await.unwrap().unwrap();
    assert_eq!(found.with_state(dead.state.clone()), dead);
    let small = reading.get(letter(2, text("small"), 0).id).await.unwrap().unwrap();
    assert_eq!(small.attributes, BTreeMap::new());
    assert_eq!(reading.log().1.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn letters_without_payloads_are_listed_as_those_with_them() {
    let absent = || Message::tombstone("s");
    let mut all = vec![letter(1, large(1), 0), letter(2, text("x"), 0), letter(3, absent(), 0)];
    all.extend([letter(2, text("x"), 1), letter(2, text("x"), 0), letter(4, text(""), 0)]);
    let listed = async |letters: &[DeadLetter], range: Range| {
        let log = Letterbox(letters.to_vec(), Arc::default());
        let reading = Reading::of(log, range).await.unwrap();
        let page = PageRequest::new().order(Order::OldestFirst);
        (reading.list(Filter::new(), page).await.unwrap().letters, reading)
    };
    let (wanted, whole_reading) = listed(&all, Range::all()).await;
    let (found, reading) = listed(&all, Range::all().headers_only()).await;
    assert_eq!((found.len(), &found), (4, &wanted));
    assert_eq!(whole(&reading).await, whole(&whole_reading).await, "fetched where they stand");
    assert_eq!(reading.log().1.load(Ordering::Relaxed), 3, "one has no payload");
    // Whose the identity is, and which id the other has, only the bytes say.
    all.push(letter(1, large(2), 0));
    let (wanted, _) = listed(&all, Range::all()).await;
    let (found, _) = listed(&all, Range::all().headers_only()).await;
    assert_eq!((found.len(), found), (5, wanted));
}

#[tokio::test]
async fn another_message_at_the_same_place_is_not_taken_for_it() {
    let mut log = Letterbox(vec![letter(1, large(1), 0)], Arc::default());
    let store = MemoryStore::new();
    fill(&mut log.read(Range::all()).await.unwrap(), &store, u64::MAX).await.unwrap();
    log.0 = vec![letter(1, large(2), 0)];
    let reading = Reading::new(log, store);
    assert_eq!(reading.get(letter(1, large(1), 0).id).await.unwrap(), None);
}

#[tokio::test]
async fn a_letter_that_died_again_keeps_when_it_died_first_and_how_often_it_was_sent() {
    let mut first = letter(1, text("x"), 0);
    first.state.status = Status::Sent;
    first.state.replays = 2;
    let reading = reading([first, letter(2, text("y"), 0), letter(1, text("x"), 1)]).await;
    let found = reading.get(letter(1, text("x"), 0).id).await.unwrap().unwrap();
    assert_eq!(
        (found.generation, found.state.status, found.state.replays),
        (1, Status::Pending, 2)
    );
    assert_eq!(found.state.created_at, Timestamp::from_millis(0));
}

#[tokio::test]
async fn a_reading_goes_on_in_another_store() {
    let mut all: Vec<_> = (0..900).map(|n| letter(n, text("x"), 0)).collect();
    all.push(letter(3, text("x"), 1));
    all.push(letter(5, text("other"), 0));
    let log = Letterbox(all, Arc::default());
    let (small, larger) = (MemoryStore::new(), MemoryStore::new());
    let mut entries = log.read(Range::all()).await.unwrap();
    let filled = fill(&mut entries, &small, 300).await.unwrap();
    assert!(!filled.is_whole && (300..600).contains(&filled.letters), "{filled:?}");
    carry(&small, &larger).await.unwrap();
    let rest = fill(&mut entries, &larger, u64::MAX).await.unwrap();
    assert_eq!((rest.is_whole, filled.letters + rest.letters), (true, 901));
    let (there, wanted) =
        (Reading::new(log.clone(), larger), Reading::of(log, Range::all()).await.unwrap());
    let page = there.list(Filter::new(), PageRequest::new()).await.unwrap();
    assert_eq!(page, wanted.list(Filter::new(), PageRequest::new()).await.unwrap());
    assert_eq!(whole(&there).await, whole(&wanted).await);
    assert_eq!(there.count(Filter::new()).await.unwrap(), 901);
}

#[tokio::test]
async fn letters_are_kept_by_where_their_last_deaths_stand() {
    let mut all: Vec<_> = (0..3_000).map(|n| letter(n, text("x"), 0)).collect();
    all.push(letter(3, text("x"), 1));
    let log = Letterbox(all, Arc::default());
    let store = MemoryStore::new();
    fill(&mut log.read(Range::all()).await.unwrap(), &store, u64::MAX).await.unwrap();
    retain(&store, |row| *row.place.position() < Position::Offset(2_000)).await.unwrap();
    let reading = Reading::new(log, store);
    assert_eq!(reading.count(Filter::new()).await.unwrap(), 1_999);
    for (n, is_there) in [(0, true), (3, false), (1_999, true), (2_000, false), (2_999, false)] {
        let found = reading.get(letter(n, text("x"), 0).id).await.unwrap();
        assert_eq!(found.is_some(), is_there, "{n}");
    }
}
