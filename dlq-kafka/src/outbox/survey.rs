use std::collections::BTreeSet;

use dlq_core::StoreError;
use dlq_core::outbox::{Address, Survey};
use futures_util::{StreamExt as _, stream};

use super::KafkaOutbox;
use super::send::{missing, no_topic};
use crate::client::error::SetupError;
use crate::client::ladder::is_topic;
use crate::dead::dispatch::REPLAYING;
use crate::dead::{bounds, listeners};

/// Topics that are asked for at the same time.
const AT_ONCE: usize = 16;

impl KafkaOutbox {
    pub(super) async fn look(&self, to: BTreeSet<Address>) -> Result<Survey, StoreError> {
        let mut survey = Survey::default();
        if to.is_empty() {
            return Ok(survey);
        }
        let failed = |error: SetupError| error.for_store(REPLAYING);
        // The ledger is looked at first: without it nothing can be sent, wherever the letters go.
        bounds(&self.lookup, &self.ledger).await.map_err(failed)?;
        let asked = to.iter().map(|to| async move {
            if !is_topic(&to.subject) || to.subject == self.ledger {
                return (to, Err(SetupError::NotFound(no_topic(&to.subject))));
            }
            let found = self.lookup.partitions(&to.subject).await;
            (
                to,
                found.map_err(|error| match error {
                    SetupError::NotFound(_) => SetupError::NotFound(missing(to)),
                    other => other,
                }),
            )
        });
        let asked: Vec<_> = asked.collect();
        let mut asked = stream::iter(asked).buffered(AT_ONCE);
        let mut topics = BTreeSet::new();
        while let Some((to, found)) = asked.next().await {
            match found {
                // Other groups pass over the records of a retry topic, so none of them is told there.
                Ok(_) if to.consumer.is_none() => drop(topics.insert(to.subject.to_string())),
                Ok(_) => {}
                Err(SetupError::NotFound(why)) => drop(survey.closed.insert(to.clone(), why)),
                Err(error) => return Err(failed(error)),
            }
        }
        drop(asked);
        let (subscribers, notes) = listeners(&self.brokers, topics.into_iter().collect()).await?;
        survey.subscribers = subscribers;
        survey.notes = notes;
        if !survey.subscribers.is_empty() {
            survey.notes.push(
                "consumers must read with `isolation.level=read_committed`; Java's default is `read_uncommitted`, which may \
                 see a letter twice whose sender was killed"
                    .to_owned(),
            );
        }
        Ok(survey)
    }
}
