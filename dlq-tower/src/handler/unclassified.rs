use dlq_core::{Classification, Classifier};

/// Takes every error for transient: what nobody has judged is retried rather than given up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unclassified;

impl<E: ?Sized> Classifier<E> for Unclassified {
    fn classify(&self, _: &E) -> Classification {
        Classification::transient()
    }
}
