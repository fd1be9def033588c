use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use ::metrics::{Counter, Histogram, counter, histogram};
use dlq_core::ErrorClass;
use rapidhash::fast::RandomState;

use super::{
    DLQ_CONFLICTING_LETTERS_TOTAL, EVENTS_PROCESSED_TOTAL, EVENTS_PROCESSING_DURATION_SECONDS,
    MESSAGES_IN_DLQ_TOTAL,
};

/// The label of subjects past the bound.
const OTHER: &str = "other";

/// Counts, with handles kept per subject. Clones count together.
#[derive(Clone, Default)]
pub struct Recorder {
    shared: Arc<Inner>,
}

/// Subjects are only ever added, so that they are looked up without a lock.
struct Inner {
    spread: RandomState,
    subjects: [Slot; SLOTS],
    known: AtomicUsize,
    other: OnceLock<Arc<Handles>>,
}

/// Number of lists that the subjects are spread over.
const SLOTS: usize = 128;

/// A place in a list, taken once.
type Slot = OnceLock<Box<Known>>;

struct Known {
    subject: Arc<str>,
    handles: Arc<Handles>,
    next: Slot,
}

impl Default for Inner {
    fn default() -> Self {
        let subjects = [const { Slot::new() }; SLOTS];
        let spread = RandomState::default();
        Self { spread, subjects, known: AtomicUsize::new(0), other: OnceLock::new() }
    }
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
    /// Number of subjects that have their own label; further ones are counted as `other`. The same holds for events.
    pub const SUBJECTS: usize = 1000;

    /// A recorder that has seen no subject.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn handles(&self, subject: &Arc<str>) -> Arc<Handles> {
        let mut hasher = self.shared.spread.build_hasher();
        hasher.write(subject.as_bytes());
        let mut slot = &self.shared.subjects[hasher.finish() as usize % SLOTS];
        loop {
            let Some(known) = slot.get().map(Box::as_ref).or_else(|| self.learn(slot, subject))
            else {
                let other = || Arc::new(Handles::new(&Arc::from(OTHER)));
                return Arc::clone(self.shared.other.get_or_init(other));
            };
            if known.subject == *subject {
                return Arc::clone(&known.handles);
            }
            slot = &known.next;
        }
    }

    /// Takes the place for `subject`, unless there are too many or another was faster; threads that learn at once may
    /// exceed the bound by their number.
    #[cold]
    fn learn<'a>(&self, slot: &'a Slot, subject: &Arc<str>) -> Option<&'a Known> {
        if self.shared.known.load(Ordering::Relaxed) >= Self::SUBJECTS {
            return None;
        }
        Some(slot.get_or_init(|| {
            self.shared.known.fetch_add(1, Ordering::Relaxed);
            let (subject, handles) = (Arc::clone(subject), Arc::new(Handles::new(subject)));
            Box::new(Known { subject, handles, next: Slot::new() })
        }))
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
        let known = self.shared.known.load(Ordering::Relaxed);
        f.debug_struct("Recorder").field("subjects", &known).finish()
    }
}
