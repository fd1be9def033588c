use std::process::ExitCode;

use dlq_admin::shown::consumer_names;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use dlq_core::outbox::Outboxes;
use dlq_core::store::{
    ItemOutcome, Letters as _, Operation, OperationSpec, OperationState, Plan, Selection, Target,
};
use dlq_core::{DeadLetters, Filter, Status};

use super::{Context, PARTIAL, list, op};
use crate::ask;
use crate::cli::ReplayArgs;
use crate::error::CliError;
use crate::filter::{must_exist, until_now};
use crate::output::escape;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use crate::via;

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    args: ReplayArgs,
) -> Result<ExitCode, CliError> {
    // Brokers are connected to before anything is asked of the store, so that a wrong --via ends the command early.
    let to_broker = to_broker(context, &args).await?;
    let filter = args.filter.resolve(&context.letters).await?;
    // The selection is made to be refused: an empty filter needs --all.
    if !args.change.all {
        let _ = Selection::matching(filter.clone())?;
    }
    must_exist(&context.letters, &context.target, &filter).await?;
    // What comes while the operator looks and thinks is not what they agree to.
    let filter = until_now(context, filter).await?;
    let mut spec = OperationSpec::replay(filter).max_replays(args.max_replays);
    if let Some(limit) = args.limit {
        spec = spec.limit(limit);
    }
    if let Some(pace) = args.rate {
        spec = spec.pace(pace);
    }
    if let Some(canary) = args.canary {
        spec = spec.canary(canary);
    }
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    if let Some(outboxes) = &to_broker {
        spec = spec.target(via::target(&args.to), via::clusters(outboxes));
        if let Some(wait) = args.canary_wait {
            spec = spec.canary_wait(wait);
        }
        via::survey(store, outboxes, &spec).await?;
    }
    let plan = store.plan(spec.clone()).await?;
    // It is only said, and refuses nothing: a consumer may start later, and one of an earlier version does not report.
    let unattended = store.unattended_by(&spec).await?;
    if args.change.dry_run {
        return show_plan(context, &plan, &spec, &unattended);
    }
    explain(&plan, &spec, "will be");
    tell_unattended(&unattended);
    if plan.count == 0 {
        say!("nothing to replay");
        // A mistyped consumer matches nothing, which would look like a queue that is empty.
        let is_unknown = tell_unknown(context, &spec.filter).await?;
        if !context.out.is_table() {
            context.out.document(&serde_json::json!({ "id": null, "plan": plan }))?;
        }
        return Ok(if is_unknown { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS });
    }
    ask::confirm(&args.change, "replay", plan.count)?;
    // From here on the operation is in the store, where it outlives this process.
    let mut operation = store.replay(spec, ask::actor(args.change.note.as_deref())).await?;
    let (id, total) = (list::short(&operation.id), operation.progress.total);
    if to_broker.is_some() {
        say!("operation {id} has {total} letters, which this process sends");
    } else {
        say!(
            "operation {id} has {total} letters; consumers that run on this store take them, now or when they start"
        );
    }
    // The plan and the start are two steps, between which others may take letters.
    let taken = plan.count.saturating_sub(operation.progress.total);
    if taken > 0 {
        say!(
            "{taken} of those that matched were taken or changed meanwhile; who has them: dlq op list"
        );
    }
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    if let Some(outboxes) = to_broker {
        return super::dispatch::run(context, store, (outboxes, args.via.send_lease), &operation)
            .await;
    }
    if args.wait {
        operation = op::watch(store, operation.id).await?;
    } else {
        say!("follow it: dlq op watch {}", operation.id);
    }
    if context.out.is_table() {
        context.out.line(operation.id)?;
    } else {
        context.out.document(&operation)?;
    }
    Ok(exit_code(&operation, args.wait))
}

/// 3 when letters were skipped or failed again, or the operation stopped before its end; or goes on, where that was waited for.
pub(super) fn exit_code(operation: &Operation, is_waited_for: bool) -> ExitCode {
    let progress = &operation.progress;
    let failed = progress.with_outcome(ItemOutcome::Skipped)
        + progress.with_outcome(ItemOutcome::FailedAgain);
    let has_stopped =
        matches!(operation.state, OperationState::Stopped | OperationState::Cancelled);
    if failed > 0 || has_stopped || (is_waited_for && !operation.state.is_final()) {
        ExitCode::from(PARTIAL)
    } else {
        ExitCode::SUCCESS
    }
}

/// The brokers that letters are sent to; `None` where they go to their handlers.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
async fn to_broker(context: &Context, args: &ReplayArgs) -> Result<Option<Outboxes>, CliError> {
    if via::target(&args.to).is_handler() {
        // In the environment it is for other replays; who types it wants it to be used.
        if args.via.is_typed {
            return Err(CliError::refused(
                "`--via` says which broker letters are sent to, and `--to handler` sends them to none: the consumer that \
                 failed takes them from the store; leave `--via` out, or say where they go: --to origin, or --to \
                 SUBJECT",
            ));
        }
        return Ok(None);
    }
    let brokers = via::brokers(&args.via).await?;
    if brokers.is_empty() {
        return Err(CliError::refused(format!(
            "`--to {}` sends letters to a broker, and {} is a store; say which with --via, e.g. --via nats://HOST:4222, \
             --via kafka://HOST:9092 or --via redis://HOST:6379, or below [clusters] of the configuration file",
            args.to, context.target
        )));
    }
    let via = args.via.clone();
    #[cfg(feature = "nats")]
    let via = crate::cli::ViaArgs {
        via_key_header: via.via_key_header.or_else(|| args.at_broker.key_header.clone()),
        ..via
    };
    via::outboxes(&brokers, &via, &context.at).await.map(Some)
}

#[cfg(not(any(feature = "kafka", feature = "nats", feature = "redis")))]
async fn to_broker(
    context: &Context,
    args: &ReplayArgs,
) -> Result<Option<std::convert::Infallible>, CliError> {
    if args.to == "handler" {
        return Ok(None);
    }
    Err(CliError::refused(format!(
        "`--to {}` sends letters to a broker, and this build of dlq has none; replay to the handler instead: only the \
         consumer that failed sees the letters of {}",
        args.to, context.target
    )))
}

fn show_plan(
    context: &mut Context,
    plan: &Plan,
    spec: &OperationSpec,
    unattended: &[String],
) -> Result<ExitCode, CliError> {
    explain(plan, spec, "would be");
    tell_unattended(unattended);
    if context.out.is_table() {
        if !plan.sample.is_empty() {
            context.out.table(&list::table(&plan.sample))?;
            list::more(plan.count, &plan.sample);
        }
        say!("dry run: nothing was changed");
    } else {
        let document = serde_json::json!({ "plan": plan, "unattended": unattended });
        context.out.document(&document)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says which consumers of the filter have no letter at all, and which others have. Returns whether there are such.
async fn tell_unknown(context: &Context, filter: &Filter) -> Result<bool, CliError> {
    let mut is_unknown = false;
    for consumer in &filter.consumers {
        if context.letters.count(Filter::new().with_consumer(consumer.clone())).await? > 0 {
            continue;
        }
        is_unknown = true;
        let stats = context.letters.stats(Filter::new()).await?;
        let others: Vec<_> =
            stats.by_consumer.keys().take(10).map(|name| format!("`{}`", escape(name))).collect();
        let others = match others.as_slice() {
            [] => "there is no letter at all".to_owned(),
            others => format!("there are letters of {}", others.join(", ")),
        };
        say!("no letter is of the consumer `{}`; {others}", escape(consumer));
    }
    Ok(is_unknown)
}

/// Says which consumers letters would wait for.
fn tell_unattended(consumers: &[String]) {
    if !consumers.is_empty() {
        say!(
            "no consumer reported that it runs {}; letters wait until one of that name runs on this store (one of an earlier \
             version does not report); who is there: dlq consumers",
            consumer_names(consumers)
        );
    }
}

fn explain(plan: &Plan, spec: &OperationSpec, verb: &str) {
    let to = match &spec.target {
        Target::Handler => "back to their handlers".to_owned(),
        Target::Origin => "back to where they came from".to_owned(),
        other => format!("to `{}`", escape(&other.to_string())),
    };
    say!("{} letters {verb} sent {to}", plan.count);
    if plan.past_cap > 0 {
        say!("{} of them were replayed too often and {verb} quarantined instead", plan.past_cap);
    }
    for (status, count) in &plan.ineligible {
        match status {
            Status::Pending => {
                say!("{count} more match and are held by another operation: dlq op list");
            }
            Status::Sent => say!(
                "{count} more match but are sent and stay as they are; to send them once more: dlq mark pending --status sent"
            ),
            _ => say!("{count} more match but are {status} and stay as they are"),
        }
    }
}
