//! Pages of entries, and facts about their stream.

use std::collections::VecDeque;

use dlq_core::Timestamp;
use redis::Value;

use crate::client::{RedisClient, RedisError, Script, as_array, as_int, as_text};
use crate::consumer::wire::{self, Pair, position};

/// The place of an entry: milliseconds and a number.
pub(super) type EntryId = (u64, u64);

/// Number of entries that a page has at first.
const FIRST: usize = 64;
/// Number of entries that a page has at most.
const MOST: usize = 512;
/// Bytes of a page from which on the next ones have fewer entries, and up to which they have more.
const LARGE: usize = 4 * 1024 * 1024;
const SMALL: usize = 1024 * 1024;
/// Number of entries that the server passes over in one script.
const STEP: u64 = 1_000;

/// An entry as it stands in the stream.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) place: EntryId,
    pub(super) pairs: Vec<Pair>,
}

/// Facts about a stream of dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stands {
    pub(super) entries: u64,
    /// The place of the newest entry that there ever was.
    pub(super) last: EntryId,
}

/// Passes over entries from the end. KEYS: stream. ARGV: end of the range, number of entries. Answers how many there were
/// and the id of the first of them.
static BACK: Script = Script::new(
    r"
local page = redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])
if #page == 0 then return {0} end
return {#page, page[#page][1]}
",
);

/// Writes a place as the server does.
pub(super) fn id((millis, number): EntryId) -> String {
    format!("{millis}-{number}")
}

/// The time of an entry, in milliseconds.
pub(super) fn millis_of((millis, _): EntryId) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}

/// Asks for what the server knows of a stream; `None` where there is no such key.
pub(super) async fn stands(client: &RedisClient, key: &str) -> Result<Option<Stands>, RedisError> {
    let mut info = redis::cmd("XINFO");
    info.arg("STREAM").arg(key);
    let answer = match client.command(&info).await {
        Ok(answer) => answer,
        // The server has no code of its own for a key that is not there.
        Err(error) if error.code() == Some("ERR") => return Ok(None),
        Err(error) => return Err(error),
    };
    let parts = as_array(&answer);
    let named = |name: &str| {
        let at = parts.iter().position(|part| as_text(part).as_deref() == Some(name))?;
        parts.get(at + 1)
    };
    let entries = named("length").map_or(0, as_int);
    // Not that of the last entry: it stays where entries are removed, so that a place never moves back.
    let last = named("last-generated-id").and_then(as_text);
    Ok(Some(Stands {
        entries: u64::try_from(entries).unwrap_or(0),
        last: last.and_then(|last| position(&last)).unwrap_or_default(),
    }))
}

/// Reads the time of the first entry.
pub(super) async fn oldest(
    client: &RedisClient,
    key: &str,
) -> Result<Option<Timestamp>, RedisError> {
    let mut range = redis::cmd("XRANGE");
    range.arg(key).arg("-").arg("+").arg("COUNT").arg(1);
    let first = entries(client.command(&range).await?).pop();
    Ok(first.map(|raw| Timestamp::from_millis(millis_of(raw.place))))
}

/// Finds the place of the last entry but so many, or of the first where there are fewer.
pub(super) async fn nth_last(
    client: &RedisClient,
    key: &str,
    count: u64,
) -> Result<Option<EntryId>, RedisError> {
    // Streams know no ranks, so the end is walked back to in steps of which each holds the server up for a moment only.
    let (mut left, mut end, mut found) = (count, "+".to_owned(), None);
    while left > 0 {
        let call = BACK.keys(&[key]).arg(&end).arg(left.min(STEP));
        let answer = client.script(&call).await?;
        let [passed, first] = as_array(&answer) else { break };
        let Some(first) = as_text(first) else { break };
        left = left.saturating_sub(u64::try_from(as_int(passed)).unwrap_or(0));
        found = position(&first);
        end = format!("({first}");
    }
    Ok(found)
}

/// Takes the entries of an answer apart. One that has no id of ours is none.
pub(super) fn entries(answer: Value) -> Vec<Raw> {
    let Value::Array(all) = answer else { return Vec::new() };
    let entry = |one: Value| {
        let Value::Array(parts) = one else { return None };
        let [id, pairs] = <[Value; 2]>::try_from(parts).ok()?;
        let place = position(&as_text(&id)?)?;
        Some(Raw { place, pairs: wire::pairs(pairs) })
    };
    all.into_iter().filter_map(entry).collect()
}

/// Reads a stream page by page: pages have few entries where these are large.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    size: usize,
}

impl Pages {
    pub(super) const fn new() -> Self {
        Self { size: FIRST }
    }

    /// Reads what comes after this place, or all, up to an end; no more than `limit` entries.
    pub(super) async fn after(
        &mut self,
        client: &RedisClient,
        key: &str,
        after: Option<EntryId>,
        to: Option<EntryId>,
        limit: usize,
    ) -> Result<VecDeque<Raw>, RedisError> {
        let from = after.map_or_else(|| "-".to_owned(), |place| format!("({}", id(place)));
        let to = to.map_or_else(|| "+".to_owned(), id);
        let count = self.size.min(limit).max(1);
        let mut range = redis::cmd("XRANGE");
        range.arg(key).arg(from).arg(to).arg("COUNT").arg(count);
        let page = entries(client.command(&range).await?);
        let bytes: usize = page
            .iter()
            .flat_map(|raw| &raw.pairs)
            .map(|(name, value)| name.len() + value.len())
            .sum();
        if bytes > LARGE {
            // The size falls faster than it grows, since a page of large letters takes memory at both ends.
            self.size = (self.size / 4).max(1);
        } else if bytes < SMALL && page.len() == count {
            self.size = (self.size * 2).min(MOST);
        }
        Ok(page.into())
    }
}
