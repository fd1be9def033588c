use clap::Args;
use dlq_sql::postgres::foreign::Field;

/// What `dlq import` takes where letters come out of a table of Postgres that others made.
#[derive(Debug, Args)]
#[group(conflicts_with = "file")]
pub(crate) struct TableArgs {
    /// Instead of a file, read a table of Postgres that others made: TABLE or SCHEMA.TABLE
    #[arg(long, value_name = "TABLE", group = "foreign")]
    pub(crate) from_table: Option<String>,
    /// The database that has the table; by default that of the store
    #[arg(
        long,
        value_name = "URL",
        env = "DLQ_DATABASE",
        hide_env_values = true,
        requires = "from_table"
    )]
    pub(crate) database: Option<String>,
    /// Which column holds what, e.g. payload=body; also id, subject, event, key, headers, error, error-type, stacktrace,
    /// class, reason, status, retry-count, retry-after, consumer, service, published-at, created-at, updated-at,
    /// last-retry-at, retried-at, quarantined-at. Columns of well-known tables need not be named
    #[arg(long, value_name = "FIELD=COLUMN", value_parser = mapping, requires = "from_table")]
    pub(crate) map: Vec<(Field, String)>,
    /// Leave a column out; otherwise what is not known becomes an attribute
    #[arg(long, value_name = "COLUMN", requires = "from_table")]
    pub(crate) skip_column: Vec<String>,
    /// The zone of times that are stored without one, e.g. Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC", requires = "from_table")]
    pub(crate) time_zone: String,
    /// The name of the database in the letters' identity; by default its own and that of its server. Another name makes
    /// other letters
    #[arg(long, value_name = "NAME", requires = "from_table")]
    pub(crate) cluster: Option<String>,
}

fn mapping(text: &str) -> Result<(Field, String), String> {
    let (field, column) = text.split_once('=').ok_or("expected FIELD=COLUMN, e.g. payload=body")?;
    let field = field
        .parse()
        .map_err(|error: dlq_sql::postgres::foreign::UnknownField| error.to_string())?;
    Ok((field, column.to_owned()))
}
