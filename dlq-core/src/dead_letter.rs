//! [`DeadLetter`]: a dead message at rest.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::failure::words;
use crate::fingerprint::Fingerprint;
use crate::{
    Binding, Cause, Death, ErrorClass, Failure, History, LetterId, Message, OperationId, Origin,
    Reason, Timestamp,
};

words! {
    /// State of a letter.
    Status("status") {
        /// Dead; waits for somebody or something to send it back.
        Pending = "pending",
        /// Not dead: a retry record that waits for its next attempt, or a replayed letter that is being retried.
        Retrying = "retrying",
        /// Claimed: somebody holds a lease on it and runs it.
        Replaying = "replaying",
        /// Sent back to a broker; whether it succeeded is not known yet.
        Sent = "sent",
        /// Parked behind another letter of its key, so that order is kept.
        Held = "held",
        /// Done with; see [`Resolution`].
        Resolved = "resolved",
        /// Set aside: not replayed until somebody releases it.
        Quarantined = "quarantined",
    }
}

impl Status {
    /// Returns true if the letter is not resolved. Retry records count as unresolved.
    #[must_use]
    pub const fn is_unresolved(self) -> bool {
        !matches!(self, Self::Resolved)
    }
}

words! {
    /// Reason why a letter is resolved.
    Resolution("resolution") {
        /// A replay ran the handler to success.
        Succeeded = "succeeded",
        /// A replay found that the message had been handled already.
        Duplicate = "duplicate",
        /// An operator decided that nothing more is to be done.
        Dismissed = "dismissed",
    }
}

/// State of a letter since its death, as the store keeps it. Code that writes letters leaves it at its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterState {
    /// Status of the letter.
    pub status: Status,
    /// Reason why the letter is resolved; set exactly when `status` is resolved.
    pub resolution: Option<Resolution>,
    /// When it may run next; `None` when nothing has been arranged.
    pub due: Option<Timestamp>,
    /// Times it was sent back, by operators and by the automatic schedule.
    pub retry_count: u32,
    /// Times an operator sent it back; past the cap the letter is quarantined.
    pub replays: u32,
    /// The operation that holds it, while one does.
    pub operation: Option<OperationId>,
    /// When it came to be a letter in the store, by its first death there; of a retry record, when that came.
    pub created_at: Timestamp,
    /// When the store last changed it.
    pub updated_at: Timestamp,
    /// When it was last handed out to be run again.
    pub last_retry_at: Option<Timestamp>,
    /// Number of times that the same original message was put, if the store deduplicates by original id; otherwise 1.
    pub seen: u32,
    /// The bytes that the message had before operators [edited](crate::store::Edit) it, oldest first. A death that
    /// carries them is a death of this letter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edited_from: Vec<Binding>,
}

impl Default for LetterState {
    fn default() -> Self {
        Self {
            status: Status::Pending,
            resolution: None,
            due: None,
            retry_count: 0,
            replays: 0,
            operation: None,
            created_at: Timestamp::EPOCH,
            updated_at: Timestamp::EPOCH,
            last_retry_at: None,
            seen: 1,
            edited_from: Vec::new(),
        }
    }
}

/// A dead message at rest: the message byte for byte, where it stood, whose death it was, and everything that was
/// tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct DeadLetter {
    /// The deterministic identity.
    pub id: LetterId,
    /// Deaths before this one.
    pub generation: u32,
    /// Message as the producer sent it.
    pub message: Message,
    /// Stream or topic and position of the message.
    pub origin: Origin,
    /// The stable name of the handler or group that failed.
    pub consumer: String,
    /// The program that wrote the letter.
    pub service: Option<String>,
    /// Reason why the message was given up.
    pub reason: Reason,
    /// Class of the last failure: whether another attempt could have succeeded.
    pub class: ErrorClass,
    /// Cause of the last failure; `None` when no attempt was made.
    pub cause: Option<Cause>,
    /// Every attempt, oldest first.
    pub history: History,
    /// Handler runs in this generation.
    pub attempts: u32,
    /// Times the broker handed it out, where it says.
    pub deliveries: u32,
    /// Runs that ended with the process.
    pub crashes: u32,
    /// Hops to a slower retry stage.
    pub escalations: u32,
    /// The group of errors it belongs to.
    pub fingerprint: Fingerprint,
    /// When it died (or, for a retry record, when it was escalated).
    pub died_at: Timestamp,
    /// True if the death was witnessed; false if it was only reported by somebody else.
    pub confirmed: bool,
    /// Declared attributes, for filters.
    pub attributes: BTreeMap<String, String>,
    /// State of the letter since its death.
    pub state: LetterState,
}

impl DeadLetter {
    /// The death that this letter records.
    #[must_use]
    pub const fn death(&self) -> Death {
        Death { letter: self.id, generation: self.generation }
    }

    /// The latest failure; `None` when the message died without an attempt that failed.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.history.last()
    }

    /// The latest error as one line: message and sources.
    #[must_use]
    pub fn error(&self) -> String {
        self.failure().map_or_else(|| self.reason.to_string(), Failure::report)
    }

    /// Returns the summary that lists show.
    #[must_use]
    pub fn summary(&self) -> LetterSummary {
        LetterSummary {
            id: self.id,
            generation: self.generation,
            message_id: self.message.id().map(str::to_owned),
            subject: self.message.subject().to_owned(),
            event: self.message.event().map(str::to_owned),
            origin: self.origin.clone(),
            consumer: self.consumer.clone(),
            service: self.service.clone(),
            reason: self.reason,
            class: self.class,
            cause: self.cause,
            error: self.error(),
            fingerprint: self.fingerprint,
            attempts: self.attempts,
            crashes: self.crashes,
            payload_size: self.message.payload().map(|payload| payload.len() as u64),
            died_at: self.died_at,
            attributes: self.attributes.clone(),
            state: self.state.clone(),
        }
    }
}

/// A letter without its payload, key, headers and attempts: what a list shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterSummary {
    /// The deterministic identity.
    pub id: LetterId,
    /// Deaths before this one.
    pub generation: u32,
    /// The producer's own id of the message.
    pub message_id: Option<String>,
    /// Subject to which the message was addressed.
    pub subject: String,
    /// The type of the event.
    pub event: Option<String>,
    /// Stream or topic and position of the message.
    pub origin: Origin,
    /// Consumer that gave the message up.
    pub consumer: String,
    /// The program that wrote the letter.
    pub service: Option<String>,
    /// Reason why the message was given up.
    pub reason: Reason,
    /// Class of the last failure: whether another attempt could have succeeded.
    pub class: ErrorClass,
    /// Cause of the last failure.
    pub cause: Option<Cause>,
    /// The latest error: message and sources in one text.
    pub error: String,
    /// The group of errors it belongs to.
    pub fingerprint: Fingerprint,
    /// Handler runs in this generation.
    pub attempts: u32,
    /// Runs that ended with the process.
    pub crashes: u32,
    /// Length of the payload in bytes; `None` for a tombstone.
    pub payload_size: Option<u64>,
    /// When it died.
    pub died_at: Timestamp,
    /// Declared attributes.
    pub attributes: BTreeMap<String, String>,
    /// State of the letter since its death.
    pub state: LetterState,
}

const _: () = {
    const fn send_sync<T: Send + Sync>() {}
    send_sync::<DeadLetter>();
    send_sync::<crate::Delivery>();
};
