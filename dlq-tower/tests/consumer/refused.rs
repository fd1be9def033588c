//! Letters that their sink refuses, a second sink that is down, and what a handler's late success leaves behind.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use dlq_core::store::{AuditRequest, Receipt, Sink};
use dlq_core::{DeadLetter, Delivery, Position, Status, StoreError, StoreErrorKind};
use dlq_tower::consumer::{Consumer, REFUSED_LETTERS};
use dlq_tower::dead_letter::PARKED;
use dlq_tower::handler::{HandlerError, HandlerStack, handler};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tokio::time::{Duration, Instant, sleep, timeout};

use crate::broker::Broker;
use crate::faulty::Store;
use crate::support::{Log, Running, SECOND, policy, position, soon};

/// A sink that refuses the letters of some positions.
#[derive(Clone, Debug)]
struct Picky {
    store: Store,
    refused: Arc<Mutex<(BTreeSet<u64>, StoreErrorKind)>>,
}

impl Picky {
    fn of(store: &Store, refused: impl IntoIterator<Item = u64>, kind: StoreErrorKind) -> Self {
        let refused = Arc::new(Mutex::new((refused.into_iter().collect(), kind)));
        Self { store: store.clone(), refused }
    }

    fn mend(&self) {
        self.refused.lock().unwrap().0.clear();
    }
}

impl Sink for Picky {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        {
            let refused = self.refused.lock().unwrap();
            let is_refused = |letter: &DeadLetter| match letter.origin.position() {
                Position::Offset(offset) => refused.0.contains(offset),
                _ => false,
            };
            if letters.iter().any(is_refused) {
                return Err(StoreError::new(refused.1, "put").with_detail("it is too large"));
            }
        }
        self.store.put(letters).await
    }
}

/// Notes each run; the messages of these positions die at once.
fn killing(log: &Log, dying: impl IntoIterator<Item = u64>) -> HandlerStack {
    let (log, dying): (Log, BTreeSet<u64>) = (log.clone(), dying.into_iter().collect());
    let work = handler("orders.handle", move |delivery: Delivery| {
        let position = position(&delivery);
        log.note(position);
        let dies = dying.contains(&position);
        async move { if dies { Err(HandlerError::msg("bad").permanent()) } else { Ok(()) } }
    });
    work.policy(policy(1, SECOND)).build().unwrap()
}

fn runs(log: &Log, position: u64) -> usize {
    let position = position.to_string();
    log.lines().iter().filter(|line| **line == position).count()
}

#[tokio::test(start_paused = true)]
async fn g4_one_letter_that_is_refused_for_good_delays_nobody() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let sink = Picky::of(&store, [0], StoreErrorKind::Refused);
    let consumer = Consumer::builder(broker.source())
        .handler(killing(&log, [0, 300]))
        .sink(sink.clone())
        .build()
        .unwrap();
    let running = Running::start(consumer);
    let mut longest = Duration::ZERO;
    for number in 1..=600_u64 {
        sleep(SECOND / 2).await;
        broker.publish("");
        let published = Instant::now();
        let is_settled = |world: &crate::broker::World| {
            world.settled.iter().any(|settled| settled.position == number)
        };
        broker.until(is_settled).await;
        longest = longest.max(published.elapsed());
    }
    assert!(longest < SECOND, "a healthy message waited for {longest:?}");

    let health = running.handle.health().get();
    assert!(!health.is_healthy(), "it is loud: {health:?}");
    let refused = health.refused_letters.clone().expect("health tells of it");
    assert_eq!(refused.count, 1);
    assert!(refused.why.contains("too large"), "{refused}");
    assert!(refused.origin.contains('0'), "{refused}");
    let gauge = |(key, _, _, value): (metrics_util::CompositeKey, _, _, DebugValue)| match value {
        DebugValue::Gauge(value) if key.key().name() == REFUSED_LETTERS => Some(value.0),
        _ => None,
    };
    assert_eq!(snapshotter.snapshot().into_vec().into_iter().find_map(gauge), Some(1.0));

    // Its own delays grow, and it is not run again.
    let times: Vec<_> = {
        let world = broker.world();
        let refused = world.settled.iter().filter(|settled| settled.position == 0);
        refused.map(|settled| settled.at.as_secs()).collect()
    };
    assert_eq!(times, [0, 1, 3, 7, 15, 31, 63, 127, 255]);
    assert_eq!(runs(&log, 0), 1);

    sink.mend();
    broker.until_empty().await;
    let health = running.handle.health().get();
    assert!(health.is_healthy() && health.refused_letters.is_none(), "{health:?}");
    let report = running.stop().await;
    assert_eq!((report.dead, report.handled), (2, 599));
    assert_eq!(store.letters().await.len(), 2);
}

/// As many as one likes, if they come one by one: others are written in between.
#[tokio::test(start_paused = true)]
async fn g4_refused_letters_that_come_back_say_nothing_about_the_sink() {
    let (broker, store, log) = (Broker::new(), Store::new(), Log::default());
    // Every even one dies and is refused, every odd one dies and is written.
    let sink = Picky::of(&store, (0..40).step_by(2), StoreErrorKind::Refused);
    let consumer = Consumer::builder(broker.source()).handler(killing(&log, 0..40)).sink(sink);
    let running = Running::start(consumer.build().unwrap());
    for number in 0..40_u64 {
        broker.publish("");
        broker.until(|world| world.settled.iter().any(|one| one.position == number)).await;
    }
    sleep(600 * SECOND).await;
    let begun = Instant::now();
    broker.publish("");
    broker.until(|world| world.settled.iter().any(|one| one.position == 40)).await;
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    let health = running.handle.health().get();
    assert_eq!((health.refused_letters.unwrap().count, health.route_error), (20, None));
    running.finish().await;
}

/// A sink that refuses whatever it is given is down.
#[tokio::test(start_paused = true)]
async fn g1_a_sink_that_refuses_every_letter_stops_fetching_until_it_takes_one() {
    let (broker, store, log) = (Broker::with(40), Store::new(), Log::default());
    let sink = Picky::of(&store, 0..40, StoreErrorKind::InvalidConfig);
    let consumer = Consumer::builder(broker.source())
        .handler(killing(&log, 0..40))
        .max_in_flight(4)
        .sink(sink.clone())
        .build()
        .unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    let ill = soon(health.wait_for(|health| health.route_error.is_some())).await.unwrap();
    assert!(ill.route_error.unwrap().contains("too large"));
    sleep(SECOND / 2).await;
    let ran = log.lines().len();
    assert!(ran < 20, "{ran} ran although no letter can be written");
    sink.mend();
    broker.until_empty().await;
    assert!(running.handle.health().get().is_healthy());
    let report = running.stop().await;
    assert_eq!(report.dead, 40);
    assert_eq!(store.letters().await.len(), 40);
    assert_eq!(log.lines().len(), 40, "each ran once");
}

/// A message that another process has by now is not told of for ever.
#[tokio::test(start_paused = true)]
async fn a_refused_letter_that_does_not_come_back_is_forgotten() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let sink = Picky::of(&store, [0], StoreErrorKind::Refused);
    let consumer = Consumer::builder(broker.source()).handler(killing(&log, [0])).sink(sink);
    let running = Running::start(consumer.build().unwrap());
    broker.until(|world| world.settled.len() == 2).await;
    assert_eq!(running.handle.health().get().refused_letters.unwrap().count, 1);
    broker.gone(0);
    sleep(3600 * SECOND).await;
    broker.publish("");
    broker.until(|world| world.settled.len() == 3).await;
    assert_eq!(running.handle.health().get().refused_letters, None);
    running.finish().await;
}

/// A message that waits holds up others in a log.
#[tokio::test(start_paused = true)]
async fn g4_what_a_sink_refuses_goes_to_the_second_place_where_there_is_one() {
    for kind in [StoreErrorKind::Refused, StoreErrorKind::NotFound, StoreErrorKind::Unavailable] {
        let (broker, store, log) = (Broker::with(2), Store::new(), Log::default());
        let (sink, second) = (Picky::of(&store, [0], kind), Store::new());
        let parking = second.clone();
        let consumer = Consumer::builder(broker.source())
            .handler(killing(&log, [0, 1]))
            .sink(sink.clone())
            .routing(|routing| routing.parking(parking));
        let running = Running::start(consumer.build().unwrap());
        if kind == StoreErrorKind::Unavailable {
            sleep(600 * SECOND).await;
            assert!(second.letters().await.is_empty(), "it is down, and refuses nothing");
            sink.mend();
        }
        broker.until_empty().await;
        running.finish().await;
        assert_eq!((broker.settled_as("dead").len(), log.lines().len()), (2, 2));
        if kind != StoreErrorKind::Unavailable {
            assert_eq!((store.letters().await.len(), second.letters().await.len()), (1, 1));
            let parked = &second.letters().await[0];
            assert!(parked.attributes[PARKED].contains("too large"), "{parked:?}");
            assert!(broker.settled_as("deferred").is_empty());
        }
    }
}

/// A feed that is down: the letter is written, and the handler not asked again.
#[tokio::test(start_paused = true)]
async fn g3_what_one_of_two_sinks_has_confirmed_is_routed_again_and_not_run_again() {
    for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Refused] {
        let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
        let feed = Picky::of(&Store::new(), [0], kind);
        let copy = feed.clone();
        let seen = log.clone();
        // It would succeed at its third run.
        let work = handler("orders.handle", move |_: Delivery| {
            seen.note("ran");
            let fails = seen.lines().len() < 3;
            async move { if fails { Err(HandlerError::msg("down")) } else { Ok(()) } }
        });
        let work = work.policy(policy(2, SECOND)).clock(store.clock.clone()).build().unwrap();
        let consumer = Consumer::builder(broker.source())
            .handler(work)
            .dead_letters(store.clone())
            .clock(store.clock.clone())
            .routing(|routing| routing.feed("copies", copy));
        let running = Running::start(consumer.build().unwrap());
        broker.until(|world| world.settled.len() == 5).await;
        assert_eq!(store.statuses().await, [Status::Pending]);
        assert_eq!(log.lines().len(), 2, "as often as the policy says");
        feed.mend();
        broker.until_empty().await;
        running.finish().await;
        assert_eq!((log.lines().len(), store.calls("put")), (2, 1));
        assert_eq!(broker.settled().last(), Some(&(0, "dead")));
        assert_eq!(feed.store.letters().await.len(), 1);
        assert_eq!(store.letters().await[0].attempts, 2);
    }
}

/// A record of a retry that could not be written is written again with the attempts that were made.
#[tokio::test(start_paused = true)]
async fn g3_a_retry_that_could_not_be_written_is_routed_again_and_not_run_again() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    store.fail("enqueue", 4, StoreErrorKind::Unavailable);
    let seen = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        seen.note(delivery.attempt());
        async { Err::<(), _>(HandlerError::msg("down")) }
    });
    let work = work.policy(policy(2, 600 * SECOND)).clock(store.clock.clone()).build().unwrap();
    let consumer = Consumer::builder(broker.source())
        .handler(work)
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    let running = Running::start(consumer.build().unwrap());
    soon(async {
        while store.statuses().await != [Status::Pending] {
            sleep(SECOND).await;
        }
    })
    .await;
    running.finish().await;
    assert_eq!(log.lines(), ["1", "2"]);
}

/// The process dies between the two sinks, and the message is handled the next time.
#[tokio::test(start_paused = true)]
async fn g6_a_success_resolves_the_letter_of_its_own_death() {
    let (broker, store, log) = (Broker::with(2), Store::new(), Log::default());
    let feed = Picky::of(&Store::new(), [0, 1], StoreErrorKind::Unavailable);
    let consumer = |copy: Picky| {
        let seen = log.clone();
        let work = handler("orders.handle", move |delivery: Delivery| {
            let position = position(&delivery);
            seen.note(position);
            // The second one goes on failing.
            let fails = seen.lines().len() <= 2 || position == 1;
            async move { if fails { Err(HandlerError::msg("bad").permanent()) } else { Ok(()) } }
        });
        Consumer::builder(broker.source())
            .handler(work.policy(policy(1, SECOND)).clock(store.clock.clone()).build().unwrap())
            .dead_letters(store.clone())
            .clock(store.clock.clone())
            .routing(|routing| routing.feed("copies", copy))
            .build()
            .unwrap()
    };
    let running = Running::start(consumer(feed.clone()));
    broker.until(|world| world.settled.len() == 2).await;
    running.kill().await;
    broker.crash();
    assert_eq!(store.statuses().await, [Status::Pending, Status::Pending]);
    feed.mend();
    // Once is not enough.
    store.fail("mark", 2, StoreErrorKind::Unavailable);
    let running = Running::start(consumer(feed));
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(store.statuses().await, [Status::Resolved, Status::Pending]);
    let audit =
        dlq_core::store::Maintenance::audit(&store.inner, AuditRequest::latest(10)).await.unwrap();
    assert_eq!(audit[0].by.who, "orders.handle");
}

/// A letter of an earlier or a later life says nothing about this one; and what was never written costs no question.
#[tokio::test(start_paused = true)]
async fn a_success_leaves_other_letters_alone_and_asks_for_none_at_a_first_delivery() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let consumer = |broker: &Broker| {
        Consumer::builder(broker.source())
            .handler(killing(&log, []))
            .dead_letters(store.clone())
            .clock(store.clock.clone())
            .build()
            .unwrap()
    };
    let running = Running::start(consumer(&broker));
    broker.until_empty().await;
    assert_eq!((store.calls("get"), store.calls("mark")), (0, 0));
    running.finish().await;

    // The letter of a later death of the same message.
    let (same, other) = (Broker::with(1), Store::new());
    let dying = Consumer::builder(same.source())
        .handler(killing(&log, [0]))
        .dead_letters(other.clone())
        .clock(other.clock.clone());
    let running = Running::start(dying.build().unwrap());
    same.until_empty().await;
    running.finish().await;
    let mut later = other.letters().await.remove(0);
    later.generation = 1;
    store.inner.put(vec![later]).await.unwrap();
    let broker = Broker::with(1);
    broker.handed_out(0, 1);
    let running = Running::start(consumer(&broker));
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(store.calls("get"), 1);
    assert_eq!((store.calls("mark"), store.statuses().await), (0, vec![Status::Pending]));
}

/// A stop does not wait for a store that is down.
#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_resolve_a_letter_holds_up_a_success_for_moments_only() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    store.fail("get", 1_000, StoreErrorKind::Unavailable);
    broker.handed_out(0, 1);
    let consumer =
        Consumer::builder(broker.source()).handler(killing(&log, [])).dead_letters(store.clone());
    let running = Running::start(consumer.build().unwrap());
    assert!(timeout(60 * SECOND, broker.until_empty()).await.is_ok());
    running.finish().await;
    assert_eq!(broker.settled(), [(0, "succeeded")]);
}
