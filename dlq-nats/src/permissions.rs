//! What the user of the connection may do, as far as the server says.

use std::time::Duration;

use async_nats::{Client, Request};
use serde::Deserialize;

use crate::error::SetupError;
use crate::subjects::{covers, overlap};

/// Where a server tells a user who they are. Not all users may ask, and servers before 2.9.11 do not answer.
pub(crate) const WHO_AM_I: &str = "$SYS.REQ.USER.INFO";
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Default, Deserialize)]
struct Answer {
    #[serde(default)]
    data: User,
}

/// The user of a connection.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct User {
    #[serde(default, rename = "user")]
    pub(crate) name: String,
    #[serde(default)]
    permissions: Option<Permissions>,
}

#[derive(Debug, Default, Deserialize)]
struct Permissions {
    #[serde(default)]
    publish: Option<Subjects>,
    #[serde(default)]
    subscribe: Option<Subjects>,
}

#[derive(Debug, Default, Deserialize)]
struct Subjects {
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    deny: Vec<String>,
}

impl Subjects {
    fn allow(&self, subject: &str) -> bool {
        let is_allowed = self.allow.is_empty() || self.allow.iter().any(|a| covers(a, subject));
        is_allowed && !self.deny.iter().any(|denied| overlap(denied, subject))
    }
}

impl User {
    /// Asks the server; `None` when it does not say.
    pub(crate) async fn ask(client: &Client) -> Option<Self> {
        let request = Request::new().timeout(Some(PATIENCE));
        let answer = client.send_request(WHO_AM_I, request).await.ok()?;
        serde_json::from_slice::<Answer>(&answer.payload).ok().map(|answer| answer.data)
    }

    pub(crate) fn may_publish(&self, subject: &str) -> bool {
        let rules = self.permissions.as_ref().and_then(|all| all.publish.as_ref());
        rules.is_none_or(|rules| rules.allow(subject))
    }

    pub(crate) fn may_subscribe(&self, subject: &str) -> bool {
        let rules = self.permissions.as_ref().and_then(|all| all.subscribe.as_ref());
        rules.is_none_or(|rules| rules.allow(subject))
    }
}

/// Refuses what can be known not to work: a user who may not publish to these subjects.
pub(crate) async fn require<'a>(
    client: &Client,
    subjects: impl IntoIterator<Item = &'a String>,
) -> Result<(), SetupError> {
    let Some(user) = User::ask(client).await else { return Ok(()) };
    let forbidden: Vec<String> = subjects
        .into_iter()
        .filter(|subject| !user.may_publish(subject))
        .map(|subject| format!("`{subject}`"))
        .collect();
    if forbidden.is_empty() {
        return Ok(());
    }
    Err(SetupError::Config(format!(
        "user `{}` may not publish to {}; add it to `permissions.publish.allow`, and see that no `deny` covers it",
        user.name,
        forbidden.join(", ")
    )))
}

/// What to think of a request without an answer.
pub(crate) fn unanswered(client: &Client, subject: &str) -> String {
    let state = client.connection_state();
    if state == async_nats::connection::State::Connected {
        format!(
            "nothing answered on `{subject}`: its stream may have no leader now, or the user may not publish there or not \
             subscribe to `_INBOX.>` (`permissions`)"
        )
    } else {
        format!("there is no connection to the server ({state}): check its URL, and that it runs")
    }
}
