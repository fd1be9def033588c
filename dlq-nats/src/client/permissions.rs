//! Permissions of the connection's user, as far as the server reveals them.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Request};
use futures_util::FutureExt as _;
use serde::Deserialize;

use crate::client::error::SetupError;
use crate::client::subjects::{covers, overlap};

/// Subject under which a server tells users who they are. Not all users may ask, and servers before 2.9.11 do not
/// answer.
pub(crate) const WHO_AM_I: &str = "$SYS.REQ.USER.INFO";
/// Prefix of the subjects by which messages are acknowledged.
pub(crate) const ACK: &str = "$JS.ACK.";
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of forbidden subjects that an error names.
const SHOWN: usize = 10;

#[derive(Debug, Default, Deserialize)]
struct UserInfoReply {
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
    /// Permission to answer received messages, unless other subjects are allowed nothing but that.
    #[serde(default)]
    responses: Option<Responses>,
}

/// Limits for answers to a received message. A delivery is renewed while it is worked on, and then acknowledged, which
/// takes as many answers.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Responses {
    /// Number of answers; unlimited below 0.
    #[serde(default)]
    max: i64,
    /// For how long, in nanoseconds; below 0 without an end.
    #[serde(default)]
    ttl: i64,
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
        // A server reads an empty list as one that allows everything.
        let is_allowed = self.allow.is_empty() || self.allow.iter().any(|a| covers(a, subject));
        // A pattern is allowed as a whole, so that a denial of any part of it counts.
        is_allowed && !self.deny.iter().any(|denied| overlap(denied, subject))
    }

    fn allow_some(&self, subject: &str) -> bool {
        // Here one subject of the pattern is enough, so that a denial counts only if it covers all of them.
        let is_allowed = self.allow.is_empty() || self.allow.iter().any(|a| overlap(a, subject));
        is_allowed && !self.deny.iter().any(|denied| covers(denied, subject))
    }
}

impl User {
    /// Asks the server; `None` when it does not say.
    pub(crate) async fn ask(client: &Client) -> Option<Self> {
        let request = Request::new().timeout(Some(PATIENCE));
        let answer = client.send_request(WHO_AM_I, request).await.ok()?;
        serde_json::from_slice::<UserInfoReply>(&answer.payload).ok().map(|answer| answer.data)
    }

    /// Returns true if the user may publish to all subjects that match this pattern.
    pub(crate) fn may_publish(&self, subject: &str) -> bool {
        self.publishes(subject, Subjects::allow)
    }

    /// The same, also long after what is answered.
    pub(crate) fn may_publish_late(&self, subject: &str) -> bool {
        let answers = self.permissions.as_ref().and_then(|all| all.responses);
        answers.is_some_and(|answers| answers.max < 0 && answers.ttl < 0)
            || self.is_listed(subject, Subjects::allow)
    }

    /// Returns true if the user may publish to some subject that matches this pattern.
    pub(crate) fn may_publish_some(&self, subject: &str) -> bool {
        self.publishes(subject, Subjects::allow_some)
    }

    fn publishes(&self, subject: &str, allow: impl Fn(&Subjects, &str) -> bool) -> bool {
        let answers = self.permissions.as_ref().and_then(|all| all.responses);
        let answers_always = answers.is_some_and(|answers| answers.max < 0);
        (answers_always && subject.starts_with(ACK)) || self.is_listed(subject, allow)
    }

    fn is_listed(&self, subject: &str, allow: impl Fn(&Subjects, &str) -> bool) -> bool {
        let Some(permissions) = &self.permissions else { return true };
        let answers = permissions.responses.is_some();
        match &permissions.publish {
            // Who may answer may do nothing else unless it is said.
            Some(rules) if !(answers && rules.allow.is_empty()) => allow(rules, subject),
            _ => !answers,
        }
    }

    pub(crate) fn may_subscribe(&self, subject: &str) -> bool {
        let rules = self.permissions.as_ref().and_then(|all| all.subscribe.as_ref());
        rules.is_none_or(|rules| rules.allow(subject))
    }
}

/// Returns the subjects by which messages of a consumer are acknowledged; a single permission suffices. Newer servers
/// can be configured to write domain and account before it.
pub(crate) fn acknowledged(stream: &str, consumer: &str) -> Vec<String> {
    vec![format!("{ACK}{stream}.{consumer}.>"), format!("{ACK}*.*.{stream}.{consumer}.>")]
}

/// Returns the permission to read single messages of a stream as its leader has them.
pub(crate) fn read_from(api: &str, stream: &str) -> String {
    format!("{api}.STREAM.MSG.GET.{stream}")
}

/// Refuses what can be known not to work: a user who may not publish to these subjects.
pub(crate) async fn require<'a>(
    client: &Client,
    subjects: impl IntoIterator<Item = &'a String>,
) -> Result<(), SetupError> {
    require_each(client, subjects.into_iter().map(|subject| vec![subject.clone()]).collect()).await
}

/// The same of subjects of which one will do.
pub(crate) async fn require_each(
    client: &Client,
    needed: Vec<Vec<String>>,
) -> Result<(), SetupError> {
    if needed.is_empty() {
        return Ok(());
    }
    // Where the server does not say who the user is, nothing is refused here: the first call tells.
    let Some(user) = User::ask(client).await else { return Ok(()) };
    let lacks = |any: &&Vec<String>| !any.iter().any(|subject| user.may_publish(subject));
    refuse(&user, needed.iter().filter(lacks).filter_map(|any| any.first()))
}

/// The same of subjects of which a part may be all that is needed: what the user may not publish to is only told.
pub(crate) async fn require_some(client: &Client, subjects: &[String]) -> Result<(), SetupError> {
    if subjects.is_empty() {
        return Ok(());
    }
    let Some(user) = User::ask(client).await else { return Ok(()) };
    refuse(&user, subjects.iter().filter(|subject| !user.may_publish_some(subject)))?;
    for subject in subjects.iter().filter(|subject| !user.may_publish(subject)) {
        tracing::warn!(user = user.name, subject, "the user may publish to some of these only");
    }
    Ok(())
}

fn refuse<'a>(user: &User, forbidden: impl Iterator<Item = &'a String>) -> Result<(), SetupError> {
    let forbidden: Vec<String> = forbidden.map(|subject| format!("`{subject}`")).collect();
    if forbidden.is_empty() {
        return Ok(());
    }
    let more = match forbidden.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(SetupError::Config(format!(
        "user `{}` may not publish to {}{more}; add it to `permissions.publish.allow`, and see that no `deny` covers it",
        user.name,
        forbidden[..forbidden.len().min(SHOWN)].join(", ")
    )))
}

/// Advice about a client whose task has ended.
pub(crate) const ENDED: &str = "the client has ended: it was closed, or its task broke down, as at a carriage return in a header; \
     nothing brings it back, so start the process again";

/// Returns true if the task of the client has ended. The client's state then stays as it was.
pub(crate) fn has_ended(client: &Client) -> bool {
    // A flush fails at once where the task has ended, and waits for the server otherwise.
    client.connection_state() == State::Connected
        && client.flush().now_or_never().is_some_and(|flushed| flushed.is_err())
}

/// Returns advice about a request without an answer.
pub(crate) fn unanswered(client: &Client, subject: &str) -> String {
    let state = client.connection_state();
    if has_ended(client) {
        ENDED.to_owned()
    } else if state == State::Connected {
        format!(
            "nothing answered on `{subject}`: its stream may have no leader now, or the user may not publish there or not \
             subscribe to `_INBOX.>` (`permissions`)"
        )
    } else {
        format!("there is no connection to the server ({state}): check its URL, and that it runs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(permissions: &str) -> User {
        serde_json::from_str(&format!("{{\"user\":\"app\",\"permissions\":{permissions}}}"))
            .unwrap()
    }

    #[test]
    fn a_part_of_what_is_asked_may_be_permitted() {
        let part = user(r#"{"publish":{"allow":["dlq.orders.>"]}}"#);
        assert!(part.may_publish_some("dlq.>") && !part.may_publish("dlq.>"));
        assert!(!part.may_publish_some("dlq-aside.>"));
        let without = user(r#"{"publish":{"deny":["dlq.orders.>"]}}"#);
        assert!(without.may_publish_some("dlq.>") && !without.may_publish("dlq.>"));
        let none = user(r#"{"publish":{"deny":["dlq.>"]}}"#);
        assert!(!none.may_publish_some("dlq.>"));
    }

    #[test]
    fn who_may_answer_as_often_as_it_takes_may_acknowledge() {
        let ack = acknowledged("ORDERS", "billing");
        for (permissions, acknowledges, writes) in [
            ("null", true, true),
            (r#"{"publish":{"allow":["dlq.>"]}}"#, false, true),
            (r#"{"publish":{"allow":["dlq.>"]},"responses":{"max":-1,"ttl":0}}"#, true, true),
            (r#"{"publish":{},"responses":{"max":-1,"ttl":0}}"#, true, false),
            // The lease is extended by it, and then there is none left for the acknowledgement.
            (r#"{"publish":{"allow":["dlq.>"]},"responses":{"max":1,"ttl":0}}"#, false, true),
            (r#"{"publish":{},"responses":{"max":1,"ttl":0}}"#, false, false),
            (
                r#"{"publish":{"allow":["dlq.>","$JS.ACK.>"]},"responses":{"max":1,"ttl":0}}"#,
                true,
                true,
            ),
            (r#"{"publish":{"allow":["$JS.ACK.>"]}}"#, true, false),
            (r#"{"publish":{"deny":["$JS.ACK.ORDERS.billing.>"]}}"#, false, true),
        ] {
            let user = user(permissions);
            let may = ack.iter().any(|subject| user.may_publish(subject));
            assert_eq!((may, user.may_publish("dlq.>")), (acknowledges, writes), "{permissions}");
        }
    }

    #[test]
    fn who_may_answer_for_a_while_may_not_acknowledge_late() {
        let ack = &acknowledged("ORDERS", "billing")[0];
        for (permissions, late) in [
            ("null", true),
            (r#"{"publish":{},"responses":{"max":-1,"ttl":120000000000}}"#, false),
            (r#"{"publish":{},"responses":{"max":-1,"ttl":-1}}"#, true),
            (r#"{"publish":{"allow":["$JS.ACK.>"]},"responses":{"max":-1,"ttl":1}}"#, true),
        ] {
            let user = user(permissions);
            assert!(user.may_publish(ack), "{permissions}");
            assert_eq!(user.may_publish_late(ack), late, "{permissions}");
        }
    }
}
