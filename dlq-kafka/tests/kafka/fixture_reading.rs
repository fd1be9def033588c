//! Letters of a topic as they are now.

use dlq_core::log::{Entries as _, Entry, Log, Range};
use dlq_core::store::Letters as _;
use dlq_core::{DeadLetter, Filter, LetterId, Origin, Page, PageRequest, Position, StoreError};
use dlq_kafka::{KafkaLetters, ScanRange};
use dlq_letters::log::{Reading, fill, retain};
use dlq_letters::memory::MemoryStore;

/// A letter and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) letter: DeadLetter,
    pub(crate) partition: u32,
    pub(crate) offset: u64,
}

/// Reads all letters for each question.
pub(crate) trait Look {
    async fn reading(&self) -> Result<Reading<KafkaLetters>, StoreError>;

    async fn count(&self, filter: Filter) -> Result<u64, StoreError> {
        self.reading().await?.count(filter).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page, StoreError> {
        self.reading().await?.list(filter, page).await
    }

    async fn get(&self, id: LetterId) -> Result<Option<DeadLetter>, StoreError> {
        self.reading().await?.get(id).await
    }

    async fn get_all(&self, ids: Vec<LetterId>) -> Result<Vec<DeadLetter>, StoreError> {
        self.reading().await?.get_all(ids).await
    }

    /// Every letter, oldest first.
    async fn all(&self) -> Result<Vec<Stored>, StoreError> {
        let reading = self.reading().await?;
        let mut all = Vec::new();
        for row in reading.rows(&Filter::new()).await? {
            let letter = reading.get(row.letter.id).await?;
            let (partition, offset) = at(&row.place);
            all.extend(letter.map(|letter| Stored { letter, partition, offset }));
        }
        Ok(all)
    }
}

impl Look for KafkaLetters {
    async fn reading(&self) -> Result<Reading<Self>, StoreError> {
        Reading::of(self.clone(), Range::all()).await
    }
}

/// The letters that are selected, by their last deaths.
pub(crate) async fn selected(letters: &KafkaLetters, range: &ScanRange) -> Reading<KafkaLetters> {
    let store = MemoryStore::new();
    let mut entries = letters.read(Range::all()).await.unwrap();
    fill(&mut entries, &store, u64::MAX).await.unwrap();
    retain(&store, |row| range.includes(row)).await.unwrap();
    Reading::new(letters.clone(), store)
}

/// Every entry of a range that ends.
pub(crate) async fn entries(letters: &KafkaLetters, range: Range) -> Vec<Entry> {
    let mut entries = letters.read(range).await.unwrap();
    let mut all = Vec::new();
    loop {
        let some = entries.next(100).await.unwrap();
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

/// Partition and offset.
pub(crate) fn at(place: &Origin) -> (u32, u64) {
    match place.position() {
        Position::Offset(offset) => (place.partition().unwrap(), *offset),
        position => panic!("{position:?}"),
    }
}

/// A place of any topic.
pub(crate) fn place(partition: u32, offset: u64) -> Origin {
    Origin::new("kafka", "dlq", Position::Offset(offset)).with_partition(partition)
}
