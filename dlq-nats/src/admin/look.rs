use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::AccountErrorKind;
use async_nats::jetstream::stream::Info;
use async_nats::jetstream::{Context, ErrorCode, consumer};
use dlq_core::{Clock as _, StoreError, StoreErrorKind, SystemClock};
use futures_util::TryStreamExt as _;

use super::rules::{self, Facts, Watch, consumer_name, stream_name};
use super::{Deployment, Finding, Severity, permissions, retries};
use crate::client::error::SetupError;
use crate::client::jetstream::JetStream;
use crate::client::subjects;
use crate::router::{DURABLE, RouterConfig};

const CHECKING: &str = "check a deployment";
/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Error codes by which a server says that it has no JetStream, or that the account has none.
const OFF: [ErrorCode; 2] =
    [ErrorCode::JETSTREAM_NOT_ENABLED, ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT];
/// Number of checks whether somebody is pulling, and the pause between them.
pub(super) const LOOKS: usize = 5;
pub(super) const PAUSE: Duration = Duration::from_millis(300);

impl Deployment {
    /// Looks at what is there, and tells what is not as it should be, the worst first. Nothing is written.
    ///
    /// # Errors
    ///
    /// `Unavailable` when there is no connection to the server. What the server does not answer while there is one is a
    /// finding.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped at any time.
    pub async fn check(&self, jetstream: &impl JetStream) -> Result<Vec<Finding>, StoreError> {
        let mut context = jetstream.context();
        // Each right that is missing costs a whole time limit, and a check asks for many things.
        context.set_timeout(PATIENCE);
        let mut look = Look { deployment: self, context, findings: Vec::new() };
        look.server(jetstream.api()).await?;
        if !look.findings.iter().any(|finding| finding.setting == "jetstream") {
            look.everything().await?;
        }
        let mut findings = look.findings;
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(findings)
    }
}

struct Look<'a> {
    deployment: &'a Deployment,
    context: Context,
    findings: Vec<Finding>,
}

type Consumers = Vec<consumer::Info>;

impl Look<'_> {
    async fn server(&mut self, api: Option<&str>) -> Result<(), StoreError> {
        let client = self.context.client();
        self.findings.extend(permissions::missing(&client, self.deployment, api).await);
        self.connected()?;
        if let Err(error) = self.context.query_account().await {
            let text = error.to_string();
            let is_off = match error.kind() {
                // Others pass: a cluster that has lost its majority answers 503, too.
                AccountErrorKind::JetStream(answer) => OFF.contains(&answer.error_code()),
                AccountErrorKind::JetStreamUnavailable => true,
                _ => false,
            };
            if is_off {
                let advice = "streams need it; write `jetstream {}` into the server's configuration, and enable it for \
                              the account (`accounts { NAME { jetstream: enabled } }`)";
                self.findings.push(
                    Finding::new(Severity::Error, "server", "jetstream")
                        .found(format!("not available ({text})"), "enabled")
                        .advice(advice),
                );
                return Ok(());
            }
            self.unanswered("INFO", &text)?;
        }
        let schedules = self.deployment.retries.as_ref().is_some_and(|stream| stream.schedules);
        self.findings.extend(rules::version(&client.server_info().version, schedules));
        Ok(())
    }

    fn connected(&self) -> Result<(), StoreError> {
        let state = self.context.client().connection_state();
        if state == State::Connected {
            return Ok(());
        }
        Err(StoreError::new(StoreErrorKind::Unavailable, CHECKING).with_detail(format!(
            "there is no connection to the server ({state}); check URL and network"
        )))
    }

    /// Notes that a request got no answer although there is a connection.
    fn unanswered(&mut self, asked: &str, error: &str) -> Result<(), StoreError> {
        self.connected()?;
        let advice = "its stream has no leader now, or the user may not publish to the subject or not subscribe to \
                      `_INBOX.>`; look at the cluster and at `permissions`";
        self.findings.push(
            Finding::new(Severity::Error, "server", &format!("API request {asked}"))
                .found(format!("unanswered ({error})"), "an answer")
                .advice(advice),
        );
        Ok(())
    }

    async fn everything(&mut self) -> Result<(), StoreError> {
        let all: Option<Vec<Info>> = match self.context.streams().try_collect().await {
            Ok(all) => Some(all),
            Err(error) => {
                let text = error.to_string();
                self.unanswered("STREAM.LIST", &text)?;
                None
            }
        };
        let mut streams: BTreeMap<String, Info> = BTreeMap::new();
        match &all {
            Some(all) => {
                streams.extend(all.iter().map(|info| (info.config.name.clone(), info.clone())));
            }
            None => {
                // Without the right to list streams, each one that is named is asked for by itself.
                for name in self.names() {
                    if let Some(info) = self.find(&name).await? {
                        streams.insert(name, info);
                    }
                }
            }
        }
        let mut consumers = BTreeMap::new();
        for name in self.sources(&streams).into_iter().chain([self.advisories()]) {
            if streams.contains_key(&name) {
                let found = self.consumers(&name).await?;
                consumers.insert(name, found);
            }
        }
        let leases = self.deployment.consumers.iter().filter_map(|plan| {
            let durable = plan.consumer(None).durables(&plan.name).into_iter().next()?;
            let found = consumers.get(&plan.stream)?.iter().find(|info| info.name == durable.name);
            Some(found.map_or(durable.lease, |info| info.config.ack_wait))
        });
        let info = self.context.client().server_info();
        let facts = Facts {
            now: SystemClock.now(),
            is_cluster: info.cluster.is_some(),
            max_payload: info.max_payload,
            lease: leases.max().unwrap_or_default(),
        };
        self.own(&streams, all.is_some(), &facts);
        if let Some(retries) = &self.deployment.retries
            && let Some(info) = streams.get(&retries.name)
        {
            self.findings.extend(retries::look(&self.context, retries, info, &facts).await);
        }
        let router = self.router(&streams, &consumers).await?;
        self.users(&streams, &consumers, router.as_ref(), &facts);
        for name in &self.deployment.buckets {
            match streams.get(&format!("KV_{name}")) {
                Some(info) => self.findings.extend(rules::bucket(name, &info.config, &facts)),
                None => self.findings.push(missing(Severity::Warning, &format!("bucket `{name}`"))),
            }
        }
        Ok(())
    }

    /// All streams that are named.
    fn names(&self) -> Vec<String> {
        let deployment = self.deployment;
        let mut names: Vec<String> =
            deployment.own_streams().into_iter().map(|stream| stream.name).collect();
        names.extend(deployment.streams.iter().map(|plan| plan.name.clone()));
        names.extend(deployment.consumers.iter().map(|plan| plan.stream.clone()));
        names.extend(deployment.buckets.iter().map(|name| format!("KV_{name}")));
        names.push(self.advisories());
        names
    }

    /// The user's streams that are looked at.
    fn sources(&self, streams: &BTreeMap<String, Info>) -> Vec<String> {
        let deployment = self.deployment;
        let mut named: Vec<String> =
            deployment.streams.iter().map(|plan| plan.name.clone()).collect();
        named.extend(deployment.consumers.iter().map(|plan| plan.stream.clone()));
        let own: Vec<String> = deployment.own_streams().into_iter().map(|own| own.name).collect();
        if named.is_empty() {
            // Buckets and object stores are streams as well, which nobody consumes.
            let is_source = |name: &&String| {
                !own.contains(name)
                    && **name != self.advisories()
                    && !name.starts_with("KV_")
                    && !name.starts_with("OBJ_")
            };
            named.extend(streams.keys().filter(is_source).cloned());
        }
        named.sort_unstable();
        named.dedup();
        named
    }

    /// The stream of advisories, that of a router which is there unasked included.
    fn advisories(&self) -> String {
        self.deployment.router.clone().unwrap_or_default().advisories.name
    }

    async fn find(&mut self, name: &str) -> Result<Option<Info>, StoreError> {
        match crate::client::streams::find(&self.context, name).await {
            Ok(found) => Ok(found),
            Err(error @ SetupError::Unavailable(..)) => {
                self.unanswered(&format!("STREAM.INFO.{name}"), &error.to_string())?;
                Ok(None)
            }
            Err(error) => Err(error.for_store(CHECKING)),
        }
    }

    async fn consumers(&mut self, stream: &str) -> Result<Consumers, StoreError> {
        let handle = self.context.get_stream_no_info(stream).await;
        let handle = handle.map_err(|error| {
            StoreError::new(StoreErrorKind::InvalidConfig, CHECKING).with_detail(error.to_string())
        })?;
        match handle.consumers().try_collect().await {
            Ok(consumers) => Ok(consumers),
            Err(error) => {
                self.unanswered(&format!("CONSUMER.LIST.{stream}"), &error.to_string())?;
                Ok(Vec::new())
            }
        }
    }

    fn own(&mut self, streams: &BTreeMap<String, Info>, is_all: bool, facts: &Facts) {
        for wanted in self.deployment.own_streams() {
            let Some(info) = streams.get(&wanted.name) else {
                // Without the list it is not known whose subjects may be in its way.
                if is_all {
                    self.absent(&wanted.name, &wanted.subjects, streams);
                }
                continue;
            };
            let most = facts.max_payload;
            self.findings.extend(rules::stream_differs(&info.config, &wanted, true, most));
            self.findings.extend(rules::own(info, facts));
            if wanted.allow_message_schedules && !info.config.allow_message_schedules {
                let advice = "retries that wait are held by delayed redelivery, which costs the server memory for each; \
                              set `allow_msg_schedules` (servers from 2.12), or use `without_schedules`";
                self.findings.push(
                    Finding::new(
                        Severity::Warning,
                        &stream_name(&wanted.name),
                        "allow_msg_schedules",
                    )
                    .found("false", "true")
                    .advice(advice),
                );
            }
        }
        let routed = self.deployment.router.as_ref().map(|router| &router.letters);
        let letters = &self.deployment.letters;
        let other = routed.filter(|routed| routed.name != letters.name);
        for letters in other.into_iter().chain([letters]) {
            let info = streams.get(&letters.name);
            self.findings.extend(info.and_then(|info| rules::ageing(info, facts)));
        }
    }

    /// A stream of ours that is not there: it is created when it is opened, unless its subjects are taken.
    fn absent(&mut self, name: &str, wanted: &[String], streams: &BTreeMap<String, Info>) {
        let mut is_taken = false;
        for (other, info) in streams {
            let meet = |theirs: &&String| wanted.iter().any(|ours| subjects::overlap(ours, theirs));
            for theirs in info.config.subjects.iter().filter(meet) {
                is_taken = true;
                let advice = format!(
                    "it catches what is written for `{name}`, which cannot be created; narrow its subjects, or choose \
                     another prefix"
                );
                self.findings.push(
                    Finding::new(Severity::Error, &stream_name(other), "subjects")
                        .found(theirs, format!("none that meet {}", wanted.join(", ")))
                        .advice(advice),
                );
            }
        }
        if !is_taken {
            self.findings.push(missing(Severity::Warning, &stream_name(name)));
        }
    }

    /// The router that is there or ought to be, if any.
    async fn router(
        &mut self,
        streams: &BTreeMap<String, Info>,
        consumers: &BTreeMap<String, Consumers>,
    ) -> Result<Option<RouterConfig>, StoreError> {
        let asked = self.deployment.router.clone();
        let name = self.advisories();
        // A router makes a stream of advisories: without one none runs here.
        let Some(info) = streams.get(&name) else { return Ok(asked) };
        let is_durable = |found: &&consumer::Info| {
            found
                .name
                .strip_prefix(DURABLE)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let is_heard_by = |found: &consumer::Info| is_durable(&found) && found.num_waiting > 0;
        let durable = consumers.get(&name).filter(|all| all.iter().any(|found| is_durable(&found)));
        if durable.is_none() && asked.is_none() {
            return Ok(None);
        }
        let mut is_heard = durable.is_some_and(|all| all.iter().any(is_heard_by));
        for _ in 1..LOOKS {
            if is_heard || durable.is_none() {
                break;
            }
            // Between two of its requests a router that runs looks like one that does not.
            tokio::time::sleep(PAUSE).await;
            let found = self.consumers(&name).await?;
            is_heard = found.iter().any(is_heard_by);
        }
        if !is_heard {
            let kept = dlq_core::policy::duration::format(info.config.max_age);
            let advice = format!(
                "nobody writes letters of what other consumers give up; start one within {kept}, for which advisories \
                 are kept"
            );
            self.findings.push(
                Finding::new(Severity::Warning, "event router", "num_waiting")
                    .found("0", "a router that listens")
                    .advice(advice),
            );
        }
        Ok(Some(asked.unwrap_or_default()))
    }

    fn users(
        &mut self,
        streams: &BTreeMap<String, Info>,
        consumers: &BTreeMap<String, Consumers>,
        router: Option<&RouterConfig>,
        facts: &Facts,
    ) {
        let watch = router.map(RouterConfig::watch);
        for name in self.sources(streams) {
            let Some(info) = streams.get(&name) else {
                let mut finding = missing(Severity::Error, &stream_name(&name));
                finding.advice = "create it, or name one that exists".to_owned();
                self.findings.push(finding);
                continue;
            };
            let plan = self.deployment.streams.iter().find(|plan| plan.name == name);
            if let Some(wanted) = plan.and_then(|plan| plan.config()) {
                self.findings.extend(rules::stream_differs(
                    &info.config,
                    &wanted,
                    false,
                    facts.max_payload,
                ));
            }
            let is_watched = watch.as_ref().is_some_and(|watch| watch.includes_stream(&name));
            let none = Vec::new();
            let all = consumers.get(&name).unwrap_or(&none);
            let mut others: Vec<_> = all.iter().collect();
            for plan in self.deployment.consumers.iter().filter(|plan| plan.stream == name) {
                let Some(durable) = plan.consumer(None).durables(&plan.name).into_iter().next()
                else {
                    continue;
                };
                let subject = consumer_name(&durable.name, &name);
                others.retain(|found| found.name != durable.name);
                let Some(found) = all.iter().find(|found| found.name == durable.name) else {
                    self.findings.push(missing(Severity::Warning, &subject));
                    continue;
                };
                self.findings.extend(plan.differences(&durable, &found.config));
                self.findings.extend(rules::ours(plan, &found.config, &subject, facts));
            }
            // What is not durable comes and goes, and remembers nothing.
            others.retain(|found| found.config.durable_name.is_some());
            let mut needs_router = false;
            for found in others {
                let named = router.is_some_and(|router| {
                    let is = |watched: &crate::router::Watched| {
                        watched.stream == name && watched.consumer == found.name
                    };
                    router.consumers.iter().any(is)
                });
                let watch = Watch {
                    is_watched: watch
                        .as_ref()
                        .is_some_and(|watch| watch.includes(&name, &found.name)),
                    is_named: named,
                    expected: router.and_then(|router| router.max_retries),
                };
                needs_router |= watch.is_watched && found.config.max_deliver > 0;
                let subject = consumer_name(&found.name, &name);
                self.findings.extend(rules::foreign(&found.config, &subject, watch));
            }
            self.findings.extend(rules::source(info, facts, is_watched && needs_router));
            self.findings.extend(all.iter().filter_map(|found| rules::behind(info, found, facts)));
        }
    }
}

fn missing(severity: Severity, subject: &str) -> Finding {
    let advice = "it is created when a process opens it, if the user may do so";
    Finding::new(severity, subject, "existence").found("missing", "there").advice(advice)
}
