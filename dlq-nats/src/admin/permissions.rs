//! What the user of the connection may do, as far as the server says.

use std::time::Duration;

use async_nats::{Client, Request};
use serde::Deserialize;

use super::subjects::{covers, overlap};
use super::{Deployment, Finding, Severity};

const WHO_AM_I: &str = "$SYS.REQ.USER.INFO";
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Default, Deserialize)]
struct Answer {
    #[serde(default)]
    data: User,
}

#[derive(Debug, Default, Deserialize)]
struct User {
    #[serde(default)]
    user: String,
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

/// What the deployment needs and the user lacks. `api` is what subjects of the API begin with, where it is known.
pub(super) async fn missing(
    client: &Client,
    deployment: &Deployment,
    api: Option<&str>,
) -> Vec<Finding> {
    let request = Request::new().timeout(Some(PATIENCE));
    let answer = client.send_request(WHO_AM_I, request).await;
    let Some(Answer { data: User { user, permissions } }) =
        answer.ok().and_then(|answer| serde_json::from_slice(&answer.payload).ok())
    else {
        let advice = "what this user may publish and subscribe to cannot be looked at; allow it to publish to this \
                      subject and to subscribe to `_INBOX.>`";
        return vec![
            Finding::new(Severity::Note, "permissions", WHO_AM_I)
                .found("unanswered", "an answer")
                .advice(advice),
        ];
    };
    let Permissions { publish, subscribe } = permissions.unwrap_or_default();
    let kinds = [
        ("publish", publish.unwrap_or_default(), publishes(deployment, api)),
        ("subscribe", subscribe.unwrap_or_default(), subscribes(deployment)),
    ];
    let mut findings = Vec::new();
    for (kind, rules, needed) in kinds {
        for (subject, to) in needed {
            if rules.allow(&subject) {
                continue;
            }
            let advice = format!(
                "{to}; add the subject to `permissions.{kind}.allow`, and see that no `deny` covers it"
            );
            findings.push(
                Finding::new(
                    Severity::Error,
                    &format!("user `{user}`"),
                    &format!("permissions.{kind}"),
                )
                .found(format!("without `{subject}`"), format!("`{subject}`"))
                .advice(advice),
            );
        }
    }
    findings
}

type Needed = Vec<(String, &'static str)>;

fn publishes(deployment: &Deployment, api: Option<&str>) -> Needed {
    let mut needed = Vec::new();
    for stream in deployment.own_streams() {
        let to = "dead letters and retries cannot be written, so that nothing is acknowledged";
        let written = stream.subjects.into_iter().filter(|subject| !subject.starts_with('$'));
        needed.extend(written.map(|subject| (subject, to)));
        if let Some(api) = api {
            let to = "the stream cannot be looked at";
            needed.push((format!("{api}.STREAM.INFO.{}", stream.name), to));
        }
    }
    for plan in &deployment.consumers {
        for durable in plan.consumer(deployment.retries.as_ref()).durables() {
            let at = format!("{}.{}", durable.of.name(), durable.name);
            let to = "messages cannot be acknowledged, and come again";
            needed.push((format!("$JS.ACK.{at}.>"), to));
            if let Some(api) = api {
                let to = "messages cannot be fetched";
                needed.push((format!("{api}.CONSUMER.MSG.NEXT.{at}"), to));
                needed.push((
                    format!("{api}.CONSUMER.INFO.{at}"),
                    "the consumer cannot be looked at",
                ));
            }
        }
    }
    if let (Some(_), Some(api)) = (&deployment.router, api) {
        needed.push((format!("{api}.STREAM.MSG.GET.*"), "the router cannot read messages"));
        needed.push((format!("{api}.CONSUMER.LIST.*"), "the router cannot see consumers"));
        needed.push((
            format!("{api}.CONSUMER.MSG.NEXT.>"),
            "the router cannot hear of exhausted messages",
        ));
    }
    needed
}

fn subscribes(deployment: &Deployment) -> Needed {
    let mut needed = Vec::new();
    if deployment.router.is_some() {
        let to = "the router hears nothing while the stream of advisories has no leader";
        needed.push((crate::router::MAX_DELIVERIES.to_owned(), to));
        needed.push((crate::router::TERMINATED.to_owned(), to));
    }
    needed
}
