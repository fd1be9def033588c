use std::sync::Arc;
use std::time::Duration;

use dlq_core::log::{Entries, Entry, IngestMark, Log, Range};
use dlq_core::{BindingKey, DeadLetter, Origin, Position, StoreError, StoreErrorKind, Timestamp};

use super::entries::ReadEntries;
use super::follow::{self, Follow};
use super::ledger;
use super::read::content;
use super::scan::{self, EntryId, Raw, Stands};
use crate::client::{RedisClient, RedisError};
use crate::consumer::Keys;

pub(super) const READING: &str = "read dead letters";

/// Name of the follower, unless another is set.
const FOLLOWER: &str = "dlq-ingest";
/// Number of letters that are fetched at once by their places.
const AT_ONCE: usize = 32;

/// The letters of a stream, as a [`Log`]: read into an engine, or followed into a store.
///
/// ```no_run
/// use dlq_core::log::Range;
/// use dlq_core::store::Letters as _;
/// use dlq_core::{BoxError, Filter};
/// use dlq_letters::log::Reading;
/// use dlq_redis::{RedisClient, RedisLetters};
///
/// async fn count(client: &RedisClient) -> Result<u64, BoxError> {
///     let letters = RedisLetters::new(client, "{payments}:dlq")?;
///     Ok(Reading::of(letters, Range::all()).await?.count(Filter::new()).await?)
/// }
/// ```
///
/// # Reading
///
/// Entries come in the order of their ids, page by page, up to the one that was the newest when the reading began. What
/// was not written by a [`RedisSink`](crate::RedisSink) is [foreign](dlq_core::log::Content::Foreign), and an entry that
/// was changed since is [damaged](dlq_core::log::Content::Damaged); a warning counts them. A reading writes nothing.
///
/// # Following
///
/// A hash beside the stream has the name of the store, the place up to which entries were confirmed, the place up to which
/// they were yielded, and who has them until when. Entries go to one process at a time, in their order; others wait until
/// all is confirmed or the lease has ended.
///
/// | the process dies | the server has | and then |
/// |---|---|---|
/// | before `follow` returns | nothing, or the mark with the name of the store | the next one begins with the oldest entry |
/// | after entries were yielded | their last place as yielded, and a lease | after the lease they come again, marked as such |
/// | while it confirms | the new place, or the old one | they do not come again, or they do |
/// | after an answer was lost | the same | the same script is run again, and changes nothing |
///
/// A process that stood still for longer than its lease confirms nothing: the script finds another owner or another place.
/// Nothing is removed from the stream.
#[derive(Clone, Debug)]
pub struct RedisLetters {
    pub(super) client: RedisClient,
    /// Keys that belong to the stream of dead letters.
    pub(super) keys: Keys,
    pub(super) follower: Arc<str>,
    pub(super) ends: bool,
    pub(super) key: Option<BindingKey>,
}

impl RedisLetters {
    /// Describes the letters in the stream with this key, which is looked for when it is read.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the key is empty, or has braces that are no hash tag.
    pub fn new(client: &RedisClient, key: &str) -> Result<Self, StoreError> {
        let keys = Keys::of(key).map_err(|error| error.for_store(READING))?;
        let follower = FOLLOWER.into();
        Ok(Self { client: client.clone(), keys, follower, ends: false, key: None })
    }

    /// Sets the name under which the letters are followed. Each has a place and a store of its own. Defaults to
    /// `dlq-ingest`.
    #[must_use]
    pub fn follower(mut self, name: impl Into<Arc<str>>) -> Self {
        self.follower = name.into();
        self
    }

    /// Ends what is followed with the last letter that is there. Defaults to never.
    #[must_use]
    pub fn until_end(mut self) -> Self {
        self.ends = true;
        self
    }

    /// Sets the secret by which letters are bound that are sent back; the same as the consumer's. Defaults to none.
    #[must_use]
    pub fn binding_key(mut self, key: BindingKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Returns the key of the stream.
    #[must_use]
    pub fn stream(&self) -> &str {
        &self.keys.stream
    }

    /// Returns the key that marks the store into which a follower of this name puts the letters. Deleted, everything that
    /// is there is followed from its beginning.
    #[must_use]
    pub fn mark_key(&self, follower: &str) -> String {
        self.keys.follower(follower)
    }

    /// Returns the number of entries, letters or not.
    ///
    /// # Errors
    ///
    /// As [`Log::marks`].
    pub async fn entries(&self) -> Result<u64, StoreError> {
        Ok(self.stands().await?.entries)
    }

    /// Returns the time of the oldest entry; `None` if there is none.
    ///
    /// # Errors
    ///
    /// As [`Log::marks`].
    pub async fn oldest(&self) -> Result<Option<Timestamp>, StoreError> {
        let oldest = scan::oldest(&self.client, self.stream()).await;
        oldest.map_err(|error| error.for_running_store(READING))
    }

    pub(super) async fn stands(&self) -> Result<Stands, StoreError> {
        let stands = scan::stands(&self.client, self.stream()).await;
        stands.map_err(|error| error.for_store(READING))?.ok_or_else(|| {
            let text = format!(
                "there is no stream `{}`; the first dead letter creates it, or name another key",
                self.stream()
            );
            StoreError::new(StoreErrorKind::NotFound, READING).with_detail(text)
        })
    }

    pub(super) fn origin(&self, (millis, number): EntryId) -> Origin {
        let at = Origin::new("redis", self.stream(), Position::Pair(millis, number));
        at.with_cluster("default")
    }

    /// Reads an entry.
    pub(super) fn entry(&self, raw: Raw, again: bool) -> Entry {
        Entry { place: self.origin(raw.place), again, content: content(raw) }
    }
}

/// The place that a position names; `0-0`, which no entry has, for a position of another kind.
pub(super) fn place_of(origin: &Origin) -> EntryId {
    match origin.position() {
        Position::Pair(millis, number) => (*millis, *number),
        Position::Offset(millis) => (*millis, 0),
        _ => (0, 0),
    }
}

impl Log for RedisLetters {
    type Entries = RedisEntries;

    async fn marks(&self) -> Result<Vec<IngestMark>, StoreError> {
        self.stands().await?;
        follow::marks(&self.client, &self.keys).await.map_err(|error| error.for_store(READING))
    }

    async fn read(&self, range: Range) -> Result<RedisEntries, StoreError> {
        let read = ReadEntries::open(self.clone(), range).await?;
        Ok(RedisEntries(Way::Read(Box::new(read))))
    }

    /// Follows under the [name](RedisLetters::follower) that was set.
    async fn follow(&self, store: String, lease: Duration) -> Result<RedisEntries, StoreError> {
        let follow = Follow::open(self.clone(), store, lease).await?;
        Ok(RedisEntries(Way::Follow(Box::new(follow))))
    }

    async fn at(&self, places: Vec<Origin>) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let failed = |error: RedisError| error.for_running_store(READING);
        let mut found = Vec::with_capacity(places.len());
        for places in places.chunks(AT_ONCE) {
            let looks: Vec<_> = places
                .iter()
                .map(|origin| {
                    // A range of a single id is how one entry is looked up; there is no command for that.
                    let id = scan::id(place_of(origin));
                    let mut range = redis::cmd("XRANGE");
                    range.arg(self.stream()).arg(&id).arg(&id);
                    range
                })
                .collect();
            for answer in self.client.commands(&looks).await.map_err(failed)? {
                let raw = scan::entries(answer.map_err(failed)?).pop();
                found.push(raw.and_then(|raw| self.entry(raw, false).letter().cloned()));
            }
        }
        Ok(found)
    }
}

/// Entries of a stream of dead letters: of a reading, or of one that follows.
#[derive(Debug)]
pub struct RedisEntries(Way);

#[derive(Debug)]
enum Way {
    // In boxes: both are large, and rarely moved.
    Read(Box<ReadEntries>),
    Follow(Box<Follow>),
}

impl Entries for RedisEntries {
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

/// Has the letters of entries say which of them were sent back.
pub(super) async fn say_sent(
    letters: &RedisLetters,
    entries: &mut [Entry],
) -> Result<(), StoreError> {
    ledger::mark(&letters.client, &letters.keys, entries)
        .await
        .map_err(|error| error.for_running_store(READING))
}
