//! Letters of a store's operation are sent to brokers by this process.

use std::process::ExitCode;
use std::time::Duration;

use dlq_core::outbox::{Dispatcher, Outboxes};
use dlq_core::store::{ItemOutcome, Operation, OperationState};
use dlq_core::{DeadLetters, OperationId};

use super::{Context, replay};
use crate::error::{CliError, chain};
use crate::output::{Progress, escape};
use crate::signals::until_asked;

/// Number of letters that are named one by one when they cannot be sent.
const SAID: usize = 20;

/// Sends the letters of an operation until it is over, or the process is asked to end.
pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    (outboxes, lease): (Outboxes, Duration),
    operation: &Operation,
) -> Result<ExitCode, CliError> {
    let id = operation.id;
    let dispatcher = Dispatcher::new(store.store().clone(), outboxes).lease(lease);
    // A process that sends an operation reaches all of its brokers, or it could not come to the end.
    if !dispatcher.serves(operation) {
        let wanted: Vec<_> = operation.spec.via.iter().map(ToString::to_string).collect();
        return Err(CliError::refused(format!(
            "operation {id} sends letters to {}; give a --via for each of them, ALIAS=URL where the alias is not default",
            wanted.join(", ")
        )));
    }
    let bar = Progress::of(operation.progress.total, "letters");
    let (mut said, mut told) = (0, None);
    let sent = until_asked(|stop| async {
        let done = dispatcher.run(id, stop, |step| {
            bar.set(step.operation.progress.done());
            bar.say(step.operation.state.to_string());
            for (letter, why) in &step.refused {
                said += 1;
                if said <= SAID {
                    let (letter, why) = (super::short(letter), escape(why));
                    bar.aside(|| say!("letter {letter} is not sent: {why}"));
                }
            }
            if let Some(error) = &step.error {
                let why = escape(&chain(error));
                bar.aside(|| say!("{why}; trying again"));
            }
            // The state is told once and not at every step.
            if told != Some(step.operation.state) {
                told = Some(step.operation.state);
                bar.aside(|| tell(step.operation.state, id));
            }
        });
        Ok(done.await?)
    })
    .await;
    bar.end();
    let sent = sent?;
    // Other processes may send letters of it as well, so the store says what was done.
    let operation = store.operation(id).await?;
    if sent.doubtful > 0 {
        say!(
            "{} letters may have been sent twice: a sender died while it sent them, and the broker cannot say",
            sent.doubtful
        );
    }
    let left = operation.progress.with_outcome(ItemOutcome::Queued)
        + operation.progress.with_outcome(ItemOutcome::Sending);
    if left > 0 && operation.state != OperationState::Cancelled {
        say!("{left} letters are not sent yet; to go on: dlq op send {id} with the same --via");
    }
    if context.out.is_table() {
        context.out.line(super::op::one_line(&operation))?;
    } else {
        context.out.document(&operation)?;
    }
    Ok(replay::exit_code(&operation, true))
}

fn tell(state: OperationState, id: OperationId) {
    match state {
        OperationState::Paused => say!("the operation is paused; to go on: dlq op resume {id}"),
        OperationState::Stopped => say!(
            "letters of the canary died again, and the rest is not sent; see why: dlq op show {id}; to go on: dlq op resume \
             {id}, to give it up: dlq op cancel {id}"
        ),
        _ => {}
    }
}
