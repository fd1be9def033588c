use clap::Args;
#[cfg(feature = "postgres")]
use dlq_sql::postgres::foreign::Field;

/// Arguments of `dlq import` for letters in a table or a collection that others made.
#[derive(Debug, Args)]
#[group(conflicts_with = "file")]
pub(crate) struct TableArgs {
    /// Instead of a file, read a table of Postgres that others made: TABLE or SCHEMA.TABLE
    #[cfg(feature = "postgres")]
    #[arg(long, value_name = "TABLE", group = "foreign")]
    pub(crate) from_table: Option<String>,
    /// Instead of a file, read a collection of MongoDB that event-dlq wrote
    #[cfg(feature = "mongo")]
    #[arg(long, value_name = "COLLECTION", group = "foreign")]
    pub(crate) from_collection: Option<String>,
    /// The database that has the table or the collection; by default that of the store
    #[arg(
        long,
        value_name = "URL",
        env = "DLQ_DATABASE",
        hide_env_values = true,
        requires = "foreign"
    )]
    pub(crate) database: Option<String>,
    /// Mapping of a column to its meaning, e.g. payload=body; also id, subject, event, key, headers, error, error-type,
    /// stacktrace, class, reason, status, retry-count, retry-after, consumer, service, published-at, created-at,
    /// updated-at, last-retry-at, retried-at, quarantined-at. Columns of well-known tables need not be named
    #[cfg(feature = "postgres")]
    #[arg(long, value_name = "FIELD=COLUMN", value_parser = mapping, requires = "from_table")]
    pub(crate) map: Vec<(Field, String)>,
    /// Leave a column or a field out; otherwise what is not known becomes an attribute
    #[arg(long, visible_alias = "skip-field", value_name = "COLUMN", requires = "foreign")]
    pub(crate) skip_column: Vec<String>,
    /// The zone of times that are stored without one, e.g. Europe/Berlin
    #[cfg(feature = "postgres")]
    #[arg(long, value_name = "ZONE", default_value = "UTC", requires = "from_table")]
    pub(crate) time_zone: String,
    /// The name of the database in the letters' identity; by default its own, and on Postgres that of its server. Another
    /// name makes other letters
    #[arg(long, value_name = "NAME", requires = "foreign")]
    pub(crate) cluster: Option<String>,
}

#[cfg(feature = "postgres")]
fn mapping(text: &str) -> Result<(Field, String), String> {
    let (field, column) = text.split_once('=').ok_or("expected FIELD=COLUMN, e.g. payload=body")?;
    let field = field
        .parse()
        .map_err(|error: dlq_sql::postgres::foreign::UnknownField| error.to_string())?;
    Ok((field, column.to_owned()))
}
