use std::time::Duration;

use clap::Args;
use dlq_core::policy::duration;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address to listen at, as HOST:PORT; a port alone is that of 127.0.0.1. Whoever reaches it may read it
    #[arg(
        long,
        value_name = "ADDR",
        default_value = "127.0.0.1:9400",
        default_missing_value = "127.0.0.1:9400",
        num_args = 0..=1
    )]
    pub(crate) metrics: String,
    /// Interval at which the store is looked at, however many ask
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = duration::parse)]
    pub(crate) every: Duration,
    /// Degraded from this many waiting letters on
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) max_backlog: u64,
    /// Degraded once the oldest unresolved letter is this old: how long letters are kept, or may wait
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = duration::parse)]
    pub(crate) max_age: Duration,
    /// Time for which a letter may wait for a consumer to claim it; one that waits longer is overdue
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration::parse)]
    pub(crate) overdue: Duration,
    /// Send the letters of operations to the brokers of --via or of the configuration file, also of operations that other
    /// processes began
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    #[arg(long)]
    pub(crate) replay: bool,
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    #[command(flatten)]
    pub(crate) via: super::ViaArgs,
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    #[command(flatten)]
    pub(crate) at_broker: super::ServeAtBrokerArgs,
}
