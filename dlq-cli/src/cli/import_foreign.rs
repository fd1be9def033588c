use clap::Args;
use dlq_core::ErrorClass;

/// Arguments of `dlq import` for letters that others wrote, of whatever kind.
#[derive(Debug, Args)]
pub(crate) struct ForeignArgs {
    /// The consumer that failed, where nothing says so; by default the name of the table, the
    /// collection or the prefix
    #[arg(long, value_name = "NAME", requires = "foreign")]
    pub(crate) consumer: Option<String>,
    /// The program that wrote them, where nothing says so
    #[arg(long, value_name = "NAME", requires = "foreign")]
    pub(crate) service: Option<String>,
    /// The class of their errors, where nothing says so: another attempt may succeed, or not
    #[arg(long, value_name = "transient|permanent", default_value_t, requires = "foreign")]
    pub(crate) class: ErrorClass,
    /// Say what each column or field is taken for and how many rows there are, and import nothing
    #[arg(long, requires = "foreign")]
    pub(crate) dry_run: bool,
    /// Instead of a file, read the store of event-dlq in Redis: redis://HOST:PORT/PREFIX, where PREFIX begins its keys and
    /// defaults to dlq:
    #[cfg(feature = "redis")]
    #[arg(long, value_name = "URL", group = "foreign", conflicts_with = "file")]
    pub(crate) from_redis: Option<String>,
}
