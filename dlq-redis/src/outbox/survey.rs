//! A look at the streams that letters go to.

use std::collections::BTreeSet;

use dlq_core::StoreError;
use dlq_core::outbox::{Address, Survey};
use dlq_core::replay::Subscriber;
use redis::Value;

use super::scripts::PERMITTED;
use super::{REPLAYING, RedisOutbox};
use crate::client::{RedisError, RedisErrorKind, as_array, as_text};
use crate::consumer::Keys;

impl RedisOutbox {
    pub(super) async fn look(&self, to: BTreeSet<Address>) -> Result<Survey, StoreError> {
        let mut survey = Survey::default();
        for to in to {
            let keys = match Keys::of(&to.subject) {
                Ok(keys) => keys,
                Err(error) => {
                    survey.closed.insert(to, error.to_string());
                    continue;
                }
            };
            // Asked for each stream, since rights are granted by patterns of keys.
            let forbidden = self.forbidden(&keys).await;
            let forbidden = forbidden.map_err(|error| error.for_store(REPLAYING))?;
            if !forbidden.is_empty() {
                let text = format!(
                    "the user may not run {} on `{}` or on the marks beside it; grant that",
                    forbidden.join(", "),
                    keys.stream
                );
                return Err(RedisError::config(text).for_store(REPLAYING));
            }
            match self.groups(&keys.stream).await {
                Ok(groups) => survey.subscribers.extend(groups.into_iter().map(|consumer| {
                    let stream = keys.stream.to_string();
                    Subscriber { stream, consumer }
                })),
                // A stream that is not there has no code of its own. It is told as closed, and the other streams are
                // looked at.
                Err(error) if error.code() == Some("ERR") => {
                    let why = format!("there is no stream `{}`", keys.stream);
                    survey.closed.insert(to, why);
                }
                Err(error) if error.kind() == RedisErrorKind::WrongType => {
                    survey.closed.insert(to, format!("`{}` is no stream", keys.stream));
                }
                Err(error) if error.kind() == RedisErrorKind::Forbidden => {
                    let stream = &keys.stream;
                    survey.notes.push(format!("who reads stream `{stream}` is not known: {error}"));
                }
                Err(error) => return Err(error.for_store(REPLAYING)),
            }
        }
        Ok(survey)
    }

    /// Names the commands that the user may not run.
    async fn forbidden(&self, keys: &Keys) -> Result<Vec<String>, RedisError> {
        let mark = keys.any_sent();
        let answer = self.client.script(&PERMITTED.keys(&[&*keys.stream, &*mark])).await?;
        Ok(as_array(&answer).iter().filter_map(as_text).collect())
    }

    /// Names the consumer groups of a stream.
    async fn groups(&self, stream: &str) -> Result<Vec<String>, RedisError> {
        let mut info = redis::cmd("XINFO");
        info.arg("GROUPS").arg(stream);
        let answer = self.client.command(&info).await?;
        Ok(as_array(&answer).iter().filter_map(name).collect())
    }
}

/// The name of a group, of which the server says names and values in turn.
fn name(group: &Value) -> Option<String> {
    let parts = as_array(group);
    let at = parts.iter().position(|part| as_text(part).as_deref() == Some("name"))?;
    as_text(parts.get(at + 1)?)
}
