use std::collections::BTreeMap;

use dlq_core::store::reading::{Stretch, cut, stretches};
use dlq_core::store::{Group, Hours, Letters, Stats};
use dlq_core::{
    Cursor, DeadLetter, Filter, LetterId, LetterSummary, Order, Page, PageRequest, Status,
    StoreError, Timestamp,
};
use dlq_letters::Depth;
use futures_util::future::{try_join, try_join_all};

use super::codec::StoredRow;
use super::counts::{Kind, is_counted};
use super::fault::{During as _, Result};
use super::names;
use super::search::{LETTERS, Search, Stroll};
use super::{Inner, RedisStore};

/// All that a letter can be.
const STATUSES: [Status; 7] = [
    Status::Pending,
    Status::Retrying,
    Status::Replaying,
    Status::Sent,
    Status::Held,
    Status::Resolved,
    Status::Quarantined,
];

impl Letters for RedisStore {
    async fn get(&self, id: LetterId) -> std::result::Result<Option<DeadLetter>, StoreError> {
        let found = self.inner.link.letters([id], Depth::Whole).await.during("read the letter")?;
        Ok(found.into_iter().find_map(|(_, found)| Some(found?.row.letter)))
    }

    async fn get_all(
        &self,
        ids: Vec<LetterId>,
    ) -> std::result::Result<Vec<DeadLetter>, StoreError> {
        let mut all = Vec::with_capacity(ids.len());
        // One after another, so that the server does not hold all of them in answers at once.
        for ids in ids.chunks(LETTERS) {
            let found = self.inner.link.letters(ids.to_vec(), Depth::Whole).await;
            let found = found.during("read letters")?.into_iter();
            all.extend(found.filter_map(|(_, found)| Some(found?.row.letter)));
        }
        Ok(all)
    }

    async fn with_prefix(
        &self,
        digits: String,
        limit: u32,
    ) -> std::result::Result<Vec<LetterId>, StoreError> {
        let digits = digits.to_ascii_lowercase();
        self.inner.with_prefix(&digits, limit as usize).await.during("find letters by id")
    }

    async fn list(
        &self,
        filter: Filter,
        page: PageRequest,
    ) -> std::result::Result<Page, StoreError> {
        self.inner.page(&filter, page).await.during("list letters")
    }

    async fn count(&self, filter: Filter) -> std::result::Result<u64, StoreError> {
        self.inner.count(&filter).await.during("count letters")
    }

    async fn groups(
        &self,
        filter: Filter,
        limit: u32,
    ) -> std::result::Result<Vec<Group>, StoreError> {
        self.inner.groups(&filter, limit as usize).await.during("group letters")
    }

    async fn stats(&self, filter: Filter) -> std::result::Result<Stats, StoreError> {
        self.inner.stats(&filter).await.during("count letters")
    }

    async fn hours(
        &self,
        filter: Filter,
        since: Timestamp,
        hours: u32,
    ) -> std::result::Result<Hours, StoreError> {
        self.inner.hours(&filter, Hours::new(since, hours)).await.during("count letters by hour")
    }
}

impl Inner {
    /// Ids by their first digits, in order: they are in sets by the first three.
    async fn with_prefix(&self, digits: &str, limit: usize) -> Result<Vec<LetterId>> {
        // Anything else is the beginning of no id, and could name a key outside of the sets.
        let is_prefix = digits.len() <= 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let mut found = Vec::new();
        if !is_prefix {
            return Ok(found);
        }
        let sets: Vec<String> = match digits.len() {
            0 => (0..4096).map(|n| format!("{n:03x}")).collect(),
            1 => (0..256).map(|n| format!("{digits}{n:02x}")).collect(),
            2 => (0..16).map(|n| format!("{digits}{n:x}")).collect(),
            _ => vec![digits[..3].to_owned()],
        };
        // The sets are in the order of ids, so that reading stops as soon as there are enough.
        for sets in sets.chunks(64) {
            let names = &self.link.names;
            let ids = try_join_all(sets.iter().map(|set| self.link.set(names.ids(set)))).await?;
            let ids = ids.iter().flatten().filter_map(|id| super::seen::letter_id(id));
            let mut ids: Vec<_> = ids.filter(|id| id.to_string().starts_with(digits)).collect();
            ids.sort_unstable();
            found.extend(ids);
            if found.len() >= limit {
                found.truncate(limit);
                break;
            }
        }
        Ok(found)
    }

    async fn page(&self, filter: &Filter, page: PageRequest) -> Result<Page> {
        // One more than asked tells whether there is another page.
        let most = page.limit.max(1) as usize + 1;
        let search = Search::plan(&self.link, filter).await?;
        let mut letters: Vec<LetterSummary> = Vec::new();
        for Stretch { order, after } in stretches(&page) {
            let after = after.map(|(at, id)| Cursor::after(at, id));
            let stroll = Stroll { order, after, upto: None };
            let want = most - letters.len();
            // Heads are enough: a list shows neither payloads nor histories, which are most of the bytes.
            let found = search.find(&self.link, stroll, want, Depth::Head, |_| true).await?;
            letters.extend(found.iter().map(StoredRow::summary));
            if letters.len() == most {
                break;
            }
        }
        Ok(cut(letters, &page))
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        let search = Search::plan(&self.link, filter).await?;
        // The counters know some fields only. A range of the index knows the times as well, and is counted by the server.
        if search.is_cheap() || !is_counted(filter) {
            return search.count(&self.link).await;
        }
        let kinds = self.kinds().await?.into_iter();
        Ok(kinds.filter(|(kind, _)| kind.is_in(filter)).map(|(_, n)| n).sum())
    }

    /// Counts the letters of each kind.
    async fn kinds(&self) -> Result<Vec<(Kind, u64)>> {
        let all = self.link.hash(&self.link.names.counts).await?.into_iter();
        let kind = |(field, n): (Vec<u8>, Vec<u8>)| {
            let n = String::from_utf8(n).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
            Ok((Kind::read(&field)?, n))
        };
        let kinds: Vec<(Kind, u64)> = all.map(kind).collect::<Result<_>>()?;
        Ok(kinds.into_iter().filter(|(_, n)| *n > 0).collect())
    }

    pub(super) async fn stats(&self, filter: &Filter) -> Result<Stats> {
        let mut stats = Stats::default();
        if !is_counted(filter) {
            let search = Search::plan(&self.link, filter).await?;
            search.visit(&self.link, |found| stats.add(&found.summary())).await?;
            return Ok(stats);
        }
        // Where nothing is asked for in particular, all is asked at once.
        let (kinds, edges) = if filter.is_empty() {
            try_join(self.kinds(), self.edges(filter, &STATUSES)).await?
        } else {
            let kinds = self.kinds().await?;
            let kinds: Vec<_> = kinds.into_iter().filter(|(kind, _)| kind.is_in(filter)).collect();
            let mut statuses: Vec<_> = kinds.iter().map(|(kind, _)| kind.0).collect();
            statuses.sort_unstable();
            statuses.dedup();
            let edges = self.edges(filter, &statuses).await?;
            (kinds, edges)
        };
        for (kind, n) in kinds {
            kind.add_to(&mut stats, n);
        }
        for (status, oldest, newest) in edges {
            stats.oldest = stats.oldest.into_iter().chain(oldest).min();
            stats.newest = stats.newest.into_iter().chain(newest).max();
            if status.is_unresolved() {
                let before = stats.oldest_unresolved.into_iter();
                stats.oldest_unresolved = before.chain(oldest).min();
            }
        }
        Ok(stats)
    }

    async fn hours(&self, filter: &Filter, mut hours: Hours) -> Result<Hours> {
        let search = Search::plan(&self.link, &hours.stored(filter)).await?;
        let add = |found: StoredRow| hours.add_stored(found.row.letter.state.created_at, 1);
        search.visit(&self.link, add).await?;
        // There is no index by the time of a resolution, so every letter that is resolved is looked at.
        if let Some(filter) = Hours::resolved(filter) {
            let search = Search::plan(&self.link, &filter).await?;
            let add = |found: StoredRow| hours.add_resolved(found.row.letter.state.updated_at, 1);
            search.visit(&self.link, add).await?;
        }
        Ok(hours)
    }

    /// When the first and the last letter of each of these statuses were stored.
    async fn edges(
        &self,
        filter: &Filter,
        statuses: &[Status],
    ) -> Result<Vec<(Status, Option<Timestamp>, Option<Timestamp>)>> {
        let is_all = filter.is_empty();
        try_join_all(statuses.iter().map(|status| async move {
            let edge = |order| async move {
                // The part of a status is ordered by time, so that its ends tell without a look at letters.
                if is_all {
                    let part = names::part(names::STATUS, status.as_str().as_bytes());
                    let bounds = (names::from(&part), names::to(&part));
                    let is_reverse = order == Order::NewestFirst;
                    let found = self.link.members(bounds, is_reverse, 1).await?;
                    return Ok(found.first().and_then(|member| names::time(&member[part.len()..])));
                }
                let mut filter = filter.clone();
                filter.statuses = vec![*status];
                let search = Search::plan(&self.link, &filter).await?;
                let stroll = Stroll::all(order);
                let found = search.find(&self.link, stroll, 1, Depth::Head, |_| true).await?;
                Ok::<_, super::fault::Fault>(
                    found.first().map(|found| found.row.letter.state.created_at),
                )
            };
            let (oldest, newest) =
                try_join(edge(Order::OldestFirst), edge(Order::NewestFirst)).await?;
            Ok((*status, oldest, newest))
        }))
        .await
    }

    async fn groups(&self, filter: &Filter, limit: usize) -> Result<Vec<Group>> {
        if filter.is_empty() {
            return self.all_groups(limit).await;
        }
        struct Seen {
            count: u64,
            first: Timestamp,
            sample: LetterSummary,
        }
        let place = |letter: &LetterSummary| (letter.state.created_at, letter.id);
        let mut seen: BTreeMap<_, Seen> = BTreeMap::new();
        let search = Search::plan(&self.link, filter).await?;
        let add = |found: StoredRow| {
            let letter = &found.row.letter;
            let (key, at) =
                ((letter.fingerprint, letter.consumer.clone()), letter.state.created_at);
            match seen.get_mut(&key) {
                Some(group) => {
                    group.count += 1;
                    group.first = group.first.min(at);
                    if (at, letter.id) > place(&group.sample) {
                        group.sample = found.summary();
                    }
                }
                None => {
                    seen.insert(key, Seen { count: 1, first: at, sample: found.summary() });
                }
            }
        };
        search.visit(&self.link, add).await?;
        let groups = seen.into_iter().map(|((fingerprint, consumer), seen)| Group {
            fingerprint,
            consumer,
            count: seen.count,
            first_seen: seen.first,
            last_seen: seen.sample.state.created_at,
            sample: seen.sample,
        });
        let mut groups: Vec<_> = groups.collect();
        // Stable: groups of the same size stay ordered by fingerprint, then consumer.
        groups.sort_by_key(|group| std::cmp::Reverse(group.count));
        groups.truncate(limit);
        Ok(groups)
    }

    /// The largest groups of all letters, by their counters.
    async fn all_groups(&self, limit: usize) -> Result<Vec<Group>> {
        let mut all = Vec::new();
        for (field, n) in self.link.hash(&self.link.names.groups).await? {
            let corrupt = || super::fault::Fault::corrupt("group of letters", "it is none");
            let text = String::from_utf8(field).map_err(|_| corrupt())?;
            let (fingerprint, consumer) = text.split_once(' ').ok_or_else(corrupt)?;
            let fingerprint = fingerprint.parse().map_err(|_| corrupt())?;
            let n: u64 = String::from_utf8(n).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
            all.push((std::cmp::Reverse(n), (fingerprint, consumer.to_owned())));
        }
        all.sort();
        all.truncate(limit);
        let mut groups = Vec::with_capacity(all.len());
        // A bounded number of calls at once.
        for some in all.chunks(50) {
            let found = try_join_all(some.iter().map(|(count, (fingerprint, consumer))| {
                let mut filter = Filter::new().with_fingerprint(*fingerprint);
                filter.consumers.push(consumer.clone());
                async move {
                    let search = Search::fixed(&filter);
                    let edge = |order| {
                        let stroll = Stroll::all(order);
                        search.find(&self.link, stroll, 1, Depth::Head, |_| true)
                    };
                    let (first, last) =
                        try_join(edge(Order::OldestFirst), edge(Order::NewestFirst)).await?;
                    let group = first.first().zip(last.first()).map(|(first, last)| Group {
                        fingerprint: *fingerprint,
                        consumer: consumer.clone(),
                        count: count.0,
                        first_seen: first.row.letter.state.created_at,
                        last_seen: last.row.letter.state.created_at,
                        sample: last.summary(),
                    });
                    Ok::<_, super::fault::Fault>(group)
                }
            }));
            groups.extend(found.await?.into_iter().flatten());
        }
        Ok(groups)
    }
}
