use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use ::metrics::{Counter, Histogram, counter, histogram};
use dlq_core::ErrorClass;

use super::{
    DLQ_CONFLICTING_LETTERS_TOTAL, EVENTS_PROCESSED_TOTAL, EVENTS_PROCESSING_DURATION_SECONDS,
    MESSAGES_IN_DLQ_TOTAL,
};

/// The label of subjects past the bound.
const OTHER: &str = "other";

/// Counts, with handles kept per subject. Clones count together.
#[derive(Clone, Default)]
pub struct Recorder {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    subjects: RwLock<HashMap<Arc<str>, Arc<Handles>>>,
    other: OnceLock<Arc<Handles>>,
}

/// The handles of one subject.
pub(super) struct Handles {
    pub(super) success: Counter,
    pub(super) duplicate: Counter,
    pub(super) dlq: Counter,
    failed: Counter,
    pub(super) duration: Histogram,
    transient: Counter,
    permanent: Counter,
    conflicting: Counter,
}

impl Handles {
    fn new(subject: &Arc<str>) -> Self {
        let processed = |status: &'static str| counter!(EVENTS_PROCESSED_TOTAL, "subject" => Arc::clone(subject), "status" => status);
        let letters = |class: ErrorClass| counter!(MESSAGES_IN_DLQ_TOTAL, "topic" => Arc::clone(subject), "class" => class.as_str());
        Self {
            success: processed("success"),
            duplicate: processed("duplicate"),
            dlq: processed("dlq"),
            failed: processed("failed"),
            duration: histogram!(EVENTS_PROCESSING_DURATION_SECONDS, "subject" => Arc::clone(subject)),
            transient: letters(ErrorClass::Transient),
            permanent: letters(ErrorClass::Permanent),
            conflicting: counter!(DLQ_CONFLICTING_LETTERS_TOTAL, "topic" => Arc::clone(subject)),
        }
    }
}

impl Recorder {
    /// How many subjects have their own label; further ones are counted as `other`. So for events.
    pub const SUBJECTS: usize = 1000;

    /// A recorder that has seen no subject.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn handles(&self, subject: &Arc<str>) -> Arc<Handles> {
        {
            let known = self.shared.subjects.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(handles) = known.get(subject) {
                return Arc::clone(handles);
            }
        }
        let mut known = self.shared.subjects.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= Self::SUBJECTS && !known.contains_key(subject) {
            let other = || Arc::new(Handles::new(&Arc::from(OTHER)));
            return Arc::clone(self.shared.other.get_or_init(other));
        }
        let handles =
            known.entry(Arc::clone(subject)).or_insert_with(|| Arc::new(Handles::new(subject)));
        Arc::clone(handles)
    }

    /// An attempt at a message of `subject` failed.
    pub fn attempt_failed(&self, subject: &Arc<str>) {
        self.handles(subject).failed.increment(1);
    }

    /// A letter of `subject` was written.
    pub fn letter_written(&self, subject: &Arc<str>, class: ErrorClass) {
        let handles = self.handles(subject);
        match class {
            ErrorClass::Permanent => handles.permanent.increment(1),
            _ => handles.transient.increment(1),
        }
    }

    /// A letter of `subject` claimed the identity of another one, with other bytes.
    pub fn letter_conflicted(&self, subject: &Arc<str>) {
        self.handles(subject).conflicting.increment(1);
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.shared.subjects.read().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("Recorder").field("subjects", &known).finish()
    }
}
