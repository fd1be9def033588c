//! `--via [ALIAS=]URL`: the brokers that letters of a store are sent to.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use dlq_core::DeadLetters;
use dlq_core::outbox::{Outbox as _, Outboxes, Survey};
use dlq_core::store::{Cluster, Letters as _, OperationSpec, Target};
use dlq_core::{Filter, Order, PageRequest, Status};

use crate::cli::{BrokerArgs, ViaArgs};
use crate::contexts;
use crate::error::CliError;
use crate::output::escape;
use crate::secret::{self, without_password};

/// Number of letters that are looked at before an operation starts.
const LOOKED_AT: usize = 1_000;

/// A broker, and the alias by which letters name its cluster.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Via {
    alias: Option<String>,
    url: String,
}

impl Via {
    /// The cluster that it is, as letters name it. Known before the broker answers.
    pub(crate) fn cluster(&self, args: &BrokerArgs) -> Cluster {
        let scheme = self.url.split_once("://").map_or("", |(scheme, _)| scheme);
        let transport = match scheme {
            // TLS is a way to reach a cluster, and no part of the name by which letters know it.
            "tls" => "nats",
            "rediss" => "redis",
            scheme => scheme,
        };
        #[cfg(feature = "kafka")]
        let of_args = args.kafka_cluster.as_deref();
        #[cfg(feature = "kafka")]
        let of_args = of_args.filter(|it| transport == "kafka" && !it.is_empty());
        #[cfg(not(feature = "kafka"))]
        let (of_args, _) = (None, args);
        Cluster::new(transport, self.alias.as_deref().or(of_args).unwrap_or("default"))
    }
}

/// Without what is secret.
impl fmt::Debug for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_password(&self.url))
    }
}

impl FromStr for Via {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (alias, url) = match text.split_once('=') {
            // The query of a URL may have a `=` too. An alias stands before the scheme.
            Some((alias, url)) if !alias.contains("://") => (Some(alias), url),
            _ => (None, text),
        };
        let is_known = ["nats://", "tls://", "kafka://", "redis://", "rediss://"]
            .iter()
            .any(|it| url.starts_with(it));
        // The error quotes nothing of the text, which may hold a password.
        if !is_known || alias.is_some_and(|alias| alias.is_empty() || alias.contains('/')) {
            return Err("write nats://HOST:PORT, kafka://HOST:PORT or redis://HOST:PORT, with ALIAS= in front for a cluster \
                        that is not called default"
                .to_owned());
        }
        Ok(Self { alias: alias.map(str::to_owned), url: url.to_owned() })
    }
}

/// Returns the brokers that the command line names, or else those of the configuration file.
pub(crate) async fn brokers(via: &ViaArgs) -> Result<Vec<Via>, CliError> {
    if !via.via.is_empty() {
        return Ok(via.via.clone());
    }
    let mut brokers = Vec::new();
    for (alias, url) in contexts::clusters().await? {
        let broker: Via = url.parse().map_err(|_| {
            CliError::refused(format!(
                "cannot send to cluster `{alias}` of the configuration file: {} is no broker; write nats://HOST:PORT, \
                 kafka://HOST:PORT or redis://HOST:PORT",
                without_password(&url)
            ))
        })?;
        brokers.push(Via { alias: Some(alias), ..broker });
    }
    Ok(brokers)
}

/// Like [`brokers`], but refuses if there are none.
pub(crate) async fn required(via: &ViaArgs) -> Result<Vec<Via>, CliError> {
    let brokers = brokers(via).await?;
    if brokers.is_empty() {
        return Err(CliError::refused(
            "cannot send letters: no broker is named; name it with --via, e.g. --via nats://HOST:4222, --via \
             kafka://HOST:9092 or --via redis://HOST:6379, or below [clusters] of the configuration file",
        ));
    }
    Ok(brokers)
}

/// Connects to the brokers.
pub(crate) async fn outboxes(
    brokers: &[Via],
    #[cfg_attr(not(feature = "nats"), expect(unused_variables))] via: &ViaArgs,
    args: &BrokerArgs,
) -> Result<Outboxes, CliError> {
    let mut outboxes = Outboxes::new();
    for Via { alias, url } in brokers {
        // The password is kept before the first connection, whose error may quote it.
        secret::keep(url);
        let shown = without_password(url);
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        // The brokers are connected to one after the other: the first that fails is named, and nothing has been sent
        // yet.
        let added = match scheme {
            #[cfg(feature = "nats")]
            "nats" | "tls" => {
                let alias = alias.as_deref().unwrap_or("default");
                let outbox = crate::nats::outbox(scheme, rest, shown.clone(), args, alias).await?;
                outboxes.add(match &via.via_key_header {
                    Some(name) => outbox.key_header(name),
                    None => outbox,
                })
            }
            #[cfg(feature = "kafka")]
            "kafka" => {
                let mut args = args.clone();
                args.kafka_cluster = alias.clone().or(args.kafka_cluster);
                let opened = crate::kafka::outbox(rest, &args).await;
                outboxes.add(opened.map_err(|error| error.about(&shown))?)
            }
            #[cfg(feature = "redis")]
            "redis" | "rediss" => {
                let alias = alias.as_deref().unwrap_or("default");
                let opened = crate::redis::outbox(scheme, rest, args, alias).await;
                outboxes.add(opened.map_err(|error| error.about(&shown))?)
            }
            _ => {
                return Err(CliError::refused(format!("this build of dlq cannot send to {shown}")));
            }
        };
        added.map_err(|error| CliError::from(error).about(&shown))?;
    }
    Ok(outboxes)
}

/// The clusters of the brokers.
pub(crate) fn clusters(outboxes: &Outboxes) -> BTreeSet<Cluster> {
    let cluster =
        |outbox: &dlq_core::outbox::BoxOutbox| Cluster::new(outbox.transport(), outbox.cluster());
    outboxes.iter().map(cluster).collect()
}

/// The target that `--to` names.
pub(crate) fn target(to: &str) -> Target {
    match to {
        "handler" => Target::Handler,
        "origin" => Target::Origin,
        subject => Target::Subject(subject.to_owned()),
    }
}

/// Returns the filter of the letters that a replay with this filter sends; `None` if it sends none.
fn waiting(mut filter: Filter) -> Option<Filter> {
    if !filter.statuses.is_empty() && !filter.statuses.contains(&Status::Pending) {
        return None;
    }
    filter.statuses = vec![Status::Pending];
    Some(filter)
}

/// Looks at where the first letters go, before anything is sent: refuses where a right is missing, and says who else hears
/// them, and what cannot be sent.
pub(crate) async fn survey(
    store: &DeadLetters,
    outboxes: &Outboxes,
    spec: &OperationSpec,
) -> Result<(), CliError> {
    let Some(filter) = waiting(spec.filter.clone()) else { return Ok(()) };
    // Only the first are looked at. A survey of all letters would take as long as their replay, and most go to few
    // places.
    let limit = spec.limit.map_or(LOOKED_AT, |limit| usize::try_from(limit).unwrap_or(LOOKED_AT));
    let limit = limit.min(LOOKED_AT);
    let page = PageRequest::new()
        // The order in which an operation sends them.
        .order(Order::OldestFirst)
        .limit(u32::try_from(limit).unwrap_or(u32::MAX));
    let page = store.list(filter, page).await?;
    let is_all = page.next.is_none();
    let ids: Vec<_> = page.letters.iter().map(|letter| letter.id).collect();
    let mut by_cluster: std::collections::BTreeMap<Cluster, BTreeSet<_>> = Default::default();
    let mut unroutable: std::collections::BTreeMap<String, u64> = Default::default();
    // Whole letters have their payloads with them, so only a hundred are in memory at once.
    for ids in ids.chunks(100) {
        for letter in store.store().get_all(ids.to_vec()).await? {
            match outboxes.route(&letter, &spec.target) {
                Ok((outbox, to)) => {
                    let cluster = Cluster::new(outbox.transport(), outbox.cluster());
                    by_cluster.entry(cluster).or_default().insert(to);
                }
                // They do not end the replay: the operation skips each and keeps the reason.
                Err(why) => *unroutable.entry(why.to_string()).or_default() += 1,
            }
        }
    }
    let mut found = Survey::default();
    for (cluster, to) in by_cluster {
        if let Some(outbox) = outboxes.get(&cluster.transport, &cluster.alias) {
            let survey = outbox.survey(to).await;
            found = found
                .join(survey.map_err(|error| CliError::from(error).about(&cluster.to_string()))?);
        }
    }
    let of = if is_all { "" } else { " of the first 1000" };
    for (why, count) in &unroutable {
        say!("{count} letters{of} cannot be sent and will be skipped: {}", escape(why));
    }
    for (to, why) in &found.closed {
        say!("letters for {} will be refused: {}", escape(&to.to_string()), escape(why));
    }
    for subscriber in &found.subscribers {
        say!("{} will hear them", escape(&subscriber.to_string()));
    }
    for note in &found.notes {
        say!("note: {}", escape(note));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survey_looks_at_what_is_sent_and_at_nothing_else() {
        let with = |statuses: &[Status]| {
            let mut filter = Filter::new();
            filter.statuses = statuses.to_vec();
            waiting(filter).map(|filter| filter.statuses)
        };
        let pending = Some(vec![Status::Pending]);
        assert_eq!(with(&[]), pending);
        assert_eq!(with(&[Status::Quarantined, Status::Pending]), pending);
        assert_eq!(with(&[Status::Quarantined]), None, "a replay sends none of these");
    }

    #[test]
    fn an_alias_stands_in_front_of_a_url() {
        let via: Via = "eu=nats://host:4222".parse().unwrap();
        assert_eq!((via.alias.as_deref(), &*via.url), (Some("eu"), "nats://host:4222"));
        let via: Via = "kafka://user:p=w@host".parse().unwrap();
        assert_eq!((via.alias.as_deref(), &*via.url), (None, "kafka://user:p=w@host"));
        let via: Via = "eu=rediss://ana:p@host:6379/3".parse().unwrap();
        assert_eq!((via.alias.as_deref(), &*via.url), (Some("eu"), "rediss://ana:p@host:6379/3"));
        for text in ["", "host:4222", "=nats://h", "a/b=nats://h", "sqlite://x"] {
            assert!(text.parse::<Via>().is_err(), "{text}");
        }
    }
}
