/// Selection of messages for a route: those of a subject, or of an [`event`]. Both may have wildcards: `*` for one
/// token between dots, a final `>` for one or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matcher {
    /// Messages with this subject.
    Subject(String),
    /// Messages that report this event.
    Event(String),
}

/// Messages that report this event, wherever they were addressed.
#[must_use]
pub fn event(pattern: impl Into<String>) -> Matcher {
    Matcher::Event(pattern.into())
}

impl From<&str> for Matcher {
    fn from(pattern: &str) -> Self {
        Self::Subject(pattern.to_owned())
    }
}

impl From<String> for Matcher {
    fn from(pattern: String) -> Self {
        Self::Subject(pattern)
    }
}
