use clap::Args;
use dlq_core::Cursor;

use super::ConfirmArgs;
use crate::filter::When;

/// Letters that were deleted.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The ids, or the first digits of them
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Deleted at or after: a time (2026-11-21T03:00:00Z) or an age (1h)
    #[arg(long, value_name = "TIME|AGE")]
    pub(crate) since: Option<When>,
    /// Deleted before: a time or an age
    #[arg(long, value_name = "TIME|AGE")]
    pub(crate) until: Option<When>,
    /// Deleted by this person or program: `ana` also means ana@ops-host
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Consumer that failed; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Vec<String>,
    /// Every letter that was deleted, when nothing else is given
    #[arg(long)]
    pub(crate) all: bool,
    /// List the letters that can be restored, the one deleted last first, and restore none
    #[arg(long)]
    pub(crate) list: bool,
    /// With --list, the maximum number; 0 for all
    #[arg(long, value_name = "N", default_value_t = 50, requires = "list")]
    pub(crate) limit: u64,
    /// With --list, continue where a page ended
    #[arg(long, requires = "list")]
    pub(crate) cursor: Option<Cursor>,
    #[command(flatten)]
    pub(crate) confirm: ConfirmArgs,
}
