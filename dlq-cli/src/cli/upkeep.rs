//! The arguments of what concerns a deployment: checks, migrations, contexts.

use std::time::Duration;

use clap::{Args, Subcommand};
use dlq_core::policy::duration;

#[cfg(any(feature = "kafka", feature = "nats"))]
use super::CheckAtBrokerArgs;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) at_store: CheckAtStoreArgs,
    #[cfg(any(feature = "kafka", feature = "nats"))]
    #[command(flatten)]
    pub(crate) at_broker: CheckAtBrokerArgs,
}

/// What only a check of a store takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Check of a store")]
pub(crate) struct CheckAtStoreArgs {
    /// How long a letter may wait for somebody to claim it
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration::parse)]
    pub(crate) overdue: Duration,
    /// How old an unresolved letter may be
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = duration::parse)]
    pub(crate) older_than: Duration,
    /// For how long an operation may release nothing
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration::parse)]
    pub(crate) idle: Duration,
    /// How many rows the processing audit may have
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    pub(crate) audit_rows: u64,
    /// How far clocks may differ
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration::parse)]
    pub(crate) skew: Duration,
    /// Look for damage too, which reads everything that is stored
    #[arg(long)]
    pub(crate) deep: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// End with exit code 3 when something is to be done
    #[arg(long, conflicts_with = "apply")]
    pub(crate) check: bool,
    /// Do it
    #[arg(long)]
    pub(crate) apply: bool,
    /// Do not ask
    #[arg(short, long, requires = "apply")]
    pub(crate) yes: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List the contexts
    List,
    /// Show a context, by default the one that is meant
    Show {
        /// The name
        name: Option<String>,
    },
    /// Make a context the default one
    Use {
        /// The name
        name: String,
    },
}
