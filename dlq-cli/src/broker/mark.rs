//! Refusals because the letters of a broker are kept in a store, or because they are not.

use crate::error::CliError;

/// A store into which the letters of a broker go.
pub(crate) struct Mark {
    pub(crate) store: String,
    /// The consumer or group that says so.
    pub(crate) by: String,
    /// Confirmed letters, in words; `None` for nothing yet.
    pub(crate) confirmed: Option<String>,
    /// Way to delete the consumer or group.
    pub(crate) delete: String,
}

impl Mark {
    /// Letters that are kept in a store are sent back from there, so that it knows.
    pub(crate) fn refuse_kept(marks: &[Self], shown: &str) -> Result<(), CliError> {
        match marks.first() {
            Some(mark) => Err(CliError::refused(format!(
                "the letters of {shown} are kept in a store; use the store, which learns of what is sent: dlq replay --from {}",
                mark.store
            ))),
            None => Ok(()),
        }
    }

    /// Returns the error that a verb which keeps something does not work at a broker, with the command to type instead.
    pub(crate) fn no_changes(marks: &[Self], shown: &str, verb: &str) -> CliError {
        match marks.first() {
            Some(mark) => CliError::refused(format!(
                "`dlq {verb}` needs a store, and the letters of {shown} are kept in one; use the store: dlq {verb} --from {}",
                mark.store
            )),
            None => CliError::refused(format!(
                "`dlq {verb}` needs a store: what a broker keeps only grows; ingest first: dlq ingest --once --from \
                 {shown} --into sqlite://dlq.db, then: dlq {verb} --from sqlite://dlq.db"
            )),
        }
    }

    /// A store that is created anew gets nothing of what was confirmed into one that is lost.
    pub(super) fn refuse_a_lost_store(
        marks: &[Self],
        shown: &str,
        by: &str,
        into: &str,
    ) -> Result<(), CliError> {
        // Marks of others do not matter: they have confirmed letters for themselves alone.
        let mut marks = marks.iter().filter(|mark| mark.by == by);
        match marks.find_map(|mark| Some((mark, mark.confirmed.as_ref()?))) {
            Some((mark, confirmed)) => Err(CliError::refused(format!(
                "{into} is not there, and {confirmed} of {shown} went into {} already; use that store. If it is lost, delete \
                 the consumer first ({}): everything that is still kept there is then read again",
                mark.store, mark.delete
            ))),
            None => Ok(()),
        }
    }
}
