//! Verbs, a file for each.

mod audit;
mod check;
mod cleanup;
mod consumers;
mod context;
mod count;
mod delete;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
mod dispatch;
mod edit;
mod export;
#[cfg(any(feature = "mongo", feature = "postgres"))]
mod foreign;
mod group;
mod groups;
mod import;
#[cfg(any(feature = "mongo", feature = "postgres", feature = "redis"))]
mod import_foreign;
#[cfg(any(feature = "mongo", feature = "postgres"))]
mod import_table;
mod list;
mod mark;
mod migrate;
mod op;
mod peek;
mod quiet;
mod replay;
mod restore;
mod show;
mod stats;

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(crate) use check::show_findings;
#[cfg(any(feature = "mongo", feature = "postgres", feature = "redis"))]
pub(crate) use import_foreign::{Imported, again};
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(crate) use list::{more, short, table};

use std::process::ExitCode;

use clap::CommandFactory as _;
use dlq_core::DeadLetters;
use dlq_core::store::BoxLetters;

use crate::cli::{Cli, Command};
use crate::error::CliError;
use crate::open::{self, StoreOrBroker};
use crate::output::{Output, Progress};
use crate::{contexts, secret};

/// Context of the verbs that look.
pub(crate) struct Context {
    pub(crate) letters: BoxLetters,
    pub(crate) out: Output,
    /// The URL, fit to be shown.
    pub(crate) target: String,
    /// Settings by which brokers are reached.
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    pub(crate) at: crate::cli::BrokerArgs,
}

/// Returns the limit to ask a store for, where 0 stands for all: the most that every store can count to.
fn at_most(limit: u32) -> u32 {
    if limit == 0 { i32::MAX.unsigned_abs() } else { limit }
}

/// Exit code 3: some items failed or were skipped.
pub(crate) const PARTIAL: u8 = 3;

/// Opens what is asked for and runs the verb.
pub(crate) async fn run(mut cli: Cli) -> Result<ExitCode, CliError> {
    if cli.quiet {
        Progress::be_quiet();
    }
    let mut out = Output::new(cli.output, cli.wide);
    if cli.command.is_paged() && !cli.no_pager {
        out = out.paged();
    }
    // These verbs need no store, so the command that prints a context's password does not run for them.
    match cli.command {
        Command::Completions { shell } => return completions(&mut out, shell),
        Command::Man { folder } => return manual(&folder),
        Command::Context { command } => return context::run(&mut out, cli.context, command),
        _ => {}
    }
    if !cli.command.is_unmasked() {
        // Rules are read before the URL takes the place of the name of a context, whose rules hold as well.
        out = out.mask(contexts::mask(&cli)?);
    }
    // The URL takes the place of the name, and its password is kept from being printed before anything is opened by it.
    cli.from = contexts::resolve(&cli).await?;
    // The destination may be a context too, whose password must not be printed either.
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    if let Command::Ingest(args) = &mut cli.command {
        args.into = contexts::url(&args.into).await?;
        secret::keep(&args.into);
    }
    #[cfg(feature = "nats")]
    if let Command::Route(args) = &mut cli.command
        && let Some(into) = &mut args.into
    {
        *into = contexts::url(into).await?;
        secret::keep(into);
    }
    match cli.command {
        Command::Migrate(args) => return migrate::run(open::url(&cli.from)?, out, args).await,
        // It waits for a store that does not answer yet.
        Command::Serve(mut args) => {
            args.mask = out.rules().clone();
            let url = open::url(&cli.from)?;
            #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
            return crate::serve::run(url, &cli.broker, args).await;
            #[cfg(not(any(feature = "kafka", feature = "nats", feature = "redis")))]
            return crate::serve::run(url, args).await;
        }
        _ => {}
    }
    let place = open::open(&cli).await?;
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    let Cli { from, command, broker: at, .. } = cli;
    #[cfg(not(any(feature = "kafka", feature = "nats", feature = "redis")))]
    let Cli { from, command, .. } = cli;
    let target = secret::without_password(from.as_deref().unwrap_or_default());
    match place {
        StoreOrBroker::Store(store) => {
            let letters = BoxLetters::new(store.store().clone());
            let context = Context {
                letters,
                out,
                target,
                #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
                at,
            };
            at_store(store, from.as_deref(), context, command).await
        }
        #[cfg(feature = "kafka")]
        StoreOrBroker::Kafka(broker) => crate::kafka::run(&broker, out, command).await,
        #[cfg(feature = "nats")]
        StoreOrBroker::Nats(broker) => crate::nats::run(&broker, out, command).await,
        #[cfg(feature = "redis")]
        StoreOrBroker::Redis(broker) => crate::redis::run(&broker, out, command).await,
    }
}

async fn at_store(
    store: DeadLetters,
    from: Option<&str>,
    mut context: Context,
    command: Command,
) -> Result<ExitCode, CliError> {
    let exit = match command {
        Command::Replay(args) => replay::run(&mut context, &store, *args).await,
        Command::Op { command } => op::run(&mut context, &store, command).await,
        Command::Audit(args) => audit::run(&mut context, &store, args).await,
        Command::Groups(args) => groups::triaged(&mut context, &store, args).await,
        Command::Group { command } => group::run(&mut context, &store, command).await,
        Command::Consumers(args) => consumers::run(&mut context, &store, args).await,
        Command::Mark(args) => mark::run(&mut context, &store, args).await,
        Command::Delete(args) => delete::run(&mut context, &store, args).await,
        Command::Restore(args) => restore::run(&mut context, &store, args).await,
        Command::Edit(args) => edit::run(&mut context, &store, args).await,
        Command::Cleanup(args) => cleanup::run(&mut context, &store, args).await,
        Command::Import(args) => import::run(&mut context, &store, from, args).await,
        Command::Check(args) => check::run(&mut context, &store, args).await,
        command => look(&mut context, command).await,
    }?;
    // An error of the last bytes is an error of the verb. `Drop` of the output would hide it.
    context.out.flush()?;
    Ok(exit)
}

/// The verbs that only look, which need no more than letters.
pub(crate) async fn look(context: &mut Context, command: Command) -> Result<ExitCode, CliError> {
    match command {
        Command::List(args) => list::run(context, args).await,
        Command::Count(args) => count::run(context, args.filter).await,
        Command::Show(args) => show::run(context, args).await,
        Command::Groups(args) => groups::run(context, args).await,
        Command::Stats(args) => stats::run(context, args).await,
        Command::Peek(args) => peek::run(context, args).await,
        Command::Export(args) => export::run(context, args).await,
        Command::Group { .. } | Command::Consumers(_) => Err(CliError::refused(format!(
            "a broker keeps nothing of groups and consumers; `dlq ingest` drains {} into a store, which does",
            context.target
        ))),
        other => Err(CliError::refused(format!(
            "`dlq {}` works at a broker, and {} is none; say --from nats://HOST/STREAM or kafka://HOST:PORT/TOPIC",
            other.name(),
            context.target
        ))),
    }
}

fn completions(out: &mut Output, shell: clap_complete::Shell) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    // It writes into memory, since it would panic where standard output is closed.
    clap_complete::generate(shell, &mut Cli::command(), "dlq", &mut script);
    out.raw(&script)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn manual(folder: &std::path::Path) -> Result<ExitCode, CliError> {
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .map_err(|error| {
            CliError::failed(format!("cannot write manual pages to {}: {error}", folder.display()))
        })?;
    Ok(ExitCode::SUCCESS)
}
