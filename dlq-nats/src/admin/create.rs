use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{Context, consumer};
use dlq_core::StoreError;

use super::rules::{self, consumer_name, stream_name};
use super::{Deployment, Finding, Severity};
use crate::client::error::SetupError;
use crate::client::jetstream::JetStream;
use crate::client::streams;
use crate::consumer::durable::Durable;

const CREATING: &str = "create a deployment";

/// Result of [`Deployment::create`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Created {
    /// Items that were missing and exist now, e.g. ``stream `DLQ` ``.
    pub created: Vec<String>,
    /// Items that existed with other settings, and are left as they are.
    pub differs: Vec<Finding>,
}

impl Deployment {
    /// Creates what is missing: streams first, then consumers. What exists is never changed.
    ///
    /// Buckets are made by what uses them.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the server refuses to create something, e.g. since its subjects belong to another stream, or
    /// when a consumer's stream is neither there nor described; `Unavailable` when the server does not answer. What was
    /// created until then stays.
    ///
    /// # Cancel safety
    ///
    /// What was created stays; call it again for the rest.
    pub async fn create(&self, jetstream: &impl JetStream) -> Result<Created, StoreError> {
        let context = jetstream.context();
        let mut done = Created::default();
        self.make(&context, &mut done).await.map_err(|error| error.for_store(CREATING))?;
        Ok(done)
    }

    async fn make(&self, context: &Context, done: &mut Created) -> Result<(), SetupError> {
        for plan in &self.streams {
            if let Some(wanted) = plan.config() {
                make_stream(context, &wanted, false, done).await?;
            }
        }
        for wanted in self.own_streams() {
            make_stream(context, &wanted, true, done).await?;
        }
        for plan in &self.consumers {
            for mut durable in plan.consumer(self.retries.as_ref()).durables(&plan.name) {
                match durable.find(context).await? {
                    Some(found) => done.differs.extend(plan.differences(&durable, &found.config)),
                    None => {
                        durable.ensure(context).await?;
                        done.created.push(consumer_name(&durable.name, durable.of.name()));
                    }
                }
            }
        }
        Ok(())
    }

    /// The streams that are ours.
    pub(super) fn own_streams(&self) -> Vec<Config> {
        let mut own = vec![self.letters.config()];
        own.extend(self.retries.as_ref().map(|stream| stream.config()));
        if let Some(router) = &self.router {
            if router.letters.name != self.letters.name {
                own.push(router.letters.config());
            }
            own.push(router.advisories.config());
        }
        own
    }
}

impl super::ConsumerPlan {
    /// Returns the differences of a consumer from the plan. Settings that the plan leaves open may be anything.
    pub(super) fn differences(&self, durable: &Durable, found: &consumer::Config) -> Vec<Finding> {
        let is_main = durable.of.name() == self.stream;
        let mut wrong = durable.differences(found);
        if is_main && self.ack_wait.is_none() {
            wrong.0.retain(|wrong| wrong.setting != "ack_wait");
        }
        if is_main && self.filter_subjects.is_none() {
            wrong.0.retain(|wrong| wrong.setting != "filter_subjects");
        }
        if let Some(wanted) = self.max_ack_pending.filter(|_| is_main) {
            let found = found.max_ack_pending.to_string();
            wrong.see("max_ack_pending", found, wanted.to_string());
        }
        let subject = consumer_name(&durable.name, durable.of.name());
        rules::differ(&subject, Severity::Error, wrong)
    }
}

async fn make_stream(
    context: &Context,
    wanted: &Config,
    ours: bool,
    done: &mut Created,
) -> Result<(), SetupError> {
    if let Some(found) = streams::find(context, &wanted.name).await? {
        done.differs.extend(rules::stream_differs(
            &found.config,
            wanted,
            ours,
            context.client().max_payload(),
        ));
    } else {
        streams::ensure(context, wanted).await?;
        done.created.push(stream_name(&wanted.name));
    }
    Ok(())
}
