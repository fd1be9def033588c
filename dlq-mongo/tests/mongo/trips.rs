//! Round trips: how many commands each call sends.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlq_core::store::{
    ClaimRequest, Claims as _, Finish, Finished, Letters as _, Receipt, Schedule, ScheduleRun,
    Sink as _,
};
use dlq_core::{DeadLetter, Filter, PageRequest, Resolution};
use dlq_testkit::fixtures::{CONSUMER, letter};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;

use crate::fixture::{TestDatabase, available};

const LEASE: Duration = Duration::from_secs(60);

/// Commands that were sent, but for the look at the server's clock.
#[derive(Clone, Debug, Default)]
struct Commands(Arc<Mutex<Vec<String>>>);

impl Commands {
    fn handler(&self) -> EventHandler<CommandEvent> {
        let commands = self.clone();
        EventHandler::callback(move |event| {
            if let CommandEvent::Started(started) = event
                && !started.command_name.eq_ignore_ascii_case("isMaster")
            {
                commands.0.lock().unwrap().push(started.command_name);
            }
        })
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// Takes the commands of a call, and prints them with the time that it took, of which nothing is promised.
    fn of(&self, call: &str, began: Instant) -> Vec<String> {
        let commands = self.take();
        let (count, took) = (commands.len(), began.elapsed());
        println!("{call}: {count} round trips ({}), {took:.1?}", commands.join(", "));
        commands
    }
}

#[tokio::test]
async fn plain_batches_take_few_round_trips() {
    if !available() {
        return;
    }
    let commands = Commands::default();
    let store = TestDatabase::fresh().builder().events(commands.handler()).open().await.unwrap();
    commands.take();

    let letters: Vec<DeadLetter> = (0..100).map(letter).collect();
    let began = Instant::now();
    let receipts = store.put(letters).await.unwrap();
    assert_eq!(receipts, vec![Receipt::Stored; 100]);
    assert_eq!(commands.of("put of 100 new letters", began), ["find", "insert"]);

    let began = Instant::now();
    let page = store.list(Filter::new(), PageRequest::new().limit(50)).await.unwrap();
    assert_eq!(page.letters.len(), 50);
    assert_eq!(commands.of("page of 50", began), ["find"]);
    let page = store.list(Filter::new(), PageRequest::new().after(page.next)).await.unwrap();
    assert_eq!(page.letters.len(), 50);
    assert!(commands.take().len() <= 2, "a page that comes to the end looks for what is newer");

    let schedule = Schedule::enabled().batch(100).all_classes();
    let run = ScheduleRun { consumer: CONSUMER.to_owned(), schedule };
    assert_eq!(store.run_schedule(run).await.unwrap().0, 100);
    commands.take();

    let began = Instant::now();
    let claims = store.claim(ClaimRequest::due([CONSUMER], 50, LEASE)).await.unwrap();
    assert_eq!(claims.len(), 50);
    assert_eq!(commands.of("claim of 50", began), ["find", "update", "find"]);

    let began = Instant::now();
    let tokens = claims.iter().map(|claim| claim.token).collect();
    assert_eq!(store.extend(tokens, LEASE).await.unwrap(), vec![true; 50]);
    assert_eq!(commands.of("renewal of 50 leases", began), ["update"]);

    let resolved = || Finish::Resolved(Resolution::Succeeded);
    let finishes: Vec<_> = claims.iter().map(|claim| (claim.token, resolved())).collect();
    let began = Instant::now();
    assert_eq!(store.finish(finishes.clone()).await.unwrap(), vec![Finished::Applied; 50]);
    assert_eq!(commands.of("end of 50 claims", began), ["update"]);
    assert_eq!(store.finish(finishes).await.unwrap(), vec![Finished::Applied; 50]);
    assert_eq!(commands.take(), ["update", "find"], "finishes that were applied before");
}
