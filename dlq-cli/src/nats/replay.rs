use std::process::ExitCode;
use std::time::Duration;

use dlq_core::store::{BoxLetters, Pace, Selection};
use dlq_core::{Clock as _, OperationId, SystemClock};
use dlq_nats::{
    NatsLetters, NatsReplay, NatsTarget, ReplayOutcome, ReplayPlan, ReplayReport, Replayed, Skipped,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::Broker;
use super::connect::existing_retries;
use crate::ask;
use crate::cli::ReplayArgs;
use crate::commands::{self, PARTIAL};
use crate::error::{CliError, chain};
use crate::output::{Output, SCHEMA_VERSION, escape};
use crate::signals::until_asked;

/// How many failures are said one by one.
const SAID: usize = 20;

/// Sends letters of a stream back.
pub(super) async fn run(
    broker: &Broker,
    out: &mut Output,
    args: ReplayArgs,
) -> Result<ExitCode, CliError> {
    refuse_what_stores_take(&args)?;
    let by = ask::actor(None).who;
    let id = args
        .at_broker
        .resume
        .unwrap_or_else(|| OperationId::of(&by, SystemClock.now(), u64::from(std::process::id())));
    let change = &args.change;
    let planning = async {
        let stream = broker.letters().await?;
        if !args.at_broker.beside_store {
            broker.refuse_beside_store(&stream).await?;
        }
        let mut letters = NatsLetters::new(&broker.context, stream);
        if let Some(name) = &args.at_broker.key_header {
            letters = letters.with_key_header(name);
        }
        let filter = args.filter.resolve(&BoxLetters::new(letters.clone())).await?;
        if !change.all {
            let _ = Selection::matching(filter.clone())?;
        }
        let target = target(broker, &args.to, &args.at_broker.retry_stream).await?;
        let mut replay = NatsReplay::new(&letters, filter, target, id)
            .with_cap(args.max_replays)
            .with_lease(args.at_broker.lease);
        if let Some(limit) = args.limit {
            replay = replay.with_limit(limit);
        }
        if let Some(pace) = args.rate {
            replay = replay.with_rate(per_second(pace)?);
        }
        if args.at_broker.again {
            replay = replay.again();
        }
        let plan = replay.plan().await?;
        Ok((replay, plan))
    };
    let (replay, plan) = broker.permitted(planning).await?;
    explain(&plan, &args.to, change.dry_run);
    if change.dry_run {
        show(out, &plan)?;
        eprintln!("dry run: nothing was sent");
        return Ok(ExitCode::SUCCESS);
    }
    if plan.letters == 0 {
        eprintln!("nothing to replay");
        report_nothing(out)?;
        return Ok(exit_code(&plan.skipped, 0));
    }
    ask::confirm(change, "replay", plan.letters)?;
    let bar = bar(plan.letters);
    let mut failures = Vec::new();
    let report = until_asked(|stop| {
        let (replay, bar, failures) = (&replay, &bar, &mut failures);
        async move {
            let told = |replayed: &Replayed| note(replayed, bar, failures);
            Ok(replay.run(stop, told).await?)
        }
    });
    let report = report.await;
    bar.finish_and_clear();
    finish(out, id, args.at_broker.again, &failures, &report?)
}

/// What was asked for and means nothing here.
fn refuse_what_stores_take(args: &ReplayArgs) -> Result<(), CliError> {
    let asked = [
        (args.canary.is_some(), "--canary"),
        (args.wait, "--wait"),
        (args.change.note.is_some(), "--note"),
    ];
    match asked.iter().find(|(asked, _)| *asked) {
        Some((_, flag)) => Err(CliError::refused(format!(
            "`{flag}` needs a store, which knows what becomes of letters; leave it out, or ingest first: dlq ingest \
             --once --into sqlite://dlq.db"
        ))),
        None => Ok(()),
    }
}

async fn target(broker: &Broker, to: &str, retries: &str) -> Result<NatsTarget, CliError> {
    Ok(match to {
        "origin" => NatsTarget::Origin,
        "handler" => {
            let stream = broker.config(retries).await?.as_ref().and_then(existing_retries);
            NatsTarget::Handler(stream.ok_or_else(|| {
                CliError::refused(format!(
                    "{}: there is no retry stream `{retries}`, by which letters go to the handler that failed; start its \
                     consumer, say --retry-stream, or --to origin, where every consumer hears them",
                    broker.shown
                ))
            })?)
        }
        subject => NatsTarget::Subject(subject.to_owned()),
    })
}

fn per_second(pace: Pace) -> Result<u32, CliError> {
    let interval = pace.interval();
    if interval > Duration::from_secs(1) {
        return Err(CliError::refused("at a broker the slowest rate is 1/s"));
    }
    Ok(u32::try_from(Duration::from_secs(1).as_nanos() / interval.as_nanos()).unwrap_or(u32::MAX))
}

/// What will happen, and who will hear of it.
fn explain(plan: &ReplayPlan, to: &str, dry: bool) {
    let will = if dry { "would" } else { "will" };
    let to = match to {
        "handler" => "the consumers that failed, and to nobody else".to_owned(),
        "origin" => "where they were born".to_owned(),
        subject => format!("`{}`", escape(subject)),
    };
    eprintln!("{} letters {will} be sent to {to}", plan.letters);
    for (why, count) in &plan.skipped {
        eprintln!("{count} more match and {will} be skipped: {why}");
    }
    for hearer in &plan.hearers {
        eprintln!("{} {will} hear them too", escape(&hearer.to_string()));
    }
    for note in &plan.notes {
        eprintln!("note: {}", escape(note));
    }
}

fn show(out: &mut Output, plan: &ReplayPlan) -> Result<(), CliError> {
    if out.is_table() {
        if !plan.sample.is_empty() {
            out.line(commands::table(&plan.sample))?;
        }
        return Ok(());
    }
    let hearers: Vec<_> = plan
        .hearers
        .iter()
        .map(|hearer| json!({ "stream": hearer.stream, "consumer": hearer.consumer }))
        .collect();
    out.document(&json!({
        "schema_version": SCHEMA_VERSION,
        "plan": {
            "count": plan.letters,
            "skipped": skipped(&plan.skipped),
            "sample": plan.sample,
            "hearers": hearers,
            "notes": plan.notes,
        },
    }))
}

fn skipped(by: &std::collections::BTreeMap<Skipped, u64>) -> serde_json::Value {
    by.iter().map(|(why, count)| (why.to_string(), json!(count))).collect()
}

fn bar(letters: u64) -> ProgressBar {
    let bar = ProgressBar::new(letters);
    let style = "{wide_bar} {pos}/{len} letters  {per_sec}  {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

fn note(replayed: &Replayed, bar: &ProgressBar, failures: &mut Vec<serde_json::Value>) {
    match &replayed.outcome {
        ReplayOutcome::Failed(error) => {
            if failures.len() < SAID {
                let id = commands::short(&replayed.id);
                bar.suspend(|| eprintln!("letter {id} cannot be sent: {}", escape(&chain(error))));
            }
            failures.push(json!({
                "letter": replayed.id, "sequence": replayed.sequence, "why": chain(error),
            }));
            bar.inc(1);
        }
        ReplayOutcome::Sent => bar.inc(1),
        _ => {}
    }
}

fn report_nothing(out: &mut Output) -> Result<(), CliError> {
    if out.is_table() { Ok(()) } else { out.document(&json!({ "sent": 0 })) }
}

fn finish(
    out: &mut Output,
    id: OperationId,
    again: bool,
    failures: &[serde_json::Value],
    report: &ReplayReport,
) -> Result<ExitCode, CliError> {
    if out.is_table() {
        out.line(report)?;
    } else {
        out.document(&json!({
            "schema_version": SCHEMA_VERSION,
            "operation": id,
            "sent": report.sent,
            "doubtful": report.doubtful,
            "skipped": skipped(&report.skipped),
            "failed": report.failed,
            "left": report.left,
            "stopped": report.stopped.as_ref().map(|error| chain(error)),
            "failures": failures,
        }))?;
    }
    if report.doubtful > 0 {
        eprintln!(
            "{} letters may have been sent twice: a replay died while it sent them, and their stream cannot be asked",
            report.doubtful
        );
    }
    if !report.is_complete() {
        let how = if again {
            format!("the same command with --resume {id}")
        } else {
            "the same command".to_owned()
        };
        eprintln!("{} letters are untouched; to go on: {how}", report.left);
    }
    if let Some(error) = &report.stopped {
        return Err(CliError::failed(chain(error)));
    }
    Ok(exit_code(&report.skipped, report.failed + report.left))
}

/// 3 when a letter was not sent; one that was sent before was.
fn exit_code(skipped: &std::collections::BTreeMap<Skipped, u64>, unsent: u64) -> ExitCode {
    let unwilling = skipped.iter().any(|(why, count)| *why != Skipped::Sent && *count > 0);
    if unsent > 0 || unwilling { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS }
}
