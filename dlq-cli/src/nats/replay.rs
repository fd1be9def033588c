use std::process::ExitCode;

use dlq_core::log::Range;
use dlq_core::store::{BoxLetters, Selection};
use dlq_letters::log::Reading;
use dlq_letters::memory::MemoryStore;
use dlq_nats::{NatsLetters, NatsReplay, NatsTarget, Replayed};
use serde_json::json;

use super::Broker;
use super::connect::existing_retries;
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
    let planning = async {
        let stream = at.letters().await?;
        // A letter that a store has would be sent without its knowledge, and a second time from there.
        Mark::refuse_kept(&at.marks(&stream).await?, &at.shown)?;
        let mut letters = NatsLetters::new(&at.context, stream);
        if let Some(key) = &at.key {
            letters = letters.binding_key(key.clone());
        }
        if let Some(name) = &args.at_broker.key_header {
            letters = letters.key_header(name);
        }
        // Where no id is given none is looked up.
        let all = if !args.filter.names_letters() {
            BoxLetters::new(MemoryStore::new())
        } else {
            BoxLetters::new(Reading::of(letters.clone(), Range::all()).await?)
        };
        let filter = args.filter.clone().resolve(&all).await?;
        must_exist(&all, &at.shown, &filter).await?;
        // The selection is made to be refused: an empty filter needs --all.
        if !args.change.all {
            let _ = Selection::matching(filter.clone())?;
        }
        let target = target(at, &args.to, &args.at_broker.retry_stream).await?;
        let mut replay = NatsReplay::new(&letters, filter, target, id)
            .cap(args.max_replays)
            .lease(args.at_broker.lease);
        if let Some(name) = &args.at_broker.handler_consumer {
            if args.to != "handler" {
                return Err(CliError::refused(format!(
                    "`--handler-consumer` goes with `--to handler`, and not with `--to {}`",
                    args.to
                )));
            }
            replay = replay.consumer(name.as_str());
        }
        if let Some(limit) = args.limit {
            replay = replay.limit(limit);
        }
        if let Some(pace) = args.rate {
            replay = replay.rate(broker::per_second(pace)?);
        }
        if args.at_broker.again {
            replay = replay.again();
        }
        let plan = replay.plan().await?;
        Ok((replay, plan))
    };
    let (replay, plan) = at.permitted(planning).await?;
    let mut replaying = match Replaying::begin(out, &args, id, &plan)? {
        Ok(replaying) => replaying,
        Err(exit) => return Ok(exit),
    };
    // The rest is not watched for refusals: a subject that is refused is the outcome of its letters, and others go on.
    let report = until_asked(|stop| {
        let (replay, replaying) = (&replay, &mut replaying);
        async move {
            let told = |replayed: &Replayed| {
                let place = json!({ "sequence": replayed.sequence });
                replaying.note(replayed.id, place, &replayed.outcome);
            };
            Ok(replay.run(stop, told).await?)
        }
    });
    let report = report.await;
    replaying.finish(out, id, args.at_broker.again, report)
}

async fn target(at: &Broker, to: &str, retries: &str) -> Result<NatsTarget, CliError> {
    Ok(match to {
        "origin" => NatsTarget::Origin,
        "handler" => {
            let stream = at.config(retries).await?.as_ref().and_then(existing_retries);
            NatsTarget::Handler(stream.ok_or_else(|| {
                CliError::refused(format!(
                    "{}: there is no retry stream `{retries}`, by which letters go to the handler that failed; start its \
                     consumer, say --retry-stream, or --to origin, where every consumer hears them",
                    at.shown
                ))
            })?)
        }
        subject => NatsTarget::Subject(subject.to_owned()),
    })
}
