use std::process::ExitCode;

use dlq_core::DeadLetters;
use dlq_core::policy::duration;
use dlq_core::store::Presence;

use super::Context;
use crate::cli::ConsumersArgs;
use crate::error::CliError;
use crate::output::{Column, Table};

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    args: ConsumersArgs,
) -> Result<ExitCode, CliError> {
    let (mut present, now) = store.consumers().await?;
    present.retain(|it| !args.gone || !it.is_alive(now));
    if !context.out.is_table() {
        let document = |it: &Presence| {
            let mut document = serde_json::to_value(it)?;
            document["is_alive"] = it.is_alive(now).into();
            Ok::<_, CliError>(document)
        };
        let documents = present.iter().map(document).collect::<Result<Vec<_>, _>>()?;
        context.out.documents("consumers", &documents)?;
        return Ok(ExitCode::SUCCESS);
    }
    if present.is_empty() {
        say!(
            "no consumer of this store was heard of in the last {}",
            duration::format(Presence::KEPT)
        );
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[
        Column::text("CONSUMER", 0, 12),
        Column::state("STATE", 0),
        Column::whole("LAST SEEN", 1),
        Column::text("HOST", 2, 8),
        Column::text("BUILD", 3, 6),
        Column::whole("SINCE", 4),
        Column::text("READS", 0, 12),
    ]);
    // Ages by the store's clock, by which they were heard of.
    let age = |at: dlq_core::Timestamp| {
        duration::format(std::time::Duration::from_secs(now.since(at).as_secs()))
    };
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    for it in &present {
        table.row([
            it.heartbeat.consumer.clone(),
            (if it.is_alive(now) { "alive" } else { "gone" }).to_owned(),
            age(it.last_seen),
            or_none(&it.heartbeat.host),
            or_none(&it.heartbeat.build),
            age(it.since),
            it.heartbeat.reads.join(", "),
        ]);
    }
    context.out.table(&table)?;
    Ok(ExitCode::SUCCESS)
}
