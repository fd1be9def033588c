//! The belief rule (G2): which of the identities that headers claim are taken for true.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::protocol::Decoded;
use crate::{Binding, BindingKey, Death, LetterId, Message, Origin};

/// An identity that headers claim and that is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The death after which the message was sent back.
    pub death: Death,
    /// The place where the message was born.
    pub origin: Origin,
}

impl Decoded {
    /// The identity that these headers claim for a message of the main stream, if the claim is to be believed for `consumer`
    /// (G2). The message was read at `read_at`.
    ///
    /// Handlers copy headers onto new messages, and producers can forge them. A claim is believed where the binding fits
    /// payload and key of `message`, by the secret too where there is one; where the identity follows from the birth that
    /// is told beside it; and where the message can have died so often. Another consumer's letter is never taken over. Of
    /// a claim that fits the bytes and is not believed the log tells.
    #[must_use]
    pub fn claimed(
        &self,
        message: &Message,
        consumer: &str,
        read_at: &Origin,
        key: Option<&BindingKey>,
    ) -> Option<Claimed> {
        let letter = self.letter.filter(|_| self.consumer.as_deref() == Some(consumer))?;
        // Handlers copy headers onto new messages, which is ordinary and worth no warning.
        if !self.is_bound(message) {
            return None;
        }
        let believed = self.judged(letter, message, consumer, read_at, key);
        believed.map_err(|why| doubted(letter, consumer, read_at, why)).ok()
    }

    fn judged(
        &self,
        letter: LetterId,
        message: &Message,
        consumer: &str,
        read_at: &Origin,
        key: Option<&BindingKey>,
    ) -> Result<Claimed, &'static str> {
        let generation = self.generation.ok_or("it has no generation that can be read")?;
        if self.is_absurd() {
            return Err("no message dies so often");
        }
        let death = Death { letter, generation };
        // The binding above keeps copied headers apart, and anybody can compute it. Only the secret tells forged ones.
        if let Some(key) = key {
            let is_bound = |binding| key.fits(&binding, &death, message);
            if !self.keyed_binding.is_some_and(is_bound) {
                return Err(
                    "it is not bound by the secret of this consumer; give who sends letters \
                            back the same one",
                );
            }
        }
        // No header names transport and cluster, since a letter goes back to the broker that it came from.
        let origin = self.original.origin(read_at.transport(), read_at.cluster());
        let origin = origin.ok_or("it does not say where it was born")?;
        if !letter.follows_from(&origin, self.original.timestamp, consumer, message) {
            return Err("its identity does not follow from where it says that it was born");
        }
        Ok(Claimed { death, origin })
    }

    /// True if the identity that they claim was written for payload and key of this message, or by whoever forged it.
    #[must_use]
    pub fn is_bound(&self, message: &Message) -> bool {
        self.letter.is_some_and(|letter| self.binding == Some(Binding::of(&letter, message)))
    }

    /// True if they claim more deaths than any message has, so that their identity is believed on no queue.
    #[must_use]
    pub fn is_absurd(&self) -> bool {
        // The delivery gets the next generation, which has to be within the bound as well.
        self.generation.is_some_and(|generation| generation >= Death::MAX_GENERATION)
    }
}

/// Tells of a claim that is not believed, once a minute: somebody may send them by the thousand.
fn doubted(letter: LetterId, consumer: &str, read_at: &Origin, why: &str) {
    const PAUSE: Duration = Duration::from_secs(60);
    static TOLD: Mutex<Option<(Instant, u64)>> = Mutex::new(None);
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let untold = match &mut *told {
        Some((at, untold)) if at.elapsed() < PAUSE => {
            *untold += 1;
            return;
        }
        told => told.replace((Instant::now(), 0)).map_or(0, |(_, untold)| untold),
    };
    tracing::warn!(
        %letter, consumer, origin = %read_at, untold,
        "a message claims the identity of a letter and is not believed, so that it is handled as a new one: {why}"
    );
}
