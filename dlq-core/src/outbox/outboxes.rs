use std::collections::BTreeMap;

use super::{Address, BoxOutbox, Outbox};
use crate::replay::Skipped;
use crate::store::Target;
use crate::{DeadLetter, StoreError, StoreErrorKind};

/// The outboxes of a program: one for each cluster, by transport and alias.
#[derive(Clone, Debug, Default)]
pub struct Outboxes {
    all: BTreeMap<(String, String), BoxOutbox>,
}

/// Reason why a letter has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unroutable {
    /// The letter cannot be sent to this target.
    #[error("{0}")]
    Skipped(Skipped),
    /// No outbox belongs to the letter's cluster.
    #[error("no address is known for cluster `{cluster}` of {transport}; known: {known}")]
    NoOutbox {
        /// The kind of broker.
        transport: String,
        /// The alias of the cluster.
        cluster: String,
        /// The clusters that have an outbox, for people.
        known: String,
    },
}

impl Unroutable {
    /// The reason to be counted under.
    #[must_use]
    pub const fn skipped(&self) -> Skipped {
        match self {
            Self::Skipped(skipped) => *skipped,
            Self::NoOutbox { .. } => Skipped::NoOutbox,
        }
    }
}

impl Outboxes {
    /// No outboxes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an outbox for its cluster.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the cluster has one already.
    pub fn add(&mut self, outbox: impl Outbox) -> Result<(), StoreError> {
        let key = (outbox.transport().to_owned(), outbox.cluster().to_owned());
        if self.all.contains_key(&key) {
            let text = format!(
                "cluster `{}` of {} has two addresses; give one alias to each",
                key.1, key.0
            );
            return Err(
                StoreError::new(StoreErrorKind::InvalidConfig, "add an outbox").with_detail(text)
            );
        }
        self.all.insert(key, BoxOutbox::new(outbox));
        Ok(())
    }

    /// The outbox of a cluster.
    #[must_use]
    pub fn get(&self, transport: &str, cluster: &str) -> Option<&BoxOutbox> {
        self.all.get(&(transport.to_owned(), cluster.to_owned()))
    }

    /// All outboxes, by transport and alias.
    pub fn iter(&self) -> impl Iterator<Item = &BoxOutbox> {
        self.all.values()
    }

    /// Returns true if there is no outbox.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Decides by which outbox a letter goes, and where to. To another subject a letter goes at its own cluster; where that
    /// has no outbox, and there is only one, by that one.
    ///
    /// # Errors
    ///
    /// When the letter has no address; says why. Other letters may have one.
    pub fn route(
        &self,
        letter: &DeadLetter,
        to: &Target,
    ) -> Result<(&BoxOutbox, Address), Unroutable> {
        let (transport, cluster) = (letter.origin.transport(), letter.origin.cluster());
        // Only a subject that somebody named may be at another cluster. An origin and a handler are where the letter
        // comes from.
        let only = || {
            let mut all = self.all.values();
            all.next().filter(|_| matches!(to, Target::Subject(_)) && all.next().is_none())
        };
        let outbox = self.get(transport, cluster).or_else(only);
        let outbox = outbox.ok_or_else(|| Unroutable::NoOutbox {
            transport: transport.to_owned(),
            cluster: cluster.to_owned(),
            known: self.known(),
        })?;
        let address = outbox.route(letter, to).map_err(Unroutable::Skipped)?;
        Ok((outbox, address))
    }

    fn known(&self) -> String {
        let named =
            self.all.keys().map(|(transport, cluster)| format!("`{cluster}` of {transport}"));
        let named: Vec<String> = named.collect();
        if named.is_empty() { "none".to_owned() } else { named.join(", ") }
    }
}
