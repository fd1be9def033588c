use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dlq_admin::shown::consumer_names;
use dlq_core::store::{Control, ItemOutcome, Operation, OperationItem, OperationState};
use dlq_core::{DeadLetters, Filter, LetterId, OperationId, PageRequest};

use super::quiet::{self, Quiet};
use super::{Context, at_most, list, replay};
use crate::ask;
use crate::cli::{Format, OpCommand, SteerArgs};
use crate::error::CliError;
use crate::output::{Column, Progress, Table, age, escape};
use crate::signals::Signals;

/// Number of items that are fetched at a time.
const PAGE: u32 = 500;
/// Number of letters of an operation that a table shows unless told otherwise.
const SHOWN: u32 = 50;
/// Number of operations that are searched for one that is named by its first digits.
const LATEST: u32 = 1000;
/// Interval at which a watched operation is looked at.
const LOOK: Duration = Duration::from_millis(300);
/// Time for which a store may be away before the watch is given up.
// The operation goes on by itself meanwhile, so that a failover of the store is waited for.
const PATIENCE: Duration = Duration::from_secs(300);

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    command: OpCommand,
) -> Result<ExitCode, CliError> {
    match command {
        OpCommand::List { limit } => show_all(context, store, limit).await,
        OpCommand::Show { id, limit } => {
            // Programs get all items unless they ask for fewer: what is left out could not be told from what is not
            // there.
            let limit = limit.unwrap_or(if context.out.is_table() { SHOWN } else { 0 });
            show(context, store, named(store, &id).await?, at_most(limit)).await
        }
        OpCommand::Watch { id } => {
            let operation = watch(store, named(store, &id).await?).await?;
            if context.out.is_table() {
                context.out.line(one_line(&operation))?;
            } else {
                context.out.document(&operation)?;
            }
            Ok(replay::exit_code(&operation, true))
        }
        #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
        OpCommand::Send { id, via } => {
            let operation = store.operation(named(store, &id).await?).await?;
            let brokers = crate::via::required(&via).await?;
            let outboxes = crate::via::outboxes(&brokers, &via, &context.at).await?;
            super::dispatch::run(context, store, (outboxes, via.send_lease), &operation).await
        }
        OpCommand::Pause(args) => steer(context, store, args, Control::Pause).await,
        OpCommand::Resume(args) => steer(context, store, args, Control::Resume).await,
        OpCommand::Cancel(args) => steer(context, store, args, Control::Cancel).await,
        OpCommand::Rate { steer: args, rate } => {
            let id = named(store, &args.id).await?;
            let by = ask::actor(args.note.as_deref());
            let operation = store.set_pace(id, rate.0, by).await?;
            if context.out.is_table() {
                let rate =
                    rate.0.map_or_else(|| "no limit".to_owned(), |pace| format!("at most {pace}"));
                context.out.line(format_args!("{}; {rate} from now on", one_line(&operation)))?;
            } else {
                context.out.document(&operation)?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The operation whose id begins with these digits, among the latest.
pub(super) async fn named(store: &DeadLetters, digits: &str) -> Result<OperationId, CliError> {
    if let Ok(id) = digits.parse() {
        return Ok(id);
    }
    let digits = digits.to_ascii_lowercase();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(CliError::refused(format!(
            "`{digits}` begins no id of an operation; expected hexadecimal digits, as `dlq op list` shows them"
        )));
    }
    // An operation that is older has to be named by its whole id.
    let found = store.operations(LATEST).await?.into_iter().map(|operation| operation.id);
    let found: Vec<_> = found.filter(|id| id.to_string().starts_with(&digits)).collect();
    match found.as_slice() {
        [id] => Ok(*id),
        [] => Err(CliError::failed(format!(
            "none of the latest {LATEST} operations has an id that begins with `{digits}`; `dlq op list` shows which there are"
        ))),
        _ => Err(CliError::refused(format!(
            "more than one operation has an id that begins with `{digits}`; give more digits"
        ))),
    }
}

async fn show_all(
    context: &mut Context,
    store: &DeadLetters,
    limit: u32,
) -> Result<ExitCode, CliError> {
    let operations = store.operations(at_most(limit)).await?;
    if !context.out.is_table() {
        context.out.documents("operations", &operations)?;
        return Ok(ExitCode::SUCCESS);
    }
    if operations.is_empty() {
        say!("no operations");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[
        Column::whole("ID", 0),
        Column::state("STATE", 0),
        Column::whole("DONE", 1),
        Column::whole("SUCCEEDED", 4),
        Column::whole("FAILED AGAIN", 3),
        Column::whole("SKIPPED", 5),
        Column::whole("AGE", 2),
        Column::text("BY", 6, 8),
        Column::text("NOTE", 7, 10),
    ]);
    for operation in &operations {
        let progress = &operation.progress;
        table.row([
            operation.id.to_string(),
            operation.state.to_string(),
            format!("{}/{}", progress.done(), progress.total),
            progress.with_outcome(ItemOutcome::Succeeded).to_string(),
            progress.with_outcome(ItemOutcome::FailedAgain).to_string(),
            progress.with_outcome(ItemOutcome::Skipped).to_string(),
            age(operation.created_at),
            operation.by.who.clone(),
            operation.by.note.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    context.out.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

async fn show(
    context: &mut Context,
    store: &DeadLetters,
    id: OperationId,
    limit: u32,
) -> Result<ExitCode, CliError> {
    let operation = store.operation(id).await?;
    let items = items(store, &operation, limit as usize).await?;
    let more = operation.progress.total.saturating_sub(items.len() as u64);
    match context.out.format {
        Format::Json => context.out.document(&serde_json::json!({
            "operation": operation, "items": items,
        }))?,
        Format::Jsonl => {
            context.out.json_line(&operation)?;
            items.iter().try_for_each(|item| context.out.json_line(item))?;
        }
        Format::Table => {
            context.out.line(one_line(&operation))?;
            let note = operation
                .by
                .note
                .as_deref()
                .map_or_else(String::new, |note| format!(": {}", escape(note)));
            context.out.line(format_args!("by {}{note}", escape(&operation.by.who)))?;
            if let Some(pace) = operation.spec.pace {
                context.out.line(format_args!("at most {pace}"))?;
            }
            let mut table = Table::new(&[
                Column::whole("#", 2),
                Column::whole("LETTER", 0),
                Column::whole("GENERATION", 4),
                Column::whole("OUTCOME", 0),
                Column::whole("AGE", 3),
                Column::text("WHY", 1, 10),
            ]);
            // An item says that its letter failed again, and the letter has the error.
            let errors = errors(store, &items).await?;
            for item in &items {
                let why = item.why.as_ref().or_else(|| errors.get(&item.letter));
                table.row([
                    item.index.to_string(),
                    list::short(&item.letter),
                    item.generation.to_string(),
                    item.outcome.to_string(),
                    age(item.at),
                    why.cloned().unwrap_or_else(|| "-".to_owned()),
                ]);
            }
            context.out.table(&table)?;
        }
    }
    if more > 0 {
        context.out.flush()?;
        say!("{more} more letters; all of them: dlq op show {id} --limit 0");
    }
    Ok(ExitCode::SUCCESS)
}

/// The letters of an operation in their order, at most so many; those that somebody has to look at come before others.
async fn items(
    store: &DeadLetters,
    operation: &Operation,
    limit: usize,
) -> Result<Vec<OperationItem>, CliError> {
    let is_ill = |outcome| matches!(outcome, ItemOutcome::FailedAgain | ItemOutcome::Skipped);
    // The counts tell when the last of them is found, and the search can end.
    let ill = [ItemOutcome::FailedAgain, ItemOutcome::Skipped]
        .map(|outcome| operation.progress.with_outcome(outcome));
    let ill = usize::try_from(ill.iter().sum::<u64>()).unwrap_or(usize::MAX).min(limit);
    let (mut first, mut others) = (Vec::new(), Vec::new());
    let mut after = 0;
    loop {
        let page = store.items(operation.id, after, PAGE).await?;
        for item in page.items {
            let wanted = if is_ill(item.outcome) { &mut first } else { &mut others };
            if wanted.len() < limit {
                wanted.push(item);
            }
        }
        match page.next {
            Some(next) if first.len() < ill || first.len() + others.len() < limit => after = next,
            _ => break,
        }
    }
    others.truncate(limit.saturating_sub(first.len()));
    first.append(&mut others);
    // They were only looked for first; what is shown stands in the order in which letters are sent.
    first.sort_by_key(|item| item.index);
    Ok(first)
}

/// The latest errors of letters that failed again.
async fn errors(
    store: &DeadLetters,
    items: &[OperationItem],
) -> Result<HashMap<LetterId, String>, CliError> {
    let failed = items.iter().filter(|item| item.outcome == ItemOutcome::FailedAgain);
    let failed: Vec<_> = failed.map(|item| item.letter).collect();
    let mut errors = HashMap::new();
    for ids in failed.chunks(PAGE as usize) {
        let mut filter = Filter::new();
        filter.ids = ids.to_vec();
        let page = store.list(filter, PageRequest::new().limit(PAGE)).await?;
        errors.extend(page.letters.into_iter().map(|letter| (letter.id, letter.error)));
    }
    Ok(errors)
}

async fn steer(
    context: &mut Context,
    store: &DeadLetters,
    args: SteerArgs,
    control: Control,
) -> Result<ExitCode, CliError> {
    let id = named(store, &args.id).await?;
    let operation = store.control(id, control, ask::actor(args.note.as_deref())).await?;
    if control == Control::Resume && operation.state == OperationState::Stopped {
        say!(
            "letters of the canary died again while the operation was paused, and the rest was not sent; see why: dlq op show {id}; \
             to go on all the same: dlq op resume {id}, to give it up: dlq op cancel {id}"
        );
    }
    if context.out.is_table() {
        context.out.line(one_line(&operation))?;
    } else {
        context.out.document(&operation)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until the operation has ended or stopped, with a bar on standard error. Asked to end (SIGINT, SIGTERM) it
/// leaves the operation running.
pub(super) async fn watch(letters: &DeadLetters, id: OperationId) -> Result<Operation, CliError> {
    let mut operation = letters.operation(id).await?;
    let bar = Progress::of(operation.progress.total, "letters");
    // The operation belongs to other processes, so one signal is enough: nothing has to be finished here.
    let mut signals = Signals::new()?;
    let mut told = None;
    let mut lost: Option<Instant> = None;
    let mut quiet = Quiet::new(&operation);
    // A store that does not answer this is asked again by the first look.
    let unattended = letters.unattended_in(&operation).await.unwrap_or_default();
    if !unattended.is_empty() {
        bar.aside(|| say!("waiting: nobody reported to run {}", consumer_names(&unattended)));
    }
    let on = format!("the operation goes on; to see it again: dlq op watch {id}");
    loop {
        bar.set(operation.progress.done());
        bar.say(format!("{}{}", operation.state, outcomes(&operation)));
        // A stopped operation is not at its end, but nothing more happens until somebody decides.
        if operation.state.is_final() || operation.state == OperationState::Stopped {
            bar.end();
            if operation.state == OperationState::Stopped {
                say!(
                    "letters of the canary died again, and the rest was not sent; see why: dlq op show {id}; to go on: dlq op resume \
                     {id}, to give it up: dlq op cancel {id}"
                );
            }
            return Ok(operation);
        }
        if operation.state == OperationState::Preparing && told != Some(operation.state) {
            bar.aside(|| {
                say!(
                    "the letters of the operation are being frozen, and none is sent before all of them are; if whoever started it is \
                     gone, go on with those it has: dlq op resume {id}, or give it up: dlq op cancel {id}"
                );
            });
        }
        if operation.state == OperationState::Paused && told != Some(operation.state) {
            bar.aside(|| say!("the operation is paused; to go on: dlq op resume {id}"));
        }
        told = Some(operation.state);
        if quiet.has_lasted(&operation) {
            let unattended = letters.unattended_in(&operation).await.unwrap_or_default();
            bar.aside(|| quiet::tell(&operation, &unattended));
            bar.stall();
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => match letters.operation(id).await {
                Ok(found) => (operation, lost) = (found, None),
                // Meanwhile the consumers wait for the store, too.
                Err(error) if error.is_transient() && lost.is_none_or(|at| at.elapsed() < PATIENCE) => {
                    if lost.is_none() {
                        let why = escape(&CliError::from(error).into_message());
                        bar.aside(|| say!("{why}; looking again"));
                    }
                    lost.get_or_insert_with(Instant::now);
                }
                Err(error) => {
                    bar.end();
                    return Err(CliError::from(error).hinting(&on));
                }
            },
            () = signals.next() => {
                bar.end();
                say!("{on}, to end it: dlq op cancel {id}");
                return Ok(operation);
            }
        }
    }
}

/// Returns the outcomes of letters so far, in words.
fn outcomes(operation: &Operation) -> String {
    let ends =
        [ItemOutcome::Sent, ItemOutcome::Succeeded, ItemOutcome::FailedAgain, ItemOutcome::Skipped];
    let counts = ends.map(|outcome| (outcome, operation.progress.with_outcome(outcome)));
    let counts = counts.iter().filter(|(_, count)| *count > 0);
    counts.map(|(outcome, count)| format!(", {count} {outcome}")).collect()
}

pub(super) fn one_line(operation: &Operation) -> String {
    let progress = &operation.progress;
    let mut text = format!(
        "{} {}: {} of {} letters done",
        operation.id,
        operation.state,
        progress.done(),
        progress.total
    );
    for (outcome, count) in &progress.by_outcome {
        text.push_str(&format!(", {count} {outcome}"));
    }
    text
}
