//! Stopping: nothing is lost, nothing is left alive.

use std::future::{pending, ready};

use dlq_core::{Delivery, Status};
use dlq_tower::consumer::{Consumer, Ended, RunState};
use dlq_tower::handler::{HandlerError, handler};
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::broker::Broker;
use crate::faulty::Store;
use crate::support::{Log, Running, SECOND, policy, position, soon};

/// Notes each message, and takes ten seconds for it.
fn slow(log: &Log) -> impl Fn(Delivery) -> BoxFuture<'static, ()> + Clone + use<> {
    let seen = log.clone();
    move |delivery| {
        let seen = seen.clone();
        Box::pin(async move {
            seen.note(position(&delivery));
            sleep(10 * SECOND).await;
        })
    }
}

fn alive() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn what_runs_may_finish_and_what_has_not_started_is_given_back() {
    let (broker, store, log) = (Broker::with(10), Store::new(), Log::default());
    let work = handler("orders.handle", slow(&log));
    // One after another, by key: the first runs, the others wait in line.
    let work = work.order_by(|_: &Delivery| "same").build().unwrap();
    let consumer = Consumer::builder(broker.source()).handler(work).dead_letters(store);
    let running = Running::start(consumer.build().unwrap());
    broker.until(|world| world.fetched == 10).await;
    log.until(|lines| !lines.is_empty()).await;
    let asked = Instant::now();
    let report = running.stop().await;
    assert_eq!((report.handled, report.deferred, report.unsettled), (1, 9, 0));
    assert!(asked.elapsed() <= 10 * SECOND);
    assert_eq!(log.lines(), ["0"]);
    assert_eq!((broker.held(), broker.world().closed), (0, 1));
    assert_eq!(alive(), 0, "nothing is left alive");
}

/// The same of what waits for a permit.
#[tokio::test(start_paused = true)]
async fn what_waits_for_its_first_permit_is_given_back() {
    let (broker, store, log) = (Broker::with(10), Store::new(), Log::default());
    let work = handler("orders.handle", slow(&log));
    let work = work.concurrency(1).build().unwrap();
    let consumer = Consumer::builder(broker.source()).handler(work).dead_letters(store.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until(|world| world.fetched == 10).await;
    log.until(|lines| !lines.is_empty()).await;
    let asked = Instant::now();
    let report = running.stop().await;
    assert_eq!((report.handled, report.deferred, report.unsettled), (1, 9, 0));
    assert!(asked.elapsed() <= 10 * SECOND);
    assert_eq!((log.lines().len(), broker.held()), (1, 0));
    assert!(store.letters().await.is_empty(), "nothing was routed");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_finish_in_time_is_cut_off_unsettled() {
    let (broker, store) = (Broker::with(3), Store::new());
    let work = handler("orders.handle", |delivery: Delivery| async move {
        if position(&delivery) == 1 {
            sleep(5 * SECOND).await;
        } else {
            pending::<()>().await;
        }
    });
    let consumer = Consumer::builder(broker.source())
        .handler(work.build().unwrap())
        .dead_letters(store)
        .shutdown_deadline(20 * SECOND);
    let running = Running::start(consumer.build().unwrap());
    broker.until(|world| world.fetched == 3).await;
    let asked = Instant::now();
    let report = running.stop().await;
    assert_eq!((report.handled, report.unsettled), (1, 2));
    assert_eq!(asked.elapsed().as_secs(), 20);
    assert_eq!(broker.settled(), [(1, "succeeded")], "the others stay with the broker");
    assert_eq!(alive(), 0);
}

/// A message that waits for its retry does not hold up the stop, and its attempts go with it.
#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_a_retry_goes_to_the_store_with_its_attempts() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let work = |seen: Log| {
        let work = handler("orders.handle", move |delivery: Delivery| {
            seen.note(delivery.attempt());
            async { Err::<(), _>(HandlerError::msg("down")) }
        });
        work.policy(policy(4, 5 * SECOND)).clock(store.clock.clone()).build().unwrap()
    };
    let build = || {
        Consumer::builder(broker.source())
            .handler(work(log.clone()))
            .dead_letters(store.clone())
            .clock(store.clock.clone())
            .build()
            .unwrap()
    };
    let running = Running::start(build());
    log.until(|lines| lines.len() == 2).await;
    sleep(SECOND).await;
    let asked = Instant::now();
    let report = running.stop().await;
    assert_eq!(report.retried, 1);
    assert!(asked.elapsed() < SECOND);
    assert_eq!(store.statuses().await, [Status::Retrying]);
    assert_eq!(alive(), 0);

    let running = Running::start(build());
    while store.statuses().await != [Status::Pending] {
        sleep(SECOND).await;
    }
    running.finish().await;
    assert_eq!(log.lines(), ["1", "2", "3", "4"], "it went on where it had stopped");
    assert_eq!(store.letters().await[0].attempts, 4);
}

#[tokio::test(start_paused = true)]
async fn stopping_twice_before_the_run_and_after_it_is_fine() {
    let (broker, store) = (Broker::with(2), Store::new());
    let work = handler("orders.handle", |_: Delivery| async {}).build().unwrap();
    let build =
        || Consumer::builder(broker.source()).handler(work.clone()).dead_letters(store.clone());
    let consumer = build().build().unwrap();
    let handle = consumer.handle();
    assert_eq!(handle.health().get().state, RunState::Ready);
    handle.stop();
    handle.stop();
    let report = soon(consumer.run(pending())).await;
    assert_eq!((report.handled, &report.ended), (0, &Ended::Stopped));
    assert_eq!(broker.world().fetched, 0, "nothing was begun");
    handle.stop();
    assert_eq!(handle.health().get().state, RunState::Stopped);

    let running = Running::start(build().build().unwrap());
    broker.until_empty().await;
    running.handle.stop();
    running.handle.stop();
    assert_eq!(running.ended().await.handled, 2);
    assert_eq!(alive(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_token_and_any_future_stop_it() {
    let (broker, store) = (Broker::new(), Store::new());
    let work = handler("orders.handle", |_: Delivery| async {}).build().unwrap();
    let build = || {
        Consumer::builder(broker.source())
            .handler(work.clone())
            .dead_letters(store.clone())
            .build()
            .unwrap()
    };
    let token = CancellationToken::new();
    let (consumer, cancelled) = (build(), token.clone());
    let running = async { consumer.run(cancelled.cancelled()).await };
    let (report, ()) = soon(async { tokio::join!(running, async { token.cancel() }) }).await;
    assert_eq!(report.ended, Ended::Stopped);
    assert_eq!(soon(build().run(ready(()))).await.ended, Ended::Stopped);
    assert_eq!(soon(build().run(sleep(SECOND))).await.ended, Ended::Stopped);
    assert_eq!(alive(), 0);
}

/// Started and stopped at any moment: each message is handled, and nothing stays alive.
#[tokio::test(start_paused = true)]
async fn starts_and_stops_lose_nothing() {
    let (broker, store) = (Broker::with(200), Store::new());
    let work = handler("orders.handle", |delivery: Delivery| async move {
        sleep(SECOND * (position(&delivery) % 5) as u32).await;
        if position(&delivery).is_multiple_of(7) && delivery.attempt() == 1 {
            return Err(HandlerError::msg("down"));
        }
        Ok(())
    });
    let work = work.policy(policy(3, 3 * SECOND)).clock(store.clock.clone()).build().unwrap();
    let mut handled = 0;
    for round in 0..100_u32 {
        let consumer = Consumer::builder(broker.source())
            .handler(work.clone())
            .dead_letters(store.clone())
            .clock(store.clock.clone())
            .max_in_flight(16);
        let running = Running::start(consumer.build().unwrap());
        sleep(SECOND * (round % 11) / 4).await;
        let report = running.stop().await;
        assert_eq!((report.unsettled, report.dead, report.lost_tasks), (0, 0, 0), "{report}");
        handled += report.handled;
        assert_eq!(alive(), 0, "round {round}");
    }
    assert_eq!(handled, 200);
    assert!(store.statuses().await.iter().all(|status| *status == Status::Resolved));
}

/// A source that hangs while it closes does not hang the stop.
#[tokio::test(start_paused = true)]
async fn a_source_that_never_closes_is_left_behind() {
    use dlq_core::{Capabilities, Source, TransportError};

    #[derive(Debug)]
    struct Stubborn(Broker);
    impl Source for Stubborn {
        type Settle = crate::broker::ScriptSettle;
        fn capabilities(&self) -> Capabilities {
            Capabilities::none()
        }
        async fn next(&mut self) -> Result<Option<(Delivery, Self::Settle)>, TransportError> {
            pending().await
        }
        async fn close(&mut self) {
            self.0.set(|world| world.closed += 1);
            pending().await
        }
    }

    let broker = Broker::new();
    let work = handler("orders.handle", |_: Delivery| async {}).build().unwrap();
    let consumer = Consumer::builder(Stubborn(broker.clone())).handler(work).sink(Store::new());
    let running = Running::start(consumer.shutdown_deadline(3 * SECOND).build().unwrap());
    sleep(SECOND).await;
    let asked = Instant::now();
    running.finish().await;
    assert_eq!(asked.elapsed().as_secs(), 4, "the deadline, and a second of grace");
    assert_eq!((broker.world().closed, alive()), (1, 0));
}

/// A handler that never lets go of its thread does not make the stop endless, wherever it runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_for_good_is_left_behind() {
    for waits_first in [true, false] {
        let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
        let (free, blocks) = std::sync::mpsc::channel::<()>();
        let blocks = std::sync::Arc::new(std::sync::Mutex::new(blocks));
        let (alive, mut is_gone) = tokio::sync::mpsc::channel::<()>(1);
        let seen = log.clone();
        let work = handler("orders.handle", move |_: Delivery| {
            let (blocks, seen, alive) = (blocks.clone(), seen.clone(), alive.clone());
            async move {
                let _alive = alive;
                if waits_first {
                    // From here on it has a task of its own.
                    sleep(SECOND / 10).await;
                }
                seen.note("blocks");
                let _ = blocks.lock().unwrap().recv();
            }
        });
        let consumer = Consumer::builder(broker.source())
            .handler(work.build().unwrap())
            .dead_letters(store)
            .shutdown_deadline(SECOND / 10);
        let consumer = consumer.build().unwrap();
        let (handle, mut health) = (consumer.handle(), consumer.health());
        let mut running = tokio::task::JoinSet::new();
        running.spawn(consumer.run(pending()));
        log.until(|lines| lines.len() == 1).await;
        handle.stop();
        let report = tokio::time::timeout(30 * SECOND, running.join_next()).await;
        let report = report.expect("the stop ends").expect("it was started").unwrap();
        if waits_first {
            assert_eq!((report.unsettled, report.lost_tasks), (1, 0), "{report}");
        } else {
            assert_eq!(report.lost_tasks, 1, "{report}");
        }
        assert!(health.wait_for(|health| health.state == RunState::Stopped).await.is_some());
        assert_eq!(broker.settled(), []);
        // What was left behind goes on where it was, and ends.
        let lost = health.get().lost.len();
        drop(free);
        assert!(soon(is_gone.recv()).await.is_none());
        let health = health.get();
        assert_eq!((health.state, health.lost.len()), (RunState::Stopped, lost), "said once");
        assert_eq!(lost, usize::from(!waits_first));
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_signal_stops_it() {
    let (broker, store) = (Broker::with(1), Store::new());
    let work = handler("orders.handle", |_: Delivery| async {}).build().unwrap();
    let consumer = Consumer::builder(broker.source()).handler(work).dead_letters(store);
    let mut run = Box::pin(consumer.build().unwrap().run_until_signal());
    // Listens from here on.
    assert!(futures_util::poll!(&mut run).is_pending());
    let this = std::process::id().to_string();
    let sent = std::process::Command::new("kill").args(["-TERM", &this]).status().unwrap();
    assert!(sent.success());
    let deadline = SECOND * 60;
    let report = tokio::time::timeout(deadline, run).await.expect("it hears the signal");
    assert_eq!(report.ended, Ended::Stopped);
}
