use std::process::ExitCode;

use dlq_admin::PlannedReplay;
use dlq_core::log::Range;
use dlq_core::replay::ReplayPlan;
use dlq_core::store::{BoxLetters, Selection};
use dlq_letters::log::Reading;
use dlq_letters::memory::MemoryStore;
use dlq_redis::{RedisReplay, RedisTarget, Replayed};
use serde_json::json;

use super::Broker;
use crate::broker::{self, Asked, Mark, Replaying};
use crate::cli::ReplayArgs;
use crate::error::CliError;
use crate::filter::must_exist;
use crate::output::Output;
use crate::signals::until_asked;

/// Sends letters of a stream back.
pub(super) async fn run(
    at: &Broker,
    out: &mut Output,
    args: ReplayArgs,
) -> Result<ExitCode, CliError> {
    broker::refuse_what_stores_take(&args)?;
    let id = broker::operation(&args);
    // This comes before the target is looked at: where the letters are in a store, that is the advice that helps.
    Mark::refuse_kept(&at.marks().await?, &at.shown)?;
    target(at, &args.to)?;
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
pub(super) async fn in_console(at: Broker, asked: Asked) -> Result<PlannedReplay, CliError> {
    Mark::refuse_kept(&at.marks().await?, &at.shown)?;
    let (replay, plan) = planned(&at, &asked).await?;
    Ok(PlannedReplay::new(asked.id, plan, async move |watch| {
        let told = |replayed: &Replayed| watch.note(replayed.id, &replayed.outcome);
        replay.run(watch.stop(), told).await
    }))
}

/// Plans the replay of letters that were chosen.
async fn planned(at: &Broker, asked: &Asked) -> Result<(RedisReplay, ReplayPlan), CliError> {
    let target = target(at, &asked.to)?;
    let mut replay = RedisReplay::new(&at.letters, asked.filter.clone(), target, asked.id)
        .cap(asked.max_replays)
        .lease(asked.at_broker.lease);
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

fn target(at: &Broker, to: &str) -> Result<RedisTarget, CliError> {
    match to {
        "origin" => Ok(RedisTarget::Origin),
        "handler" => Err(not_to_handlers(at)),
        stream => Ok(RedisTarget::Stream(stream.to_owned())),
    }
}

/// Refusal of handlers: retry records of Redis are written by consumers alone.
fn not_to_handlers(at: &Broker) -> CliError {
    CliError::refused(format!(
        "letters of {} cannot be sent to their handlers from the stream; say --to origin, where every group hears them, or \
         ingest first: dlq ingest --once --from '{}' --into redis-store://HOST, and replay to the handler of that store",
        at.shown, at.shown
    ))
}
