use std::collections::HashMap;
use std::future::{Future, pending};
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use dlq_core::outbox::Dispatcher;
use dlq_core::store::BoxStore;
use dlq_core::{Source, StoreError, Transport};
use futures_util::{FutureExt as _, poll};
use metrics::{Gauge, counter, gauge};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::{Notify, mpsc};
use tokio::task::{Id, JoinError, JoinSet, coop};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::at_once::{Begun, Kept, Pace};
use super::builder::{ConsumerBuilder, Given, Settings};
use super::evidence::evidence;
use super::feed::{AT_ONCE, Batch, DeliveredFrom, End, Feed, Fetch, Fetching, Received};
use super::gate::Gate;
use super::gauges::Gauges;
use super::going::go_on;
use super::health::{HealthHandle, Part, Reporter, RunState, report};
use super::janitor::{self, Purging};
use super::keys::Keys;
use super::message::{ConsumerState, Counted, InFlight, RoomTaken, handle};
use super::open::Described;
use super::presence::Heartbeats;
use super::report::{Ended, Fate, Report};
use super::room::Room;
use super::schedule::Scheduling;
use super::shutdown::{ConsumerHandle, signal};
use super::stack::{Program, Repeat};
use super::suspects::Suspects;
use super::{IN_FLIGHT, IN_LINE, PAUSED, REFUSED_LETTERS, SETTLE_ERRORS_TOTAL};
use crate::audit::AuditWriter;
use crate::idempotency::KeyJanitor;
use crate::retry::{InProcessDelays, RunLoop};
use crate::stage::with_reading;
use crate::store_source::StoreSource;

/// Time between the deadline of a stop, when runs are cut off, and the end of tasks that do not listen.
const GRACE: Duration = Duration::from_secs(1);
/// Past the deadline, how long a stop may take in all: twice that, the time for claims to be given back, and as much
/// again for what is slow.
const LAST: Duration = Duration::from_secs(4);

/// Number of messages that get tasks from a suspect on, itself included, so that they take their turns in order.
const SUSPECT: u32 = 1 + AT_ONCE as u32;

/// Fetches messages, runs them through a stack and settles them. See the [module docs](super).
#[derive(Debug)]
#[must_use = "a consumer does nothing until it is run"]
pub struct Consumer {
    feed: Box<dyn Feed>,
    program: Program,
    queue: Option<StoreSource<BoxStore>>,
    store: Option<BoxStore>,
    audit: Option<AuditWriter<BoxStore>>,
    settings: Settings,
    stop: CancellationToken,
    health: Reporter,
}

impl Consumer {
    /// A consumer of what `source` yields.
    pub fn builder(source: impl Source) -> ConsumerBuilder {
        ConsumerBuilder::new(Given::new(source))
    }

    /// A consumer of the stream that `transport` describes, at the broker of `client`.
    ///
    /// [`open`](ConsumerBuilder::open) opens the source, the retry queue, the stream of dead letters and the crash marks. What
    /// the builder is given itself, as a store by [`dead_letters`](ConsumerBuilder::dead_letters), is taken in their place,
    /// and then the transport's is not created.
    ///
    /// ```
    /// use dlq_tower::consumer::Consumer;
    /// use dlq_tower::core::memory::{MemoryBroker, MemoryTransport};
    /// use dlq_tower::handler::handler;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlq_tower::consumer::OpenError> {
    /// let broker = MemoryBroker::new();
    /// let consumer = Consumer::on(MemoryTransport::new("orders"), &broker)
    ///     .handler(handler("billing", || async {}).build()?)
    ///     .open()
    ///     .await?;
    /// consumer.run(broker.stream("orders").idle("billing")).await;
    /// # Ok(()) }
    /// ```
    pub fn on<C, T>(transport: T, client: &C) -> ConsumerBuilder<Described>
    where
        C: Clone + Send + Sync + 'static,
        T: Transport<C>,
    {
        ConsumerBuilder::new(Described::new(transport, client.clone()))
    }

    pub(super) fn new(
        feed: Box<dyn Feed>,
        program: Program,
        queue: Option<StoreSource<BoxStore>>,
        store: Option<BoxStore>,
        audit: Option<AuditWriter<BoxStore>>,
        settings: Settings,
    ) -> Self {
        let stop = CancellationToken::new();
        Self { feed, program, queue, store, audit, settings, stop, health: Reporter::new() }
    }

    /// A handle to stop it and to see how it is.
    #[must_use]
    pub fn handle(&self) -> ConsumerHandle {
        ConsumerHandle::new(self.stop.clone(), self.health.handle())
    }

    /// Returns the health of the consumer.
    #[must_use]
    pub fn health(&self) -> HealthHandle {
        self.health.handle()
    }

    /// Runs until `shutdown` is done, a handle says stop, or the source has ended; then finishes what is in flight. For a
    /// `CancellationToken` give its `cancelled()`.
    ///
    /// A stop ends at the latest 4 s after its deadline. A handler that blocks its thread for good cannot be ended: it is
    /// left behind, its message unsettled. One that blocks the thread of the run itself takes the count with it: the
    /// report then says one lost task and nothing else. Such a thread also keeps the runtime from ending when it is
    /// dropped; use [`Runtime::shutdown_timeout`](tokio::runtime::Runtime::shutdown_timeout), or exit the process.
    ///
    /// When the source ends by itself, what is in flight is finished without a deadline, unless a stop is asked for.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is like the death of the process: what is in flight stays unsettled and comes again. To end
    /// orderly, use `shutdown` or the handle.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Report {
        tracing::info!(
            handlers = self.program.naming.summary(),
            transport = self.settings.transport.as_deref(),
            dead_letters = self.settings.dead_letters,
            "consumer started"
        );
        let stop = self.stop.clone();
        let last = self.settings.shutdown_deadline.saturating_add(LAST);
        let mut shutdown = pin!(shutdown);
        // A stop that was asked for before the run is seen here, before anything is fetched.
        if poll!(shutdown.as_mut()).is_ready() {
            stop.cancel();
        }
        // On a task, so that what the loop and the messages say to each other wakes no other thread.
        let health = self.health.clone();
        let mut running = Running { task: JoinSet::new(), health };
        let asked = stop.clone();
        let run = Run::start(self);
        running.task.spawn(async move { run.until(asked.cancelled()).await });
        let ended = tokio::select! {
            biased;
            // The end is polled first: a run that has ended has a report, also when a stop is asked for at the same moment.
            ended = running.task.join_next() => ended,
            () = asked_to(shutdown, &stop) => {
                // The run has deadlines of its own. This one is for a handler that blocks the thread of the
                // run, where they never fire.
                match timeout(last, running.task.join_next()).await {
                    Ok(ended) => ended,
                    Err(_elapsed) => {
                        tracing::error!(
                            "a handler blocks the thread of the run and cannot be ended: the run is left behind, and what it had in flight unsettled"
                        );
                        return Report { lost_tasks: 1, ..Report::new() };
                    }
                }
            }
        };
        match ended {
            Some(Ok(report)) => report,
            // A panic of the run loop goes on to the caller: swallowed, it would look like an orderly end (G9).
            Some(Err(error)) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime ends, and this with it.
            _ => pending().await,
        }
    }

    /// Runs until `SIGTERM` or `SIGINT`. See [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As for [`run`](Self::run).
    pub async fn run_until_signal(self) -> Report {
        self.run(signal()).await
    }
}

/// Asks for a stop once `shutdown` is done, unless somebody else has asked.
async fn asked_to(shutdown: Pin<&mut impl Future<Output = ()>>, stop: &CancellationToken) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = shutdown => stop.cancel(),
    }
}

/// The task of a run. Dropping it aborts the run.
struct Running {
    task: JoinSet<Report>,
    health: Reporter,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The abort of the task takes effect later. Whoever looks at the health has to see the end at once (G9).
        self.health.gone();
    }
}

/// Result of a background task.
enum Ending {
    Fetch(Fetch),
    Schedule(Result<(), StoreError>),
    /// It was told to.
    Done,
}

/// The owner of everything that a run has started. Dropping it aborts all of it.
struct Run {
    shared: Arc<ConsumerState>,
    keys: Keys,
    received: mpsc::UnboundedReceiver<Batch>,
    /// For what is handled where it was received.
    stack: Box<dyn Repeat>,
    pace: Pace,
    parts: JoinSet<Ending>,
    part_of: HashMap<Id, Part>,
    messages: JoinSet<Fate>,
    /// Feeds that have ended, kept until all they handed out is settled.
    ended: Vec<Box<dyn Feed>>,
    stop_fetching: CancellationToken,
    /// Nothing will be noted any more: the processing audit writes what is left and ends.
    all_noted: CancellationToken,
    stopping: bool,
    deadline: Duration,
    in_flight: Gauge,
    health: Reporter,
    report: Report,
    /// Number of times that running messages were told to end.
    cuts: u32,
    /// The idempotency keys of the handlers.
    idempotency: Vec<KeyJanitor>,
}

impl Run {
    fn start(consumer: Consumer) -> Self {
        let Consumer { feed, program, queue, store, audit, settings, stop, health } = consumer;
        let mut idempotency = program.naming.key_janitors();
        idempotency.extend(settings.key_janitors.iter().cloned());
        janitor::watch(&idempotency, &health);
        let names = program.naming.names();
        let label = names.first().cloned().unwrap_or_default();
        let paused = gauge!(PAUSED, "consumer" => Arc::clone(&label));
        let gate = Gate::new(settings.outage, health.clone(), paused);
        let refused = gauge!(REFUSED_LETTERS, "consumer" => Arc::clone(&label));
        let gate = Arc::new(gate.showing_refused(refused, settings.clock.clone()));
        let room = Arc::new(Room::new(settings.max_in_flight));
        // It needs no bound: each source sends its next batch only when its feed has come back from the last one.
        let (sender, received) = mpsc::unbounded_channel();
        let outboxes = settings.outboxes.zip(store.clone());
        let dispatcher = outboxes.map(|(outboxes, store)| Dispatcher::new(store, outboxes));
        let (evidence, witness) = store.clone().map(evidence).unzip();
        let stop_running = CancellationToken::new();
        // In-process delays take half of the room at most, so that they never fill it (G4).
        let slots = InProcessDelays::new(settings.max_in_flight.div_ceil(2));
        let shared = ConsumerState {
            evidence,
            program,
            key_janitors: settings.key_janitors,
            has_keys: !idempotency.is_empty(),
            gate: Arc::clone(&gate),
            suspects: Suspects::new(settings.suspect_after, settings.marks.is_some()),
            marks: settings.marks,
            letters: store.clone(),
            counts_stops: settings.counts_stops,
            run_loop: Arc::new(RunLoop::new(stop_running.clone()).in_process_delays(slots)),
            stop: stop_running,
            abort: CancellationToken::new(),
            settle_errors: counter!(SETTLE_ERRORS_TOTAL, "consumer" => Arc::clone(&label)),
            clock: settings.clock,
        };
        let lined_up = gauge!(IN_LINE, "consumer" => Arc::clone(&label));
        let keys = Keys::new(lined_up, settings.max_in_flight.div_ceil(2));
        let mut run = Self {
            stack: shared.program.stack.repeat(),
            pace: Pace::default(),
            shared: Arc::new(shared),
            keys,
            received,
            parts: JoinSet::new(),
            part_of: HashMap::new(),
            messages: JoinSet::new(),
            ended: Vec::new(),
            stop_fetching: CancellationToken::new(),
            all_noted: CancellationToken::new(),
            stopping: false,
            deadline: settings.shutdown_deadline,
            in_flight: gauge!(IN_FLIGHT, "consumer" => label),
            health,
            report: Report::new(),
            cuts: 0,
            idempotency,
        };
        if stop.is_cancelled() {
            // Then nothing begins.
            run.stop_fetching.cancel();
        }
        let fetching = |feed, part| Fetching {
            feed,
            gate: Arc::clone(&gate),
            room: Arc::clone(&room),
            received: sender.clone(),
            stop: run.stop_fetching.clone(),
            health: run.health.clone(),
            part,
        };
        let main = fetching(feed, Part::Source);
        let waker = queue.as_ref().map_or_else(|| Arc::new(Notify::new()), StoreSource::waker);
        let queue = queue.map(|queue| {
            // It claims no more than there is room for: a lease that ends while the letter waits in the
            // source counts as a crash (G3).
            fetching(Box::new(DeliveredFrom(queue.room(room.permits()))), Part::StoreSource)
        });
        let stop = run.stop_fetching.clone();
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let gauges = store.clone().map(|letters| Gauges {
            letters,
            names: names.clone(),
            stop: run.stop_fetching.clone(),
        });
        let heartbeats = store.clone().map(|store| {
            let (build, reads) = (settings.build_version.as_deref(), settings.transport.as_deref());
            Heartbeats::new(store, &names, build, reads, run.stop_fetching.clone())
        });
        let schedule = settings.schedule.filter(|schedule| schedule.enabled).zip(store).map(
            |(schedule, claims)| {
                let health = run.health.clone();
                Scheduling { claims, names, schedule, gate, waker, stop, health }
            },
        );
        let mut keys = run.idempotency.clone();
        keys.retain(|keys| !keys.purges_itself());
        // Only the sources have senders from here on, so that the channel ends with the last of them.
        drop(sender);
        run.spawn(Part::Source, async { Ending::Fetch(main.run().await) });
        if let Some(queue) = queue {
            run.spawn(Part::StoreSource, async { Ending::Fetch(queue.run().await) });
        }
        if let Some(schedule) = schedule {
            run.spawn(Part::Schedule, async { Ending::Schedule(schedule.run().await) });
        }
        if let Some(heartbeats) = heartbeats {
            run.spawn(Part::Heartbeats, async {
                heartbeats.run().await;
                Ending::Done
            });
        }
        if let Some(gauges) = gauges {
            run.spawn(Part::Gauges, async {
                gauges.run().await;
                Ending::Done
            });
        }
        if !keys.is_empty() {
            let purging = Purging { keys, stop: run.stop_fetching.clone() };
            run.spawn(Part::Janitor, async {
                purging.run().await;
                Ending::Done
            });
        }
        if let Some(dispatcher) = dispatcher {
            let stop = run.stop_fetching.clone();
            run.spawn(Part::Dispatcher, async move {
                dispatcher.serve(stop.cancelled(), |_| {}).await;
                Ending::Done
            });
        }
        // It outlives the sources: messages in flight still have successes to note when those have ended.
        if let Some(witness) = witness {
            let all_noted = run.all_noted.clone();
            run.spawn(Part::Evidence, async {
                witness.run(all_noted).await;
                Ending::Done
            });
        }
        if let Some(audit) = audit {
            let all_noted = run.all_noted.clone();
            run.spawn(Part::Audit, async {
                audit.run(all_noted).await;
                Ending::Done
            });
        }
        run.health.state(RunState::Running);
        run
    }

    fn spawn(&mut self, part: Part, task: impl Future<Output = Ending> + Send + 'static) {
        // A task that panics leaves nothing but its id, by which `part_ended` finds out which part it was.
        let id = self.parts.spawn(task).id();
        self.part_of.insert(id, part);
    }

    async fn until(mut self, asked: impl Future<Output = ()>) -> Report {
        let mut asked = pin!(asked);
        // Set when the stop begins, and again when the deadline has passed.
        let mut patience: Option<Pin<Box<tokio::time::Sleep>>> = None;
        let mut fetching = true;
        while fetching || !self.parts.is_empty() || !self.messages.is_empty() {
            // No message is left that could note anything. The audit and the witness write what they have, and end.
            if !fetching && self.messages.is_empty() {
                self.all_noted.cancel();
            }
            // What has ended before what begins, so that both are bounded.
            tokio::select! {
                biased;
                () = &mut asked, if !self.stopping => {
                    self.stop();
                    patience = Some(Box::pin(sleep(self.deadline)));
                }
                () = passed(&mut patience), if patience.is_some() => {
                    let Some(grace) = self.cut_off() else { break };
                    patience = Some(Box::pin(sleep(grace)));
                }
                Some(message) = self.messages.join_next() => {
                    self.message_ended(message);
                    while let Some(message) = self.messages.try_join_next() {
                        self.message_ended(message);
                    }
                }
                Some(part) = self.parts.join_next_with_id() => self.part_ended(part),
                received = self.received.recv(), if fetching => match received {
                    Some(received) => self.begin(received).await,
                    None => fetching = false,
                },
            }
        }
        // Handlers that were cut off have left their claims to tasks, which die with the process. A claim that is left behind
        // counts as a crash (G3).
        janitor::give_back(&self.idempotency).await;
        tracing::info!(report = %self.report, "the consumer has ended");
        self.health.state(RunState::Stopped);
        self.report.clone()
    }

    /// Fetches no more, and gives back what has not started or waits.
    fn stop(&mut self) {
        tracing::info!(in_flight = self.messages.len(), "the consumer stops");
        self.stopping = true;
        self.stop_fetching.cancel();
        // A source that ends by itself cancels `stop_fetching` alone, and what waits may finish. A stop gives it back.
        self.shared.stop.cancel();
        self.health.state(RunState::Draining);
    }

    /// The deadline has passed: cuts off what runs; then ends what does not listen; then leaves behind what does not end,
    /// since it never lets go of its thread. Returns how long to wait until the next of these; `None` after the last.
    fn cut_off(&mut self) -> Option<Duration> {
        let in_flight = self.messages.len();
        self.cuts += 1;
        match self.cuts {
            1 => {
                tracing::warn!(
                    in_flight,
                    "the deadline of the stop has passed: what still runs is cut off, and comes again"
                );
                // Runs listen to this: each takes back its mark and its claim, and ends its task by itself.
                self.shared.abort.cancel();
            }
            2 => {
                // What is left does not listen. An abort takes effect when a task yields, which one that
                // blocks its thread never does.
                self.messages.abort_all();
                self.parts.abort_all();
            }
            _ => {
                tracing::error!(
                    in_flight,
                    "handlers block their threads and cannot be ended: they are left behind, and their messages unsettled"
                );
                // Nobody will join these tasks any more, and each message is counted once.
                (0..in_flight).for_each(|_| self.report.count(Fate::UNSETTLED));
                self.messages.detach_all();
                self.parts.detach_all();
                return None;
            }
        }
        Some(GRACE)
    }

    /// Begins messages, and ends those that need not wait.
    async fn begin(&mut self, mut received: Batch) {
        let shared = Arc::clone(&self.shared);
        // The feed goes back to its source, so that nothing more is fetched. The one message that was fetched is given back.
        if self.stopping {
            received.end();
        }
        let mut is_over = false;
        while !is_over {
            // Each message is a step of this task, as what its handler takes of the runtime is: when there are no more,
            // others have a turn.
            coop::consume_budget().await;
            is_over = self.begin_some(&shared, &mut received);
        }
    }

    /// Begins messages as long as this task has a turn. Returns true if there are no more.
    fn begin_some(&mut self, shared: &Arc<ConsumerState>, received: &mut Batch) -> bool {
        let (mut kept, mut freed) = (Kept::default(), None);
        for next in received {
            let message = self.enter(next);
            if !shared.suspects.is_beyond_doubt(&message.delivery) {
                // Those behind a suspect are not to begin before it.
                self.pace.spare(SUSPECT);
            }
            // `at_once` runs on this very thread, and looks neither at the stop nor at an order key that could not be read.
            if self.stopping || !self.pace.is_brief() || message.unread.is_some() {
                self.messages.spawn(handle(Arc::clone(shared), message, None, 0));
            } else {
                // From here on: what the source took for the message is not the handler's.
                let began = Instant::now();
                let begun =
                    with_reading(began, || shared.at_once(&mut self.stack, message, &mut kept));
                self.go_on(begun, &mut freed);
                self.pace.took(began.elapsed());
            }
            // The budget of this task is spent: `begin` yields, and then goes on with the same batch.
            if coop::consume_budget().now_or_never().is_none() {
                return false;
            }
        }
        true
    }

    fn enter(&mut self, received: Received) -> InFlight {
        let Received { delivery, settle, since, ticket, room } = received;
        let delivery = self.shared.program.address(delivery);
        // Here, in the order of receipt; the tasks begin in any.
        let (key, unread) = match self.shared.program.order_key(&delivery) {
            Ok(key) => (key.map(|key| self.keys.enter(key)), None),
            // It enters no line, since nobody knows which one is its own. `Hand::refuses` gives it up unrun (G5).
            Err(mut failure) => {
                failure.at = self.shared.clock.now();
                (None, Some(failure))
            }
        };
        let place = RoomTaken { room, _counted: Counted::new(&self.in_flight) };
        InFlight { delivery, settle, ticket: Some(ticket), key, unread, since, place }
    }

    /// `freed` is the room of those that have ended.
    fn go_on(&mut self, begun: Option<Begun>, freed: &mut Option<OwnedSemaphorePermit>) {
        match begun {
            // The stack panicked, and nothing after it has run: the message is unsettled and comes again (G1).
            None => self.report.count(Fate::UNSETTLED),
            Some(Begun::Ended(fate, place)) => {
                self.report.count(fate);
                match freed {
                    // All permits are of the one `Room`, as `merge` requires. They are released in one step,
                    // when the batch has begun.
                    Some(freed) => freed.merge(place.room),
                    none => *none = Some(place.room),
                }
            }
            Some(Begun::Waits(message)) => {
                self.messages.spawn(handle(Arc::clone(&self.shared), *message, None, 0));
            }
            Some(Begun::Runs(begun)) => {
                let (message, running) = *begun;
                self.messages.spawn(go_on(Arc::clone(&self.shared), message, running));
            }
            Some(Begun::Settles(settles)) => {
                self.messages.spawn(settles.end(Arc::clone(&self.shared)));
            }
        }
    }

    fn message_ended(&mut self, ended: Result<Fate, JoinError>) {
        let fate = ended.unwrap_or_else(|error| {
            if error.is_panic() {
                tracing::error!(
                    panic = panic_text(error),
                    "a stack panicked outside its panic guard; the message is unsettled"
                );
            }
            // A task that panicked or was aborted may not have settled its message, which then comes again (G1).
            Fate::UNSETTLED
        });
        self.report.count(fate);
    }

    fn part_ended(&mut self, ended: Result<(Id, Ending), JoinError>) {
        let (id, ending) = match ended {
            Ok((id, ending)) => (id, Ok(ending)),
            Err(error) => (error.id(), Err(error)),
        };
        let Some(part) = self.part_of.remove(&id) else { return };
        let why = match ending {
            // `cut_off` has aborted it: that is a part of a stop, and no fault.
            Err(error) if error.is_cancelled() => None,
            Err(error) => Some(format!("panicked: {}", panic_text(error))),
            Ok(Ending::Schedule(Ok(())) | Ending::Done) => None,
            Ok(Ending::Schedule(Err(error))) => Some(report(&error)),
            Ok(Ending::Fetch(Fetch { feed, end })) => {
                self.ended.push(feed);
                match end {
                    End::Stopped => None,
                    End::Failed(error) => Some(report(&error)),
                    End::Exhausted if part == Part::Source => {
                        self.source_ended(Ended::SourceEnded);
                        None
                    }
                    // A store may always have more, so that the end of its source is a fault (G9).
                    End::Exhausted => Some("ended".to_owned()),
                }
            }
        };
        let Some(why) = why else { return };
        self.report.lost_tasks += 1;
        self.health.lost(part, why.clone());
        if part == Part::Source {
            self.source_ended(Ended::SourceFailed(why));
        }
    }

    /// Nothing more to consume: the other parts end, what is in flight is finished.
    fn source_ended(&mut self, ended: Ended) {
        self.report.ended = ended;
        self.stop_fetching.cancel();
        if !self.stopping {
            self.health.state(RunState::Draining);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // After an orderly end the state is `Stopped`, and this changes nothing.
        self.health.gone();
    }
}

async fn passed(patience: &mut Option<Pin<Box<tokio::time::Sleep>>>) {
    match patience {
        Some(patience) => patience.await,
        None => pending().await,
    }
}

fn panic_text(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "cancelled".to_owned() };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    dlq_core::bounded(&text.unwrap_or_else(|| "a value that is not text".to_owned()))
}
