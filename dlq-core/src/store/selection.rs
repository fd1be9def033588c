use serde::Serialize;

use crate::{DeadLetter, Filter, LetterId};

/// Selection of a destructive call: the letters that match a filter with a condition, or, explicitly, all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
#[must_use]
pub struct Selection(Filter);

/// A destructive call was made with a filter that means every letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the filter is empty and would mean every letter; narrow it, or say `all`")]
pub struct EmptyFilter;

impl Selection {
    /// The letters that match `filter`.
    ///
    /// # Errors
    ///
    /// When the filter is empty.
    pub fn matching(filter: Filter) -> Result<Self, EmptyFilter> {
        if filter.is_empty() { Err(EmptyFilter) } else { Ok(Self(filter)) }
    }

    /// The letter of this id.
    pub fn id(id: LetterId) -> Self {
        Self(Filter::new().with_id(id))
    }

    /// Every letter.
    pub fn all() -> Self {
        // The empty filter gets in only here, where the caller has said that all letters are meant.
        Self(Filter::new())
    }

    /// The filter; empty for all.
    pub fn filter(&self) -> &Filter {
        &self.0
    }

    /// Returns true if `letter` is selected.
    #[must_use]
    pub fn matches(&self, letter: &DeadLetter) -> bool {
        self.0.matches(letter)
    }
}
