use std::time::Duration;

use dlq_core::log::{Entries, Entry, IngestMark, Log, Range};
use dlq_core::{DeadLetter, Origin, Position, StoreError, StoreErrorKind};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::NatsLetters;
use super::entries::{ReadEntries, Says, sequence};
use super::follow::{self, Follow};
use super::reading::READING;
use super::stored::StoredLetter;
use crate::client::leader::{self, Which};
use crate::dead::dispatch::REPLAYING;

/// Number of letters that are fetched at once by their places.
const AT_ONCE: usize = 32;

impl Log for NatsLetters {
    type Entries = NatsEntries;

    async fn marks(&self) -> Result<Vec<IngestMark>, StoreError> {
        follow::marks(&self.context, &self.stream.name).await
    }

    async fn read(&self, range: Range) -> Result<NatsEntries, StoreError> {
        let read = ReadEntries::open(self.clone(), range, Says::Sent).await?;
        Ok(NatsEntries(Way::Read(Box::new(read))))
    }

    /// Follows by the durable consumer of [this name](NatsLetters::consumer), which is created with the name of the store in
    /// one step if it is not there; one that is there keeps its own lease.
    async fn follow(&self, store: String, lease: Duration) -> Result<NatsEntries, StoreError> {
        let follow = Follow::open(self, &store, lease).await?;
        Ok(NatsEntries(Way::Follow(Box::new(follow))))
    }

    async fn at(&self, places: Vec<Origin>) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let one = |place: Origin| self.letter_at(sequence(place.position()));
        stream::iter(places).map(one).buffered(AT_ONCE).try_collect().await
    }
}

impl NatsLetters {
    pub(super) fn place(&self, sequence: u64) -> Origin {
        let at = Origin::new("nats", self.stream.name.as_str(), Position::Offset(sequence));
        at.with_cluster("default")
    }

    /// Refuses a replay of letters that are kept in a store, which would not learn of it.
    pub(super) async fn refuse_kept(&self) -> Result<(), StoreError> {
        let marks = follow::marks(&self.context, &self.stream.name).await?;
        let Some(IngestMark { store, .. }) = marks.into_iter().next() else { return Ok(()) };
        let text = format!(
            "the letters of stream `{}` are kept in {store}, which would not learn of it; send them from that store",
            self.stream.name
        );
        Err(StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(text))
    }

    /// A letter that has gone, was changed or lost a part is `None`.
    async fn letter_at(&self, sequence: u64) -> Result<Option<DeadLetter>, StoreError> {
        // The server takes a request for the message 0 for an empty one, and not for one that is not there.
        if sequence == 0 {
            return Ok(None);
        }
        let name = &self.stream.name;
        let kept = leader::get(&self.context, READING, name, Which::At(sequence)).await?;
        let Some(kept) = kept else { return Ok(None) };
        match StoredLetter::of_kept(&self.context, name, kept).await {
            Ok(stored) => Ok(stored.map(|stored| stored.letter)),
            Err(error) if error.is_transient() => Err(error),
            Err(error) => {
                tracing::warn!(sequence, %error, "a dead letter cannot be read whole");
                Ok(None)
            }
        }
    }
}

/// Entries of a stream of dead letters: of a reading, or of a durable consumer that follows.
#[derive(Debug)]
pub struct NatsEntries(Way);

#[derive(Debug)]
enum Way {
    // In boxes: both are large, and rarely moved.
    Read(Box<ReadEntries>),
    Follow(Box<Follow>),
}

impl NatsEntries {
    /// Returns how many messages of the stream, letters or parts of them, were removed before the durable consumer could
    /// read them, at most, as it was found when it was opened: the stream keeps them for too short a time, or nobody read
    /// for too long. 0 for a consumer that has not confirmed any letter yet, and for a reading.
    #[must_use]
    pub fn missed(&self) -> u64 {
        match &self.0 {
            Way::Read(_) => 0,
            Way::Follow(follow) => follow.missed(),
        }
    }
}

impl Entries for NatsEntries {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        match &mut self.0 {
            Way::Read(read) => read.next(limit).await,
            Way::Follow(follow) => follow.next(limit).await,
        }
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        match &mut self.0 {
            Way::Read(read) => read.confirm().await,
            Way::Follow(follow) => follow.confirm().await,
        }
    }
}
