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

/// Label of all subjects beyond [`Recorder::SUBJECTS`].
const OTHER: &str = "other";

/// Counters and histograms of messages, by subject. Looks up the `metrics` handles of a subject once and keeps them. Clones
/// share them.
///
/// Give one recorder to all layers of a stack. Handles belong to the global `metrics` recorder that is installed when a
/// subject is first seen, so install it before the first message.
#[derive(Clone, Default)]
pub struct Recorder {
    shared: Arc<Inner>,
}

/// Hash table from subject to its handles: a fixed number of buckets, each a linked list. Entries are never changed or
/// removed, so readers need no lock on the path of every message.
struct Inner {
    spread: RandomState,
    subjects: [Link; BUCKETS],
    count: AtomicUsize,
    other: OnceLock<Arc<Handles>>,
}

/// Number of buckets: with [`Recorder::SUBJECTS`] subjects, a list has about eight entries.
const BUCKETS: usize = 128;

/// Link to the next entry of a bucket. Empty at the end of the list; set once.
type Link = OnceLock<Box<Entry>>;

struct Entry {
    subject: Arc<str>,
    handles: Arc<Handles>,
    next: Link,
}

impl Default for Inner {
    fn default() -> Self {
        let subjects = [const { Link::new() }; BUCKETS];
        let spread = RandomState::default();
        Self { spread, subjects, count: AtomicUsize::new(0), other: OnceLock::new() }
    }
}

/// Counters and histogram of one subject, looked up in the `metrics` facade.
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
    /// Number of subjects with a label of their own. Further subjects are counted as `other`, which bounds the number of
    /// time series.
    pub const SUBJECTS: usize = 1000;

    /// Creates a recorder that has seen no subject.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn handles(&self, subject: &Arc<str>) -> Arc<Handles> {
        // Subjects may come from whoever publishes, so they are spread by a seed that only this process knows.
        let mut hasher = self.shared.spread.build_hasher();
        hasher.write(subject.as_bytes());
        let mut link = &self.shared.subjects[hasher.finish() as usize % BUCKETS];
        loop {
            let Some(entry) = link.get().map(Box::as_ref).or_else(|| self.add(link, subject))
            else {
                let other = || Arc::new(Handles::new(&Arc::from(OTHER)));
                return Arc::clone(self.shared.other.get_or_init(other));
            };
            if entry.subject == *subject {
                return Arc::clone(&entry.handles);
            }
            link = &entry.next;
        }
    }

    /// Adds `subject` at the end of its bucket and returns the entry there. If another thread was faster, that is the other
    /// thread's entry, perhaps of another subject, so the caller compares. Returns `None` once there are too many subjects.
    ///
    /// Threads that add at the same time may exceed [`SUBJECTS`](Self::SUBJECTS) by their number: the bound only limits
    /// memory and labels, so it is not worth a lock.
    #[cold]
    fn add<'a>(&self, link: &'a Link, subject: &Arc<str>) -> Option<&'a Entry> {
        if self.shared.count.load(Ordering::Relaxed) >= Self::SUBJECTS {
            return None;
        }
        Some(link.get_or_init(|| {
            self.shared.count.fetch_add(1, Ordering::Relaxed);
            let (subject, handles) = (Arc::clone(subject), Arc::new(Handles::new(subject)));
            Box::new(Entry { subject, handles, next: Link::new() })
        }))
    }

    /// Counts a failed attempt at a message of `subject`.
    pub fn attempt_failed(&self, subject: &Arc<str>) {
        self.handles(subject).failed.increment(1);
    }

    /// Counts a written letter of `subject`.
    pub fn letter_written(&self, subject: &Arc<str>, class: ErrorClass) {
        let handles = self.handles(subject);
        match class {
            ErrorClass::Permanent => handles.permanent.increment(1),
            // A class that a later version adds counts as transient, so that the letter is still counted.
            _ => handles.transient.increment(1),
        }
    }

    /// Counts a letter of `subject` whose identity another letter with different bytes already has.
    pub fn letter_conflicted(&self, subject: &Arc<str>) {
        self.handles(subject).conflicting.increment(1);
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.shared.count.load(Ordering::Relaxed);
        f.debug_struct("Recorder").field("subjects", &count).finish()
    }
}
