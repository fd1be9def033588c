//! Verbs at any broker. A folder for each broker has what differs.

mod console;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod deployment;
mod incidents;
mod ingest;
mod login;
mod mark;
mod read;
mod replay;

pub(crate) use console::ConsoleLog;
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(crate) use deployment::read_deployment;
pub(crate) use ingest::{IngestRun, Telling, store};
pub(crate) use login::percent_decode;
pub(crate) use mark::Mark;
pub(crate) use read::range;
#[cfg(feature = "kafka")]
pub(crate) use read::read_kept;
pub(crate) use read::{Read, read};
pub(crate) use replay::{
    Asked, Replaying, operation, per_second, refuse_held, refuse_what_stores_take,
};

use std::process::ExitCode;

use dlq_core::store::BoxLetters;

use crate::cli::Command;
use crate::commands::{self, Context};
use crate::error::CliError;
use crate::output::Output;

/// Returns true if a verb changes letters in ways that only a store can.
pub(crate) fn changes(command: &Command) -> bool {
    matches!(
        command,
        Command::Op { .. }
            | Command::Audit(_)
            | Command::Mark(_)
            | Command::Delete(_)
            | Command::Restore(_)
            | Command::Edit(_)
            | Command::Cleanup(_)
            | Command::Import(_)
    )
}

/// True of a verb that shows no more of letters than their headers say.
#[cfg(feature = "nats")]
pub(crate) fn needs_headers_only(command: &Command) -> bool {
    matches!(
        command,
        Command::List(_)
            | Command::Count(_)
            | Command::Groups(_)
            | Command::Stats(_)
            | Command::Peek(_)
    )
}

/// Numbers of messages and bytes from which on a reading of all of them says beforehand what it costs.
// At this many a reading takes seconds rather than moments.
const MANY: u64 = 100_000;
const MUCH: u64 = 64 * 1024 * 1024;

/// Says what it costs to read all that a broker has, where that is much, and what to type instead. `bytes` is `None` where
/// payloads are not read, or nobody knows.
pub(crate) fn say_cost(shown: &str, messages: u64, bytes: Option<u64>) {
    if let Some(cost) = cost(shown, messages, bytes) {
        say!("{cost}");
    }
}

fn cost(shown: &str, messages: u64, bytes: Option<u64>) -> Option<String> {
    if messages < MANY && bytes.is_none_or(|bytes| bytes < MUCH) {
        return None;
    }
    let size = bytes.map_or_else(String::new, |bytes| format!(", {} MiB", bytes / 1024 / 1024));
    Some(format!(
        "all {messages} messages of {shown} are read for this{size}; with --since 1h only what was written since, and \
         `dlq ingest --from {shown} --into sqlite://dlq.db` keeps letters where they need not be read again"
    ))
}

/// The verbs that only look.
pub(crate) async fn look(
    letters: BoxLetters,
    out: Output,
    shown: &str,
    command: Command,
) -> Result<ExitCode, CliError> {
    // Verbs that only look connect to no further broker.
    let at = crate::cli::BrokerArgs::default();
    let mut context = Context { letters, out, target: shown.to_owned(), at };
    let exit = commands::look(&mut context, command).await?;
    context.out.flush()?;
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_much_is_said_with_what_to_type_instead() {
        assert_eq!(cost("nats://h/DLQ", MANY - 1, Some(MUCH - 1)), None);
        assert_eq!(cost("kafka://h/orders.dlq", MANY - 1, None), None);
        let said = cost("kafka://h/orders.dlq", MANY, None).unwrap();
        assert!(said.contains("all 100000 messages") && !said.contains("MiB"), "{said}");
        let said = cost("nats://h/DLQ", 1, Some(MUCH)).unwrap();
        for part in ["64 MiB", "--since 1h", "dlq ingest --from nats://h/DLQ --into"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
