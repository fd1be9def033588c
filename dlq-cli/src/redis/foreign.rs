//! Dead letters that other libraries keep in Redis.

use std::future::pending;
use std::process::ExitCode;

use dlq_admin::PlannedReplay;
use dlq_core::StoreError;
use dlq_core::log::{Log as _, Range};
use dlq_core::replay::ReplayPlan;
use dlq_core::store::{BoxLetters, Selection};
use dlq_letters::log::Reading;
use dlq_letters::memory::MemoryStore;
use dlq_redis::Replayed;
use dlq_redis::foreign::{ForeignLetters, ForeignReplay};
use serde_json::json;

use super::broker::failed;
use crate::broker::{self, Asked, IngestRun, Replaying, Telling};
use crate::cli::{Command, IngestArgs, ReplayArgs};
use crate::commands::show_findings;
use crate::error::CliError;
use crate::filter::must_exist;
use crate::output::Output;
use crate::signals::until_asked;

/// Letters of another library, and the URL, fit to be shown.
struct NamedLetters<'a> {
    letters: &'a ForeignLetters,
    shown: &'a str,
}

impl NamedLetters<'_> {
    fn failed(&self, error: StoreError) -> CliError {
        failed(error, self.shown)
    }
}

/// Runs a verb.
pub(super) async fn run(
    letters: &ForeignLetters,
    shown: &str,
    mut out: Output,
    command: Command,
) -> Result<ExitCode, CliError> {
    let at = NamedLetters { letters, shown };
    let exit = match command {
        Command::Ingest(args) => ingest(&at, &mut out, args).await?,
        Command::Replay(args) => replay(&at, &mut out, *args).await?,
        Command::Check(_) => {
            let entries = letters.entries().await.map_err(|error| at.failed(error))?;
            broker::say_cost(shown, entries, None);
            let findings = letters.check().await.map_err(|error| at.failed(error))?;
            show_findings(&mut out, shown, &findings)?
        }
        mut command => {
            if broker::changes(&command) {
                // There are no marks: nothing of ours is written beside the letters of another library.
                return Err(broker::Mark::no_changes(&[], shown, command.name()));
            }
            let entries = letters.entries().await.map_err(|error| at.failed(error))?;
            let range = broker::range(&mut command, &[entries]);
            if range == Range::all() {
                broker::say_cost(shown, entries, None);
            }
            let read = broker::read(letters.clone(), range).await;
            let read = read.map_err(|error| error.about(shown))?;
            return broker::look(read.letters.clone(), out, shown, command).await;
        }
    };
    out.end(exit)
}

/// Drains the letters into a store. Nothing is noted at the server: the store knows what it has got.
async fn ingest(
    at: &NamedLetters<'_>,
    out: &mut Output,
    args: IngestArgs,
) -> Result<ExitCode, CliError> {
    let telling = Telling::open(&args)?;
    if args.durable.is_some() {
        return Err(CliError::refused(format!(
            "cannot remember a place under a name: nothing is written beside the letters of {}; leave out --durable",
            at.letters.dialect()
        )));
    }
    // It has none, but asks the server, so that a key which holds something else is refused before a store is made.
    at.letters.marks().await.map_err(|error| at.failed(error))?;
    let into = broker::store(&args, &[], at.shown, "").await?;
    let letters = at.letters.clone();
    let letters = if args.once { letters.until_end() } else { letters };
    let feed = letters.follow(into.name.clone(), args.lease).await;
    let feed = feed.map_err(|error| at.failed(error))?;
    let ingest = IngestRun { args: &args, shown: at.shown, into, telling };
    ingest.run(feed, pending(), out).await
}

/// Sends letters back to their queue.
async fn replay(
    at: &NamedLetters<'_>,
    out: &mut Output,
    args: ReplayArgs,
) -> Result<ExitCode, CliError> {
    broker::refuse_what_stores_take(&args)?;
    let id = broker::operation(&args);
    refuse_other_targets(at.letters, &args.to)?;
    // Where no id is given none is looked up.
    let all = if args.filter.names_letters() {
        let reading = Reading::of(at.letters.clone(), Range::all()).await;
        BoxLetters::new(reading.map_err(|error| at.failed(error))?)
    } else {
        BoxLetters::new(MemoryStore::new())
    };
    let filter = args.filter.clone().resolve(&all).await?;
    must_exist(&all, &at.shown, &filter).await?;
    if !args.change.all {
        let _ = Selection::matching(filter.clone())?;
    }
    let (replay, plan) = planned(at, &Asked::of(&args, id, filter)).await?;
    let mut replaying = match Replaying::begin(out, &args, id, &plan)? {
        Ok(replaying) => replaying,
        Err(exit) => return Ok(exit),
    };
    let report = until_asked(|stop| {
        let (replay, replaying) = (&replay, &mut replaying);
        async move {
            let told = |replayed: &Replayed| {
                let place = json!({ "entry": replayed.entry });
                replaying.note(replayed.id, place, &replayed.outcome);
            };
            replay.run(stop, told).await.map_err(|error| at.failed(error))
        }
    });
    let report = report.await;
    replaying.finish(out, id, args.at_broker.again, report)
}

/// Plans what somebody asks for in the console.
pub(super) async fn in_console(
    letters: &ForeignLetters,
    shown: &str,
    asked: Asked,
) -> Result<PlannedReplay, CliError> {
    let (replay, plan) = planned(&NamedLetters { letters, shown }, &asked).await?;
    Ok(PlannedReplay::new(asked.id, plan, async move |watch| {
        let told = |replayed: &Replayed| watch.note(replayed.id, &replayed.outcome);
        replay.run(watch.stop(), told).await
    }))
}

/// Plans the replay of letters that were chosen.
async fn planned(
    at: &NamedLetters<'_>,
    asked: &Asked,
) -> Result<(ForeignReplay, ReplayPlan), CliError> {
    refuse_other_targets(at.letters, &asked.to)?;
    let mut replay = ForeignReplay::new(at.letters, asked.filter.clone(), asked.id);
    replay = replay.cap(asked.max_replays);
    if let Some(limit) = asked.limit {
        replay = replay.limit(limit);
    }
    if let Some(pace) = asked.rate {
        replay = replay.rate(broker::per_second(pace)?);
    }
    if asked.at_broker.again {
        replay = replay.again();
    }
    let plan = replay.plan().await.map_err(|error| at.failed(error))?;
    Ok((replay, plan))
}

fn refuse_other_targets(letters: &ForeignLetters, to: &str) -> Result<(), CliError> {
    if to == "origin" {
        return Ok(());
    }
    Err(CliError::refused(format!(
        "letters of {} can only be sent to the queue where they were born; say --to origin",
        letters.dialect()
    )))
}
