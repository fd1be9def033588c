use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Death, OperationId};

/// Identity under which a broker takes a letter once: the death, and the operation that sends it back.
///
/// Its text form is `LETTER.GENERATION.OPERATION`, or `LETTER.GENERATION` without an operation. Keys and ids at brokers are
/// made of it, so that whoever repeats a send has the same.
///
/// ```
/// use dlq_core::outbox::Once;
/// use dlq_core::{Death, LetterId, OperationId};
///
/// let death = Death { letter: LetterId::from_bytes([1; 16]), generation: 2 };
/// let once = Once::in_operation(death, OperationId::from_bytes([7; 16]));
/// assert_eq!(once.to_string().parse::<Once>()?, once);
/// # Ok::<(), dlq_core::outbox::InvalidOnce>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Once {
    /// The death that is sent back.
    pub death: Death,
    /// The operation that sends it back. `None` where a death is sent back once, by whichever operation.
    pub operation: Option<OperationId>,
}

impl Once {
    /// Once by this operation; another operation sends the same death again. For letters of a store.
    #[must_use]
    pub const fn in_operation(death: Death, operation: OperationId) -> Self {
        Self { death, operation: Some(operation) }
    }

    /// Once, whichever operation sends it. For letters of a broker.
    #[must_use]
    pub const fn per_death(death: Death) -> Self {
        Self { death, operation: None }
    }
}

impl fmt::Display for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.death.fmt(f)?;
        self.operation.map_or(Ok(()), |operation| write!(f, ".{operation}"))
    }
}

/// Error for a text that is not a [`Once`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` does not name a death and an operation; expected `LETTER.GENERATION.OPERATION`")]
pub struct InvalidOnce {
    text: String,
}

impl FromStr for Once {
    type Err = InvalidOnce;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A death has one dot of its own, so the second one begins the operation.
        let parsed = match text.match_indices('.').nth(1) {
            None => text.parse().ok().map(Self::per_death),
            Some((end, _)) => (text[..end].parse().ok())
                .zip(text[end + 1..].parse().ok())
                .map(|(death, operation)| Self::in_operation(death, operation)),
        };
        parsed.ok_or_else(|| InvalidOnce { text: text.chars().take(120).collect() })
    }
}

impl Serialize for Once {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LetterId;

    #[test]
    fn text_is_read_as_it_was_written_and_nothing_else_is() {
        let death = Death { letter: LetterId::from_bytes([9; 16]), generation: 3 };
        let once = Once::in_operation(death, OperationId::from_bytes([5; 16]));
        for one in [once, Once::per_death(death)] {
            assert_eq!(one.to_string().parse::<Once>().unwrap(), one);
        }
        let text = once.to_string();
        for other in ["", "a.b.c", &text[1..], &text[..text.len() - 1], &format!("{text}.1")] {
            assert!(other.parse::<Once>().is_err(), "{other}");
        }
    }
}
