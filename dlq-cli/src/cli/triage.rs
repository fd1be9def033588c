use std::time::Duration;

use clap::{Args, Subcommand};
use dlq_core::Fingerprint;
use dlq_core::policy::duration;

/// A group of errors, and the reason.
#[derive(Debug, Args)]
pub(crate) struct GroupArgs {
    /// The group, as `dlq groups` shows it
    pub(crate) group: Fingerprint,
    /// Its consumer, where several have such a group
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Reason; kept in the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// Show what is known of a group
    Show(GroupArgs),
    /// Say that somebody knows of it: it is no longer new
    #[command(visible_alias = "ack")]
    Acknowledge(GroupArgs),
    /// Leave it out of `dlq groups` for a while
    Snooze {
        #[command(flatten)]
        group: GroupArgs,
        /// Time for which it is left out, e.g. 2h or 7d
        #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
        time: Duration,
    },
    /// Say that its cause is mended: it comes back when another message dies of it. Its letters stay as they are
    Resolve(GroupArgs),
    /// Take the decision back: it is new again
    Reopen(GroupArgs),
    /// Say who cares for it
    Assign {
        #[command(flatten)]
        group: GroupArgs,
        /// A person or a team; an empty text for nobody
        owner: String,
    },
    /// Leave a note for those who look at it next
    Note {
        #[command(flatten)]
        group: GroupArgs,
        /// The note; an empty text takes it away
        text: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ConsumersArgs {
    /// Only those that are gone: nothing was heard of them for a minute
    #[arg(long)]
    pub(crate) gone: bool,
}
