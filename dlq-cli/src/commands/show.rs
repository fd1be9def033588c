use std::borrow::Cow;
use std::process::ExitCode;

use bytes::Bytes;
use dlq_core::policy::duration;
use dlq_core::store::Letters as _;
use dlq_core::{Attempt, DeadLetter};

use super::Context;
use crate::cli::ShowArgs;
use crate::error::CliError;
use crate::filter::letter_id;
use crate::lines::no_message;
use crate::output::{Output, age, bytes, escape, indented};

pub(super) async fn run(context: &mut Context, args: ShowArgs) -> Result<ExitCode, CliError> {
    let id = letter_id(&context.letters, &args.id).await?;
    let letter = context.letters.get(id).await?.ok_or_else(|| {
        CliError::failed(format!(
            "no letter has the id {id} at {}; `dlq list` shows which there are",
            context.target
        ))
    })?;
    let shown = context.out.masked(&letter);
    let is_masked = matches!(shown, Cow::Owned(_));
    // The size is that of the real payload, since the mask has another one.
    let size = letter.message.payload().map_or(0, Bytes::len);
    let letter = shown.into_owned();
    if args.payload {
        // A letter that only points to its message has no payload and is no tombstone, so both are asked.
        match (letter.message.payload(), no_message(&letter)) {
            // It may hold what steers the terminal. A pipe gets it byte for byte.
            (Some(payload), _) if context.out.is_terminal() => {
                context.out.line(bytes(payload, true))?;
            }
            (Some(payload), _) => context.out.raw(payload)?,
            (None, None) => say!("the message has no payload (a tombstone)"),
            (None, Some(why)) => {
                return Err(CliError::failed(format!("letter {id} is without its message: {why}")));
            }
        }
    } else if context.out.is_table() {
        print(&mut context.out, &letter, size)?;
    } else {
        context.out.document(&letter)?;
    }
    if is_masked {
        context.out.flush()?;
        say!(
            "parts of the message are masked by rules of the configuration file; --unmasked shows them"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a letter. `size` is that of its payload before anything was masked.
fn print(out: &mut Output, letter: &DeadLetter, size: usize) -> Result<(), CliError> {
    let state = &letter.state;
    let resolution = state.resolution.map_or_else(String::new, |how| format!(" ({how})"));
    field(out, "letter", format!("{}  generation {}", letter.id, letter.generation))?;
    let status = out.state(state.status.to_string());
    field(out, "status", format!("{status}{resolution}"))?;
    if let Some(due) = state.due {
        field(out, "due", due.to_string())?;
    }
    if let Some(operation) = state.operation {
        field(out, "operation", operation.to_string())?;
    }
    field(out, "consumer", escape(&letter.consumer))?;
    if let Some(service) = &letter.service {
        field(out, "service", escape(service))?;
    }
    let cause = letter.cause.map_or_else(String::new, |cause| format!(", cause {cause}"));
    field(out, "reason", format!("{}, class {}{cause}", letter.reason, letter.class))?;
    field(out, "group", letter.fingerprint.to_string())?;
    let counts = format!(
        "{} attempts, {} deliveries, {} crashes, {} delayed retries",
        letter.attempts, letter.deliveries, letter.crashes, letter.delayed_retries
    );
    field(out, "counts", counts)?;
    field(
        out,
        "sent back",
        format!("{} times, {} of them by operators", state.retry_count, state.replays),
    )?;
    field(out, "died", format!("{}  ({} ago)", letter.died_at, age(letter.died_at)))?;
    field(out, "stored", format!("{}, changed {}", state.created_at, state.updated_at))?;
    if !state.edited_from.is_empty() {
        field(out, "edited", format!("{} times", state.edited_from.len()))?;
    }
    if !letter.confirmed {
        field(out, "confirmed", "no: the death was heard of, not seen".to_owned())?;
    }
    for (name, value) in &letter.attributes {
        field(out, "attribute", format!("{}={}", escape(name), escape(value)))?;
    }

    let message = &letter.message;
    out.line("\nmessage")?;
    field(out, "subject", escape(message.subject()))?;
    field(out, "origin", escape(&letter.origin.to_string()))?;
    if let Some(id) = message.id() {
        field(out, "id", escape(id))?;
    }
    if let Some(event) = message.event() {
        field(out, "event", escape(event))?;
    }
    if let Some(key) = message.key() {
        field(out, "key", bytes(key, false))?;
    }
    if let Some(at) = message.published_at() {
        field(out, "published", at.to_string())?;
    }
    for header in message.headers() {
        let value =
            header.value.as_ref().map_or_else(|| "(none)".to_owned(), |value| bytes(value, false));
        field(out, "header", format!("{}: {value}", bytes(&header.name, false)))?;
    }
    match message.payload() {
        None => match no_message(letter) {
            None => field(out, "payload", "none (a tombstone)".to_owned())?,
            Some(why) => field(out, "payload", format!("not here: {}", escape(why)))?,
        },
        Some(payload) => {
            field(out, "payload", format!("{size} bytes"))?;
            match indented(payload) {
                Some(json) => {
                    // Each line is escaped for itself, since `escape` takes line breaks as well.
                    json.lines().map(escape).try_for_each(|line| payload_line(out, &line))?
                }
                None => {
                    bytes(payload, true).lines().try_for_each(|line| payload_line(out, line))?
                }
            }
        }
    }

    out.line(format_args!("\nattempts ({})", letter.history.len()))?;
    letter.history.attempts().iter().try_for_each(|attempt| print_attempt(out, attempt))?;
    if letter.history.omitted() > 0 {
        out.line(format_args!(
            "  ({} attempts from the middle were not kept)",
            letter.history.omitted()
        ))?;
    }
    Ok(())
}

fn print_attempt(out: &mut Output, attempt: &Attempt) -> Result<(), CliError> {
    let failure = &attempt.failure;
    out.line(format_args!(
        "  {}.{}  {}  {} {} after {}",
        attempt.generation,
        attempt.number,
        failure.at,
        failure.class,
        failure.cause,
        duration::format(failure.duration),
    ))?;
    out.line(format_args!("       {}", escape(&failure.error_type)))?;
    failure
        .messages
        .iter()
        .try_for_each(|message| out.line(format_args!("       {}", escape(message))))?;
    if let Some(location) = &failure.location {
        out.line(format_args!("       at {}", escape(location)))?;
    }
    for line in failure.backtrace.iter().flat_map(|text| text.lines()) {
        out.line(format_args!("       {}", escape(line)))?;
    }
    Ok(())
}

fn payload_line(out: &mut Output, line: &str) -> Result<(), CliError> {
    out.line(format_args!("    {line}"))
}

fn field(out: &mut Output, name: &str, value: String) -> Result<(), CliError> {
    out.line(format_args!("  {name:<10} {value}"))
}
