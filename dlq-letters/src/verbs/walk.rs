//! Pages of what a call on many letters is about.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::OperationSpec;
use dlq_core::{Cursor, DeadLetter, Filter, Order, Timestamp};

use crate::{Depth, Needs, Older, Rows, Select, Selected, Stop};

/// Letters in an order, in pages up to the last letter that was there when the walk began.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    subject: Subject,
    /// The most letters of a page.
    limit: u64,
    after: Option<Cursor>,
    /// Known from the end of the first page on.
    upto: Option<Cursor>,
}

#[derive(Clone, Debug)]
enum Subject {
    Frozen(Arc<OperationSpec>),
    Matching(Arc<Filter>, Option<Age>),
}

/// An age from which letters are meant.
#[derive(Clone, Copy, Debug)]
enum Age {
    /// As it was given: the time of the store is not known before the first page.
    AtLeast {
        age: Duration,
        include_unresolved: bool,
    },
    Since(Older),
}

/// The letters of a page.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) found: Vec<Selected>,
    /// The walk to go on with, if it has not come to its end.
    pub(super) next: Option<Walk>,
}

impl Walk {
    /// Walks over the letters that an operation may freeze. The operation's limit is not looked at.
    pub(crate) fn frozen(spec: Arc<OperationSpec>) -> Self {
        Self { subject: Subject::Frozen(spec), limit: 1, after: None, upto: None }
    }

    /// Walks over the letters that match, from the oldest.
    pub(crate) fn matching(filter: Arc<Filter>) -> Self {
        Self { subject: Subject::Matching(filter, None), limit: 1, after: None, upto: None }
    }

    /// Leaves out letters that were changed within `age`, and, unless told otherwise, those that are not resolved.
    pub(crate) fn older_than(mut self, age: Duration, include_unresolved: bool) -> Self {
        if let Subject::Matching(_, older) = &mut self.subject {
            *older = Some(Age::AtLeast { age, include_unresolved });
        }
        self
    }

    /// Sets the most letters of a page. Defaults to 1.
    pub(crate) fn with_limit(mut self, limit: u64) -> Self {
        self.limit = limit.max(1);
        self
    }

    /// Adds the letters of the page, if they can be named before the time is known.
    pub(super) fn needs(&self, needs: &mut Needs) {
        if !matches!(self.subject, Subject::Matching(_, Some(Age::AtLeast { .. }))) {
            needs.select(self.select(), Depth::Head);
        }
    }

    /// The same walk, with everything that is known at `now`.
    fn at(&self, now: Timestamp) -> Self {
        let mut walk = self.clone();
        if let Subject::Matching(_, Some(older)) = &mut walk.subject
            && let Age::AtLeast { age, include_unresolved } = *older
        {
            // The age becomes a time once, on the first page. Otherwise a long walk would reach letters that were too young.
            *older = Age::Since(Older { latest: now.before(age), include_unresolved });
        }
        walk
    }

    /// The letters of the page.
    fn select(&self) -> Select {
        let (after, upto, limit) = (self.after, self.upto, self.limit);
        match &self.subject {
            Subject::Frozen(spec) => Select::Frozen { spec: Arc::clone(spec), after, upto, limit },
            Subject::Matching(filter, age) => {
                let (filter, older) = (Arc::clone(filter), since(*age));
                Select::Matching { filter, older, order: Order::OldestFirst, after, upto, limit }
            }
        }
    }

    /// The last letter of the walk.
    fn select_last(&self) -> Select {
        let (after, upto, limit) = (None, None, 1);
        match &self.subject {
            // The last letter of the walk is the first one of the opposite order.
            Subject::Frozen(spec) => {
                let mut spec = OperationSpec::clone(spec);
                spec.order = match spec.order {
                    Order::OldestFirst => Order::NewestFirst,
                    Order::NewestFirst => Order::OldestFirst,
                };
                Select::Frozen { spec: Arc::new(spec), after, upto, limit }
            }
            Subject::Matching(filter, age) => {
                let (filter, older) = (Arc::clone(filter), since(*age));
                Select::Matching { filter, older, order: Order::NewestFirst, after, upto, limit }
            }
        }
    }

    /// Returns the letters of this page, whose rows are loaded as heads.
    pub(super) fn page(&self, rows: &mut Rows) -> Result<Page, Stop> {
        let walk = self.at(rows.now());
        let found = rows.select(&walk.select(), Depth::Head)?;
        // A page that is not full is the last one, so a short walk never asks where it ends.
        if (found.len() as u64) < walk.limit {
            return Ok(Page { found, next: None });
        }
        // Letters that arrive while the call lasts are not part of it, or it might never end.
        let upto = match walk.upto {
            Some(upto) => Some(upto),
            None => match rows.select(&walk.select_last(), Depth::Head)?.last() {
                Some(last) => place(rows, *last)?,
                None => None,
            },
        };
        // The place is taken before the page is changed, and stays valid if its letter is deleted.
        let after = match found.last() {
            Some(last) => place(rows, *last)?,
            None => None,
        };
        let goes_on = after.is_some() && after != upto;
        let next = goes_on.then_some(Self { after, upto, ..walk });
        Ok(Page { found, next })
    }
}

impl Page {
    /// Leaves out what comes after the first `count` letters, for the next page.
    pub(super) fn cut(self, walk: &Walk, rows: &mut Rows, count: usize) -> Result<Self, Stop> {
        let (Some(last), true) = (self.found.last(), count < self.found.len()) else {
            return Ok(self);
        };
        let upto = match &self.next {
            Some(next) => next.upto,
            // It was the last page, so the walk ends where it did.
            None => place(rows, *last)?,
        };
        let found = self.found[..count].to_vec();
        let after = match found.last() {
            Some(last) => place(rows, *last)?,
            None => walk.after,
        };
        let next = Some(Walk { after, upto, ..walk.at(rows.now()) });
        Ok(Self { found, next })
    }
}

fn since(age: Option<Age>) -> Option<Older> {
    match age {
        Some(Age::Since(older)) => Some(older),
        _ => None,
    }
}

fn place(rows: &mut Rows, item: Selected) -> Result<Option<Cursor>, Stop> {
    Ok(rows.letter(item.letter, Depth::Head)?.map(|row| cursor(&row.letter)))
}

/// Returns the place of a letter in a list.
fn cursor(letter: &DeadLetter) -> Cursor {
    Cursor::after(letter.state.created_at, letter.id)
}
