use std::time::Duration;

use clap::Args;
use dlq_core::policy::duration;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on, as HOST:PORT; a port alone means 127.0.0.1. Nobody is asked for a login, but for the console
    #[arg(
        long,
        value_name = "ADDR",
        default_value = "127.0.0.1:9400",
        default_missing_value = "127.0.0.1:9400",
        num_args = 0..=1
    )]
    pub(crate) metrics: String,
    /// Also serve the console, and its HTTP interface below /api/v1, at the same address. Without tokens everybody who reaches it
    /// may do everything, so that only a loopback address is served. Letters of a broker can be read there, and not changed
    #[arg(long)]
    pub(crate) console: bool,
    /// With --console: also show the store or broker of this context, under its name; may be given several times
    #[arg(long, value_name = "CONTEXT", requires = "console")]
    pub(crate) also: Vec<String>,
    /// With --console: the file of the tokens that people and programs log in with, a line for each: NAME
    /// read|operate|admin TOKEN. Defaults to [console.tokens] of the configuration file
    #[arg(long, value_name = "FILE", requires = "console")]
    pub(crate) token_file: Option<std::path::PathBuf>,
    /// Parts of messages that the console masks, as the configuration file says
    #[arg(skip)]
    pub(crate) mask: dlq_admin::mask::Mask,
    /// Interval at which the store or broker is read, at least 100ms. Requests are answered from the last reading
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = duration::parse)]
    pub(crate) every: Duration,
    /// Report `degraded` from this many unresolved letters on (pending, held or quarantined)
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) max_backlog: u64,
    /// Report `degraded` once the oldest unresolved letter is this old. Set it to the time within which letters have to be
    /// dealt with, at most to the time for which they are kept
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = duration::parse)]
    pub(crate) max_age: Duration,
    /// At a store: time after which a letter that no consumer has claimed counts as overdue
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration::parse)]
    pub(crate) overdue: Duration,
    /// At a store: number of groups of errors whose letters are counted under their own name, the largest first; the others are
    /// counted together. At most 1000; 0 leaves the metric out
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) group_metrics: u32,
    #[command(flatten)]
    pub(crate) alerts: GroupAlertArgs,
    /// At a store: also send the letters of running operations to the brokers of --via or, without it, of the configuration
    /// file. Includes operations that other processes began
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    #[arg(long, conflicts_with = "also")]
    pub(crate) replay: bool,
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    #[command(flatten)]
    pub(crate) via: super::ViaArgs,
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    #[command(flatten)]
    pub(crate) at_broker: super::ServeAtBrokerArgs,
}

/// Alerts about groups of errors in a store.
#[derive(Debug, Args)]
pub(crate) struct GroupAlertArgs {
    /// Tell this receiver of each group of errors in the store that is new, has come back since it was resolved, or grows: each
    /// once, and many in one message. URL takes JSON; slack+URL is a webhook of Slack, and pagerduty+URL one of PagerDuty, with
    /// ?routing_key=KEY. May be given several times, and in the environment with a blank between two. Others on this
    /// machine see the arguments of a process: a secret is better off in the environment
    #[arg(
        long,
        value_name = "[FORMAT+]URL",
        env = "DLQ_ALERT",
        hide_env_values = true,
        value_delimiter = ' '
    )]
    pub(crate) alert: Vec<String>,
    /// Interval at which groups are told; what is due in between is told together
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration::parse)]
    pub(crate) alert_every: Duration,
    /// File with the certificate of an authority, in PEM, that webhooks are trusted by besides those of the system
    #[arg(long, value_name = "FILE")]
    pub(crate) alert_ca: Option<std::path::PathBuf>,
}
