use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Decoded;
use crate::store::rules::born;
use crate::{Binding, DeadLetter, LetterState, Message, Origin, Reason, Timestamp};

/// Facts about a letter that no header of the protocol carries. Transports write them beside the headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Times the broker handed the message out.
    pub deliveries: u32,
    /// Runs that ended with the process.
    pub crashes: u32,
    /// When it died.
    pub died_at: Timestamp,
    /// True if the death was witnessed.
    pub confirmed: bool,
    /// Declared attributes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
    /// State that the writer of the letter knew. Not written if it is the default.
    #[serde(default, skip_serializing_if = "is_new")]
    pub state: LetterState,
}

fn is_new(state: &LetterState) -> bool {
    *state == LetterState::default()
}

impl Facts {
    /// Returns the facts about this letter.
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

    /// The letter that was written with these facts and headers: `None` when the headers do not say whose death it was, or
    /// its identity does not fit the bytes of `message`.
    ///
    /// It is as one that has just been stored, at `written`: what its writer knew of other stores says nothing of this
    /// one, but how often it was sent back does.
    #[must_use]
    pub fn into_letter(
        self,
        decoded: Decoded,
        message: Message,
        origin: Origin,
        written: Timestamp,
    ) -> Option<DeadLetter> {
        // Handlers copy headers onto new messages. Such a message is not the letter that its headers name.
        let fits = decoded.binding == Some(Binding::of(&decoded.letter?, &message));
        if !fits {
            return None;
        }
        self.into_claimed(decoded, message, origin, written)
    }

    /// The same without a look at the bytes, where the payload of `message` is not at hand.
    #[must_use]
    pub fn into_claimed(
        self,
        decoded: Decoded,
        message: Message,
        origin: Origin,
        written: Timestamp,
    ) -> Option<DeadLetter> {
        let id = decoded.letter?;
        let mut state = born(written);
        state.replays = decoded.replays.unwrap_or(self.state.replays);
        state.retry_count = self.state.retry_count.max(state.replays);
        Some(DeadLetter {
            id,
            generation: decoded.generation.unwrap_or(0),
            message,
            origin,
            consumer: decoded.consumer?,
            service: decoded.service,
            reason: decoded.reason.unwrap_or(Reason::Manual),
            class: decoded.class?,
            cause: decoded.cause,
            attempts: decoded.attempts.unwrap_or(0),
            deliveries: self.deliveries,
            crashes: self.crashes,
            delayed_retries: decoded.delayed_retries.unwrap_or(0),
            fingerprint: decoded.fingerprint?,
            history: decoded.history.unwrap_or_default(),
            died_at: self.died_at,
            confirmed: self.confirmed,
            attributes: self.attributes,
            state,
        })
    }
}
