//! Letters that change between the reading of a call and its writing.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, Finish, Finished, Letters as _, OperationSpec,
    Operations as _, Schedule, ScheduleRun, Sink as _,
};
use dlq_core::{Filter, Resolution};
use dlq_mongo::MongoStore;
use dlq_testkit::fixtures::{CONSUMER, died_again, letter};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::fixture::{PATIENCE, TestDatabase, available};

const LEASE: Duration = Duration::from_secs(3600);

/// A handle whose first update of letters waits: the letters were read, and the command is not sent. It tells that it waits,
/// and goes on once it is told to.
async fn late(place: &TestDatabase) -> (MongoStore, UnboundedReceiver<()>, Sender<()>) {
    late_at(place, "dlq_letters").await
}

/// The same for the first update of this collection.
async fn late_at(
    place: &TestDatabase,
    collection: &'static str,
) -> (MongoStore, UnboundedReceiver<()>, Sender<()>) {
    let (ask, asked) = unbounded_channel();
    let (go, gone) = channel::<()>();
    let gone = Mutex::new(Some(gone));
    let events = EventHandler::callback(move |event| {
        if let CommandEvent::Started(started) = event
            && started.command.get_str("update").is_ok_and(|name| name == collection)
            && let Some(gone) = gone.lock().unwrap().take()
        {
            ask.send(()).unwrap();
            // Otherwise nobody may look after sockets and timers meanwhile.
            tokio::task::block_in_place(|| gone.recv()).unwrap();
        }
    });
    (place.builder().events(events).open().await.unwrap(), asked, go)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g2_a_letter_that_died_again_meanwhile_is_not_overwritten() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let direct = place.store().await;
    let first = letter(1);
    let second = died_again(&first);
    let third = died_again(&second);
    direct.put(vec![first.clone()]).await.unwrap();
    let (late, mut asked, go) = late(&place).await;
    let mut racing = JoinSet::new();
    racing.spawn(async move { late.put(vec![second]).await });
    asked.recv().await.unwrap();
    direct.put(vec![third.clone()]).await.unwrap();
    go.send(()).unwrap();
    racing.join_next().await.unwrap().unwrap().unwrap();
    let found = direct.get(first.id).await.unwrap().unwrap();
    assert_eq!(found.generation, third.generation);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g6_a_letter_that_was_put_off_meanwhile_is_not_claimed() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let direct = place.store().await;
    direct.put(vec![letter(1), letter(2)]).await.unwrap();
    let schedule = Schedule::enabled().all_classes();
    let run = ScheduleRun { consumer: CONSUMER.to_owned(), schedule };
    assert_eq!(direct.run_schedule(run).await.unwrap().0, 2);
    let (late, mut asked, go) = late(&place).await;
    let request = || ClaimRequest::due([CONSUMER], 2, LEASE);
    let mut racing = JoinSet::new();
    racing.spawn(async move { late.claim(request()).await });
    asked.recv().await.unwrap();
    // One is put off for an hour, and the other is run and resolved.
    let claims = direct.claim(request()).await.unwrap();
    assert_eq!(claims.len(), 2);
    let ends = [Finish::Released { after: LEASE }, Finish::Resolved(Resolution::Succeeded)];
    let ends = claims.iter().map(|claim| claim.token).zip(ends);
    direct.finish(ends.collect()).await.unwrap();
    go.send(()).unwrap();
    let claims = racing.join_next().await.unwrap().unwrap().unwrap();
    assert!(claims.is_empty(), "{claims:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g6_a_letter_that_was_claimed_meanwhile_is_not_claimed_again() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let direct = place.store().await;
    direct.put(vec![letter(1)]).await.unwrap();
    let schedule = Schedule::enabled().all_classes();
    let run = ScheduleRun { consumer: CONSUMER.to_owned(), schedule };
    assert_eq!(direct.run_schedule(run).await.unwrap().0, 1);
    let (late, mut asked, go) = late(&place).await;
    let request = || ClaimRequest::due([CONSUMER], 2, LEASE);
    let mut racing = JoinSet::new();
    racing.spawn(async move { late.claim(request()).await });
    asked.recv().await.unwrap();
    assert_eq!(direct.claim(request()).await.unwrap().len(), 1);
    go.send(()).unwrap();
    let claims = racing.join_next().await.unwrap().unwrap().unwrap();
    assert!(claims.is_empty(), "{claims:?}");
}

/// A process that is paused between its locks and its decision finds, when it goes on, that others have made its commit void.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g6_a_commit_that_was_made_void_meanwhile_does_not_happen() {
    if !available() {
        return;
    }
    let wait = Duration::from_millis(50);
    let place = TestDatabase::fresh();
    let direct = place.builder().commit_timeout(wait).open().await.unwrap();
    direct.put(vec![letter(1), letter(2)]).await.unwrap();
    direct.start(OperationSpec::replay(Filter::new()), Actor::new("ana")).await.unwrap();
    let (late, mut asked, go) = late_at(&place, "dlq_commits").await;
    let request = || ClaimRequest::due(Vec::<String>::new(), 2, LEASE);
    let mut racing = JoinSet::new();
    racing.spawn(async move { late.claim(request()).await });
    asked.recv().await.unwrap();
    let mut claims = Vec::new();
    let began = Instant::now();
    while claims.len() < 2 {
        assert!(began.elapsed() < PATIENCE, "{claims:?}");
        sleep(wait).await;
        direct.sweep().await.unwrap();
        claims.extend(direct.claim(request()).await.unwrap());
    }
    go.send(()).unwrap();
    let late = racing.join_next().await.unwrap().unwrap().unwrap();
    assert!(late.is_empty(), "{late:?}");
    let ends = claims.iter().map(|claim| (claim.token, Finish::Resolved(Resolution::Succeeded)));
    let ends = direct.finish(ends.collect()).await.unwrap();
    assert!(ends.iter().all(|end| *end == Finished::Applied), "{ends:?}");
}
