use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use dlq_admin::LogReplay;
use dlq_admin::shown::{replay_plan, skipped};
use dlq_core::replay::{ReplayOutcome, ReplayPlan, ReplayReport, Skipped};
use dlq_core::store::Pace;
use dlq_core::{Clock as _, Filter, LetterId, OperationId, SystemClock};
use serde_json::{Value, json};

use crate::ask;
use crate::cli::{Command, ReplayArgs, ReplayAtBrokerArgs};
use crate::commands::{self, PARTIAL};
use crate::error::{CliError, chain};
use crate::output::{Output, Progress, escape};

/// Maximum number of failures that are reported one by one.
const SAID: usize = 20;

/// A replay while it is told of.
pub(crate) struct Replaying {
    bar: Progress,
    failures: Vec<Value>,
}

/// Replay that the command or the console asks for, once it is known which letters are meant.
pub(crate) struct Asked {
    pub(crate) id: OperationId,
    pub(crate) filter: Filter,
    pub(crate) to: String,
    pub(crate) limit: Option<u64>,
    pub(crate) rate: Option<Pace>,
    pub(crate) max_replays: u32,
    /// Name of the person who asks.
    #[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "Kafka alone keeps it"))]
    pub(crate) by: String,
    pub(crate) at_broker: ReplayAtBrokerArgs,
}

impl Asked {
    /// Returns what the command asks for.
    pub(crate) fn of(args: &ReplayArgs, id: OperationId, filter: Filter) -> Self {
        Self {
            id,
            filter,
            to: args.to.clone(),
            limit: args.limit,
            rate: args.rate,
            max_replays: args.max_replays,
            by: ask::actor(None).who,
            at_broker: args.at_broker.clone(),
        }
    }

    /// Returns what somebody asks for in the console, with the defaults of the command.
    pub(super) fn in_console(replay: LogReplay) -> Result<Self, CliError> {
        Ok(Self {
            id: new_operation(&replay.by),
            filter: replay.filter,
            to: replay.target.to_string(),
            limit: replay.limit,
            rate: replay.pace,
            max_replays: replay.max_replays,
            by: replay.by,
            at_broker: ReplayAtBrokerArgs::unless_said()?,
        })
    }

    /// Sets the header that carries the key of a message at NATS, where one is named.
    #[cfg(feature = "nats")]
    pub(super) fn with_key_header(mut self, name: Option<String>) -> Self {
        self.at_broker.key_header = name.or(self.at_broker.key_header);
        self
    }
}

/// Refuses what was asked for and means nothing at a broker.
pub(crate) fn refuse_what_stores_take(args: &ReplayArgs) -> Result<(), CliError> {
    if args.via.is_typed {
        return Err(CliError::refused(
            "`--via` is for letters of a store, and these are sent by the broker where they are; leave it out, or ingest \
             first: dlq ingest --once --into sqlite://dlq.db",
        ));
    }
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

/// Refuses to choose letters by the operation that holds them.
pub(crate) fn refuse_held(command: &mut Command) -> Result<(), CliError> {
    match command.filter() {
        Some(filter) if filter.operation.is_some() => Err(CliError::refused(
            "`--operation` needs a store, whose letters an operation holds until it has released them; those that were \
             sent back from a broker have the status `sent`: say --status sent",
        )),
        _ => Ok(()),
    }
}

/// The operation that is meant, or a new one.
pub(crate) fn operation(args: &ReplayArgs) -> OperationId {
    // The id is part of what is sent with each letter, so that a replay which goes on is known by the broker as the
    // same.
    args.at_broker.resume.unwrap_or_else(|| new_operation(&ask::actor(None).who))
}

fn new_operation(by: &str) -> OperationId {
    // Two replays of one person at the same instant differ by their processes.
    OperationId::of(by, SystemClock.now(), u64::from(std::process::id()))
}

pub(crate) fn per_second(pace: Pace) -> Result<u32, CliError> {
    let interval = pace.interval();
    // Brokers count whole letters a second, by which a slower rate would be none.
    if interval > Duration::from_secs(1) {
        return Err(CliError::refused("at a broker the slowest rate is 1/s"));
    }
    Ok(u32::try_from(Duration::from_secs(1).as_nanos() / interval.as_nanos()).unwrap_or(u32::MAX))
}

impl Replaying {
    /// Says what will happen, and asks; an exit code when there is nothing to do.
    pub(crate) fn begin(
        out: &mut Output,
        args: &ReplayArgs,
        id: OperationId,
        plan: &ReplayPlan,
    ) -> Result<Result<Self, ExitCode>, CliError> {
        explain(plan, &args.to, args.change.dry_run);
        if args.change.dry_run {
            show(out, plan)?;
            say!("dry run: nothing was sent");
            return Ok(Err(ExitCode::SUCCESS));
        }
        if plan.letters == 0 {
            say!("nothing to replay");
            let mut report = ReplayReport::default();
            report.skipped = plan.skipped.clone();
            if !out.is_table() {
                document(out, id, &report, &[])?;
            }
            return Ok(Err(exit_code(&report.skipped, 0)));
        }
        ask::confirm(&args.change, "replay", plan.letters)?;
        // Without --again the next replay skips what was sent, and needs no id.
        if args.at_broker.again {
            say!("if it is interrupted, however: the same command with --resume {id}");
        }
        let bar = Progress::of(plan.letters, "letters");
        Ok(Ok(Self { bar, failures: Vec::new() }))
    }

    /// Notes what became of a letter; `place` says where it stands.
    pub(crate) fn note(&mut self, id: LetterId, place: Value, outcome: &ReplayOutcome) {
        match outcome {
            ReplayOutcome::Failed(error) => {
                if self.failures.len() < SAID {
                    let id = commands::short(&id);
                    let why = escape(&chain(error));
                    self.bar.aside(|| say!("letter {id} cannot be sent: {why}"));
                }
                let mut failure = json!({ "letter": id, "why": chain(error) });
                if let (Some(failure), Value::Object(place)) = (failure.as_object_mut(), place) {
                    failure.extend(place);
                }
                // All of them are kept for JSON; only what is said to people is limited.
                self.failures.push(failure);
                self.bar.advance(1);
            }
            ReplayOutcome::Sent => self.bar.advance(1),
            // The plan has counted letters that are skipped apart from those of the bar.
            _ => {}
        }
    }

    /// Says what was done.
    pub(crate) fn finish(
        self,
        out: &mut Output,
        id: OperationId,
        again: bool,
        report: Result<ReplayReport, CliError>,
    ) -> Result<ExitCode, CliError> {
        self.bar.end();
        let report = report?;
        if out.is_table() {
            out.line(&report)?;
        } else {
            document(out, id, &report, &self.failures)?;
        }
        if self.failures.len() > SAID {
            say!("{} more cannot be sent; -o json says why", self.failures.len() - SAID);
        }
        if report.doubtful > 0 {
            say!(
                "{} letters may have been sent twice: a replay died while it sent them, and their stream cannot be asked",
                report.doubtful
            );
        }
        for note in &report.notes {
            say!("note: {note}");
        }
        if !report.is_complete() {
            let how = if again {
                format!("the same command with --resume {id}")
            } else {
                "the same command".to_owned()
            };
            say!("{} letters are untouched; to go on: {how}", report.left);
        }
        // The error comes after the report: what was sent stays sent.
        if let Some(error) = &report.stopped {
            return Err(CliError::failed(chain(error)));
        }
        Ok(exit_code(&report.skipped, report.failed + report.left))
    }
}

fn document(
    out: &mut Output,
    id: OperationId,
    report: &ReplayReport,
    failures: &[Value],
) -> Result<(), CliError> {
    out.document(&json!({
        "operation": id,
        "sent": report.sent,
        "doubtful": report.doubtful,
        "skipped": skipped(&report.skipped),
        "failed": report.failed,
        "left": report.left,
        "stopped": report.stopped.as_ref().map(|error| chain(error)),
        "notes": report.notes,
        "failures": failures,
    }))
}

/// Explains what will happen, and who will receive the letters.
fn explain(plan: &ReplayPlan, to: &str, dry: bool) {
    let will = if dry { "would" } else { "will" };
    let to = match to {
        "handler" => "the consumers that failed, and to nobody else".to_owned(),
        "origin" => "where they were born".to_owned(),
        place => format!("`{}`", escape(place)),
    };
    say!("{} letters {will} be sent to {to}", plan.letters);
    for (why, count) in &plan.skipped {
        say!("{count} more match and {will} be skipped: {why}");
    }
    for subscriber in &plan.subscribers {
        say!("{} {will} hear them too", escape(&subscriber.to_string()));
    }
    for note in &plan.notes {
        say!("note: {}", escape(note));
    }
}

fn show(out: &mut Output, plan: &ReplayPlan) -> Result<(), CliError> {
    if out.is_table() {
        if !plan.sample.is_empty() {
            out.table(&commands::table(&plan.sample))?;
            commands::more(plan.letters, &plan.sample);
        }
        return Ok(());
    }
    out.document(&json!({ "plan": replay_plan(plan) }))
}

/// 3 when a letter was not sent; one that was sent before was.
fn exit_code(skipped: &BTreeMap<Skipped, u64>, unsent: u64) -> ExitCode {
    let unwilling = skipped.iter().any(|(why, count)| *why != Skipped::Sent && *count > 0);
    if unsent > 0 || unwilling { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS }
}
