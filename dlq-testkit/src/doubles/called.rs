use std::sync::Arc;

use dlq_core::{Delivery, Recipients};

/// Recipients of these names, of whom each has the letters of all.
#[derive(Clone, Debug)]
pub struct Called(Vec<Arc<str>>);

impl Called {
    /// Recipients of these names.
    #[must_use]
    pub fn by<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self(names.into_iter().map(Arc::from).collect())
    }
}

impl Recipients for Called {
    fn names(&self) -> Vec<Arc<str>> {
        self.0.clone()
    }

    fn is_own(&self, name: &str, _: &Delivery) -> bool {
        self.0.iter().any(|known| **known == *name)
    }
}
