use dlq_core::{Finding, StoreError};
use serde::{Deserialize, Serialize};

use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::ladder::{Ladder, Stage};
use crate::client::topics::{DlqTopic, RetryTopics, WantedTopic, make, topic_name};

/// Description of the topics and groups that should exist at the brokers. See the [module docs](super).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Deployment {
    /// Consumers of ours.
    pub consumers: Vec<ConsumerPlan>,
    /// The topic of dead letters of each consumer's topic.
    pub letters: DlqTopic,
    /// Settings with which retry topics are created.
    pub retries: RetryTopics,
}

/// A consumer of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ConsumerPlan {
    /// Its topic, which is never created.
    pub topic: String,
    /// Its group.
    pub group: String,
    /// Its retry topics. Defaults to those of [`Ladder::new`]; `None` for a consumer without.
    #[serde(default = "ladder")]
    pub ladder: Option<Ladder>,
}

/// Result of [`Deployment::create`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Created {
    /// Items that were missing and exist now, e.g. ``topic `orders.dlq` ``.
    pub created: Vec<String>,
    /// Differences of topics that exist, which are left as they are.
    pub differs: Vec<Finding>,
}

#[expect(clippy::unnecessary_wraps, reason = "it is the default of a field that may be empty")]
fn ladder() -> Option<Ladder> {
    Some(Ladder::new())
}

impl ConsumerPlan {
    /// The consumer `group` of a topic, with the default ladder.
    #[must_use]
    pub fn new(topic: impl Into<String>, group: impl Into<String>) -> Self {
        Self { topic: topic.into(), group: group.into(), ladder: ladder() }
    }
}

impl Deployment {
    /// Creates the retry topics and dead-letter topics that are missing. What exists is never changed, and the topics of
    /// consumers are not created.
    ///
    /// # Errors
    ///
    /// `NotFound` when the topic of a consumer is not there; `InvalidConfig` when a name is none, two topics would have
    /// one name, or the brokers refuse to create one; `Unavailable` when no broker answers within ten seconds. What was
    /// created until then stays.
    ///
    /// # Cancel safety
    ///
    /// What was asked for is done all the same; call it again for the rest.
    pub async fn create(&self, brokers: &Brokers) -> Result<Created, StoreError> {
        let make = async { make(brokers, &self.wanted()?, true).await };
        let made = make.await.map_err(|error| error.for_store("create a deployment"))?;
        let created = made.created.iter().map(|name| topic_name(name)).collect();
        Ok(Created { created, differs: made.findings })
    }

    /// All topics.
    pub(super) fn wanted(&self) -> Result<Vec<WantedTopic>, SetupError> {
        let mut wanted = Vec::new();
        for ConsumerPlan { topic, group, ladder } in &self.consumers {
            wanted.push(WantedTopic::source(topic));
            if let Some(ladder) = ladder {
                let stages = ladder
                    .stages(topic, group)
                    .map_err(|error| SetupError::Config(error.to_string()))?;
                wanted.extend(self.retries.wanted(&stages, topic));
            }
            wanted.push(self.letters.wanted(topic));
        }
        Ok(wanted)
    }

    /// Returns those of these topics that were stages of the consumers once. None if groups share them: they may belong
    /// to others.
    pub(super) fn former(&self, names: &[String]) -> Vec<Stage> {
        let none = Ladder::of([]);
        let of = |ConsumerPlan { topic, group, ladder }: &ConsumerPlan| {
            // A consumer without retries may have had some, whose topics have the default names.
            let own = Some(ladder.as_ref().unwrap_or(&none)).filter(|ladder| !ladder.is_shared());
            own.map(|ladder| ladder.former(names, topic, group)).unwrap_or_default()
        };
        self.consumers.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_is_read_from_a_file() {
        let text = r#"{
            "consumers": [
                {"topic": "orders", "group": "billing"},
                {"topic": "users", "group": "billing", "ladder": null}
            ],
            "letters": {"retention": "90d"},
            "retries": {"replication": 3}
        }"#;
        let deployment: Deployment = serde_json::from_str(text).unwrap();
        assert_eq!(deployment.consumers[0], ConsumerPlan::new("orders", "billing"));
        let wanted = deployment.wanted().unwrap();
        let names: Vec<_> = wanted.iter().map(|topic| topic.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "orders",
                "orders.billing.retry.30s",
                "orders.billing.retry.5m",
                "orders.billing.retry.1h",
                "orders.dlq",
                "users",
                "users.dlq"
            ]
        );
        let again = serde_json::to_string(&deployment).unwrap();
        assert_eq!(serde_json::from_str::<Deployment>(&again).unwrap(), deployment);
        for wrong in [r#"{"consumer": []}"#, r#"{"consumers": [{"topic": "x"}]}"#] {
            assert!(serde_json::from_str::<Deployment>(wrong).is_err(), "{wrong}");
        }
    }
}
