//! Durations as people write them: `200ms`, `10s`, `1h 30m`.
//!
//! The module can be used with serde: `#[serde(with = "dlq_core::policy::duration")]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// The units, largest first, with their length in nanoseconds.
const UNITS: &[(&str, u128)] = &[
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// A text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a duration: {why}; write e.g. `200ms`, `10s`, `5m` or `1h 30m`")]
pub struct InvalidDuration {
    text: String,
    why: String,
}

/// Reads a duration: whole numbers, each with a unit (`ns`, `us`, `ms`, `s`, `m`, `h`, `d`), added up.
///
/// # Errors
///
/// When a number has no unit, a unit is unknown, or the sum is too large.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = |why: String| InvalidDuration { text: text.chars().take(80).collect(), why };
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(invalid("it is empty".to_owned()));
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number = &rest[..digits];
        let after = rest[digits..].trim_start();
        // Any letters are taken for the unit, so that the error can name the whole word that was written.
        let letters = after.len() - after.trim_start_matches(char::is_alphabetic).len();
        let unit = &after[..letters];
        let count: u128 = match number.parse() {
            Ok(count) => count,
            Err(_) if number.is_empty() => {
                let found: String = rest.chars().take(20).collect();
                return Err(invalid(format!("expected a whole number at `{found}`")));
            }
            Err(_) => return Err(invalid("it is too long".to_owned())),
        };
        if unit.is_empty() && after.starts_with(['.', ',']) {
            return Err(invalid("fractions are not read, so take a smaller unit".to_owned()));
        }
        if unit.is_empty() {
            return Err(invalid(format!("`{number}` has no unit")));
        }
        let Some((_, length)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(invalid(format!(
                "`{}` is not a unit (ns, us, ms, s, m, h, d)",
                unit.chars().take(20).collect::<String>()
            )));
        };
        nanos = count
            .checked_mul(*length)
            .and_then(|part| nanos.checked_add(part))
            .ok_or_else(|| invalid("it is too long".to_owned()))?;
        rest = after[letters..].trim_start();
    }
    let seconds =
        u64::try_from(nanos / 1_000_000_000).map_err(|_| invalid("it is too long".to_owned()))?;
    Ok(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
}

/// Writes a duration so that [`parse`] reads it back.
#[must_use]
pub fn format(duration: Duration) -> String {
    // The units come largest first, so each takes what the larger ones have left.
    let mut nanos = duration.as_nanos();
    let mut parts = Vec::new();
    for (unit, length) in UNITS {
        if nanos >= *length {
            parts.push(format!("{}{unit}", nanos / length));
            nanos %= length;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

/// Serializes as [`format()`] writes it.
///
/// # Errors
///
/// When the serializer fails.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*duration))
}

/// Deserializes as [`parse`] reads it.
///
/// # Errors
///
/// When it is not a text, or not one that [`parse`] reads.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// The same for durations that may be absent.
pub mod option {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Serializes as [`super::format`] writes it, or as nothing.
    ///
    /// # Errors
    ///
    /// When the serializer fails.
    pub fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        duration.map(super::format).serialize(serializer)
    }

    /// Deserializes as [`super::parse`] reads it, or nothing.
    ///
    /// # Errors
    ///
    /// When it is neither nothing nor a text that [`super::parse`] reads.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Option::<String>::deserialize(deserializer)?
            .map(|text| super::parse(&text).map_err(serde::de::Error::custom))
            .transpose()
    }
}
