use std::process::ExitCode;

use dlq_admin::PlannedReplay;
use dlq_core::log::Range;
use dlq_core::replay::ReplayPlan;
use dlq_core::store::{BoxLetters, Selection};
use dlq_core::{StoreError, StoreErrorKind};
use dlq_letters::log::Reading;
use dlq_letters::memory::MemoryStore;
use dlq_nats::{NatsLetters, NatsReplay, NatsTarget, Replayed};
use serde_json::json;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::Broker;
use super::connect::existing_retries;
use crate::broker::{self, Asked, Mark, Replaying};
use crate::cli::{ReplayArgs, ReplayAtBrokerArgs};
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
        let letters = letters(at, &args.at_broker).await?;
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
        planned(at, &letters, &Asked::of(&args, id, filter)).await
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

/// Plans what somebody asks for in the console.
pub(super) async fn in_console(at: Broker, asked: Asked) -> Result<PlannedReplay, CliError> {
    let planning = async {
        let letters = letters(&at, &asked.at_broker).await?;
        planned(&at, &letters, &asked).await
    };
    let (replay, plan) = at.permitted(planning).await?;
    Ok(PlannedReplay::new(asked.id, plan, async move |watch| {
        let (alive, dropped) = oneshot::channel::<()>();
        // A thread of its own: the compiler does not see that the future of this replay may move between threads
        // (rust-lang/rust#110338).
        let sending = spawn_blocking(move || {
            // The connection stays for as long as it sends.
            let _connected = at;
            // Timers of the console's runtime panic in other threads once that ends, so this thread has its own.
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| died().with_source(error))?;
            runtime.block_on(async {
                let told = |replayed: &Replayed| watch.note(replayed.id, &replayed.outcome);
                tokio::select! {
                    biased;
                    // Whoever waits is gone, which ends the replay as the death of the process would.
                    _ = dropped => Err(died()),
                    report = replay.run(watch.stop(), told) => report,
                }
            })
        });
        let report = sending.await.unwrap_or_else(|error| Err(died().with_source(error)));
        drop(alive);
        report
    }))
}

fn died() -> StoreError {
    StoreError::new(StoreErrorKind::Unexpected, "send letters back")
}

/// The letters of the stream, unless they are kept in a store.
async fn letters(at: &Broker, args: &ReplayAtBrokerArgs) -> Result<NatsLetters, CliError> {
    let stream = at.letters().await?;
    // A letter that a store has would be sent without its knowledge, and a second time from there.
    Mark::refuse_kept(&at.marks(&stream).await?, &at.shown)?;
    let mut letters = NatsLetters::new(&at.context, stream);
    if let Some(key) = &at.key {
        letters = letters.binding_key(key.clone());
    }
    if let Some(name) = &args.key_header {
        letters = letters.key_header(name);
    }
    Ok(letters)
}

/// Plans the replay of letters that were chosen.
async fn planned(
    at: &Broker,
    letters: &NatsLetters,
    asked: &Asked,
) -> Result<(NatsReplay, ReplayPlan), CliError> {
    let Asked { to, at_broker, .. } = asked;
    let target = target(at, to, &at_broker.retry_stream).await?;
    let mut replay = NatsReplay::new(letters, asked.filter.clone(), target, asked.id)
        .cap(asked.max_replays)
        .lease(at_broker.lease);
    if let Some(name) = &at_broker.handler_consumer {
        if to != "handler" {
            return Err(CliError::refused(format!(
                "`--handler-consumer` goes with `--to handler`, and not with `--to {to}`"
            )));
        }
        replay = replay.consumer(name.as_str());
    }
    if let Some(limit) = asked.limit {
        replay = replay.limit(limit);
    }
    if let Some(pace) = asked.rate {
        replay = replay.rate(broker::per_second(pace)?);
    }
    if at_broker.again {
        replay = replay.again();
    }
    let plan = replay.plan().await?;
    Ok((replay, plan))
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
