//! Migrations of a store's schema.

use serde::Serialize;

/// The version of a store's schema that was found, the version that this program works with, and the steps between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Migration {
    /// The version that was found; `None` when there is no store yet.
    pub found: Option<u32>,
    /// The version that this program works with.
    pub known: u32,
    /// The steps to come, in order; none when the schema has the version that this program works with.
    pub steps: Vec<MigrationStep>,
    /// Parts of the present version that somebody has removed, as `table dlq_counts` or `index age of dlq_letters`.
    /// Applying makes them again, and counts letters again where the counts were lost; what else was in a table is not
    /// brought back.
    pub missing: Vec<String>,
}

/// A step from the version before to this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MigrationStep {
    /// The version that it leads to.
    pub version: u32,
    /// A description in words.
    pub what: String,
    /// True if it can run while consumers work, also such of the version before.
    pub is_online: bool,
}

impl MigrationStep {
    /// Creates the step that leads to this version.
    pub fn new(version: u32, what: impl Into<String>, is_online: bool) -> Self {
        Self { version, what: what.into(), is_online }
    }
}

impl Migration {
    /// Creates a migration by the steps of `all` that come after `found`; the first of `all` leads to version 1.
    #[must_use]
    pub fn between(found: Option<u32>, mut all: Vec<MigrationStep>) -> Self {
        let known = u32::try_from(all.len()).unwrap_or(u32::MAX);
        all.retain(|step| step.version > found.unwrap_or(0));
        Self { found, known, steps: all, missing: Vec::new() }
    }

    /// Returns true if nothing is to be done.
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        self.steps.is_empty() && self.missing.is_empty()
    }

    /// Returns true if every step can run while consumers work.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.steps.iter().all(|step| step.is_online)
    }
}
