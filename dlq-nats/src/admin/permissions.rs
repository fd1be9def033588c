//! Permissions that the deployment needs and the user of the connection lacks.

use std::collections::BTreeSet;

use async_nats::Client;

use super::{Deployment, Finding, Severity};
use crate::client::buckets;
use crate::client::permissions::{ACK, User, WHO_AM_I, acknowledged, read_from};
use crate::client::streams::{MAX_DELIVERIES, TERMINATED};

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
    let mut look = |severity, kind: &str, needed: Needed, may: &dyn Fn(&str) -> bool| {
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
                Finding::new(severity, &about, &setting)
                    .found(format!("without `{subject}`"), format!("`{subject}`"))
                    .advice(advice),
            );
        }
    };
    let may = |subject: &str| user.may_publish(subject);
    let needed = publishes(deployment, api);
    let to = "answers are permitted for a while only (`allow_responses`), so that what took longer cannot be \
              acknowledged, and comes again";
    let acknowledges = |any: &Vec<String>| any.iter().any(|s| s.starts_with(ACK) && may(s));
    let late = needed.iter().map(|(any, _)| any).filter(|any| acknowledges(any));
    let late = late.map(|any| (any.clone(), to)).collect();
    look(Severity::Error, "publish", needed, &may);
    look(Severity::Warning, "publish", late, &|s| user.may_publish_late(s));
    if let Some(api) = api {
        let to = "a message with headers that no client reads cannot be written as a letter, and ends one process per lease";
        let streams: BTreeSet<&str> =
            deployment.consumers.iter().map(|plan| plan.stream.as_str()).collect();
        let read = streams.into_iter().map(|stream| (vec![read_from(api, stream)], to));
        look(Severity::Warning, "publish", read.collect(), &may);
    }
    if let (Some(_), Some(api)) = (&deployment.router, api) {
        let to = "the router does not know its JetStream domain, and takes what leaf nodes give up for its own";
        look(Severity::Warning, "publish", vec![(vec![format!("{api}.INFO")], to)], &may);
    }
    let may_some = |subject: &str| user.may_publish_some(subject);
    let to = "dead letters and retries cannot be written, so that nothing is acknowledged";
    look(Severity::Error, "publish", shared(deployment, to), &may_some);
    let to = "nothing can be written to the bucket";
    let buckets = deployment.buckets.iter().map(|bucket| (vec![buckets::written(bucket)], to));
    look(Severity::Error, "publish", buckets.collect(), &may_some);
    // Which of them are needed is not known here.
    let to =
        "of some subjects they cannot be written, so that what fails there is not acknowledged";
    // Those that cannot be written at all are errors already.
    look(Severity::Warning, "publish", shared(deployment, to), &|s| may(s) || !may_some(s));
    look(Severity::Error, "subscribe", subscribes(deployment), &|s| user.may_subscribe(s));
    findings
}

fn publishes(deployment: &Deployment, api: Option<&str>) -> Needed {
    let mut needed = Vec::new();
    let mut need = |subject: String, to| needed.push((vec![subject], to));
    for stream in deployment.own_streams() {
        if let Some(api) = api {
            need(format!("{api}.STREAM.INFO.{}", stream.name), "the stream cannot be looked at");
        }
    }
    if let (Some(_), Some(api)) = (&deployment.router, api) {
        need(format!("{api}.STREAM.MSG.GET.*"), "the router cannot read messages");
        let to = "of what is gone the router cannot see whether its stream is another one";
        need(format!("{api}.STREAM.INFO.*"), to);
        need(format!("{api}.CONSUMER.LIST.*"), "the router cannot see consumers");
        let letters = format!("{api}.CONSUMER.CREATE.{}.>", deployment.letters.name);
        need(letters, "the router cannot see whether a message that is gone has its letter");
        let to = "the router cannot hear of what exhausted consumers keep to themselves";
        need(format!("{api}.CONSUMER.MSG.NEXT.>"), to);
    }
    for bucket in &deployment.buckets {
        if let Some(api) = api {
            need(buckets::needs(api, bucket), "what stands in the bucket cannot be read");
        }
    }
    let retries = deployment.retries.iter().filter(|_| !deployment.consumers.is_empty());
    for (stream, api) in retries.zip(api) {
        let read = read_from(api, &stream.name);
        need(read, "retries of large messages cannot be read, and wait for ever");
    }
    for plan in &deployment.consumers {
        let queue = deployment.retries.iter().flat_map(|stream| stream.queue(&plan.name));
        let to = "retries cannot be written, so that what waits for one is not acknowledged";
        needed.extend(queue.map(|subject| (vec![subject], to)));
        for durable in plan.consumer(deployment.retries.as_ref()).durables(&plan.name) {
            let at = format!("{}.{}", durable.of.name(), durable.name);
            let acknowledged = acknowledged(durable.of.name(), &durable.name);
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

/// Returns the need to write to something that many write to, each to a part of its own.
fn shared(deployment: &Deployment, to: &'static str) -> Needed {
    let queues = deployment.retries.as_ref().filter(|_| !deployment.consumers.is_empty());
    let queues = queues.map(|stream| stream.name.as_str());
    let streams = deployment.own_streams().into_iter();
    let subjects =
        streams.filter(|own| Some(own.name.as_str()) != queues).flat_map(|own| own.subjects);
    let subjects = subjects.filter(|subject| !subject.starts_with('$'));
    subjects.map(|subject| (vec![subject], to)).collect()
}

fn subscribes(deployment: &Deployment) -> Needed {
    if deployment.router.is_none() {
        return Vec::new();
    }
    let to = "the router hears nothing while the stream of advisories has no leader";
    [MAX_DELIVERIES, TERMINATED].map(|subject| (vec![subject.to_owned()], to)).to_vec()
}
