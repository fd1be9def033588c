use std::collections::BTreeMap;
use std::time::Instant;

use dlq_core::{Clock as _, StoreError, SystemClock};
use rdkafka::Offset;
use rdkafka::admin::ResourceSpecifier;

use super::{Deployment, Finding, Severity, claims, rules};
use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::topics::{
    Cluster, Look, Role, SETTLING, Seen, blocking, judge, merge, read_settings, topic_name,
};

impl Deployment {
    /// Looks at what is there, and tells what is not as it should be, the worst first. Nothing is written. What is missing
    /// is looked for again for two seconds, since brokers hear of new topics one after the other.
    ///
    /// # Errors
    ///
    /// `Unavailable` when no broker answers within ten seconds; `InvalidConfig` when a name is none, two topics would have
    /// one name, or the brokers refuse the user. What a user may not see is a finding.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped at any time.
    pub async fn check(&self, brokers: &Brokers) -> Result<Vec<Finding>, StoreError> {
        let check = async {
            let (brokers, deployment) = (brokers.clone(), self.clone());
            blocking(move || look(&brokers, &deployment)).await
        };
        let mut findings = check.await.map_err(|error| error.for_store("check a deployment"))?;
        findings.extend(claims::check(self, brokers).await);
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(findings)
    }
}

fn look(brokers: &Brokers, deployment: &Deployment) -> Result<Vec<Finding>, SetupError> {
    let wanted = merge(&deployment.wanted()?)?;
    let mut cluster = Cluster::new(brokers, None)?;
    let mut findings = Vec::new();
    let mut all = BTreeMap::new();
    let settling = Instant::now() + SETTLING;
    for name in wanted.keys() {
        let not_there = |found: &str, advice: String| {
            let finding = Finding::new(Severity::Error, &topic_name(name), "existence");
            finding.found(found, "there").advice(advice)
        };
        match cluster.look_until(settling, name)? {
            Look::There(seen) => _ = all.insert(name.clone(), seen),
            // A finding and not an error, so that one check tells all that is missing.
            Look::Missing => findings.push(not_there("missing", "create it".to_owned())),
            Look::Refused(text) => findings.push(not_there("unknown", text)),
        }
    }
    read_settings(&mut cluster, Instant::now() + SETTLING, &mut all)?;
    for (name, seen) in &all {
        let topic = &wanted[name];
        findings.extend(judge(topic, seen, &all, cluster.ids.len()));
        if topic.role == Role::Letters {
            // A leader may be away that the others do not miss yet.
            let unknown = |error: SetupError| Some(rules::ageless(name, &error.to_string()));
            findings.extend(ageing(&cluster, name, seen).unwrap_or_else(unknown));
        }
    }
    let former = deployment.former(&cluster.names()?).into_iter();
    let former = former.filter(|stage| !wanted.contains_key(&stage.topic));
    findings.extend(former.map(|stage| rules::former(&stage.topic)));
    let mut settings = Vec::new();
    // Each broker has settings of its own, and one that is away must not hide those of the others.
    for id in cluster.ids.clone() {
        match cluster.settings(Instant::now(), &[ResourceSpecifier::Broker(id)]) {
            Ok(of_broker) => settings.extend(of_broker.into_iter().map(|one| (id, one))),
            Err(error) => findings.push(rules::silent(id, &error.to_string())),
        }
    }
    findings.extend(rules::brokers(&settings));
    Ok(findings)
}

/// Returns a finding with the number of letters that are about to be removed: those before the first that is younger,
/// in each partition.
fn ageing(cluster: &Cluster, name: &str, seen: &Seen) -> Result<Option<Finding>, SetupError> {
    let Some(retention) = seen.retention() else { return Ok(None) };
    let of: Vec<_> = seen.readable().map(|partition| (name, partition)).collect();
    // The brokers find the first younger record by their time index, so that no letter is read for this.
    let then = SystemClock.now().before(rules::nearly(retention)).as_millis();
    let young = cluster.offsets(&of, Offset::Offset(then.max(0)))?;
    let (first, end) =
        (cluster.offsets(&of, Offset::Beginning)?, cluster.offsets(&of, Offset::End)?);
    let mut letters = 0;
    for ((young, first), end) in young.into_iter().zip(first).zip(end) {
        let (first, end) = (first.unwrap_or(0), end.unwrap_or(0));
        letters += u64::try_from(young.unwrap_or(end) - first).unwrap_or(0);
    }
    Ok(rules::ageing(name, retention, letters))
}
