//! Kinds by which letters are counted, and what else both databases make of a filter or an id.

use dlq_core::store::Stats;
use dlq_core::{Cause, ErrorClass, LetterId, Reason, Status, Timestamp};

use crate::error::Result;
use crate::values::Take;

/// The dimensions by which statistics count letters.
pub(crate) struct Kind {
    pub(crate) status: Status,
    reason: Reason,
    cause: Option<Cause>,
    class: ErrorClass,
    consumer: String,
    subject: String,
}

impl Kind {
    /// Reads status, reason, cause, class, consumer and subject.
    pub(crate) fn read(fields: &mut impl Take) -> Result<Self> {
        Ok(Self {
            status: fields.word("status")?,
            reason: fields.word("reason")?,
            cause: fields.word_or_none("cause")?,
            class: fields.word("class")?,
            consumer: fields.text()?,
            subject: fields.text()?,
        })
    }

    /// Adds `n` letters of this kind, as [`Stats::add`] adds one.
    pub(crate) fn add_to(self, stats: &mut Stats, n: u64) {
        stats.total += n;
        *stats.by_status.entry(self.status).or_default() += n;
        // What is resolved is nobody's work any more, and is only counted as a whole.
        if self.status.is_unresolved() {
            *stats.by_subject.entry(self.subject).or_default() += n;
            *stats.by_reason.entry(self.reason).or_default() += n;
            *stats.by_class.entry(self.class).or_default() += n;
            *stats.by_consumer.entry(self.consumer).or_default() += n;
            if let Some(cause) = self.cause {
                *stats.by_cause.entry(cause).or_default() += n;
            }
        }
    }
}

/// When the first and the last letter of a status were stored.
pub(crate) fn span(
    stats: &mut Stats,
    status: Status,
    oldest: Option<Timestamp>,
    newest: Option<Timestamp>,
) {
    stats.oldest = stats.oldest.into_iter().chain(oldest).min();
    stats.newest = stats.newest.into_iter().chain(newest).max();
    if status.is_unresolved() {
        stats.oldest_unresolved = stats.oldest_unresolved.into_iter().chain(oldest).min();
    }
}

/// The first and the last id that begin with these hexadecimal digits; `None` when none does.
pub(crate) fn with_prefix(digits: &str) -> Option<(LetterId, LetterId)> {
    let is_prefix = digits.len() <= 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let rest = 32_usize.checked_sub(digits.len()).filter(|_| is_prefix)?;
    // An id has 32 digits: filled up with the lowest and the highest, the prefix is a range of the primary key.
    let bound = |fill: &str| format!("{digits}{}", fill.repeat(rest)).parse().ok();
    Some((bound("0")?, bound("f")?))
}
