//! Lists, groups and counts letters in memory, by pure functions: the answers of [`Letters`](super::Letters) for the store in
//! memory; and the rows of a broker's dead letters that were read.

mod row;
mod stretch;
mod unclear;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

pub use row::{Row, Sent};
pub use stretch::{ByAge, Stretch, cut, place, stretches};
pub use unclear::{REPLAYS_UNCLEAR, quarantine_unclear, say_unclear, unclear};

use super::{Group, Stats};
use crate::{DeadLetter, Filter, Fingerprint, LetterId, LetterSummary, Order, Page, PageRequest};

/// The ids among `rows` that begin with these digits, as [`Letters::with_prefix`](super::Letters::with_prefix) gives
/// them.
#[must_use]
pub fn with_prefix<V>(rows: &BTreeMap<LetterId, V>, digits: &str, limit: u32) -> Vec<LetterId> {
    let digits = digits.to_ascii_lowercase();
    let Some(from) = first_with(&digits) else { return Vec::new() };
    let found = rows.range(from..).map(|(id, _)| *id);
    let found = found.take_while(|id| id.to_string().starts_with(&digits));
    found.take(limit as usize).collect()
}

/// The smallest id that begins with these digits; `None` when none can.
fn first_with(digits: &str) -> Option<LetterId> {
    if digits.len() > 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    format!("{digits:0<32}").parse().ok()
}

/// Returns a page of the letters that match: `by_age` has the [`place`] of every letter, `letter` finds a letter by its
/// id.
pub fn page<'a>(
    by_age: &BTreeSet<ByAge>,
    letter: impl Fn(&LetterId) -> Option<&'a DeadLetter>,
    filter: &Filter,
    page: PageRequest,
) -> Page {
    let most = page.limit.max(1) as usize + 1;
    let mut letters: Vec<LetterSummary> = Vec::new();
    for Stretch { order, after } in stretches(&page) {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = match order {
            Order::NewestFirst => (Bound::Unbounded, after),
            Order::OldestFirst => (after, Bound::Unbounded),
        };
        let mut places = by_age.range(range);
        let next = std::iter::from_fn(|| match order {
            Order::NewestFirst => places.next_back(),
            Order::OldestFirst => places.next(),
        });
        let found = next.filter_map(|(_, id)| letter(id)).filter(|letter| filter.matches(letter));
        letters.extend(found.take(most - letters.len()).map(DeadLetter::summary));
    }
    cut(letters, &page)
}

/// The groups of `letters`, which come oldest first, as [`Letters::groups`](super::Letters::groups) gives them.
pub fn groups<'a>(letters: impl Iterator<Item = &'a DeadLetter>, limit: u32) -> Vec<Group> {
    struct Seen<'a> {
        count: u64,
        first: &'a DeadLetter,
        last: &'a DeadLetter,
    }
    let mut seen: BTreeMap<(&Fingerprint, &str), Seen<'_>> = BTreeMap::new();
    for letter in letters {
        seen.entry((&letter.fingerprint, &letter.consumer))
            .and_modify(|group| {
                group.count += 1;
                group.last = letter;
            })
            .or_insert(Seen { count: 1, first: letter, last: letter });
    }
    let mut groups: Vec<_> = seen.into_iter().collect();
    // Stable: groups of the same size stay ordered by fingerprint, then consumer.
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
    groups.truncate(limit as usize);
    let group = |((fingerprint, consumer), group): ((&Fingerprint, &str), Seen<'_>)| Group {
        fingerprint: *fingerprint,
        consumer: consumer.to_owned(),
        count: group.count,
        first_seen: group.first.state.created_at,
        last_seen: group.last.state.created_at,
        sample: group.last.summary(),
    };
    groups.into_iter().map(group).collect()
}

/// Counts over `letters`.
pub fn stats<'a>(letters: impl Iterator<Item = &'a DeadLetter>) -> Stats {
    let mut stats = Stats::default();
    letters.for_each(|letter| stats.add(&letter.summary()));
    stats
}
