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
    ///
    /// Operations and the schedule send back `pending` letters only. A claim makes a letter `replaying`, and the end of
    /// the claim makes it `resolved`, `retrying`, or `pending` once more after another death. An operator
    /// [marks](crate::store::Mark) letters as `quarantined`, `pending` or `resolved`.
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
    ///
    /// A store believes it of the end of a claim, of an operator's mark, and of letters that are
    /// [restored](crate::store::rules::restored); not of letters that are put.
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
#[non_exhaustive]
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

impl LetterState {
    /// Sets the status. Defaults to pending.
    #[must_use]
    pub const fn with_status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    /// Sets when the letter may run next. Defaults to none.
    #[must_use]
    pub const fn with_due(mut self, due: Timestamp) -> Self {
        self.due = Some(due);
        self
    }
}

/// A dead message at rest: the message byte for byte, where it stood, whose death it was, and everything that was
/// tried.
///
/// Fields may be added in a minor release. Code outside this crate makes a letter with [`DeadLetter::new`] and sets the
/// fields that differ:
///
/// ```
/// use dlq_core::{DeadLetter, LetterId, Message, Origin, Position, Reason};
///
/// let origin = Origin::new("nats", "ORDERS", Position::Offset(7));
/// let message = Message::new("orders.created", "{}");
/// let mut letter = DeadLetter::new(message, origin.clone(), "billing", Reason::Manual);
/// letter.service = Some("shop".to_owned());
/// assert_eq!(letter.id, LetterId::of(&origin, None, "billing"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
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
    pub delayed_retries: u32,
    /// The group of errors it belongs to.
    pub fingerprint: Fingerprint,
    /// When it died (or, for a retry record, when it was enqueued).
    pub died_at: Timestamp,
    /// True if the death was witnessed; false if it was only reported by somebody else. The automatic schedule
    /// leaves reported deaths alone.
    pub confirmed: bool,
    /// Declared attributes, for filters.
    pub attributes: BTreeMap<String, String>,
    /// State of the letter since its death.
    pub state: LetterState,
}

impl DeadLetter {
    /// A letter of the first death of `message`, which stood at `origin` and which `consumer` gave up for `reason` without
    /// an attempt.
    ///
    /// The id follows from origin, publish time and consumer, the fingerprint from consumer and reason. The class is
    /// permanent, the death is witnessed, and the time of death is the epoch.
    pub fn new(
        message: Message,
        origin: Origin,
        consumer: impl Into<String>,
        reason: Reason,
    ) -> Self {
        let consumer = consumer.into();
        let id = LetterId::of(&origin, message.published_at(), &consumer);
        let fingerprint = Fingerprint::of(&consumer, reason, None);
        Self::identified(id, fingerprint, message, origin, consumer, reason)
    }

    /// Like [`new`](Self::new), with an id and a fingerprint that are known already, such as those of a letter that is
    /// read from a store.
    pub fn identified(
        id: LetterId,
        fingerprint: Fingerprint,
        message: Message,
        origin: Origin,
        consumer: impl Into<String>,
        reason: Reason,
    ) -> Self {
        Self {
            id,
            generation: 0,
            message,
            origin,
            consumer: consumer.into(),
            service: None,
            reason,
            class: ErrorClass::Permanent,
            cause: None,
            history: History::new(),
            attempts: 0,
            deliveries: 0,
            crashes: 0,
            delayed_retries: 0,
            fingerprint,
            died_at: Timestamp::EPOCH,
            confirmed: true,
            attributes: BTreeMap::new(),
            state: LetterState::default(),
        }
    }

    /// Sets the identity. Defaults to the one that follows from origin, publish time and consumer.
    pub const fn with_id(mut self, id: LetterId) -> Self {
        self.id = id;
        self
    }

    /// Sets how many deaths came before this one. Defaults to 0.
    pub const fn with_generation(mut self, generation: u32) -> Self {
        self.generation = generation;
        self
    }

    /// Replaces the message. The id stays.
    pub fn with_message(mut self, message: Message) -> Self {
        self.message = message;
        self
    }

    /// Replaces the consumer. The id and the fingerprint stay.
    pub fn with_consumer(mut self, consumer: impl Into<String>) -> Self {
        self.consumer = consumer.into();
        self
    }

    /// Sets the attempts, and what follows from the latest: class, cause and fingerprint. Without an attempt the class
    /// stays.
    pub fn with_history(mut self, history: History) -> Self {
        let failure = history.last();
        self.class = failure.map_or(self.class, |failure| failure.class);
        self.cause = failure.map(|failure| failure.cause);
        self.fingerprint = Fingerprint::of(&self.consumer, self.reason, failure);
        self.history = history;
        self
    }

    /// Sets the state since the death. Defaults to that of a letter that waits.
    pub fn with_state(mut self, state: LetterState) -> Self {
        self.state = state;
        self
    }

    /// Returns the names of the fields, also those of the state, that are equal in `other`. For tests of what stores keep.
    #[doc(hidden)]
    #[must_use]
    pub fn fields_shared_with(&self, other: &Self) -> Vec<&'static str> {
        // The patterns have no `..`: a field that is added does not compile until it is named here.
        macro_rules! shared {
            ($one:expr, $other:expr, $type:ident { $($field:ident),+ $(,)? }) => {{
                let $type { $($field),+ } = $one;
                [$((*$field == $other.$field).then_some(stringify!($field))),+]
            }};
        }
        let letter = shared!(
            self,
            other,
            DeadLetter {
                id,
                generation,
                message,
                origin,
                consumer,
                service,
                reason,
                class,
                cause,
                history,
                attempts,
                deliveries,
                crashes,
                delayed_retries,
                fingerprint,
                died_at,
                confirmed,
                attributes,
                state,
            }
        );
        let state = shared!(
            &self.state,
            other.state,
            LetterState {
                status,
                resolution,
                due,
                retry_count,
                replays,
                operation,
                created_at,
                updated_at,
                last_retry_at,
                seen,
                edited_from,
            }
        );
        letter.into_iter().chain(state).flatten().collect()
    }

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

    /// The latest error as one line: message and sources. Without a failed attempt it is the reason of the death.
    #[must_use]
    pub fn error(&self) -> String {
        // A message may die unrun, of crashes or of replays. Then the reason is all there is to show.
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
    // Both travel between tasks. Checked here, where the error is short, and not where something is spawned.
    const fn send_sync<T: Send + Sync>() {}
    send_sync::<DeadLetter>();
    send_sync::<crate::Delivery>();
};
