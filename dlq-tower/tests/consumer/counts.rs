//! G3: what kills the process is not run again once that is found, and the next message with its key inherits nothing.

use std::time::Duration;

use dlq_core::idempotency::{Idempotency, IdempotencyClaim};
use dlq_core::store::{ClaimRequest, Claims, Receipt, Sink};
use dlq_core::{
    CrashMarks, DeadLetter, Delivery, LetterId, Message, Origin, Position, Reason, RetryPolicy,
    StoreError, StoreErrorKind,
};
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::consumer::Consumer;
use dlq_tower::dead_letter::DeadLetterLayer;
use dlq_tower::handler::{HandlerError, handler};
use dlq_tower::idempotency::IdempotencyLayer;
use dlq_tower::retry::RetryLayer;
use dlq_tower::router::Router;
use tokio::time::sleep;
use tower::{ServiceBuilder, service_fn};

use crate::broker::Broker;
use crate::faulty::Store;
use crate::keys::Durable;
use crate::support::{Log, Running, SECOND, policy, position};

/// Runs of message `0` that ended with the process, by its idempotency key.
async fn crashed(keys: &Durable, times: u32) {
    for _ in 0..times {
        let held = keys.claim_now("one");
        assert!(matches!(held, IdempotencyClaim::New { .. }), "{held:?}");
        sleep(2 * SECOND).await;
    }
}

/// Message 0 has been handed out twice, and its marks say that so many more runs of it ended with the process.
pub(crate) async fn marked(broker: &Broker, store: &Store, times: u32) -> LetterId {
    broker.handed_out(0, 2);
    let origin = Origin::new("script", "orders", Position::Offset(0));
    let letter = Delivery::to("orders.handle", Message::new("orders", "0"), origin)
        .death("orders.handle")
        .letter;
    for _ in 0..times {
        store.inner.begin(letter).await.unwrap();
    }
    letter
}

/// Writes nothing, and does not say so.
#[derive(Debug)]
struct Hanging;

impl Sink for Hanging {
    async fn put(&self, _: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        std::future::pending().await
    }
}

/// What a handler sees of a message.
pub(crate) fn seen(delivery: &Delivery) -> String {
    let (attempt, crashes) = (delivery.attempt(), delivery.crashes());
    format!("{}: attempt {attempt}, {crashes} crashes", position(delivery))
}

/// Message 1 has the key of message 0, which is dead.
async fn the_next_one_inherits_nothing(broker: &Broker, log: &Log) {
    broker.publish("");
    broker.until_empty().await;
    assert_eq!(broker.settled_as("succeeded"), [1]);
    assert_eq!(log.lines().last().unwrap(), "1: attempt 1, 0 crashes");
}

#[tokio::test(start_paused = true)]
async fn g3_what_was_found_to_kill_is_not_run_while_its_letter_cannot_be_written() {
    for refusals in [1, 3] {
        let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
        let keys = Durable::new(Duration::ZERO);
        crashed(&keys, 2).await;
        store.fail("put", refusals, StoreErrorKind::Unavailable);
        let noted = log.clone();
        let work = handler("orders.handle", move |delivery: Delivery| {
            noted.note(seen(&delivery));
            std::future::ready(())
        });
        let work = work
            .policy(RetryPolicy::new().with_max_crashes(2))
            .idempotency(keys.clone())
            .idempotency_key(|_: &Delivery| "one");
        let consumer = Consumer::builder(broker.source())
            .handler(work.build().unwrap())
            .dead_letters(store.clone());
        let running = Running::start(consumer.build().unwrap());
        broker.until_empty().await;
        assert_eq!(broker.settled_as("deferred").len(), refusals as usize);
        assert_eq!(broker.settled_as("dead"), [0]);
        assert_eq!(log.lines(), [""; 0], "it was not run");
        let letters = store.letters().await;
        assert_eq!((letters[0].reason, letters[0].crashes), (Reason::MaxCrashes, 2));
        the_next_one_inherits_nothing(&broker, &log).await;
        running.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn g3_crash_marks_stay_until_the_broker_knows_of_the_death() {
    for (refused_puts, refused_settles, keeps_deliveries) in
        [(1, 0, false), (3, 0, false), (0, 2, false), (2, 2, false), (8, 0, true), (3, 2, true)]
    {
        let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
        let letter = marked(&broker, &store, 2).await;
        store.fail("put", refused_puts, StoreErrorKind::Unavailable);
        broker.set(|world| {
            (world.refuse_settles, world.keeps_deliveries) = (refused_settles, keeps_deliveries);
        });
        let noted = log.clone();
        let work = handler("orders.handle", move |delivery: Delivery| {
            noted.note(seen(&delivery));
            std::future::ready(())
        });
        let work = work.policy(RetryPolicy::new().with_max_crashes(2));
        let consumer = Consumer::builder(broker.source())
            .handler(work.build().unwrap())
            .dead_letters(store.clone());
        let running = Running::start(consumer.build().unwrap());
        broker.until_empty().await;
        running.finish().await;
        assert_eq!(broker.settled_as("dead"), [0]);
        assert_eq!(log.lines(), [""; 0], "it was not run");
        let letters = store.letters().await;
        assert_eq!((letters[0].reason, letters[0].crashes), (Reason::MaxCrashes, 2));
        assert_eq!(store.inner.begin(letter).await.unwrap(), 0, "its marks are gone");
    }
}

/// Some sources count anew what is given back to them. By its count it would run in place, like any other.
#[tokio::test(start_paused = true)]
async fn g3_what_was_convicted_is_not_run_where_its_deliveries_are_forgotten() {
    // Enough others for those behind a suspect to have begun.
    let (broker, store, log) = (Broker::with(200), Store::new(), Log::default());
    marked(&broker, &store, 2).await;
    store.fail("put", 4, StoreErrorKind::Unavailable);
    broker.set(|world| world.forgets_deliveries = true);
    let noted = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        if position(&delivery) == 0 {
            noted.note(seen(&delivery));
        }
        std::future::ready(())
    });
    let work = work.policy(RetryPolicy::new().with_max_crashes(2));
    let consumer = Consumer::builder(broker.source())
        .handler(work.build().unwrap())
        .dead_letters(store.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(broker.settled_as("deferred"), [0; 4]);
    assert_eq!(broker.settled_as("dead"), [0]);
    assert_eq!(log.lines(), [""; 0], "it was not run");
}

/// A stop cuts off the write of its letter: the next process must not run it either.
#[tokio::test(start_paused = true)]
async fn g3_crash_marks_stay_when_a_stop_cuts_off_the_letter() {
    let (broker, store) = (Broker::with(1), Store::new());
    let letter = marked(&broker, &store, 2).await;
    let build = |store: &Store| {
        let work = handler("orders.handle", |_: Delivery| std::future::ready(()));
        let work = work.policy(RetryPolicy::new().with_max_crashes(2));
        Consumer::builder(broker.source())
            .handler(work.build().unwrap())
            .sink(Hanging)
            .crash_marks(store.clone())
            .shutdown_deadline(5 * SECOND)
            .build()
            .unwrap()
    };
    let running = Running::start(build(&store));
    broker.until(|world| world.fetched == 1).await;
    // Long past its begin.
    sleep(SECOND).await;
    assert_eq!(running.stop().await.unsettled, 1);
    let marks = store.inner.begin(letter).await.unwrap();
    assert!(marks >= 2, "{marks}: it would be run again");
}

/// Marks that the settlement of an earlier death left behind say nothing of a letter that was sent back since.
#[tokio::test(start_paused = true)]
async fn g3_a_replay_is_not_convicted_by_the_marks_of_the_death_before() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let noted = log.clone();
    let build = || {
        let noted = noted.clone();
        let work = handler("orders.handle", move |delivery: Delivery| {
            noted.note(seen(&delivery));
            std::future::ready(match delivery.generation() {
                0 => Err(HandlerError::msg("down")),
                _ => Ok(()),
            })
        });
        let work = work.derived().policy(policy(1, SECOND).with_max_crashes(2));
        let consumer = Consumer::builder(broker.source())
            .handler(work.clock(store.clock.clone()).build().unwrap());
        consumer.dead_letters(store.clone()).clock(store.clock.clone()).build().unwrap()
    };
    let running = Running::start(build());
    broker.until_empty().await;
    running.finish().await;
    let letter = store.letters().await[0].id;
    for _ in 0..4 {
        store.inner.begin(letter).await.unwrap();
    }
    store.replay().await;
    let request = ClaimRequest::due(["orders.handle"], 1, SECOND);
    assert_eq!(store.inner.claim(request).await.unwrap().len(), 1, "a process that dies");
    sleep(2 * SECOND).await;
    let running = Running::start(build());
    log.until(|lines| lines.len() == 2).await;
    running.finish().await;
    assert_eq!(log.lines().last().unwrap(), "0: attempt 1, 1 crashes");
}

/// A layer of somebody else fails a message, and knows nothing of its attempts.
#[tokio::test(start_paused = true)]
async fn g3_attempts_that_a_foreign_layer_failed_are_not_left_to_the_next() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let noted = log.clone();
    let once = IdempotencyLayer::new(Durable::new(Duration::ZERO), |_| Some("one".into()));
    let consumer = Consumer::builder(broker.source()).key_janitor(once.key_janitor());
    let stack = ServiceBuilder::new()
        .layer(DeadLetterLayer::new(store.clone()))
        .layer(RetryLayer::new(policy(3, SECOND)))
        .layer(once)
        .layer(tower::timeout::TimeoutLayer::new(SECOND))
        .layer(ClassifyLayer::derived())
        .service(service_fn(move |delivery: Delivery| {
            let noted = noted.clone();
            async move {
                noted.note(seen(&delivery));
                if position(&delivery) == 0 {
                    sleep(60 * SECOND).await;
                }
                Ok::<_, HandlerError>(())
            }
        }));
    let running = Running::start(consumer.stack(stack, "orders.handle").build().unwrap());
    broker.until_empty().await;
    let letters = store.letters().await;
    assert_eq!((letters[0].reason, letters[0].attempts), (Reason::Exhausted, 3));
    assert_eq!(log.lines().len(), 3);
    the_next_one_inherits_nothing(&broker, &log).await;
    running.finish().await;
}

/// The retry queue can never take a message, which dies of that.
#[tokio::test(start_paused = true)]
async fn g3_attempts_of_what_could_not_be_postponed_are_not_left_to_the_next() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    store.fail("enqueue", 1, StoreErrorKind::Refused);
    let noted = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        noted.note(seen(&delivery));
        let outcome = match position(&delivery) {
            0 => Err(HandlerError::msg("down")),
            _ => Ok(()),
        };
        std::future::ready(outcome)
    });
    let work = work
        .derived()
        .policy(policy(3, 3600 * SECOND))
        .idempotency(Durable::new(Duration::ZERO))
        .idempotency_key(|_: &Delivery| "one");
    let consumer = Consumer::builder(broker.source())
        .handler(work.build().unwrap())
        .dead_letters(store.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    let letters = store.letters().await;
    assert_eq!((letters[0].reason, letters[0].attempts), (Reason::Exhausted, 1));
    the_next_one_inherits_nothing(&broker, &log).await;
    running.finish().await;
}

/// Crash marks convict outside, so that the layer is never asked; and its claim is still held by the run that died.
#[tokio::test(start_paused = true)]
async fn g3_crashes_of_what_its_marks_convict_are_not_left_to_the_next() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let keys = Durable::new(Duration::ZERO);
    crashed(&keys, 4).await;
    marked(&broker, &store, 3).await;
    let dead_run = keys.claim_now("one");
    assert!(matches!(dead_run, IdempotencyClaim::New { crashes: 4, .. }), "{dead_run:?}");
    let noted = log.clone();
    let once = IdempotencyLayer::new(keys, |_| Some("one".into()));
    let consumer = Consumer::builder(broker.source()).key_janitor(once.key_janitor());
    let stack = ServiceBuilder::new()
        .layer(DeadLetterLayer::new(store.clone()))
        .layer(RetryLayer::new(RetryPolicy::new().with_max_crashes(3)))
        .layer(once.max_crashes(5))
        .layer(ClassifyLayer::derived())
        .service(service_fn(move |delivery: Delivery| {
            noted.note(seen(&delivery));
            std::future::ready(Ok::<_, HandlerError>(()))
        }));
    let consumer = consumer.stack(stack, "orders.handle").crash_marks(store.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    assert_eq!(broker.settled(), [(0, "dead")], "the claim is waited for");
    assert_eq!(store.letters().await[0].reason, Reason::MaxCrashes);
    the_next_one_inherits_nothing(&broker, &log).await;
    running.finish().await;
}

/// The store keeps its word back whenever the counts are to start over: the message is not settled meanwhile.
#[tokio::test(start_paused = true)]
async fn g3_counts_whose_end_was_not_recorded_are_not_left_to_the_next() {
    // Of a death without attempts left, and of a permanent one, whose first release is that of its run.
    for (refusals, permanent) in [(1, false), (2, false), (5, false), (1, true), (2, true)] {
        let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
        let keys = Durable::new(Duration::ZERO);
        keys.refuse_dead(refusals);
        let noted = log.clone();
        let work = handler("orders.handle", move |delivery: Delivery| {
            noted.note(seen(&delivery));
            let is_last = delivery.attempt() >= 3;
            std::future::ready(match position(&delivery) {
                0 if permanent && is_last => Err(HandlerError::msg("bad").permanent()),
                0 => Err(HandlerError::msg("down")),
                _ => Ok(()),
            })
        });
        let work = work
            .derived()
            .policy(policy(3, SECOND))
            .idempotency(keys)
            .idempotency_key(|_: &Delivery| "one");
        let consumer = Consumer::builder(broker.source())
            .handler(work.build().unwrap())
            .dead_letters(store.clone());
        let running = Running::start(consumer.build().unwrap());
        broker.until_empty().await;
        assert_eq!(broker.settled_as("dead"), [0]);
        the_next_one_inherits_nothing(&broker, &log).await;
        running.finish().await;
    }
}

/// The stop cuts a dead letter of a store off while the counts of its key start over. Its claim is given back: one that only
/// ended would count as a crash.
#[tokio::test(start_paused = true)]
async fn g3_a_letter_that_a_stop_cuts_off_after_its_death_has_not_crashed() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let keys = Durable::new(10 * SECOND);
    let build = || {
        let noted = log.clone();
        let work = handler("orders.handle", move |delivery: Delivery| {
            noted.note(delivery.crashes());
            std::future::ready(Err::<(), _>(HandlerError::msg("down")))
        });
        let work = work
            .derived()
            .policy(policy(1, SECOND))
            .clock(store.clock.clone())
            .idempotency(keys.clone())
            .idempotency_key(|_: &Delivery| "one");
        let consumer = Consumer::builder(broker.source())
            .handler(work.build().unwrap())
            .dead_letters(store.clone())
            .clock(store.clock.clone())
            .shutdown_deadline(SECOND);
        consumer.build().unwrap()
    };
    let running = Running::start(build());
    broker.until_empty().await;
    store.replay().await;
    log.until(|lines| lines.len() == 2).await;
    // The store has heard of the failure, and not yet of the death.
    sleep(15 * SECOND).await;
    let report = running.stop().await;
    assert_eq!((report.deferred, report.unsettled), (1, 0), "{report}");
    let running = Running::start(build());
    log.until(|lines| lines.len() == 3).await;
    running.finish().await;
    assert_eq!(log.lines(), ["0"; 3].map(str::to_owned));
}

/// Two handlers have the same key for different things.
#[tokio::test(start_paused = true)]
async fn a_death_changes_nothing_for_the_key_of_another_handler() {
    let (broker, store) = (Broker::with(1), Store::new());
    let keys = Durable::new(Duration::ZERO);
    let mine = keys.claim("orders.handle".into(), "one".into(), SECOND).await.unwrap();
    let theirs = keys.claim("mail.send".into(), "one".into(), SECOND).await.unwrap();
    assert!(matches!((mine, theirs), (IdempotencyClaim::New { .. }, IdempotencyClaim::New { .. })));
    sleep(2 * SECOND).await;
    let work = |name: &str| {
        handler(name, |_: Delivery| std::future::ready(Err::<(), _>(HandlerError::msg("down"))))
            .derived()
            .policy(policy(2, SECOND))
            .idempotency(keys.clone())
            .idempotency_key(|_: &Delivery| "one")
    };
    let router = Router::new().route("orders", work("orders.handle"));
    let router = router.route("mail", work("mail.send")).build().unwrap();
    let consumer = Consumer::builder(broker.source()).handler(router).dead_letters(store.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(store.letters().await[0].reason, Reason::Exhausted);
    let counts =
        async |consumer: &str| match keys.claim(consumer.into(), "one".into(), SECOND).await {
            Ok(IdempotencyClaim::New { attempts, crashes, .. }) => (attempts, crashes),
            other => panic!("{other:?}"),
        };
    assert_eq!(counts("orders.handle").await, (0, 0));
    assert_eq!(counts("mail.send").await, (0, 1));
}
