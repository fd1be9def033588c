//! [`SubjectPattern`]: subjects with wildcards, as filters and routers use them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A subject with wildcards. Tokens are separated by dots; `*` stands for exactly one token, a final `>` for one or
/// more. Everything else is literal.
///
/// ```
/// use dlq_core::SubjectPattern;
///
/// let orders: SubjectPattern = "orders.*".parse()?;
/// assert!(orders.matches("orders.created"));
/// assert!(!orders.matches("orders.eu.created"));
/// assert!("orders.>".parse::<SubjectPattern>()?.matches("orders.eu.created"));
/// # Ok::<(), dlq_core::InvalidSubjectPattern>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubjectPattern {
    text: String,
    literal: bool,
}

/// A text that is not a subject pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a subject pattern: {why}")]
pub struct InvalidSubjectPattern {
    text: String,
    why: &'static str,
}

impl SubjectPattern {
    /// Returns true if `subject` matches.
    #[must_use]
    pub fn matches(&self, subject: &str) -> bool {
        if self.literal {
            return self.text == subject;
        }
        let mut tokens = subject.split('.');
        for wanted in self.text.split('.') {
            match (wanted, tokens.next()) {
                (_, None) => return false,
                (">", Some(_)) => return true,
                ("*", Some(_)) => {}
                (wanted, Some(found)) if wanted != found => return false,
                _ => {}
            }
        }
        tokens.next().is_none()
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns true if the pattern has no wildcard.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        self.literal
    }

    /// Returns the text up to the first wildcard, with which every matching subject begins.
    #[must_use]
    pub fn literal_prefix(&self) -> &str {
        if self.literal {
            return &self.text;
        }
        let mut end = 0;
        for token in self.text.split('.') {
            if token == "*" || token == ">" {
                break;
            }
            end += token.len() + 1;
        }
        // The last token has no dot behind it, by which the sum would be too long.
        &self.text[..end.min(self.text.len())]
    }
}

impl FromStr for SubjectPattern {
    type Err = InvalidSubjectPattern;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |why| InvalidSubjectPattern { text: text.chars().take(200).collect(), why };
        if text.is_empty() {
            return Err(invalid("it is empty"));
        }
        let tokens: Vec<_> = text.split('.').collect();
        if tokens[..tokens.len() - 1].contains(&">") {
            return Err(invalid("`>` may only be the last token"));
        }
        let literal = !tokens.iter().any(|token| matches!(*token, "*" | ">"));
        Ok(Self { text: text.to_owned(), literal })
    }
}

impl fmt::Display for SubjectPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for SubjectPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for SubjectPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stand_for_whole_tokens() {
        let cases = [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "a", true),
            ("*", "a.b", false),
            ("a.*", "a", false),
            ("a.*.c", "a.b.c", true),
            ("a.>", "a", false),
            ("a.>", "a.b.c", true),
            (">", "a.b", true),
            ("a*", "ab", false),
            ("100%_", "100%_", true),
        ];
        for (pattern, subject, expected) in cases {
            let pattern: SubjectPattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(subject), expected, "{pattern} against {subject}");
            if pattern.matches(subject) {
                assert!(subject.starts_with(pattern.literal_prefix()));
            }
        }
        assert!("a.>.b".parse::<SubjectPattern>().is_err());
        assert!("".parse::<SubjectPattern>().is_err());
    }
}
