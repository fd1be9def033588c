use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{DeadLetter, LetterState, Timestamp};

/// What is known of a letter that no header of the protocol says. Transports write it beside the headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Times the broker handed the message out.
    pub deliveries: u32,
    /// Runs that ended with the process.
    pub crashes: u32,
    /// When it died.
    pub died_at: Timestamp,
    /// Whether the death was witnessed.
    pub confirmed: bool,
    /// Declared attributes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
    /// What its writer knew of what happened since.
    pub state: LetterState,
}

impl Facts {
    /// What is known of this letter.
    #[must_use]
    pub fn of(letter: &DeadLetter) -> Self {
        Self {
            deliveries: letter.deliveries,
            crashes: letter.crashes,
            died_at: letter.died_at,
            confirmed: letter.confirmed,
            attributes: letter.attributes.clone(),
            state: letter.state.clone(),
        }
    }
}
