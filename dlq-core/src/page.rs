//! [`PageRequest`], [`Page`] and [`Cursor`]: lists in pieces, whose cost does not depend on how deep the piece lies.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{LetterId, LetterSummary, Timestamp};

/// In which order letters are listed. Both are total and stable: by time of storing, then by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Latest first.
    #[default]
    NewestFirst,
    /// Earliest first, as for a replay.
    OldestFirst,
}

/// A place between two letters of a list. Its text form is opaque to users.
///
/// Points at the letter after which the next page begins; it stays valid when that letter is deleted. The cursor of a walk
/// from the newest also knows where the walk began: what has moved before its beginning since is shown at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Cursor {
    /// The time of storing of the last letter seen.
    pub created_at: Timestamp,
    /// The id of the last letter seen.
    pub id: LetterId,
    /// Time of storing and id of the letter with which a walk from the newest began.
    pub start: Option<(Timestamp, LetterId)>,
}

impl Cursor {
    /// A cursor that points behind a letter, and knows no start of a walk.
    #[must_use]
    pub const fn after(created_at: Timestamp, id: LetterId) -> Self {
        Self { created_at, id, start: None }
    }

    /// Sets the start of the walk. Defaults to none.
    #[must_use]
    pub const fn with_start(mut self, start: Option<(Timestamp, LetterId)>) -> Self {
        self.start = start;
        self
    }
}

/// A text that is not a cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a cursor; use the one that the previous page ended with")]
pub struct InvalidCursor {
    text: String,
}

/// Number of digits of a time and an id.
const PLACE: usize = 48;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut place = |(time, id): (Timestamp, LetterId)| {
            // The sign bit is flipped so that the text orders as the time does.
            write!(f, "{:016x}{id}", (time.as_nanos() as u64) ^ (1 << 63))
        };
        place((self.created_at, self.id))?;
        self.start.map_or(Ok(()), place)
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let place = |text: &str| {
            let (time, id) = text.split_at_checked(16)?;
            // `from_str_radix` takes a plus sign for a part of the number, and no cursor has one.
            let time = u64::from_str_radix(time, 16).ok().filter(|_| !time.starts_with('+'))?;
            Some((Timestamp::from_nanos((time ^ (1 << 63)) as i64), id.parse().ok()?))
        };
        let parsed = match text.split_at_checked(PLACE) {
            None | Some((_, "")) => place(text).map(|last| (last, None)),
            Some((last, start)) => place(last).zip(place(start).map(Some)),
        };
        let cursor = parsed.map(|((at, id), start)| Self::after(at, id).with_start(start));
        cursor.ok_or_else(|| InvalidCursor { text: text.chars().take(120).collect() })
    }
}

impl Serialize for Cursor {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Request for a page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct PageRequest {
    /// Maximum number of letters; 0 is read as 1.
    pub limit: u32,
    /// In which order.
    pub order: Order,
    /// End of the previous page; `None` for the first page.
    pub after: Option<Cursor>,
}

impl PageRequest {
    /// The default length of a page.
    pub const DEFAULT_LIMIT: u32 = 50;

    /// The first page, newest first.
    pub const fn new() -> Self {
        Self { limit: Self::DEFAULT_LIMIT, order: Order::NewestFirst, after: None }
    }

    /// Sets how many letters at most. Defaults to 50.
    pub const fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the order. Defaults to newest first.
    pub const fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Continues after `cursor`. Defaults to the beginning.
    pub const fn after(mut self, cursor: Option<Cursor>) -> Self {
        self.after = cursor;
        self
    }
}

impl Default for PageRequest {
    fn default() -> Self {
        Self::new()
    }
}

/// A piece of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The letters, in the order asked for; at the end of a walk from the newest those that have come meanwhile, oldest first.
    pub letters: Vec<LetterSummary>,
    /// Start of the next page; `None` on the last page.
    pub next: Option<Cursor>,
}
