//! What a migration of the schema would do.

use serde::Serialize;

/// The version of the tables that were found, the version that this program works with, and the steps between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Migration {
    /// The version that was found; `None` when there are no tables yet.
    pub found: Option<u32>,
    /// The version that this program works with.
    pub known: u32,
    /// The steps to come, in order; none when the tables are of the version that this program works with.
    pub steps: Vec<MigrationStep>,
    /// Parts of the present version that somebody has removed, as `table dlq_counts`. Applying makes them again, and counts
    /// letters again where the counts were lost; what else was in a table is not brought back.
    pub missing: Vec<String>,
}

/// One step, from the version before to this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MigrationStep {
    /// The version that it leads to.
    pub version: u32,
    /// What it does, in words.
    pub what: String,
    /// Whether it can run while consumers work, also such of the version before.
    pub is_online: bool,
}

impl Migration {
    /// The steps of `all` that come after `found`; the first of `all` leads to version 1.
    pub(crate) fn between(found: Option<u32>, mut all: Vec<MigrationStep>) -> Self {
        let known = u32::try_from(all.len()).unwrap_or(u32::MAX);
        all.retain(|step| step.version > found.unwrap_or(0));
        Self { found, known, steps: all, missing: Vec::new() }
    }

    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        self.steps.is_empty() && self.missing.is_empty()
    }

    /// Whether every step can run while consumers work.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.steps.iter().all(|step| step.is_online)
    }
}

/// A path or name as it stands in a URL.
pub(crate) fn escaped(text: &[u8]) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let one = |byte: &u8| {
        if is_plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.iter().map(one).collect()
}
