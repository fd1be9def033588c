//! Letters hour by hour: how many came, and how many were resolved.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Letters;
use crate::{Filter, LetterState, Order, PageRequest, Status, StoreError, Timestamp};

/// Number of letters that came and that were resolved, hour by hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Hours {
    /// Beginning of the first hour.
    pub since: Timestamp,
    /// Number of letters that were stored in each hour.
    pub stored: Vec<u64>,
    /// Number of letters that were resolved in each hour, and have neither come back nor been deleted since.
    pub resolved: Vec<u64>,
}

impl Hours {
    /// Hours of a week.
    pub const WEEK: u32 = 7 * 24;
    /// Maximum number of hours that are counted at once.
    pub const MOST: u32 = 31 * 24;
    /// Length of an hour.
    pub const HOUR: Duration = Duration::from_secs(3_600);

    /// Returns so many hours, at most [`MOST`](Self::MOST), in which nothing has happened.
    #[must_use]
    pub fn new(since: Timestamp, hours: u32) -> Self {
        let none = vec![0; hours.clamp(1, Self::MOST) as usize];
        Self { since, stored: none.clone(), resolved: none }
    }

    /// Returns the beginning of the first of so many hours, of which the last one is that of `now`. They begin as the hours
    /// of UTC do.
    #[must_use]
    pub fn ending_at(now: Timestamp, hours: u32) -> Timestamp {
        let hour = nanos(Self::HOUR);
        let begun = now.as_nanos().div_euclid(hour) * hour;
        Timestamp::from_nanos(begun)
            .before(Self::HOUR * hours.clamp(1, Self::MOST).saturating_sub(1))
    }

    /// Returns the end of the last hour.
    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.since.after(Self::HOUR * u32::try_from(self.stored.len()).unwrap_or(Self::MOST))
    }

    /// Returns the beginning of the hour with this index.
    #[must_use]
    pub fn at(&self, index: usize) -> Timestamp {
        self.since.after(Self::HOUR * u32::try_from(index).unwrap_or(Self::MOST))
    }

    /// Counts one letter. The reference that every store agrees with.
    pub fn add(&mut self, state: &LetterState) {
        self.add_stored(state.created_at, 1);
        if state.status == Status::Resolved {
            self.add_resolved(state.updated_at, 1);
        }
    }

    /// Counts letters that were stored at this time.
    pub fn add_stored(&mut self, at: Timestamp, letters: u64) {
        self.add_stored_in(self.index(at), letters);
    }

    /// Counts letters that were resolved at this time.
    pub fn add_resolved(&mut self, at: Timestamp, letters: u64) {
        self.add_resolved_in(self.index(at), letters);
    }

    /// Counts letters that were stored in the hour with this index, if there is one.
    pub fn add_stored_in(&mut self, index: i64, letters: u64) {
        add(&mut self.stored, index, letters);
    }

    /// Counts letters that were resolved in the hour with this index, if there is one.
    pub fn add_resolved_in(&mut self, index: i64, letters: u64) {
        add(&mut self.resolved, index, letters);
    }

    /// Returns the filter of those letters that were stored in these hours.
    pub fn stored(&self, filter: &Filter) -> Filter {
        let mut filter = filter.clone();
        filter.since = Some(filter.since.map_or(self.since, |own| own.max(self.since)));
        filter
    }

    /// Returns the filter of those letters that are resolved; `None` if it means none of them.
    #[must_use]
    pub fn resolved(filter: &Filter) -> Option<Filter> {
        let mut filter = filter.clone();
        let has_resolved =
            filter.statuses.is_empty() || filter.statuses.contains(&Status::Resolved);
        filter.statuses = vec![Status::Resolved];
        has_resolved.then_some(filter)
    }

    fn index(&self, at: Timestamp) -> i64 {
        at.as_nanos().saturating_sub(self.since.as_nanos()).div_euclid(nanos(Self::HOUR))
    }
}

fn add(hours: &mut [u64], index: i64, letters: u64) {
    if let Some(hour) = usize::try_from(index).ok().and_then(|index| hours.get_mut(index)) {
        *hour += letters;
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Counts by lists of letters, for stores that have no better way.
pub(super) async fn walk<L: Letters + ?Sized>(
    letters: &L,
    filter: Filter,
    since: Timestamp,
    hours: u32,
) -> Result<Hours, StoreError> {
    let mut found = Hours::new(since, hours);
    let is_stored = found.stored(&filter);
    // A letter may be counted in two hours, and match only one of the two filters, so there are two walks.
    for (filter, is_resolved) in [(Some(is_stored), false), (Hours::resolved(&filter), true)] {
        let Some(filter) = filter else { continue };
        let mut page = PageRequest::new().limit(1_000).order(Order::OldestFirst);
        loop {
            let listed = letters.list(filter.clone(), page).await?;
            for letter in &listed.letters {
                if is_resolved {
                    found.add_resolved(letter.state.updated_at, 1);
                } else {
                    found.add_stored(letter.state.created_at, 1);
                }
            }
            if listed.next.is_none() {
                break;
            }
            page = page.after(listed.next);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_begin_with_those_of_the_day_and_end_with_the_present_one() {
        let now: Timestamp = "2026-11-28T19:07:30Z".parse().unwrap();
        let mut week = Hours::new(Hours::ending_at(now, Hours::WEEK), Hours::WEEK);
        assert_eq!(week.since, "2026-11-21T20:00:00Z".parse().unwrap());
        assert_eq!(week.until(), "2026-11-28T20:00:00Z".parse().unwrap());
        week.add_stored(now, 2);
        week.add_stored(week.since, 1);
        week.add_stored(week.since.before(Duration::from_nanos(1)), 1);
        week.add_stored(week.until(), 1);
        assert_eq!((week.stored[0], week.stored[167]), (1, 2));
        assert_eq!(week.stored.iter().sum::<u64>(), 3, "what is outside is not counted");
        assert_eq!(week.at(167), "2026-11-28T19:00:00Z".parse().unwrap());
        assert_eq!(Hours::new(now, u32::MAX).stored.len(), 744);
    }
}
