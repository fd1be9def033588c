//! A durable consumer at the server: created when it is missing, checked when it is there.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, Config, DeliverPolicy, Info, pull};
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::jetstream::stream::{ConsumerCreateStrictErrorKind, RetentionPolicy};

use crate::client::difference::{Differences, word};
use crate::client::error::SetupError;
use crate::client::permissions::acknowledged;
use crate::client::streams::{self, find};
use crate::client::version::{self, FILTERS};
use crate::consumer::pull::EXPIRES;
use crate::consumer::transport::Start;

/// The stream that a durable consumer belongs to.
#[derive(Clone, Debug)]
pub(crate) enum Of {
    /// The user's; it has to be there.
    Stream(String),
    /// Ours; created when it is missing.
    Own(Box<async_nats::jetstream::stream::Config>),
}

impl Of {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Stream(name) => name,
            Self::Own(config) => &config.name,
        }
    }
}

/// Below this a lease ends while a busy process has yet to say its first word.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Description of a durable consumer, and the state of its stream when it was last seen.
#[derive(Clone, Debug)]
pub(crate) struct Durable {
    pub(crate) of: Of,
    pub(crate) name: String,
    pub(crate) filters: Vec<String>,
    pub(crate) start: Start,
    /// Its `ack_wait`; once it was looked at, the one that it has.
    pub(crate) lease: Duration,
    pub(crate) max_ack_pending: i64,
    /// Metadata that the consumer should have.
    pub(crate) metadata: HashMap<String, String>,
    /// For how many messages it may be asked at once, as it was found: its `max_batch`.
    pub(crate) most: usize,
    /// When the stream was created, and up to which sequence everything was settled.
    seen: Option<(String, u64)>,
}

impl Durable {
    pub(crate) fn new(of: Of, name: String, lease: Duration) -> Self {
        let (filters, start) = (Vec::new(), Start::Earliest);
        let (max_ack_pending, most, metadata) = (-1, usize::MAX, HashMap::new());
        Self { of, name, filters, start, lease, max_ack_pending, metadata, most, seen: None }
    }

    /// Makes sure that stream and consumer are there as they should be.
    ///
    /// A consumer that somebody has deleted begins where it stood when it was last looked at, so that nothing is
    /// skipped; in a stream that was deleted too, and in a work queue, which keeps nothing that was settled, it begins at
    /// the start.
    pub(crate) async fn ensure(&mut self, context: &Context) -> Result<(), SetupError> {
        let stream = match &self.of {
            // A stream of ours that was there before and is missing was deleted: `anew` says aloud what is lost with it
            // (G9).
            Of::Own(config) if self.seen.is_some() => streams::anew(context, config).await?,
            Of::Own(config) => streams::ensure(context, config).await?,
            Of::Stream(name) => find(context, name).await?.ok_or_else(|| {
                SetupError::Unavailable(
                    format!("there is no stream `{name}`; create it, or name one that exists"),
                    None,
                )
            })?,
        };
        let created = stream.created.to_string();
        let info = match self.find(context).await? {
            Some(info) => info,
            None => {
                let from = self.begin(&created, stream.config.retention);
                self.create(context, from).await?
            }
        };
        // A consumer that was created just now is checked, too: a stream's `consumer_limits` set what nobody asked for.
        self.check(&info.config)?;
        if info.config.ack_wait != self.lease {
            tracing::warn!(
                consumer = self.name,
                stream = self.of.name(),
                asked = ?self.lease,
                found = ?info.config.ack_wait,
                "the consumer has another `ack_wait` at the server, which counts"
            );
            self.lease = info.config.ack_wait;
        }
        let most = usize::try_from(info.config.max_batch).ok().filter(|most| *most > 0);
        self.most = most.unwrap_or(usize::MAX);
        // The floor is noted: should somebody delete the consumer, it begins there again and skips nothing.
        self.seen = Some((created, info.ack_floor.stream_sequence));
        Ok(())
    }

    pub(crate) async fn find(&self, context: &Context) -> Result<Option<Info>, SetupError> {
        // There is no request for the stream: whether it is there shows in the answer about the consumer.
        let stream = context
            .get_stream_no_info(self.of.name())
            .await
            .map_err(|error| SetupError::Config(error.to_string()))?;
        let what = format!("look for consumer `{}` of stream `{}`", self.name, self.of.name());
        match stream.consumer_info(&self.name).await {
            Ok(info) => Ok(Some(info)),
            Err(error) => match error.kind() {
                ConsumerInfoErrorKind::NotFound => Ok(None),
                ConsumerInfoErrorKind::JetStream(answer) => {
                    Err(SetupError::answered(&what, answer))
                }
                ConsumerInfoErrorKind::InvalidName => {
                    Err(SetupError::Config(format!("{what}: {error}")))
                }
                _ => Err(SetupError::unavailable(format!("{what}: {error}"), error)),
            },
        }
    }

    /// Should somebody delete it, it begins there. In a stream that was made anew it does not, which `ensure` finds out.
    pub(crate) fn stood(&mut self, floor: u64) {
        if let Some((_, seen)) = &mut self.seen {
            *seen = floor;
        }
    }

    /// Returns the position at which it begins in the stream that was created then.
    fn begin(&self, created: &str, retention: RetentionPolicy) -> DeliverPolicy {
        let from = |start_sequence| DeliverPolicy::ByStartSequence { start_sequence };
        let Some((seen, floor)) = &self.seen else {
            return match self.start {
                Start::Earliest => DeliverPolicy::All,
                Start::Latest => {
                    // Of a consumer that somebody has deleted nobody knows any more.
                    tracing::warn!(
                        consumer = self.name,
                        stream = self.of.name(),
                        "the consumer is created: it begins with what is published from now on, and skips what is there"
                    );
                    DeliverPolicy::New
                }
                Start::At(sequence) => from(sequence.max(1)),
            };
        };
        // Sequences begin again in a stream that was made anew, so that the former floor says nothing.
        if seen != created {
            return DeliverPolicy::All;
        }
        tracing::warn!(
            consumer = self.name,
            stream = self.of.name(),
            from = floor + 1,
            "the consumer was deleted at the server: it is created again, and messages come again"
        );
        // A work queue is read from its start or not at all, and nothing that was settled is left there.
        if retention == RetentionPolicy::WorkQueue { DeliverPolicy::All } else { from(floor + 1) }
    }

    /// Creates it, unless another process has done so meanwhile: what is there is never changed.
    async fn create(
        &self,
        context: &Context,
        deliver_policy: DeliverPolicy,
    ) -> Result<Info, SetupError> {
        let (filter_subject, filter_subjects) = match &self.filters[..] {
            // A single filter goes into the older field, which servers before 2.10 know as well.
            [one] => (one.clone(), Vec::new()),
            many => (String::new(), many.to_vec()),
        };
        let config = pull::Config {
            durable_name: Some(self.name.clone()),
            deliver_policy,
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.lease,
            // A server drops in silence what has reached a limit; attempts are counted by the framework (G3).
            max_deliver: -1,
            max_ack_pending: self.max_ack_pending,
            filter_subject,
            filter_subjects,
            metadata: self.metadata.clone(),
            ..pull::Config::default()
        };
        let what = format!("create consumer `{}` of stream `{}`", self.name, self.of.name());
        let server = context.client().server_info().version;
        if self.filters.len() > 1 && version::parse(&server).is_some_and(|found| found < FILTERS) {
            // It would take the setting and ignore it.
            let (major, minor) = FILTERS;
            return Err(SetupError::Config(format!(
                "{what}: the server is nats-server {server}, and `filter_subjects` needs {major}.{minor} or later; upgrade the \
                 server, or give one filter"
            )));
        }
        // The call is strict, so that a consumer which another process makes at the same time keeps its settings.
        let error = match context.create_consumer_strict_on_stream(config, self.of.name()).await {
            Ok(consumer) => return Ok(consumer.cached_info().clone()),
            Err(error) => error,
        };
        // Another process may have been faster.
        if let Some(info) = self.find(context).await? {
            return Ok(info);
        }
        Err(match error.kind() {
            ConsumerCreateStrictErrorKind::JetStream(answer) => SetupError::answered(&what, answer),
            ConsumerCreateStrictErrorKind::InvalidName
            | ConsumerCreateStrictErrorKind::InvalidConsumerType => {
                SetupError::Config(format!("{what}: {error}"))
            }
            _ => SetupError::unavailable(format!("{what}: {error}"), error),
        })
    }

    /// Returns the permissions to read with it; of each list, a single one suffices. Empty if the `api` is unknown.
    pub(crate) fn needs(&self, api: Option<&str>) -> Vec<Vec<String>> {
        let (stream, consumer) = (self.of.name(), &self.name);
        let fetched = |api| vec![format!("{api}.CONSUMER.MSG.NEXT.{stream}.{consumer}")];
        let needs = |api| vec![fetched(api), acknowledged(stream, consumer)];
        api.map_or_else(Vec::new, needs)
    }

    /// Checks that the existing consumer is usable. It is never changed. Its lease is taken as it is, since no lease
    /// loses messages, unless it is too short to be kept; so is `max_batch`.
    fn check(&self, found: &Config) -> Result<(), SetupError> {
        let mut wrong = self.differences(found);
        // `ensure` takes another lease as the one that counts.
        if found.ack_wait >= self.lease.min(SHORTEST_LEASE) {
            wrong.0.retain(|wrong| wrong.setting != "ack_wait");
        }
        if wrong.0.is_empty() {
            return Ok(());
        }
        Err(SetupError::Config(format!(
            "consumer `{}` of stream `{}` exists with other settings: {wrong}; change it, or ask for what it has",
            self.name,
            self.of.name(),
        )))
    }

    /// Returns the differences that keep a consumer from being this one.
    pub(crate) fn differences(&self, found: &Config) -> Differences {
        let mut wrong = Differences::default();
        let (yes, none) = (|yes: bool| word(&yes), || "none".to_owned());
        let to = found.deliver_subject.clone().unwrap_or_else(none);
        // A push consumer hands messages to a subject that everybody can hear, and refuses to be pulled.
        wrong.why("deliver_subject", to, none(), "since it must be pulled");
        wrong.see("ack_policy", word(&found.ack_policy), word(&AckPolicy::Explicit));
        let why = "since the server drops in silence what was handed out that often";
        // Servers take every number below 1 for no limit.
        wrong.why("max_deliver", found.max_deliver.max(-1).to_string(), "-1".to_owned(), why);
        let why = "since it would replace the lease";
        wrong.why("backoff", word(&found.backoff), word(&Vec::<Duration>::new()), why);
        wrong.see("ack_wait", word(&found.ack_wait), word(&self.lease));
        wrong.why("headers_only", yes(found.headers_only), yes(false), "since payloads are needed");
        let why = "since the server deletes it when nobody pulls for so long, and with it where it stood; the stream gives it \
                   to consumers by its `consumer_limits`";
        let threshold = found.inactive_threshold;
        let threshold = if threshold.is_zero() { none() } else { word(&threshold) };
        wrong.why("inactive_threshold", threshold, none(), why);
        self.pulling(found, &mut wrong);
        let mut theirs = found.filter_subjects.clone();
        // An older server has one filter and a newer one several, so both fields are compared as one list.
        theirs.extend(Some(found.filter_subject.clone()).filter(|filter| !filter.is_empty()));
        theirs.sort_unstable();
        let mut ours = self.filters.clone();
        ours.sort_unstable();
        wrong.see("filter_subjects", word(&theirs), word(&ours));
        for (name, ours) in &self.metadata {
            let theirs = found.metadata.get(name).map_or("none", String::as_str);
            wrong.see("metadata", format!("{name}={theirs}"), format!("{name}={ours}"));
        }
        wrong
    }

    /// Adds settings by which the server would refuse every request for messages.
    fn pulling(&self, found: &Config, wrong: &mut Differences) {
        let longest = found.max_expires;
        if !longest.is_zero() && longest < EXPIRES {
            let wanted = format!("{} or more", word(&EXPIRES));
            let why = "since the server refuses who waits for longer";
            wrong.why("max_expires", word(&longest), wanted, why);
        }
        let why = "since the server refuses who asks for no group";
        wrong.why(
            "priority_groups",
            word(&found.priority_groups),
            word(&Vec::<String>::new()),
            why,
        );
    }
}
