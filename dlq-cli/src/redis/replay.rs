use std::process::ExitCode;

use dlq_core::log::Range;
use dlq_core::store::{BoxLetters, Selection};
use dlq_letters::log::Reading;
use dlq_letters::memory::MemoryStore;
use dlq_redis::{RedisReplay, RedisTarget, Replayed};
use serde_json::json;

use super::Broker;
use crate::broker::{self, Mark, Replaying};
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
    let target = match args.to.as_str() {
        "origin" => RedisTarget::Origin,
        "handler" => return Err(not_to_handlers(at)),
        stream => RedisTarget::Stream(stream.to_owned()),
    };
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
    let mut replay = RedisReplay::new(&at.letters, filter, target, id)
        .cap(args.max_replays)
        .lease(args.at_broker.lease);
    if let Some(limit) = args.limit {
        replay = replay.limit(limit);
    }
    if let Some(pace) = args.rate {
        replay = replay.rate(broker::per_second(pace)?);
    }
    if args.at_broker.again {
        replay = replay.again();
    }
    let plan = replay.plan().await.map_err(|error| at.failed(error))?;
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

/// Refusal of handlers: retry records of Redis are written by consumers alone.
fn not_to_handlers(at: &Broker) -> CliError {
    CliError::refused(format!(
        "letters of {} cannot be sent to their handlers from the stream; say --to origin, where every group hears them, or \
         ingest first: dlq ingest --once --from '{}' --into redis-store://HOST, and replay to the handler of that store",
        at.shown, at.shown
    ))
}
