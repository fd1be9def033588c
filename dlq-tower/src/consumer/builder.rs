use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::outbox::Outboxes;
use dlq_core::store::{BoxSink, BoxStore, Claims, Schedule, Store};
use dlq_core::{
    BoxCrashMarks, BoxRetryQueue, Capabilities, CrashMarks, Ordering, RetryQueue, SharedClock,
    Sink, Source, SystemClock,
};
use tower_layer::Layer;
use tower_service::Service;

use super::feed::{Feed, Main};
use super::outage::OutagePolicy;
use super::run::Consumer;
use super::stack::{Addressees, HandlerNames, Naming, OneName, Program};
use crate::InvalidConfig;
use crate::audit::{AuditLayer, audit};
use crate::dead_letter::DeadLetterLayer;
use crate::handler::Handles;
use crate::idempotency::KeyJanitor;
use crate::metrics::{MetricsLayer, Recorder};
use crate::stage::{IsSettlement, RouteError};
use crate::store_source::{StoreSource, WakingRetryQueue};
use crate::trace::TraceLayer;

type Complete = Box<dyn FnOnce(DeadLetterLayer, AuditLayer, Recorder) -> Program + Send>;
type Routing = Box<dyn FnOnce(DeadLetterLayer) -> DeadLetterLayer + Send>;

enum Work {
    None,
    /// Dead-letter routing is still to be put around it.
    Handler {
        naming: Arc<dyn Naming>,
        complete: Complete,
    },
    Stack(Program),
}

/// Settings that the run loop reads.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) max_in_flight: usize,
    pub(super) shutdown_deadline: Duration,
    pub(super) outage: Option<OutagePolicy>,
    pub(super) suspect_after: u32,
    pub(super) marks: Option<BoxCrashMarks>,
    /// True if the source counts deliveries that an orderly stop ended.
    pub(super) counts_stops: bool,
    /// The transport in the words of its description, if it was opened from one.
    pub(super) transport: Option<String>,
    /// The version of the program, if it was given.
    pub(super) build_version: Option<String>,
    /// The place of the dead letters, for the log.
    pub(super) dead_letters: &'static str,
    pub(super) schedule: Option<Schedule>,
    pub(super) outboxes: Option<Outboxes>,
    pub(super) clock: SharedClock,
    /// Beside that of the handlers.
    pub(super) key_janitors: Vec<KeyJanitor>,
}

/// Builds a [`Consumer`]: at once for a source ([`build`](Self::build)), or opening what a transport describes
/// ([`open`](Self::open)).
///
/// Two things are needed: what runs, a [`handler`](Self::handler) or a [`stack`](Self::stack); and for a handler a
/// place for its dead letters, a store by [`dead_letters`](Self::dead_letters) or a [`sink`](Self::sink), unless a
/// transport describes one. Everything else has a default.
#[must_use = "a builder does nothing until it is built"]
pub struct ConsumerBuilder<From = Given> {
    pub(super) from: From,
    work: Work,
    store: Option<BoxStore>,
    sink: Option<BoxSink>,
    retry_queue: Option<BoxRetryQueue>,
    routing: Option<Routing>,
    audit: bool,
    recorder: Recorder,
    claim_lease: Duration,
    poll: Duration,
    owner: String,
    pub(super) settings: Settings,
}

/// State of a builder that has its source.
#[derive(Debug)]
pub struct Given {
    feed: Box<dyn Feed>,
    source: Capabilities,
}

impl Given {
    pub(super) fn new(source: impl Source) -> Self {
        Self { source: source.capabilities(), feed: Box::new(Main::new(source)) }
    }
}

impl<From> ConsumerBuilder<From> {
    pub(super) fn new(from: From) -> Self {
        Self {
            from,
            work: Work::None,
            store: None,
            sink: None,
            retry_queue: None,
            routing: None,
            audit: false,
            recorder: Recorder::new(),
            claim_lease: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            owner: String::new(),
            settings: Settings {
                max_in_flight: 256,
                shutdown_deadline: Duration::from_secs(25),
                outage: Some(OutagePolicy::new()),
                suspect_after: 3,
                marks: None,
                counts_stops: false,
                transport: None,
                build_version: None,
                dead_letters: "",
                schedule: None,
                outboxes: None,
                clock: SystemClock::shared(),
                key_janitors: Vec::new(),
            },
        }
    }

    /// Sets what handles the messages: one handler, or a router. Dead-letter routing, metrics and trace are put around
    /// it.
    pub fn handler(mut self, handler: impl Handles) -> Self {
        let naming: Arc<dyn Naming> = Arc::new(HandlerNames(handler.clone()));
        let names = Arc::clone(&naming);
        let complete = move |routing: DeadLetterLayer, audit: AuditLayer, recorder: Recorder| {
            // Metrics and audit stand around the routing, since only its settlement says how the message ended.
            let routed = routing.recorder(recorder.clone()).layer(handler);
            let counted = MetricsLayer::new().recorder(recorder).layer(audit.layer(routed));
            let stack = TraceLayer::new().layer(counted);
            Program::new(Arc::new(stack), names)
        };
        self.work = Work::Handler { naming, complete: Box::new(complete) };
        self
    }

    /// Sets a complete stack, composed by hand, which handles all messages under one name. What
    /// [`sink`](Self::sink) and [`retry_queue`](Self::retry_queue) would say is in the stack already.
    ///
    /// The outage protection sees how messages of such a stack ended, but cannot keep those that were in flight when it
    /// opened from being written.
    pub fn stack<S>(mut self, stack: S, name: impl Into<Arc<str>>) -> Self
    where
        S: Service<dlq_core::Delivery, Error = RouteError> + Clone + Send + Sync + 'static,
        S::Response: IsSettlement,
        S::Future: Send,
    {
        let naming = Arc::new(OneName(name.into()));
        self.work = Work::Stack(Program::new(Arc::new(stack), naming));
        self
    }

    /// Adds what is to be done for the idempotency keys of a [`stack`](Self::stack) composed by hand: old ones are
    /// forgotten, and the counts of a key start over once a message of it is dead; of a [`handler`](Self::handler) it is
    /// known. Defaults to nothing: keys are kept without end then, and a message may die of the attempts and crashes of
    /// another one with its key.
    pub fn key_janitor(mut self, keys: KeyJanitor) -> Self {
        self.settings.key_janitors.push(keys);
        self
    }

    /// Sets the store: it takes the dead letters, keeps messages that wait long for a retry unless there is another
    /// [retry queue](Self::retry_queue), what is due in it comes back to the handler, and it keeps the
    /// [crash marks](Self::crash_marks) unless others do.
    pub fn dead_letters(mut self, store: impl Store + Clone) -> Self {
        // Marks that were given by themselves win, in whichever order the two are set.
        self.settings.marks.get_or_insert_with(|| BoxCrashMarks::new(store.clone()));
        self.store = Some(BoxStore::new(store));
        self
    }

    /// Sets where dead letters go when there is no store ([`dead_letters`](Self::dead_letters)), which has them all. For a
    /// copy of each letter beside a store, [adjust the routing](Self::routing):
    /// [`feed`](DeadLetterLayer::feed).
    pub fn sink(mut self, sink: impl Sink) -> Self {
        self.sink = Some(BoxSink::new(sink));
        self
    }

    /// Keeps a [processing audit](crate::audit) in the store: one row per message. Defaults to none.
    pub fn processing_audit(mut self) -> Self {
        self.audit = true;
        self
    }

    /// Sets where messages wait for an attempt that is too far away to be waited for in the process. Defaults to the
    /// store; without one, to the broker, which forgets the attempts: such a message is tried again and again, and never
    /// dies. [`build`](Self::build) warns where a policy comes to that.
    pub fn retry_queue(mut self, queue: impl RetryQueue) -> Self {
        self.retry_queue = Some(BoxRetryQueue::new(queue));
        self
    }

    /// Adjusts dead-letter routing: feeds, hooks, attributes, the name of the program.
    pub fn routing(
        mut self,
        adjust: impl FnOnce(DeadLetterLayer) -> DeadLetterLayer + Send + 'static,
    ) -> Self {
        self.routing = Some(Box::new(adjust));
        self
    }

    /// Sets where it is noted durably that a suspect runs. Defaults to the store; without one to nowhere: suspects run
    /// alone, and what kills the process without end is not found out, of which [`build`](Self::build) warns.
    pub fn crash_marks(mut self, marks: impl CrashMarks) -> Self {
        self.settings.marks = Some(BoxCrashMarks::new(marks));
        self
    }

    /// Sets at which delivery without explanation a message becomes a suspect. Defaults to the third.
    pub fn suspect_after(mut self, deliveries: u32) -> Self {
        self.settings.suspect_after = deliveries;
        self
    }

    /// Sets the automatic schedule. Defaults to none. Needs a store.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.settings.schedule = Some(schedule);
        self
    }

    /// Sends letters of the store's operations to brokers through these outboxes, those that other processes began too.
    /// Needs a store. Defaults to none.
    pub fn outboxes(mut self, outboxes: Outboxes) -> Self {
        self.settings.outboxes = Some(outboxes);
        self
    }

    /// Sets how many messages are in flight at most, those that wait included. A quarter of it at most waits for an
    /// idempotency key in flight, and half of it for a retry, unless they have an order key: with one, choose more than
    /// one key brings while a message of it is retried. Defaults to 256.
    ///
    /// How many attempts run at once is said per handler, by a permit inside retry: see
    /// [`concurrency`](crate::concurrency).
    pub fn max_in_flight(mut self, messages: usize) -> Self {
        self.settings.max_in_flight = messages;
        self
    }

    /// Sets when fetching pauses because what the handlers depend on is down. Defaults to
    /// [`OutagePolicy::default`]: when most of at least 50 messages within half a minute fail of what may pass.
    pub fn outage(mut self, policy: OutagePolicy) -> Self {
        self.settings.outage = Some(policy);
        self
    }

    /// Never pauses because of an [outage](Self::outage): each message dies of its own attempts.
    pub fn without_outage_protection(mut self) -> Self {
        self.settings.outage = None;
        self
    }

    /// Sets how long a stop waits for what runs. Defaults to 25 s, which leaves some of the 30 s that orchestrators
    /// usually give.
    pub fn shutdown_deadline(mut self, deadline: Duration) -> Self {
        self.settings.shutdown_deadline = deadline;
        self
    }

    /// Sets how long a claim in the store lasts without being extended. It is extended at a third of this time
    /// while its letter is in flight. A longer one has letters of a dead process wait longer. Defaults to 30 s.
    pub fn claim_lease(mut self, lease: Duration) -> Self {
        self.claim_lease = lease;
        self
    }

    /// Sets how often the store is asked for what is due, at least. What this process makes due, and what the store
    /// tells of, is asked for sooner. Defaults to every second.
    pub fn poll(mut self, interval: Duration) -> Self {
        self.poll = interval;
        self
    }

    /// Sets the name under which letters are claimed, for operators to see. Defaults to none.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    /// Sets the version of the program, which `dlq consumers` shows: usually `env!("CARGO_PKG_VERSION")`. Defaults to none.
    pub fn build_version(mut self, version: impl Into<String>) -> Self {
        self.settings.build_version = Some(version.into());
        self
    }

    /// Sets what counts messages. Defaults to a recorder of its own.
    pub fn recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = recorder;
        self
    }

    /// Sets the clock for times of death and due times. Defaults to the machine's.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.settings.clock = clock;
        self
    }

    pub(super) fn check_settings(&self) -> Result<(), InvalidConfig> {
        let settings = &self.settings;
        if settings.max_in_flight == 0 {
            return Err(InvalidConfig::consumer("max_in_flight is 0; it must be at least 1"));
        }
        if settings.suspect_after < 2 {
            let found = settings.suspect_after;
            return Err(InvalidConfig::consumer(format!(
                "suspect_after is {found}, which suspects every first delivery; it must be at least 2"
            )));
        }
        if let Some(outage) = &settings.outage {
            outage.check()?;
        }
        if settings.schedule.as_ref().is_some_and(|schedule| schedule.enabled)
            && self.store.is_none()
        {
            return Err(InvalidConfig::consumer(
                "the schedule is enabled, and there is no store whose letters it could send back; add `dead_letters(store)`",
            ));
        }
        if self.settings.outboxes.is_some() && self.store.is_none() {
            return Err(InvalidConfig::consumer(
                "`outboxes` send the letters of a store, and there is none; add `dead_letters(store)`",
            ));
        }
        if self.audit && self.store.is_none() {
            return Err(InvalidConfig::consumer(
                "a processing audit was asked for, and there is no store to keep it; add `dead_letters(store)`",
            ));
        }
        if self.audit && matches!(self.work, Work::Stack(_)) {
            return Err(InvalidConfig::consumer(
                "`stack` is complete as it is; put an `AuditLayer` into it instead of asking for `processing_audit`",
            ));
        }
        Ok(())
    }

    pub(super) fn lacks_dead_letters(&self) -> bool {
        matches!(self.work, Work::Handler { .. }) && self.sink.is_none() && self.store.is_none()
    }

    pub(super) fn lacks_retry_queue(&self) -> bool {
        matches!(self.work, Work::Handler { .. }) && self.retry_queue.is_none()
    }

    /// True unless crash marks were given, by themselves or with a store.
    pub(super) fn lacks_crash_marks(&self) -> bool {
        self.settings.marks.is_none()
    }

    pub(super) fn with_source(self, given: Given) -> ConsumerBuilder {
        ConsumerBuilder {
            from: given,
            work: self.work,
            store: self.store,
            sink: self.sink,
            retry_queue: self.retry_queue,
            routing: self.routing,
            audit: self.audit,
            recorder: self.recorder,
            claim_lease: self.claim_lease,
            poll: self.poll,
            owner: self.owner,
            settings: self.settings,
        }
    }

    pub(super) fn naming(&self) -> Result<&dyn Naming, InvalidConfig> {
        match &self.work {
            Work::None => Err(missing_handler()),
            Work::Stack(program) => Ok(&*program.naming),
            Work::Handler { naming, .. } => Ok(&**naming),
        }
    }
}

impl ConsumerBuilder {
    /// Builds the consumer.
    ///
    /// # Errors
    ///
    /// When a setting is missing, or two contradict each other: an ordered handler on a source that keeps no order, a
    /// handler without a place for its dead letters or with two, a schedule without a store. And when another function
    /// has the name of a handler, in a consumer on the same store: they would be given each other's letters.
    pub fn build(self) -> Result<Consumer, InvalidConfig> {
        self.check()?;
        self.warn();
        let Self { from, work, store, sink, retry_queue, routing, mut settings, .. } = self;
        let Given { mut feed, source } = from;
        settings.counts_stops = source.counts_stops;
        settings.dead_letters = match (&work, &store) {
            (Work::Stack(_), _) => "as its stack says",
            (_, Some(_)) => "store",
            (_, None) if settings.dead_letters.is_empty() => "sink",
            (_, None) => settings.dead_letters,
        };
        let clock = settings.clock.clone();
        let source_of = |naming: &dyn Naming| {
            let names = naming.names();
            let queue = |store: &BoxStore| {
                // Former names are among these, so a handler that was renamed takes its old letters back.
                StoreSource::new(store.clone(), names.iter().map(|name| &**name))
                    .lease(self.claim_lease)
                    .poll(self.poll)
                    .owner(self.owner)
                    .recorder(self.recorder.clone())
                    .clock(clock.clone())
            };
            store.as_ref().map(queue)
        };
        let (noting, writer) = match store.clone().filter(|_| self.audit).map(audit) {
            Some((layer, writer)) => (layer.clock(clock.clone()), Some(writer)),
            None => (AuditLayer::off(), None),
        };
        let (mut program, queue) = match work {
            Work::None => return Err(missing_handler()),
            Work::Stack(program) => {
                let queue = source_of(&*program.naming);
                (program, queue)
            }
            Work::Handler { naming, complete } => {
                let queue = source_of(&*naming);
                let Some(sink) = sink.or_else(|| store.clone().map(BoxSink::new)) else {
                    return Err(missing_sink());
                };
                let mut layer = DeadLetterLayer::new(sink).clock(clock);
                if let Some(retry_queue) = retry_queue {
                    layer = layer.retry_queue(retry_queue);
                } else if let (Some(store), Some(queue)) = (&store, &queue) {
                    // What this process itself writes wakes its source, which else asks once in a while.
                    layer = layer.retry_queue(WakingRetryQueue::new(store.clone(), queue.waker()));
                }
                // The caller's adjustment comes last, so that it wins over what was set above.
                if let Some(adjust) = routing {
                    layer = adjust(layer);
                }
                if !layer.has_retry_queue() {
                    warn_of_endless(&naming.uses_retry_queue());
                }
                (complete(layer, noting, self.recorder), queue)
            }
        };
        if let Some(identity) = store.as_ref().and_then(Claims::store_identity) {
            // Two functions of one name over one store would get each other's letters, and find each other's keys done (G1).
            program.take_names(&identity)?;
        }
        // By contract of `Source::bind` this comes before the first delivery is asked for.
        feed.bind(Arc::new(Addressees(Arc::clone(&program.naming))));
        Ok(Consumer::new(feed, program, queue, store, writer, settings))
    }

    /// Tells of what can be done without, until it is needed.
    fn warn(&self) {
        // Without a count of deliveries nothing would become a suspect, so no marks are missed.
        if self.from.source.counts_deliveries && self.settings.marks.is_none() {
            tracing::warn!(
                "nothing keeps crash marks: a message that kills its process comes again and kills the next one, without \
                 end; add `crash_marks(…)`, or a store (`dead_letters`)"
            );
        }
    }

    fn check(&self) -> Result<(), InvalidConfig> {
        self.check_settings()?;
        let naming = match &self.work {
            Work::None => return Err(missing_handler()),
            Work::Stack(program) => {
                if self.sink.is_some() || self.retry_queue.is_some() || self.routing.is_some() {
                    return Err(InvalidConfig::consumer(
                        "`stack` has its own dead-letter routing; `sink`, `retry_queue` and `routing` go with `handler`",
                    ));
                }
                &program.naming
            }
            Work::Handler { naming, .. } => {
                if self.sink.is_none() && self.store.is_none() {
                    return Err(missing_sink());
                }
                if self.sink.is_some() && self.store.is_some() {
                    return Err(InvalidConfig::consumer(
                        "`dead_letters` and `sink` are both set, and neither would have all letters; drop one, or have the sink get a copy of each: `routing(|routing| routing.feed(name, sink))`",
                    ));
                }
                naming
            }
        };
        let names = naming.names();
        // Letters are claimed and found by name, so a handler without one could not have its letters back.
        let Some(first) = names.first() else {
            return Err(InvalidConfig::consumer("the handler has no name"));
        };
        if names.iter().any(|name| name.is_empty()) {
            return Err(InvalidConfig::consumer(
                "a handler's name is empty; its letters could not be told from those of others",
            ));
        }
        if naming.is_ordered() && self.from.source.ordering == Ordering::None {
            return Err(InvalidConfig::consumer(format!(
                "`{first}` is ordered (order_by), and the source promises no order (ordering = none); take a source that keeps it, or drop order_by"
            )));
        }
        Ok(())
    }
}

/// Tells of handlers whose messages never die of what may pass.
fn warn_of_endless(names: &[Arc<str>]) {
    for name in names {
        tracing::warn!(
            handler = &**name,
            "its retries are further apart than its limit of in-process delays, and nothing keeps them: the broker forgets the attempts, so that \
             a message that goes on failing never dies; add `retry_queue(…)`, or a store (`dead_letters`)"
        );
    }
}

fn missing_handler() -> InvalidConfig {
    InvalidConfig::consumer("there is nothing to run; add `handler(…)` or `stack(…)`")
}

fn missing_sink() -> InvalidConfig {
    InvalidConfig::consumer(
        "there is no place for dead letters; add `dead_letters(store)` or `sink(…)`",
    )
}

impl<From: fmt::Debug> fmt::Debug for ConsumerBuilder<From> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerBuilder")
            .field("from", &self.from)
            .field("store", &self.store)
            .field("sink", &self.sink)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
