use std::fmt;

use serde::{Deserialize, Serialize};

/// Importance of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// Worth knowing; nothing has to be done.
    Note,
    /// Messages can be lost, doubled or held up when something else goes wrong.
    Warning,
    /// It does not work, or messages are lost.
    Error,
}

impl Severity {
    /// As it is written: `note`, `warning` or `error`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Something at the server that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// Importance of the finding.
    pub severity: Severity,
    /// Item that was examined, e.g. ``topic `orders.dlq` ``.
    pub subject: String,
    /// The setting or figure, as the server calls it.
    pub setting: String,
    /// Observed state.
    pub found: String,
    /// Expected state.
    pub want: String,
    /// Effect on messages, and the remedy.
    pub advice: String,
}

impl Finding {
    /// A finding of which nothing more is said yet. See the fields.
    #[must_use]
    pub fn new(severity: Severity, subject: &str, setting: &str) -> Self {
        Self {
            severity,
            subject: subject.to_owned(),
            setting: setting.to_owned(),
            found: String::new(),
            want: String::new(),
            advice: String::new(),
        }
    }

    /// Sets what was found, and what was wanted.
    #[must_use]
    pub fn found(mut self, found: impl Into<String>, want: impl Into<String>) -> Self {
        (self.found, self.want) = (found.into(), want.into());
        self
    }

    /// Sets what it does to messages, and what to do.
    #[must_use]
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, subject, setting, found, want, advice } = self;
        write!(f, "{severity}: {subject}: `{setting}` is {found}, wanted is {want}: {advice}")
    }
}
