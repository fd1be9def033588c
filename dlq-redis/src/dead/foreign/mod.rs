//! Dead letters that other libraries keep in Redis.
//!
//! | dialect | key | letters are |
//! |---|---|---|
//! | `chasquimq` | `{chasqui:QUEUE}:dlq` | entries of the stream |
//! | `bullmq` | `PREFIX:QUEUE:failed` | members of the sorted set, each with a hash `PREFIX:QUEUE:ID` |
//! | `rq` | `rq:failed:QUEUE` | members of the sorted set, each with a hash `rq:job:ID` and perhaps a stream `rq:results:ID` |
//! | `dramatiq` | `NAMESPACE:QUEUE.XQ` | members of the sorted set, each with a field of the hash `NAMESPACE:QUEUE.XQ.msgs` |
//!
//! # What the letter says
//!
//! - **Message**: the payload byte for byte. Nothing is unpacked or loaded: a pickle stays bytes.
//! - **Origin** is the queue, with the dialect as its transport, so that no outbox of ours writes a message into it that the
//!   library could not read. **Consumer** is the queue too: these libraries have one consumer for each.
//! - **Identity** follows from queue, job id and the time when the job was made. An entry of chasquimq that cannot be decoded
//!   has no job id; the id of the entry from which it was moved stands for it.
//! - What is not known is listed in the attribute [`UNKNOWN`]. Without a class the letter is permanent, without a reason it is
//!   manual, so that no schedule sends it back by itself.
//! - Fields that have no place in a letter are attributes, cut to 1 KiB: `bullmq.opts`, `rq.description`.
//!
//! # If the process dies
//!
//! Reading writes nothing: no key is created, changed or removed. What [replays](ForeignReplay) do stands there.

mod bullmq;
mod chasquimq;
mod dramatiq;
mod entries;
pub mod event_dlq;
mod kind;
mod msgpack;
mod replay;
mod rq;
mod scripts;
mod story;
mod trace;
mod zset;

pub use entries::ForeignEntries;
pub use replay::ForeignReplay;

use std::fmt;
use std::time::Duration;

use dlq_core::log::{IngestMark, Log, Range};
use dlq_core::store::reading::Sent;
use dlq_core::{DeadLetter, Finding, Origin, StoreError, StoreErrorKind, Timestamp};

use self::entries::Job;
use self::kind::Kind;
use super::ledger::Marked;
use super::letters::{READING, place_of};
use super::scan::{self, EntryId};
use crate::client::{RedisClient, RedisError, as_array, as_int, as_text};
use crate::consumer::wire;

/// The attribute with the name of the dialect.
pub const DIALECT: &str = "dlq.dialect";
/// The attribute with what is not known of a letter, in words that are joined by commas: `attempts`, `cause`, `class`,
/// `died-at`, `payload`, `reason`.
pub const UNKNOWN: &str = "dlq.unknown";

/// Number of letters that the ledger is asked for at once.
const AT_ONCE: usize = 256;

/// The library that wrote letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// chasquimq.
    Chasquimq,
    /// BullMQ.
    Bullmq,
    /// RQ.
    Rq,
    /// dramatiq.
    Dramatiq,
}

impl Dialect {
    /// Returns the word for it, as the attribute [`DIALECT`] has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chasquimq => "chasquimq",
            Self::Bullmq => "bullmq",
            Self::Rq => "rq",
            Self::Dramatiq => "dramatiq",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Dead letters that another library keeps in Redis, as a [`Log`]; see the [module docs](self).
///
/// ```no_run
/// use dlq_core::log::Range;
/// use dlq_core::store::Letters as _;
/// use dlq_core::{BoxError, Filter};
/// use dlq_letters::log::Reading;
/// use dlq_redis::foreign::ForeignLetters;
/// use dlq_redis::RedisClient;
///
/// async fn count(client: &RedisClient) -> Result<u64, BoxError> {
///     let letters = ForeignLetters::of(client, "bull:emails:failed").ok_or("not known")?;
///     Ok(Reading::of(letters, Range::all()).await?.count(Filter::new()).await?)
/// }
/// ```
///
/// # Following
///
/// Nothing is noted at the server: each [`follow`](Log::follow) begins with the oldest letter. A store knows the letters that
/// it has got before, and keeps one of each. It does not learn of what is sent back from here, or by the library itself.
#[derive(Clone, Debug)]
pub struct ForeignLetters {
    client: RedisClient,
    kind: Kind,
    key: String,
    ends: bool,
}

impl ForeignLetters {
    /// Tells by its name which library writes letters under a key; `None` where it is none that is known. `chasqui:QUEUE`
    /// stands for `{chasqui:QUEUE}:dlq`.
    #[must_use]
    pub fn of(client: &RedisClient, key: &str) -> Option<Self> {
        let (key, kind) = Kind::of(key)?;
        Some(Self { client: client.clone(), kind, key, ends: false })
    }

    /// Ends what is followed with the last letter that is there. Defaults to never.
    #[must_use]
    pub fn until_end(mut self) -> Self {
        self.ends = true;
        self
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the library that writes these letters.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.kind.dialect()
    }

    /// Returns the number of letters and of entries that cannot be read.
    ///
    /// # Errors
    ///
    /// As [`Log::read`].
    pub async fn entries(&self) -> Result<u64, StoreError> {
        self.look().await?;
        let count = if self.kind.is_stream() { "XLEN" } else { "ZCARD" };
        let count = self.client.command(redis::cmd(count).arg(&self.key)).await;
        let count = as_int(&count.map_err(|error| error.for_store(READING))?);
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Returns the time of the oldest letter; `None` if there is none, and for RQ, which orders its jobs by the time at which
    /// they expire.
    ///
    /// # Errors
    ///
    /// As [`Log::read`].
    pub async fn oldest(&self) -> Result<Option<Timestamp>, StoreError> {
        let failed = |error: RedisError| error.for_running_store(READING);
        if self.kind.is_stream() {
            return scan::oldest(&self.client, &self.key).await.map_err(failed);
        }
        // Scores that are no times do not tell which letter is oldest.
        if !self.kind.is_by_time() {
            return Ok(None);
        }
        let mut first = redis::cmd("ZRANGE");
        first.arg(&self.key).arg(0).arg(0).arg("WITHSCORES");
        let first = self.client.command(&first).await.map_err(failed)?;
        let score = as_array(&first).get(1).and_then(as_text);
        Ok(score.and_then(|score| story::millis(score.as_bytes())))
    }

    /// Looks for settings of the server by which letters are lost, and, by reading all, for letters of which a part has gone.
    ///
    /// # Errors
    ///
    /// As [`Log::read`].
    pub async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = super::check::settings(self.client.server());
        let mut entries = self.read(Range::all()).await?;
        let object = format!("`{}` of {}", self.key, self.dialect());
        findings.extend(super::check::others(&mut entries, &object).await?);
        Ok(findings)
    }

    /// Looks for the key. A missing one is none, since empty sets are removed.
    async fn look(&self) -> Result<(), StoreError> {
        // Looked at first: a mistyped key would read as a queue without dead letters.
        let found = self.client.command(redis::cmd("TYPE").arg(&self.key)).await;
        let found = as_text(&found.map_err(|error| error.for_store(READING))?).unwrap_or_default();
        let wanted = if self.kind.is_stream() { "stream" } else { "zset" };
        let failed = |kind, text| Err(StoreError::new(kind, READING).with_detail(text));
        match found.as_str() {
            found if found == wanted => Ok(()),
            "none" => failed(
                StoreErrorKind::NotFound,
                format!(
                    "there is no `{}`; the first dead letter of {} creates it, or name another key",
                    self.key,
                    self.dialect()
                ),
            ),
            found => failed(
                StoreErrorKind::InvalidConfig,
                format!(
                    "`{}` is a {found}, and {} keeps dead letters in a {wanted}; name another key",
                    self.key,
                    self.dialect()
                ),
            ),
        }
    }

    fn origin(&self, (first, second): EntryId) -> Origin {
        Origin::new("redis", self.key.as_str(), dlq_core::Position::Pair(first, second))
    }

    /// The key of what was sent back from here.
    fn ledger(&self) -> String {
        format!("{}:replays", self.key)
    }

    /// Has letters say how often they were sent back from here before they died again.
    async fn say_sent(&self, jobs: &mut [Job]) -> Result<(), StoreError> {
        // Nothing of ours is written beside such letters, so that there is nothing to look up.
        if !self.kind.can_replay() {
            return Ok(());
        }
        for jobs in jobs.chunks_mut(AT_ONCE) {
            let mut get = redis::cmd("HMGET");
            get.arg(self.ledger());
            let mut letters: Vec<(EntryId, &mut DeadLetter)> =
                jobs.iter_mut().filter_map(Job::letter).collect();
            if letters.is_empty() {
                continue;
            }
            for (_, letter) in &letters {
                get.arg(letter.id.to_string());
            }
            let marks = self.client.command(&get).await;
            let marks = marks.map_err(|error| error.for_running_store(READING))?;
            for ((place, letter), mark) in letters.iter_mut().zip(as_array(&marks)) {
                let Some(text) = as_text(mark) else { continue };
                if let Some(marked) = Marked::read(&text) {
                    // The last entry that was there, where letters are in a stream.
                    let last = text.split(' ').nth(3).and_then(wire::position);
                    say(letter, marked.sent, last.is_some_and(|last| *place <= last));
                }
            }
        }
        Ok(())
    }
}

/// Notes of a letter that it was sent back. That removed it, so that what is there has died since, unless it is a copy that was
/// in the stream before.
fn say(letter: &mut DeadLetter, sent: Sent, is_copy: bool) {
    if is_copy {
        letter.generation = sent.times.saturating_sub(1);
        sent.mark(&mut letter.state);
        return;
    }
    letter.generation = sent.times;
    letter.state.replays = sent.times;
    letter.state.retry_count = sent.times;
}

impl Log for ForeignLetters {
    type Entries = ForeignEntries;

    /// No store is noted: none.
    async fn marks(&self) -> Result<Vec<IngestMark>, StoreError> {
        self.look().await?;
        Ok(Vec::new())
    }

    async fn read(&self, range: Range) -> Result<ForeignEntries, StoreError> {
        self.look().await?;
        ForeignEntries::open(self.clone(), range).await
    }

    /// Begins with the oldest letter; the lease is not needed.
    async fn follow(&self, _: String, _: Duration) -> Result<ForeignEntries, StoreError> {
        let range = if self.ends { Range::all() } else { Range::all().for_ever() };
        self.read(range).await
    }

    async fn at(&self, places: Vec<Origin>) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let places: Vec<EntryId> = places.iter().map(place_of).collect();
        let mut found = self.jobs_at(&places).await?;
        let letter =
            |job: &mut Option<Job>| job.as_mut()?.letter().map(|(_, letter)| letter.clone());
        Ok(found.iter_mut().map(letter).collect())
    }
}

/// Writes the place of an entry of a stream as the server does.
fn entry_id(place: EntryId) -> String {
    scan::id(place)
}
