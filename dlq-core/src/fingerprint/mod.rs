//! Fingerprints: the identity of a group of errors.
//!
//! Letters that failed for the same reason in the same place have the same fingerprint, whatever ids, numbers and times
//! their texts carry. It is computed when the letter is written, from the first of these tiers that applies:
//!
//! 1. **explicit**: the group that the error itself names;
//! 2. **structured**: the type of the error, the file it arose in (without the line number, so that an edit further up
//!    changes nothing), and the [normalised](normalize) messages of it and its sources, which keep the variants of one
//!    enum apart and one wrapper's causes too (the types of the sources would, but a `dyn Error` does not tell its own);
//! 3. **text**: the same without the place, where it is not known;
//! 4. **reason**: why the message was given up, when no attempt failed.
//!
//! The consumer is part of every tier, the cause of all but the first and the last. Tiers, as in Sentry's grouping and
//! ServiceControl's classifiers, let an author's word win over structure and structure over text.
//!
//! The identity carries the version of the algorithm. A change of the algorithm is a new version; what is stored keeps
//! the fingerprint it was given.

mod normalize;
mod place;
mod values;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use normalize::normalize;

use crate::identity::Fields;
use crate::{Failure, Reason};

/// The version of the algorithm that this crate computes.
pub const VERSION: u16 = 1;

/// The identity of a group of errors: `v1:` and 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint {
    version: u16,
    hash: u64,
}

/// A text that is not a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a fingerprint; expected e.g. `v1:0123456789abcdef`, as `dlq groups` shows it"
)]
pub struct InvalidFingerprint {
    text: String,
}

impl Fingerprint {
    /// The group that a death belongs to: of `consumer`, for `reason`, after `failure`.
    #[must_use]
    pub fn of(consumer: &str, reason: Reason, failure: Option<&Failure>) -> Self {
        let mut parts = Fields::new();
        parts.bytes(b"dlq fingerprint v1");
        let mut add = |part: &str| parts.add(part.as_bytes());
        match failure {
            None => ["reason", consumer, reason.as_str()].into_iter().for_each(add),
            Some(Failure { group: Some(group), .. }) => {
                ["explicit", consumer, group].into_iter().for_each(add);
            }
            Some(failure) => {
                let file = failure.location.as_deref().map(place::file);
                // The kind is part of the hash, so groups of different kinds never meet, even if their other parts are
                // the same.
                add(if file.is_some() { "structured" } else { "text" });
                add(consumer);
                add(failure.cause.as_str());
                add(&place::type_path(&failure.error_type));
                file.iter().for_each(|file| add(file));
                failure.messages.iter().for_each(|text| add(&normalize(text)));
            }
        }
        Self { version: VERSION, hash: u64::from_be_bytes(parts.finish()) }
    }

    /// The version of the algorithm that computed it.
    #[must_use]
    pub const fn version(self) -> u16 {
        self.version
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("v{}:{:016x}", self.version, self.hash))
    }
}

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.strip_prefix('v').and_then(|rest| rest.split_once(':')).and_then(
            |(version, hash)| {
                // The parsers of numbers take a sign in front, which no fingerprint has.
                let digits = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
                let version =
                    version.bytes().all(|byte| byte.is_ascii_digit()).then_some(version)?;
                Some(Self {
                    version: version.parse().ok()?,
                    hash: u64::from_str_radix(hash, 16).ok().filter(|_| digits)?,
                })
            },
        );
        parsed.ok_or_else(|| InvalidFingerprint { text: text.chars().take(80).collect() })
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
