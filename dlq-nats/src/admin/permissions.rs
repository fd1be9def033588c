//! What the deployment needs and the user of the connection lacks.

use async_nats::Client;

use super::{Deployment, Finding, Severity};
use crate::permissions::{User, WHO_AM_I};

/// Subjects of which one will do, and what does not work without.
type Needed = Vec<(Vec<String>, &'static str)>;

/// `api` is what subjects of the API begin with, where it is known.
pub(super) async fn missing(
    client: &Client,
    deployment: &Deployment,
    api: Option<&str>,
) -> Vec<Finding> {
    let Some(user) = User::ask(client).await else {
        let advice = "what this user may publish and subscribe to cannot be looked at; allow it to publish to this \
                      subject and to subscribe to `_INBOX.>`";
        return vec![
            Finding::new(Severity::Note, "permissions", WHO_AM_I)
                .found("unanswered", "an answer")
                .advice(advice),
        ];
    };
    let mut findings = Vec::new();
    let mut look = |kind: &str, needed: Needed, may: &dyn Fn(&str) -> bool| {
        for (subjects, to) in needed {
            if subjects.iter().any(|subject| may(subject)) {
                continue;
            }
            let Some(subject) = subjects.first() else { continue };
            let advice = format!(
                "{to}; add the subject to `permissions.{kind}.allow`, and see that no `deny` covers it"
            );
            let (about, setting) = (format!("user `{}`", user.name), format!("permissions.{kind}"));
            findings.push(
                Finding::new(Severity::Error, &about, &setting)
                    .found(format!("without `{subject}`"), format!("`{subject}`"))
                    .advice(advice),
            );
        }
    };
    look("publish", publishes(deployment, api), &|subject| user.may_publish(subject));
    look("subscribe", subscribes(deployment), &|subject| user.may_subscribe(subject));
    findings
}

fn publishes(deployment: &Deployment, api: Option<&str>) -> Needed {
    let mut needed = Vec::new();
    let mut need = |subject: String, to| needed.push((vec![subject], to));
    for stream in deployment.own_streams() {
        let to = "dead letters and retries cannot be written, so that nothing is acknowledged";
        let written = stream.subjects.into_iter().filter(|subject| !subject.starts_with('$'));
        written.for_each(|subject| need(subject, to));
        if let Some(api) = api {
            need(format!("{api}.STREAM.INFO.{}", stream.name), "the stream cannot be looked at");
        }
    }
    if let (Some(_), Some(api)) = (&deployment.router, api) {
        need(format!("{api}.STREAM.MSG.GET.*"), "the router cannot read messages");
        need(format!("{api}.CONSUMER.LIST.*"), "the router cannot see consumers");
        let to = "the router cannot hear of what exhausted consumers keep to themselves";
        need(format!("{api}.CONSUMER.MSG.NEXT.>"), to);
    }
    for plan in &deployment.consumers {
        for durable in plan.consumer(deployment.retries.as_ref()).durables() {
            let at = format!("{}.{}", durable.of.name(), durable.name);
            // Newer servers can be told to write domain and account before it.
            let acknowledged = vec![format!("$JS.ACK.{at}.>"), format!("$JS.ACK.*.*.{at}.>")];
            needed.push((acknowledged, "messages cannot be acknowledged, and come again"));
            if let Some(api) = api {
                let fetched = vec![format!("{api}.CONSUMER.MSG.NEXT.{at}")];
                needed.push((fetched, "messages cannot be fetched"));
                let seen = vec![format!("{api}.CONSUMER.INFO.{at}")];
                needed.push((seen, "the consumer cannot be looked at"));
            }
        }
    }
    needed
}

fn subscribes(deployment: &Deployment) -> Needed {
    if deployment.router.is_none() {
        return Vec::new();
    }
    let to = "the router hears nothing while the stream of advisories has no leader";
    [crate::router::MAX_DELIVERIES, crate::router::TERMINATED]
        .map(|subject| (vec![subject.to_owned()], to))
        .to_vec()
}
