//! The store of event-dlq in Redis, imported into another.

use std::process::ExitCode;

use dlq_core::DeadLetters;
use dlq_redis::foreign::event_dlq::EventDlq;

use super::broker::failed;
use super::url::RedisUrl;
use crate::cli::ForeignArgs;
use crate::commands::{Context, Imported, PARTIAL, again};
use crate::error::CliError;
use crate::output::Progress;
use crate::{ask, secret, signals};

/// The prefix of its keys, unless another was set.
const PREFIX: &str = "dlq:";

/// Imports the messages at a URL, whose key is the prefix of all.
///
/// Nothing is kept of how far it came: what is in the store already is known there by its identity, so that the same
/// command, whatever it was ended by, is given again and writes the rest.
pub(crate) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    url: &str,
    args: ForeignArgs,
) -> Result<ExitCode, CliError> {
    // The URL is not the one of --from, whose password is kept already.
    secret::keep(url);
    let shown = secret::without_password(url);
    let mut messages = open(url, &shown, &args).await?;
    // A dry run opens and counts as well: an address or a prefix that is wrong is found by it.
    let count = messages.count().await.map_err(|error| failed(error, &shown))?;
    say!("{count} messages of event-dlq at {shown}");
    if args.consumer.is_none() {
        say!(
            "no message says whose deaths these are; they get the prefix's name, or say --consumer NAME"
        );
    }
    if args.dry_run {
        say!("dry run: nothing was imported");
        return Ok(ExitCode::SUCCESS);
    }
    let bar = Progress::of(count, "messages");
    let by = ask::actor(Some(&format!("import of the store of event-dlq at {shown}")));
    let mut imported = Imported::of("messages");
    let is_cut_short = signals::until_asked(async |mut stop| {
        loop {
            // The signal is heeded between two pages only: a restore that has begun is waited for.
            let page = tokio::select! {
                biased;
                () = &mut stop => return Ok(true),
                page = messages.next_page() => page,
            };
            let Some(page) = page.map_err(|error| again(failed(error, &shown)))? else {
                return Ok(false);
            };
            let messages = page.len() as u64;
            let letters = bar.aside(|| imported.sort_out(page));
            let receipts =
                store.restore(letters, by.clone()).await.map_err(|error| again(error.into()))?;
            imported.count(&receipts);
            bar.advance(messages);
        }
    });
    let is_cut_short = is_cut_short.await?;
    bar.end();
    imported.show(context)?;
    if is_cut_short {
        say!("ended before all {count} messages were read; the same command imports the rest");
    }
    let is_partial = is_cut_short || imported.has_bad();
    Ok(if is_partial { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS })
}

async fn open(url: &str, shown: &str, args: &ForeignArgs) -> Result<EventDlq, CliError> {
    let Some((scheme @ ("redis" | "rediss"), rest)) = url.split_once("://") else {
        return Err(CliError::refused(format!(
            "cannot read {shown}: it is no URL of Redis; write redis://HOST:PORT/PREFIX, e.g. redis://localhost:6379/dlq:"
        )));
    };
    let url = RedisUrl::parse(scheme, rest)?;
    let client = url.connect().await.map_err(|error| error.about(shown))?;
    let prefix = if url.key.is_empty() { PREFIX } else { &url.key };
    let messages = EventDlq::open(&client, prefix).await.map_err(|error| failed(error, shown))?;
    let mut messages = messages.class(args.class);
    if let Some(consumer) = &args.consumer {
        messages = messages.consumer(consumer);
    }
    if let Some(service) = &args.service {
        messages = messages.service(service);
    }
    Ok(messages)
}
