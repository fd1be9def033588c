//! The arguments of what keeps a store and a deployment in order.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use dlq_core::policy::duration;

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use super::CheckAtBrokerArgs;
use super::ConfirmArgs;
use crate::filter::{Attribute, FilterArgs};

#[derive(Debug, Args)]
pub(crate) struct EditArgs {
    /// The id, or the first digits of it
    pub(crate) id: String,
    /// Replace the payload by what this file holds, byte for byte; - for standard input
    #[arg(long, value_name = "FILE|-", group = "new_payload")]
    pub(crate) payload: Option<PathBuf>,
    /// Replace the payload by this text
    #[arg(long, value_name = "TEXT", group = "new_payload")]
    pub(crate) payload_text: Option<String>,
    /// Take the payload away, which makes the message a tombstone
    #[arg(long, group = "new_payload")]
    pub(crate) no_payload: bool,
    /// Change the payload in $VISUAL or $EDITOR
    #[arg(long, group = "new_payload")]
    pub(crate) editor: bool,
    /// Undo the latest edit of the letter, as the audit keeps it. Undone again, it is made again
    #[arg(long, conflicts_with_all = ["new_payload", "header", "remove_header"])]
    pub(crate) undo: bool,
    /// Replace every header of this name by one; may be given several times
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) header: Vec<Attribute>,
    /// Remove every header of this name; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) remove_header: Vec<String>,
    /// Take a payload that is not JSON although the one before was
    #[arg(long)]
    pub(crate) allow_invalid: bool,
    #[command(flatten)]
    pub(crate) confirm: ConfirmArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CleanupArgs {
    /// Only letters that were last changed this long ago, e.g. 30d
    #[arg(long, value_name = "AGE", value_parser = duration::parse)]
    pub(crate) older_than: Duration,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Also letters that are not resolved; they are evidence
    #[arg(long)]
    pub(crate) include_unresolved: bool,
    /// With --include-unresolved, the number of letters beyond which nothing is deleted; 0 for no such number
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) max: u64,
    /// Number that is deleted in one step, so that others can work in between
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: u32,
    /// Time for which deleted letters can be restored; those that were deleted before leave the archive, whatever the filter
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = duration::parse)]
    pub(crate) archived_for: Duration,
    #[command(flatten)]
    pub(crate) confirm: ConfirmArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Write to this file instead of standard output; it must not exist
    #[arg(long, visible_alias = "file", value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,
    /// Go on at the end of a file that an export with the same filter began; cuts a torn last line
    #[arg(long, requires = "to")]
    pub(crate) resume: bool,
    /// Write what rules of the configuration file mask too, as a backup needs. See `dlq context --help`
    #[arg(long)]
    pub(crate) unmasked: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Output of `dlq export`; - for standard input
    #[arg(value_name = "FILE|-")]
    #[cfg_attr(
        any(feature = "mongo", feature = "postgres", feature = "redis"),
        arg(required_unless_present = "foreign")
    )]
    #[cfg_attr(
        not(any(feature = "mongo", feature = "postgres", feature = "redis")),
        arg(required = true)
    )]
    pub(crate) file: Option<PathBuf>,
    #[cfg(any(feature = "mongo", feature = "postgres"))]
    #[command(flatten)]
    pub(crate) table: super::TableArgs,
    #[cfg(any(feature = "mongo", feature = "postgres", feature = "redis"))]
    #[command(flatten)]
    pub(crate) foreign: super::ForeignArgs,
    /// Number of letters that are written at once
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: u32,
    /// Create the store where it is missing
    #[arg(long)]
    pub(crate) create: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) at_store: CheckAtStoreArgs,
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    #[command(flatten)]
    pub(crate) at_broker: CheckAtBrokerArgs,
}

/// Options of a check of a store only.
#[derive(Debug, Args)]
#[command(next_help_heading = "Check of a store")]
pub(crate) struct CheckAtStoreArgs {
    /// Time for which a letter may wait for somebody to claim it
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration::parse)]
    pub(crate) overdue: Duration,
    /// Age that an unresolved letter may reach
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = duration::parse)]
    pub(crate) older_than: Duration,
    /// For how long an operation may release nothing
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration::parse)]
    pub(crate) idle: Duration,
    /// Number of rows that the processing audit may have
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    pub(crate) audit_rows: u64,
    /// Difference that clocks may have
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
    /// Collapse the letters of each original message into one, and keep it so from now on: the newest stays, with the
    /// counts of all
    #[arg(long, conflicts_with_all = ["check", "apply"])]
    pub(crate) deduplicate: bool,
    /// Also when more than half of all letters would go
    #[arg(long, requires = "deduplicate")]
    pub(crate) force: bool,
    /// Do not ask
    #[arg(short, long)]
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
