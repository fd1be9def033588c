use std::collections::BTreeSet;
use std::process::ExitCode;

use dlq_admin::PlannedReplay;
use dlq_core::log::Range;
use dlq_core::policy::duration;
use dlq_core::protocol::names;
use dlq_core::replay::ReplayPlan;
use dlq_core::store::{BoxLetters, Letters as _, Selection};
use dlq_core::{LetterSummary, PageRequest};
use dlq_kafka::{KafkaLetters, KafkaReplay, KafkaTarget, Replayed};
use dlq_letters::memory::MemoryStore;
use serde_json::json;

use super::connect::range;
use super::{Broker, ladder};
use crate::broker::{self, Asked, Mark, Replaying};
use crate::cli::{ReplayArgs, ReplayAtBrokerArgs};
use crate::error::CliError;
use crate::filter::{AtKafkaArgs, must_exist};
use crate::output::{Output, escape};
use crate::signals::until_asked;

/// Sends letters of a topic back.
pub(super) async fn run(
    at: &Broker,
    out: &mut Output,
    at_kafka: &AtKafkaArgs,
    args: ReplayArgs,
) -> Result<ExitCode, CliError> {
    broker::refuse_what_stores_take(&args)?;
    // Options that do not fit together are refused before anything is read.
    target(&args.to, &args.at_broker)?;
    let id = broker::operation(&args);
    at.find().await?;
    Mark::refuse_kept(&at.marks().await?, &at.shown)?;
    let letters = at.letters(at_kafka);
    // Where no letter is named and nothing is hinted at, the plan alone reads them.
    let read = if args.filter.names_letters() || args.to == "handler" {
        let kept = range(at_kafka);
        Some(broker::read_kept(at.log(), Range::all(), |row| kept.includes(row)).await?)
    } else {
        None
    };
    let none = || BoxLetters::new(MemoryStore::new());
    let all = read.as_ref().map_or_else(none, |read| read.letters.clone());
    let filter = args.filter.clone().resolve(&all).await?;
    must_exist(&all, &at.shown, &filter).await?;
    // A partition, offsets, a key or a header select letters as well as a filter does.
    if !args.change.all && *at_kafka == AtKafkaArgs::default() {
        let _ = Selection::matching(filter.clone())?;
    }
    let (replay, plan) = planned(at, &letters, &Asked::of(&args, id, filter.clone())).await?;
    // It is a hint, so an error of it ends nothing, and one page of letters is enough.
    if let Ok(page) = all.list(filter, PageRequest::new()).await
        && let Some(hint) = other_ladder(&page.letters, &args.to, &args.at_broker)
    {
        say!("note: {hint}");
    }
    let mut replaying = match Replaying::begin(out, &args, id, &plan)? {
        Ok(replaying) => replaying,
        Err(exit) => return Ok(exit),
    };
    let report = until_asked(|stop| {
        let (replay, replaying) = (&replay, &mut replaying);
        async move {
            let told = |replayed: &Replayed| {
                let place = json!({ "partition": replayed.partition, "offset": replayed.offset });
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
    target(&asked.to, &asked.at_broker)?;
    at.find().await?;
    Mark::refuse_kept(&at.marks().await?, &at.shown)?;
    let (replay, mut plan) = planned(&at, &at.log(), &asked).await?;
    plan.notes.extend(other_ladder(&plan.sample, &asked.to, &asked.at_broker));
    Ok(PlannedReplay::new(asked.id, plan, async move |watch| {
        let told = |replayed: &Replayed| watch.note(replayed.id, &replayed.outcome);
        replay.run(watch.stop(), told).await
    }))
}

/// Plans the replay of letters that were chosen.
async fn planned(
    at: &Broker,
    letters: &KafkaLetters,
    asked: &Asked,
) -> Result<(KafkaReplay, ReplayPlan), CliError> {
    let Asked { to, at_broker, .. } = asked;
    let target = target(to, at_broker)?;
    let mut replay = KafkaReplay::new(letters, asked.filter.clone(), target, asked.id)
        .cap(asked.max_replays)
        .who(asked.by.as_str());
    if let Some(limit) = asked.limit {
        replay = replay.limit(limit);
    }
    if let Some(pace) = asked.rate {
        replay = replay.rate(broker::per_second(pace)?);
    }
    if let Some(group) = &at_broker.handler_group {
        if to != "handler" {
            return Err(CliError::refused(format!(
                "`--handler-group` goes with `--to handler`, and not with `--to {to}`"
            )));
        }
        replay = replay.group(group.as_str());
    }
    if at_broker.again {
        replay = replay.again();
    }
    let plan = replay.plan().await.map_err(|error| at.failed(error))?;
    Ok((replay, plan))
}

/// Returns what to type where letters waited in retry topics of another ladder than the one that is asked for.
fn other_ladder(letters: &[LetterSummary], to: &str, args: &ReplayAtBrokerArgs) -> Option<String> {
    if to != "handler" {
        return None;
    }
    let asked = &args.ladder;
    let mut delays = BTreeSet::new();
    for letter in letters {
        // A header said so, so it is only shown, and nothing is written there unless somebody asks for it.
        let Some(topic) = letter.attributes.get(names::PREVIOUS_TOPIC) else { continue };
        let template = asked.ladder_names.replace("{topic}", letter.origin.stream());
        let group = args.handler_group.as_ref();
        let group = group.or_else(|| letter.attributes.get("kafka.group"));
        let template = template.replace("{group}", group.unwrap_or(&letter.consumer));
        let (before, after) = template.split_once("{delay}")?;
        let delay = topic.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        match delay.and_then(|text| duration::parse(text).ok()) {
            Some(delay) => delays.insert(delay),
            None => return Some(format!("letters say that they waited in `{}`", escape(topic))),
        };
    }
    delays.retain(|delay| !asked.ladder.contains(delay));
    let delays: Vec<_> = delays.into_iter().map(duration::format).collect();
    let text = delays.join(",").replace(' ', "");
    (!delays.is_empty()).then(|| {
        format!("letters waited in retry topics of another ladder, as they say: --ladder {text}")
    })
}

fn target(to: &str, args: &ReplayAtBrokerArgs) -> Result<KafkaTarget, CliError> {
    let keep_partition = args.keep_partition;
    match to {
        "origin" => Ok(KafkaTarget::Origin { keep_partition }),
        to if keep_partition => Err(CliError::refused(format!(
            "`--keep-partition` goes with `--to origin`, where the partitions are those of birth, and not with `--to {to}`"
        ))),
        "handler" => Ok(KafkaTarget::Handler(ladder(&args.ladder))),
        topic => Ok(KafkaTarget::Topic(topic.to_owned())),
    }
}
