use std::collections::BTreeMap;
use std::time::Duration;

use crate::client::error::SetupError;
use crate::client::ladder::is_topic;

/// A topic that a consumer needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WantedTopic {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The topics whose records come here.
    pub(crate) sources: Vec<String>,
    /// For how long its records are kept when it is created.
    pub(crate) retention: Duration,
    /// For how long they have to be kept.
    pub(crate) at_least: Duration,
    /// `None` for as many as its sources have.
    pub(crate) partitions: Option<u16>,
    /// `None` for what the brokers say.
    pub(crate) replication: Option<u16>,
}

/// Purpose of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The user's own, which is never created.
    Source,
    Stage {
        delay: Duration,
    },
    Letters,
}

impl WantedTopic {
    /// A topic of the user's, which must be there.
    pub(crate) fn source(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            role: Role::Source,
            sources: Vec::new(),
            retention: Duration::ZERO,
            at_least: Duration::ZERO,
            partitions: None,
            replication: None,
        }
    }

    /// Returns the name of the role in messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self.role {
            Role::Source => "a consumer's topic",
            Role::Stage { .. } => "a retry topic",
            Role::Letters => "a dead-letter topic",
        }
    }
}

/// Each topic once, with the sources of the others: several consumers may share one.
pub(crate) fn merge(wanted: &[WantedTopic]) -> Result<BTreeMap<String, WantedTopic>, SetupError> {
    let mut merged: BTreeMap<String, WantedTopic> = BTreeMap::new();
    // The sources are looked at as well, although nobody asks for them: partitions and message sizes follow from theirs.
    let sources =
        wanted.iter().flat_map(|topic| &topic.sources).map(|name| WantedTopic::source(name));
    for topic in wanted.iter().cloned().chain(sources) {
        if !is_topic(&topic.name) {
            return Err(SetupError::Config(format!(
                "`{}` is no name of a topic: letters, digits, `.`, `_` and `-`, at most 249",
                topic.name
            )));
        }
        if topic.sources.contains(&topic.name) {
            return Err(SetupError::Config(format!(
                "`{}` is {} and its own source, so that what fails would come again for ever; give it another name",
                topic.name,
                topic.kind()
            )));
        }
        match merged.get_mut(&topic.name) {
            None => {
                merged.insert(topic.name.clone(), topic);
            }
            Some(known) => known.join(topic)?,
        }
    }
    Ok(merged)
}

impl WantedTopic {
    fn join(&mut self, other: Self) -> Result<(), SetupError> {
        self.role = match (self.role, other.role) {
            // A retry or dead-letter topic may be the source of another consumer, and keeps its own role.
            (role, Role::Source) | (Role::Source, role) => role,
            (Role::Letters, Role::Letters) => Role::Letters,
            (Role::Stage { delay }, Role::Stage { delay: too }) => {
                Role::Stage { delay: delay.max(too) }
            }
            _ => {
                return Err(SetupError::Config(format!(
                    "`{}` is asked for as {} and as {}; give one of them another name",
                    self.name,
                    self.kind(),
                    other.kind()
                )));
            }
        };
        self.sources.extend(other.sources);
        self.sources.sort_unstable();
        self.sources.dedup();
        // The longest wish counts, so no consumer loses records by sharing the topic.
        self.retention = self.retention.max(other.retention);
        self.at_least = self.at_least.max(other.at_least);
        self.partitions = self.partitions.max(other.partitions);
        self.replication = self.replication.max(other.replication);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ladder::Stage;
    use crate::{DlqTopic, RetryTopics};

    fn wrong(wanted: &[WantedTopic]) -> String {
        merge(wanted).unwrap_err().to_string()
    }

    #[test]
    fn topics_that_are_shared_are_wanted_once() {
        let dead = DlqTopic::new().name("dead");
        let longer = dead.clone().retention(dead.retention * 2);
        let merged = merge(&[dead.wanted("orders"), longer.wanted("users")]).unwrap();
        assert_eq!(merged.keys().collect::<Vec<_>>(), ["dead", "orders", "users"]);
        assert_eq!(merged["dead"].sources, ["orders", "users"]);
        assert_eq!(merged["dead"].retention, longer.retention);
        let consumed = merge(&[WantedTopic::source("dead"), dead.wanted("orders")]).unwrap();
        assert_eq!(consumed["dead"].role, Role::Letters, "letters can be consumed, too");
    }

    #[test]
    fn topics_that_cannot_be_both_are_refused() {
        let dead = DlqTopic::new().name("orders.x");
        let stage = Stage { topic: "orders.x".into(), delay: Duration::from_secs(1) };
        let both = wrong(&[
            dead.wanted("orders"),
            RetryTopics::new().wanted(&[stage], "orders").remove(0),
        ]);
        assert!(
            both.contains("`orders.x` is asked for as a dead-letter topic and as a retry"),
            "{both}"
        );
        let own = wrong(&[dead.wanted("orders.x")]);
        assert!(own.contains("its own source"), "{own}");
        let name = wrong(&[WantedTopic::source("orders/new")]);
        assert!(name.contains("`orders/new` is no name of a topic"), "{name}");
    }
}
