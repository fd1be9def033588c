//! Letters of which it is not known whether they were sent back.

use crate::{DeadLetter, Status};

/// The attribute of a letter of which it is not known whether it was sent back. It says why, and what to do.
pub const REPLAYS_UNCLEAR: &str = "replays.unclear";

/// Has a letter say why it is not known whether it was sent back.
pub fn say_unclear(letter: &mut DeadLetter, why: impl Into<String>) {
    letter.attributes.insert(REPLAYS_UNCLEAR.to_owned(), why.into());
}

/// The same of a letter that is to be put into a store: it is [quarantined](super::super::rules::put) there, so that it is
/// not sent (G6) before somebody says that it was not.
pub fn quarantine_unclear(letter: &mut DeadLetter, why: impl Into<String>) {
    letter.state.status = Status::Quarantined;
    say_unclear(letter, why);
}

/// Returns the reason why it is not known whether this letter was sent back, if it is quarantined for that.
#[must_use]
pub fn unclear(letter: &DeadLetter) -> Option<&str> {
    let why = letter.attributes.get(REPLAYS_UNCLEAR);
    why.filter(|_| letter.state.status == Status::Quarantined).map(String::as_str)
}
