//! Letters that match a filter, found along the index.
//!
//! The smallest part of the index that the filter names is walked, a bounded number of members at a time; scripts test the
//! other parts, and what no index knows is tested here. So no call is long, and a page costs the same at any depth.

use std::collections::BTreeSet;

use dlq_core::{Cursor, Filter, LetterId, Order, searchable};
use dlq_letters::Depth;
use futures_util::future::try_join_all;

use super::codec::StoredRow;
use super::fault::Result;
use super::link::Link;
use super::names::{self, Bytes};
use super::scripts::{self, array, bytes, letter, number, parts};

/// The most members that a script looks at.
const STEP: usize = 500;
/// The most bytes of letters in the answer of a script, about.
pub(super) const BYTES: usize = 8 * 1024 * 1024;
/// The most letters in the answer of a script.
pub(super) const LETTERS: usize = 200;

/// Plan by which letters that match are found.
#[derive(Debug)]
pub(super) struct Search {
    /// Without the text of the error.
    plain: Filter,
    /// The letters that can match, if that is known.
    ids: Option<BTreeSet<LetterId>>,
    error: Option<String>,
    /// Parts of the index, of which no letter is in two.
    parts: Vec<Bytes>,
    /// A letter must be in one part of each.
    tests: Vec<Vec<Bytes>>,
    /// True if all letters in these parts match.
    is_exact: bool,
}

/// A walk along the index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stroll {
    pub(super) order: Order,
    pub(super) after: Option<Cursor>,
    pub(super) upto: Option<Cursor>,
}

impl Stroll {
    pub(super) const fn all(order: Order) -> Self {
        Self { order, after: None, upto: None }
    }
}

impl Search {
    /// Walks the smallest of the parts of the index that the filter names.
    pub(super) async fn plan(link: &Link, filter: &Filter) -> Result<Self> {
        let mut search = Self::fixed(filter);
        if search.ids.is_none() && !filter.message_ids.is_empty() {
            search.ids = Some(link.of_messages(&filter.message_ids).await?);
        }
        // With one part there is nothing to choose, and letters by id are read without a walk.
        if search.tests.is_empty() || search.ids.is_some() {
            return Ok(search);
        }
        let mut facets = std::mem::take(&mut search.tests);
        facets.push(std::mem::take(&mut search.parts));
        let sizes = try_join_all(facets.iter().map(|parts| link.size(parts, filter))).await?;
        // The cost is that of the part that is walked. The other parts are asked for each of its members.
        let smallest = (0..sizes.len()).min_by_key(|at| sizes[*at]).unwrap_or(0);
        search.parts = facets.remove(smallest);
        search.tests = facets;
        Ok(search)
    }

    /// Walks the part of the index that most filters narrow most, without a look at sizes.
    pub(super) fn fixed(filter: &Filter) -> Self {
        let mut facets = facets(filter);
        let mut parts = vec![names::ALL.to_vec()];
        if !facets.is_empty() {
            parts = facets.remove(0);
        }
        let mut plain = filter.clone();
        let error = plain.error.take().map(|text| searchable(&text));
        let ids = (!filter.ids.is_empty()).then(|| filter.ids.iter().copied().collect());
        Self { plain, ids, error, parts, tests: facets, is_exact: is_exact(filter) }
    }

    /// Returns true if letters are counted without a walk.
    pub(super) fn is_cheap(&self) -> bool {
        self.is_exact && self.ids.is_none() && self.tests.is_empty()
    }

    /// Tests letters only.
    pub(super) fn plan_none(filter: &Filter) -> Self {
        let mut plain = filter.clone();
        let error = plain.error.take().map(|text| searchable(&text));
        Self { plain, ids: None, error, parts: Vec::new(), tests: Vec::new(), is_exact: false }
    }

    /// Returns true if the filter means this letter.
    pub(super) fn matches(&self, found: &StoredRow) -> bool {
        self.plain.matches(&found.row.letter)
            && self
                .error
                .as_deref()
                .is_none_or(|text| text.is_empty() || searchable(&found.error).contains(text))
    }

    /// Returns the first `limit` letters that match and that `keep` keeps.
    pub(super) async fn find(
        &self,
        link: &Link,
        stroll: Stroll,
        limit: usize,
        depth: Depth,
        keep: impl Fn(&StoredRow) -> bool + Copy + Send + Sync,
    ) -> Result<Vec<StoredRow>> {
        let of_part = |part: Bytes| async move {
            let mut found = Vec::new();
            self.visit_part(link, &part, stroll, limit, depth, |it| {
                if keep(&it) {
                    found.push(it);
                }
                found.len() < limit
            })
            .await?;
            Ok::<_, super::fault::Fault>(found)
        };
        let mut found: Vec<StoredRow> = if self.ids.is_none() {
            // Each part is walked up to the whole limit, since all of the first letters may be in one.
            try_join_all(self.parts.iter().cloned().map(of_part))
                .await?
                .into_iter()
                .flatten()
                .collect()
        } else {
            let mut found = self.by_ids(link, stroll, depth).await?;
            found.retain(keep);
            found
        };
        found.sort_by_key(|it| (it.row.letter.state.created_at, it.row.letter.id));
        if stroll.order == Order::NewestFirst {
            found.reverse();
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Shows `see` the heads of all letters that match, in no particular order.
    pub(super) async fn visit(
        &self,
        link: &Link,
        mut see: impl FnMut(StoredRow) + Send,
    ) -> Result<()> {
        let all = Stroll::all(Order::OldestFirst);
        if self.ids.is_some() {
            self.by_ids(link, all, Depth::Head).await?.into_iter().for_each(see);
            return Ok(());
        }
        for part in &self.parts {
            let go_on = |found| {
                see(found);
                true
            };
            self.visit_part(link, part, all, usize::MAX, Depth::Head, go_on).await?;
        }
        Ok(())
    }

    /// Counts the letters that match.
    pub(super) async fn count(&self, link: &Link) -> Result<u64> {
        let mut count = 0;
        if !self.is_exact || self.ids.is_some() {
            self.visit(link, |_| count += 1).await?;
            return Ok(count);
        }
        if self.is_cheap() {
            return link.size(&self.parts, &self.plain).await;
        }
        for part in &self.parts {
            let mut bounds = self.bounds(part, Stroll::all(Order::OldestFirst));
            loop {
                // Twice as many members, since the script reads no letters for a count.
                let step = Step { scan: 2 * STEP, want: usize::MAX, mode: b"0" };
                let [last, some, _] = self.step(link, part, &bounds, false, step).await?;
                count += number(some);
                let Some(last) = bytes(last) else { break };
                bounds.0 = [b"(", &last[..]].concat();
            }
        }
        Ok(count)
    }

    async fn by_ids(&self, link: &Link, stroll: Stroll, depth: Depth) -> Result<Vec<StoredRow>> {
        let found = link.letters(self.ids.iter().flatten().copied(), depth).await?;
        let place = |cursor: Cursor| (cursor.created_at, cursor.id);
        // Here the bounds are tested one by one, as letters that are read by id come from no walk.
        let is_within = |it: &StoredRow| {
            let at = (it.row.letter.state.created_at, it.row.letter.id);
            let (after, upto) = (stroll.after.map(place), stroll.upto.map(place));
            match stroll.order {
                Order::OldestFirst => {
                    after.is_none_or(|after| at > after) && upto.is_none_or(|upto| at <= upto)
                }
                Order::NewestFirst => {
                    after.is_none_or(|after| at < after) && upto.is_none_or(|upto| at >= upto)
                }
            }
        };
        let found = found.into_iter().filter_map(|(_, found)| found);
        Ok(found.filter(|it| self.matches(it) && is_within(it)).collect())
    }

    /// The bounds of a walk along a part of the index.
    fn bounds(&self, part: &[u8], stroll: Stroll) -> (Bytes, Bytes) {
        let (mut lower, mut upper) = names::between(part, &self.plain);
        let at = |sign: &[u8], cursor: Cursor| {
            [sign, part, &names::place(cursor.created_at, cursor.id)].concat()
        };
        let (after, upto) = match stroll.order {
            Order::OldestFirst => (&mut lower, &mut upper),
            Order::NewestFirst => (&mut upper, &mut lower),
        };
        let is_oldest = stroll.order == Order::OldestFirst;
        // The narrower of two bounds counts. Those of a place are longer than those of a time.
        let narrow = |bound: &mut Bytes, other: Bytes, is_lower: bool| {
            let is_narrower = match (&bound[..], is_lower) {
                (b"+", _) => true,
                (bound, true) => other[1..] >= bound[1..],
                (bound, false) => other[1..] <= bound[1..],
            };
            if is_narrower {
                *bound = other;
            }
        };
        if let Some(cursor) = stroll.after {
            narrow(after, at(b"(", cursor), is_oldest);
        }
        if let Some(cursor) = stroll.upto {
            narrow(upto, at(b"[", cursor), !is_oldest);
        }
        (lower, upper)
    }

    /// Shows `see` the letters of a part that match, in order, until it wants no more. `want` of them are enough.
    async fn visit_part(
        &self,
        link: &Link,
        part: &[u8],
        stroll: Stroll,
        want: usize,
        depth: Depth,
        mut see: impl FnMut(StoredRow) -> bool + Send,
    ) -> Result<()> {
        let mut bounds = self.bounds(part, stroll);
        let is_reverse = stroll.order == Order::NewestFirst;
        // Where every letter of the part matches, the first step looks at no more members than are wanted.
        let is_plain = self.tests.is_empty() && self.is_exact;
        let (mode, most): (&[u8], _) = match depth {
            Depth::Head => (b"1", STEP),
            Depth::Whole => (b"2", LETTERS),
        };
        let mut scan = if is_plain { want.clamp(1, most) } else { STEP };
        loop {
            let step = Step { scan, want: want.min(most), mode };
            let [last, _, some] = self.step(link, part, &bounds, is_reverse, step).await?;
            for it in array(some) {
                let Some(found) = letter(it, depth == Depth::Whole)? else { continue };
                if self.matches(&found) && !see(found) {
                    return Ok(());
                }
            }
            let Some(last) = bytes(last) else { return Ok(()) };
            let bound = if is_reverse { &mut bounds.1 } else { &mut bounds.0 };
            *bound = [b"(", &last[..]].concat();
            // The first step may look at no more than is wanted; what is still missing afterwards is looked for in full
            // steps.
            scan = STEP;
        }
    }

    async fn step(
        &self,
        link: &Link,
        part: &[u8],
        bounds: &(Bytes, Bytes),
        is_reverse: bool,
        step: Step,
    ) -> Result<[redis::Value; 3]> {
        let mut call = link
            .call(&scripts::WALK)
            .arg(part)
            .arg(&bounds.0)
            .arg(&bounds.1)
            .arg(u8::from(is_reverse))
            .arg(step.scan)
            .arg(step.want)
            .arg(BYTES)
            .arg(step.mode);
        // The script tests these parts itself, so that letters that do not match never leave the server.
        for test in &self.tests {
            call = call.arg(test.len());
            for part in test {
                call = call.arg(part);
            }
        }
        parts(link.run(&call).await?)
    }
}

#[derive(Clone, Copy)]
struct Step {
    scan: usize,
    want: usize,
    mode: &'static [u8],
}

/// Returns the parts of the index that a filter names: those of one field in one list.
fn facets(filter: &Filter) -> Vec<Vec<Bytes>> {
    fn of<T: AsRef<str>>(facet: u8, values: impl IntoIterator<Item = T>) -> Vec<Bytes> {
        let parts = values.into_iter().map(|value| names::part(facet, value.as_ref().as_bytes()));
        parts.collect::<BTreeSet<_>>().into_iter().collect()
    }
    // A pattern names no part of the index, so that with one of them subjects are tested here.
    let is_literal = filter.subjects.iter().all(dlq_core::SubjectPattern::is_literal);
    let subjects = filter.subjects.iter().filter(|_| is_literal);
    let operation = filter.operation.map(|id| names::part(names::OPERATION, id.as_bytes()));
    let all = [
        operation.into_iter().collect(),
        of(names::FINGERPRINT, filter.fingerprints.iter().map(ToString::to_string)),
        of(names::STATUS, filter.statuses.iter().map(|status| status.as_str())),
        of(names::SUBJECT, subjects.map(dlq_core::SubjectPattern::as_str)),
        of(names::CONSUMER, &filter.consumers),
    ];
    all.into_iter().filter(|parts| !parts.is_empty()).collect()
}

/// Returns true if the parts of the index say all.
fn is_exact(filter: &Filter) -> bool {
    let mut rest = filter.clone();
    (rest.operation, rest.since, rest.until) = (None, None, None);
    rest.message_ids.clear();
    rest.fingerprints.clear();
    rest.statuses.clear();
    rest.consumers.clear();
    if rest.subjects.iter().all(dlq_core::SubjectPattern::is_literal) {
        rest.subjects.clear();
    }
    rest.is_empty()
}

/// A letter, or its absence.
pub(super) type Letter = (LetterId, Option<StoredRow>);
