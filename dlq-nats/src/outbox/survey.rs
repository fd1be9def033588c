use std::collections::{BTreeMap, BTreeSet};

use async_nats::jetstream::context::ConsumerInfoErrorKind;
use dlq_core::StoreError;
use dlq_core::outbox::{Address, Survey};
use dlq_core::replay::Subscriber;

use super::{NatsOutbox, NoKeeper};
use crate::client::names::token;
use crate::client::permissions;
use crate::client::publish::unwritable;
use crate::client::streams::find;
use crate::dead::dispatch::REPLAYING;
use crate::dead::replay;

impl NatsOutbox {
    pub(super) async fn look(&self, to: &BTreeSet<Address>) -> Result<Survey, StoreError> {
        let mut survey = Survey::default();
        if to.is_empty() {
            return Ok(survey);
        }
        self.permitted(to).await?;
        let mut streams: BTreeMap<String, Vec<&Address>> = BTreeMap::new();
        for (to, keeper) in self.keepers(to.iter().collect()).await {
            match keeper {
                Ok(stream) => streams.entry(stream).or_default().push(to),
                Err(NoKeeper::None(why)) => drop(survey.closed.insert(to.clone(), why)),
                Err(NoKeeper::Unknown(why)) => return Err(unwritable(REPLAYING, why)),
            }
        }
        let all = replay::streams(&self.context).await.unwrap_or_else(|error| {
            survey.notes.push(format!(
                "which streams copy those that letters go to is not known: streams could not be listed ({error})"
            ));
            Vec::new()
        });
        let mut looked = Vec::new();
        for (name, addresses) in streams {
            let found = find(&self.context, &name).await;
            let Some(info) = found.map_err(|error| error.for_store(REPLAYING))? else {
                for to in addresses {
                    survey.closed.insert(to.clone(), format!("there is no stream `{name}`"));
                }
                continue;
            };
            let window = info.config.duplicate_window;
            // The shortest window of all is the time within which each repeat is refused.
            survey.window = Some(survey.window.map_or(window, |least| least.min(window)));
            looked.extend(self.api.iter().flat_map(|api| replay::looks(api, &info)));
            let (queued, published): (Vec<&Address>, Vec<&Address>) =
                addresses.into_iter().partition(|to| to.consumer.is_some());
            for to in queued {
                if let Some(why) = self.unread(&name, to).await? {
                    survey.closed.insert(to.clone(), why);
                }
            }
            if published.is_empty() {
                continue;
            }
            let consumers = match replay::consumers(&self.context, &name).await {
                Ok(consumers) => consumers,
                Err(error) => {
                    survey.notes.push(format!("who reads stream `{name}` is not known: {error}"));
                    continue;
                }
            };
            for one in &consumers {
                if published.iter().any(|to| one.hears(&to.subject)) {
                    let (stream, consumer) = (name.clone(), one.name.clone());
                    survey.subscribers.insert(Subscriber { stream, consumer });
                }
            }
            let copies: Vec<_> = replay::copies(&all, &name).collect();
            let subjects: BTreeSet<&str> = published.iter().map(|to| &*to.subject).collect();
            survey.notes.extend(replay::notes(&info, &subjects, &consumers, &copies));
            for to in published {
                let is_heard = consumers.iter().chain(&copies).any(|one| one.hears(&to.subject));
                if replay::is_choosy(&info) && !is_heard {
                    survey.closed.insert(to.clone(), replay::unwanted(&name, &to.subject));
                }
            }
        }
        if let Err(error) = permissions::require(&self.context.client(), &looked).await {
            survey.notes.push(format!(
                "if a sender dies, it cannot be found out what it has sent: {error}"
            ));
        }
        Ok(survey)
    }

    /// Refuses what the user may not send, or not prepare to send.
    async fn permitted(&self, to: &BTreeSet<Address>) -> Result<(), StoreError> {
        let mut needed = BTreeSet::new();
        for to in to {
            needed.insert(to.subject.to_string());
            if let Some(api) = self.api {
                needed.insert(match &to.stream {
                    Some(stream) => format!("{api}.STREAM.INFO.{stream}"),
                    None => format!("{api}.STREAM.NAMES"),
                });
            }
        }
        let required = permissions::require(&self.context.client(), &needed).await;
        required.map_err(|error| error.for_store(REPLAYING))
    }

    /// Reason why nobody would read what goes to this retry queue, if so.
    async fn unread(&self, stream: &str, to: &Address) -> Result<Option<String>, StoreError> {
        let Some(consumer) = &to.consumer else { return Ok(None) };
        let stream = self.context.get_stream_no_info(stream).await;
        let stream = stream.map_err(|error| unwritable(REPLAYING, error))?;
        match stream.consumer_info(token(consumer)).await {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => {
                Ok(Some(replay::unread(consumer)))
            }
            Err(error) => Err(unwritable(REPLAYING, error)),
        }
    }
}
