//! The arguments. The doc comments are the help.

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
mod broker;
mod examples;
#[cfg(any(feature = "mongo", feature = "postgres", feature = "redis"))]
mod import_foreign;
#[cfg(any(feature = "mongo", feature = "postgres"))]
mod import_table;
mod maintenance;
mod restore;
mod serve;
mod triage;

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(crate) use broker::{
    BrokerArgs, CheckAtBrokerArgs, IngestArgs, ReplayAtBrokerArgs, ServeAtBrokerArgs,
};
#[cfg(feature = "nats")]
pub(crate) use broker::{ConsumerName, RouteArgs};
#[cfg(feature = "kafka")]
pub(crate) use broker::{LadderArgs, Setting};
pub(crate) use maintenance::{
    CheckArgs, CleanupArgs, ContextCommand, EditArgs, ExportArgs, ImportArgs, MigrateArgs,
};
pub(crate) use restore::RestoreArgs;
pub(crate) use serve::{GroupAlertArgs, ServeArgs};
pub(crate) use triage::{ConsumersArgs, GroupArgs, GroupCommand};

#[cfg(any(feature = "mongo", feature = "postgres", feature = "redis"))]
pub(crate) use import_foreign::ForeignArgs;
#[cfg(any(feature = "mongo", feature = "postgres"))]
pub(crate) use import_table::TableArgs;
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use dlq_core::Cursor;
use dlq_core::store::{GroupState, Mark, Pace};

use crate::error::CliError;
use crate::filter::{FilterArgs, When};
use crate::output::{SortBy, Table};

/// Look at dead letters, group them, send them back.
///
/// Data goes to standard output, talk to standard error.
/// Exit codes: 0 ok, 1 error, 2 usage or refused, 3 some items failed or were skipped.
#[derive(Debug, Parser)]
#[command(name = "dlq", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// Location of the dead letters: sqlite://dlq.db, postgres://[USER:PASSWORD@]HOST[:PORT]/DATABASE[?schema=NAME],
    /// mongodb://[USER:PASSWORD@]HOST[:PORT][/DATABASE][?prefix=NAME],
    /// redis-store://[USER:PASSWORD@]HOST[:PORT][?prefix=NAME], nats://[USER:PASSWORD@]HOST[:PORT]/STREAM,
    /// redis://[USER:PASSWORD@]HOST[:PORT]/[DATABASE/]KEY, or kafka://[USER:PASSWORD@]HOST[:PORT][,HOST…]/TOPIC, or the
    /// name of a context. Others on this machine see the arguments of a process: a password is better off in a context,
    /// or in the environment
    #[arg(long, value_name = "URL|NAME", env = "DLQ_FROM", hide_env_values = true, global = true)]
    pub(crate) from: Option<String>,

    /// The context of the configuration file that says where, unless --from does. Defaults to the file's `default`
    #[arg(long, value_name = "NAME", env = "DLQ_CONTEXT", global = true)]
    pub(crate) context: Option<String>,

    #[arg(skip)]
    pub(crate) typed: Typed,

    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    #[command(flatten)]
    pub(crate) broker: BrokerArgs,

    /// Format of the output
    #[arg(short, long, value_enum, default_value_t = Format::Table, global = true)]
    pub(crate) output: Format,

    /// Do not cut lines to the width of the terminal, nor leave columns out
    #[arg(long, visible_alias = "no-trunc", global = true)]
    pub(crate) wide: bool,

    /// Show no progress
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Do not show what is longer than the terminal in DLQ_PAGER, PAGER or less
    #[arg(long, global = true)]
    pub(crate) no_pager: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Arguments that were typed, rather than taken from the environment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Typed {
    pub(crate) from: bool,
    pub(crate) context: bool,
}

impl Cli {
    /// Reads the arguments, the program's name first.
    pub(crate) fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(args)?;
        // clap fills options from the environment as well; only their source tells what was typed.
        let is_typed = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        let typed = Typed { from: is_typed("from"), context: is_typed("context") };
        let cli = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
        let cli = {
            let mut cli = cli;
            if let (Command::Replay(args), Some((_, of_verb))) =
                (&mut cli.command, matches.subcommand())
            {
                args.via.is_typed = of_verb.value_source("via") == Some(ValueSource::CommandLine);
            }
            cli
        };
        Ok(Self { typed, ..cli })
    }
}

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
impl Command {
    /// The filter of the letters that it is about.
    pub(crate) fn filter(&mut self) -> Option<&mut FilterArgs> {
        match self {
            Self::List(args) => Some(&mut args.filter),
            Self::Count(args) => Some(&mut args.filter),
            Self::Groups(args) => Some(&mut args.filter),
            Self::Stats(args) => Some(&mut args.filter),
            Self::Peek(args) => Some(&mut args.filter),
            Self::Replay(args) => Some(&mut args.filter),
            Self::Mark(args) => Some(&mut args.filter),
            Self::Delete(args) => Some(&mut args.filter),
            Self::Cleanup(args) => Some(&mut args.filter),
            Self::Export(args) => Some(&mut args.filter),
            _ => None,
        }
    }
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// A single JSON document
    Json,
    /// A JSON document per line
    Jsonl,
}

/// Text about the configuration file.
const CONTEXTS: &str = "\
The file is DLQ_CONFIG, or ~/.config/dlq/config.toml:

    default = \"prod\"

    [contexts.prod]
    from = \"nats://ops@nats.internal/DLQ\"   # ${NAME} is a variable of the environment
    password_command = \"pass show nats/ops\" # or password_file = \"~/.nats-password\"
    mask = [\"$.card.number\", \"$..email\", \"headers.authorization\", \"key\"]

mask names parts of messages that show, export, audit, edit and the console of serve write as ***: values of payloads by JSON
path, headers, the key. At the top of the file it is about the letters of every place.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List letters, newest first
    #[command(after_help = examples::LIST)]
    List(ListArgs),
    /// Print how many letters match
    #[command(after_help = examples::COUNT)]
    Count(CountArgs),
    /// Show one letter with everything that was tried
    #[command(after_help = examples::SHOW)]
    Show(ShowArgs),
    /// Group letters by error: at a store new groups first, then those that grow, without those that are snoozed or resolved
    #[command(after_help = examples::GROUPS)]
    Groups(GroupsArgs),
    /// Decide about a group of errors: acknowledge it, snooze it, resolve it, give it an owner or a note
    #[command(after_help = examples::GROUP)]
    Group {
        #[command(subcommand)]
        command: GroupCommand,
    },
    /// Show the consumers of a store: where they run, what they read, when they were last heard of
    #[command(after_help = examples::CONSUMERS)]
    Consumers(ConsumersArgs),
    /// Count letters by status, reason, cause, class, subject and consumer
    #[command(after_help = examples::STATS)]
    Stats(StatsArgs),
    /// A histogram of reasons and the latest letters
    #[command(after_help = examples::PEEK)]
    Peek(PeekArgs),
    /// Send letters back
    #[command(after_help = examples::REPLAY)]
    Replay(Box<ReplayArgs>),
    /// Watch and steer operations on many letters
    #[command(after_help = examples::OP)]
    Op {
        #[command(subcommand)]
        command: OpCommand,
    },
    /// Show what was done to letters, by whom and why, newest first
    #[command(after_help = examples::AUDIT)]
    Audit(AuditArgs),
    /// Mark letters as quarantined, pending or resolved
    #[command(after_help = examples::MARK)]
    Mark(MarkArgs),
    /// Delete letters; they can be restored until a cleanup empties the archive, a week later
    #[command(after_help = examples::DELETE)]
    Delete(DeleteArgs),
    /// Restore letters that were deleted, or list them
    #[command(after_help = examples::RESTORE)]
    Restore(RestoreArgs),
    /// Change the payload or the headers of one letter
    #[command(after_help = examples::EDIT)]
    Edit(EditArgs),
    /// Delete letters that are resolved and old for good, and those that were deleted long ago
    #[command(after_help = examples::CLEANUP)]
    Cleanup(CleanupArgs),
    /// Write whole letters as JSON lines, byte for byte
    #[command(after_help = examples::EXPORT)]
    Export(ExportArgs),
    /// Write exported letters into a store, with their state
    #[command(after_help = examples::IMPORT)]
    Import(ImportArgs),
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    /// Drain the dead letters of a broker into a store
    #[command(after_help = examples::INGEST)]
    Ingest(IngestArgs),
    #[cfg(feature = "nats")]
    /// Write dead letters for consumers of NATS JetStream that give messages up themselves
    #[command(after_help = examples::ROUTE)]
    Route(RouteArgs),
    /// Look for what is wrong: at a broker for settings by which messages would be lost, at a store for letters that
    /// nobody takes, missing indexes and the like
    #[command(after_help = examples::CHECK)]
    Check(CheckArgs),
    /// Show what is to be done to the tables of a store for this program, or do it
    #[command(after_help = examples::MIGRATE)]
    Migrate(MigrateArgs),
    /// Show the named places of the configuration file, or choose one
    #[command(after_help = examples::CONTEXT, after_long_help = CONTEXTS)]
    Context {
        #[command(subcommand)]
        command: ContextCommand,
    },
    /// Print completions for a shell, e.g. `dlq completions bash > ~/.local/share/bash-completion/completions/dlq`
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one for each command, e.g. `dlq man ~/.local/share/man/man1`
    Man {
        /// The folder, which is created where it is missing
        folder: std::path::PathBuf,
    },
    /// Count the letters of a store or a broker for Prometheus (/metrics) and for probes (/health), until it is told to end
    #[command(after_help = examples::SERVE)]
    Serve(ServeArgs),
}

impl Command {
    /// True if it shows something and asks nothing, so that a pager may have the terminal.
    pub(crate) fn is_paged(&self) -> bool {
        match self {
            Self::List(_)
            | Self::Show(_)
            | Self::Groups(_)
            | Self::Group { command: GroupCommand::Show(_) }
            | Self::Consumers(_)
            | Self::Stats(_)
            | Self::Peek(_)
            | Self::Audit(_) => true,
            Self::Op { command } => {
                matches!(command, OpCommand::List { .. } | OpCommand::Show { .. })
            }
            _ => false,
        }
    }

    /// True if what rules mask is to be seen.
    pub(crate) fn is_unmasked(&self) -> bool {
        match self {
            Self::Show(args) => args.unmasked,
            Self::Export(args) => args.unmasked,
            Self::Audit(args) => args.unmasked,
            // Other verbs write no message.
            other => !matches!(other, Self::Edit(_) | Self::Serve(_)),
        }
    }

    /// As it is typed.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::List(_) => "list",
            Self::Count(_) => "count",
            Self::Show(_) => "show",
            Self::Groups(_) => "groups",
            Self::Group { .. } => "group",
            Self::Consumers(_) => "consumers",
            Self::Stats(_) => "stats",
            Self::Peek(_) => "peek",
            Self::Replay(_) => "replay",
            Self::Op { .. } => "op",
            Self::Audit(_) => "audit",
            Self::Mark(_) => "mark",
            Self::Delete(_) => "delete",
            Self::Restore(_) => "restore",
            Self::Edit(_) => "edit",
            Self::Cleanup(_) => "cleanup",
            Self::Export(_) => "export",
            Self::Import(_) => "import",
            #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
            Self::Ingest(_) => "ingest",
            #[cfg(feature = "nats")]
            Self::Route(_) => "route",
            Self::Check(_) => "check",
            Self::Migrate(_) => "migrate",
            Self::Context { .. } => "context",
            Self::Completions { .. } => "completions",
            Self::Man { .. } => "man",
            Self::Serve(_) => "serve",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Print only how many match
    #[arg(long)]
    pub(crate) count: bool,
    /// Maximum number; 0 for all
    #[arg(long, default_value_t = 50)]
    pub(crate) limit: u64,
    /// Continue where a page ended
    #[arg(long)]
    pub(crate) cursor: Option<Cursor>,
    /// Oldest first
    #[arg(long)]
    pub(crate) oldest_first: bool,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
}

/// Options of tables.
#[derive(Debug, Default, Args)]
pub(crate) struct ViewArgs {
    /// Columns to show, in this order, by the names of their headings in lower case; an unknown one lists all there are
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) columns: Vec<String>,
    /// Column to sort by, the smallest first, or with - in front the largest. Sorts what is listed
    #[arg(long, value_name = "[-]NAME", allow_hyphen_values = true)]
    pub(crate) sort: Option<SortBy>,
}

impl ViewArgs {
    /// Sorts what a table shows, and the table, and chooses its columns.
    pub(crate) fn apply<T>(
        &self,
        rows: &mut Vec<T>,
        format: Format,
        table: impl Fn(&[T]) -> Table,
    ) -> Result<Table, CliError> {
        if format != Format::Table && !self.columns.is_empty() {
            return Err(CliError::refused(
                "--columns is of tables, and JSON has every field; leave one of --columns and --output out",
            ));
        }
        if let Some(by) = &self.sort {
            // The table knows how each column is compared, so that JSON is sorted by making one of it, too.
            let order = table(rows).order(by)?;
            let mut taken: Vec<_> = std::mem::take(rows).into_iter().map(Some).collect();
            rows.extend(order.into_iter().filter_map(|at| taken[at].take()));
        }
        let mut table = table(if format == Format::Table { rows } else { &[] });
        if !self.columns.is_empty() {
            table.choose(&self.columns)?;
        }
        Ok(table)
    }
}

#[derive(Debug, Args)]
pub(crate) struct CountArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The id, or the first digits of it
    pub(crate) id: String,
    /// Write the payload alone, byte for byte
    #[arg(long)]
    pub(crate) payload: bool,
    /// Show what rules of the configuration file mask. See `dlq context --help`
    #[arg(long)]
    pub(crate) unmasked: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GroupsArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Maximum number of groups; 0 for all
    #[arg(long, default_value_t = 20)]
    pub(crate) limit: u32,
    /// At a store: only groups in these states: new, regressed, acknowledged, snoozed, resolved. Defaults to the first three
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    pub(crate) state: Vec<GroupState>,
    /// At a store: only groups whose first letter was stored at or after: a time or an age
    #[arg(long, value_name = "TIME|AGE")]
    pub(crate) began: Option<When>,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PeekArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Number of the latest letters
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

/// Options of every command that changes letters.
#[derive(Debug, Args)]
pub(crate) struct ConfirmArgs {
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Reason; kept in the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

/// Options of every command that changes the letters of a filter.
#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Reason; kept in the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Every letter, when no filter is given
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
    /// Destination: `handler` runs them in the consumer that failed, and nowhere else; `origin` sends them to where
    /// they came from, for everybody who listens there
    #[arg(long, default_value = "handler", value_name = "handler|origin|SUBJECT|TOPIC")]
    pub(crate) to: String,
    /// Maximum number, oldest first
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Maximum speed, e.g. 50/s
    #[arg(long)]
    pub(crate) rate: Option<Pace>,
    /// Send this many first; stop by itself when one of them fails again
    #[arg(long, value_name = "N")]
    pub(crate) canary: Option<u32>,
    /// Quarantine letters that were replayed this often, or leave them where they are at a broker; 0 for no cap
    #[arg(long, visible_alias = "cap", default_value_t = dlq_core::store::OperationSpec::MAX_REPLAYS)]
    pub(crate) max_replays: u32,
    /// Wait until every letter has an outcome
    #[arg(long)]
    pub(crate) wait: bool,
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    #[command(flatten)]
    pub(crate) via: ViaArgs,
    /// With --canary and --via: how long nothing may be heard of the last letter sent before the rest is sent. Defaults to 30s
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    #[arg(long, value_name = "TIME", value_parser = dlq_core::policy::duration::parse)]
    pub(crate) canary_wait: Option<std::time::Duration>,
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    #[command(flatten)]
    pub(crate) at_broker: ReplayAtBrokerArgs,
}

/// The brokers that letters of a store are sent to.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
#[derive(Clone, Debug, Args)]
pub(crate) struct ViaArgs {
    /// The broker that letters are sent to, e.g. nats://HOST:PORT, kafka://HOST:PORT or redis://HOST:PORT, with ALIAS= in front
    /// for a cluster that is not called default; once for each cluster. Defaults to all below [clusters] of the configuration file
    #[arg(
        long,
        value_name = "[ALIAS=]URL",
        env = "DLQ_VIA",
        hide_env_values = true,
        value_delimiter = ' '
    )]
    pub(crate) via: Vec<crate::via::Via>,
    /// True if --via of `dlq replay` was typed, rather than taken from the environment
    #[arg(skip)]
    pub(crate) is_typed: bool,
    /// At NATS: the header that carries the key of a message, as the consumer has it
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "NAME", env = "DLQ_KEY_HEADER")]
    pub(crate) via_key_header: Option<String>,
    /// Time after which another process takes over letters whose sender died; letters are sent for half of it
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = dlq_core::policy::duration::parse)]
    pub(crate) send_lease: std::time::Duration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OpCommand {
    /// List operations, newest first
    List {
        /// Maximum number; 0 for all
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// Show one operation and the outcome of each letter
    Show {
        /// The id of the operation, or the first digits of it
        id: String,
        /// Maximum number of letters, those that failed again or were skipped first; 0 for all. Defaults to 50 in a table, and
        /// to all of them in JSON
        #[arg(long)]
        limit: Option<u32>,
    },
    /// Wait until an operation has ended, with its progress
    Watch {
        /// The id of the operation, or the first digits of it
        id: String,
    },
    /// Send the letters of an operation to their brokers, until it has ended; begun by `dlq replay --to origin`
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    Send {
        /// The id of the operation, or the first digits of it
        id: String,
        #[command(flatten)]
        via: ViaArgs,
    },
    /// Send no more letters for now
    Pause(SteerArgs),
    /// Go on
    Resume(SteerArgs),
    /// Send no more letters, for good
    Cancel(SteerArgs),
    /// Send faster or slower from now on
    Rate {
        #[command(flatten)]
        steer: SteerArgs,
        /// Maximum speed, e.g. 50/s; `none` for no limit
        #[arg(value_parser = NewRate::parse)]
        rate: NewRate,
    },
}

/// Rate that an operation is to have; `None` for no limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRate(pub(crate) Option<Pace>);

impl NewRate {
    fn parse(text: &str) -> Result<Self, String> {
        Pace::or_none(text).map(Self).map_err(|error| format!("{error}, or `none` for no limit"))
    }
}

#[derive(Debug, Args)]
pub(crate) struct SteerArgs {
    /// The id of the operation, or the first digits of it
    pub(crate) id: String,
    /// Reason; kept in the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Only what names this letter, by its id or the first digits of it, and what was done with its present operation. What
    /// was done to all letters of a filter names none of them
    #[arg(long, value_name = "ID", conflicts_with = "op")]
    pub(crate) letter: Option<String>,
    /// Only what started or steered this operation: its id, or the first digits of it
    #[arg(long, value_name = "ID")]
    pub(crate) op: Option<String>,
    /// Only what this person or program did: ana, or ana@ops-host
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Only this: replay, pause, resume, cancel, rate, quarantine, release, resolve, edit, delete, cleanup, deduplicate, restore, triage
    #[arg(long, value_name = "ACTION")]
    pub(crate) action: Option<String>,
    /// At or after: a time (2026-11-21T03:00:00Z) or an age (1h)
    #[arg(long, value_name = "TIME|AGE")]
    pub(crate) since: Option<When>,
    /// Before: a time or an age
    #[arg(long, value_name = "TIME|AGE")]
    pub(crate) until: Option<When>,
    /// Show what edits changed
    #[arg(long)]
    pub(crate) diff: bool,
    /// Show what rules of the configuration file mask. See `dlq context --help`
    #[arg(long)]
    pub(crate) unmasked: bool,
    /// Maximum number; 0 for all
    #[arg(long, default_value_t = 50)]
    pub(crate) limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct MarkArgs {
    /// quarantined, pending or resolved
    pub(crate) mark: Mark,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// The number of letters beyond which nothing is deleted; 0 for no such number
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) max: u64,
    /// Keep no copy in the archive: what holds personal data is gone at once, and cannot be restored
    #[arg(long)]
    pub(crate) for_good: bool,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_arguments_fit_together() {
        super::Cli::command().debug_assert();
    }

    /// The words of a line; quotes keep some together.
    fn words(line: &str) -> Vec<String> {
        let parts = line.split('"').enumerate();
        let words = parts.flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
            _ => vec![part.to_owned()],
        });
        words.collect()
    }

    #[test]
    fn every_verb_has_examples_that_are_understood() {
        let command = super::Cli::command();
        for verb in command.get_subcommands() {
            if ["completions", "man", "help"].contains(&verb.get_name()) {
                continue;
            }
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<_> = help.lines().skip(1).collect();
            assert!(!lines.is_empty(), "{}", verb.get_name());
            for line in lines {
                // What it is for stands behind several blanks.
                let typed = words(line.trim().split("  ").next().unwrap_or_default());
                assert_eq!(typed[..2], ["dlq", verb.get_name()]);
                if let Err(error) = super::Cli::command().try_get_matches_from(typed) {
                    panic!("{line}: {error}");
                }
                assert!(line.len() <= 78, "{line}");
            }
        }
    }
}
