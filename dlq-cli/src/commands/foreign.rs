//! A table or a collection that others made, as `dlq import` reads it.

use dlq_core::DeadLetter;
#[cfg(feature = "mongo")]
use dlq_mongo::foreign::ForeignCollection;
#[cfg(feature = "postgres")]
use dlq_sql::postgres::foreign::{Field, ForeignTable};

use crate::cli::{ForeignArgs, TableArgs};
use crate::error::CliError;
#[cfg(feature = "postgres")]
use crate::open;
use crate::secret;

/// A table or a collection, open for reading.
pub(super) enum Foreign {
    #[cfg(feature = "postgres")]
    Table(Box<ForeignTable>),
    #[cfg(feature = "mongo")]
    Collection(Box<ForeignCollection>),
}

/// A column or a field.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) type_name: String,
    /// The part of a letter that it holds; `attribute`, or `left out`.
    pub(super) meaning: &'static str,
}

/// Rows as letters, or as words that say what is wrong with them.
type Page = Vec<Result<DeadLetter, String>>;

impl Foreign {
    /// Opens what the arguments name, which is in the database that they name, or else at `from`.
    pub(super) async fn open(
        from: Option<&str>,
        args: &TableArgs,
        common: &ForeignArgs,
    ) -> Result<Self, CliError> {
        #[cfg(feature = "mongo")]
        if let Some(name) = &args.from_collection {
            return collection(name, from, args, common).await;
        }
        #[cfg(feature = "postgres")]
        if let Some(name) = &args.from_table {
            return table(name, from, args, common).await;
        }
        Err(CliError::refused("neither a file nor anything else to import from was given"))
    }

    pub(super) fn name(&self) -> &str {
        match self {
            #[cfg(feature = "postgres")]
            Self::Table(table) => table.name(),
            #[cfg(feature = "mongo")]
            Self::Collection(collection) => collection.name(),
        }
    }

    /// The words for the whole, and for what it consists of.
    pub(super) fn nouns(&self) -> (&'static str, &'static str) {
        match self {
            #[cfg(feature = "postgres")]
            Self::Table(_) => ("table", "rows"),
            #[cfg(feature = "mongo")]
            Self::Collection(_) => ("collection", "documents"),
        }
    }

    /// The known table or collection that it is.
    pub(super) fn shape(&self) -> Option<&'static str> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Table(table) => table.shape(),
            #[cfg(feature = "mongo")]
            Self::Collection(_) => Some("event_dlq"),
        }
    }

    /// The columns by which rows are told apart.
    pub(super) fn key(&self) -> Vec<&str> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Table(table) => table.key(),
            #[cfg(feature = "mongo")]
            Self::Collection(_) => vec!["_id"],
        }
    }

    pub(super) fn parts(&self) -> Vec<Part> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Table(table) => {
                use dlq_sql::postgres::foreign::Meaning;
                let part = |column: dlq_sql::postgres::foreign::ForeignColumn| Part {
                    name: column.name,
                    type_name: column.type_name,
                    meaning: match column.meaning {
                        Meaning::Field(field) => field.as_str(),
                        Meaning::Skipped => LEFT_OUT,
                        _ => ATTRIBUTE,
                    },
                };
                table.columns().into_iter().map(part).collect()
            }
            #[cfg(feature = "mongo")]
            Self::Collection(collection) => {
                use dlq_mongo::foreign::Meaning;
                let part = |field: &dlq_mongo::foreign::ForeignField| Part {
                    name: field.name.clone(),
                    type_name: field.types.iter().copied().collect::<Vec<_>>().join(", "),
                    meaning: match field.meaning {
                        Meaning::Field(name) => name,
                        Meaning::Skipped => LEFT_OUT,
                        _ => ATTRIBUTE,
                    },
                };
                collection.fields().iter().map(part).collect()
            }
        }
    }

    /// Returns true if something in it says whose deaths these are.
    pub(super) fn has_consumer(&self) -> bool {
        match self {
            #[cfg(feature = "postgres")]
            Self::Table(_) => {
                self.parts().iter().any(|part| part.meaning == Field::Consumer.as_str())
            }
            #[cfg(feature = "mongo")]
            Self::Collection(_) => false,
        }
    }

    pub(super) async fn count(&mut self) -> Result<u64, CliError> {
        Ok(match self {
            #[cfg(feature = "postgres")]
            Self::Table(table) => table.count().await?,
            #[cfg(feature = "mongo")]
            Self::Collection(collection) => collection.count().await?,
        })
    }

    /// The next rows; `None` after the last.
    pub(super) async fn next_page(&mut self) -> Result<Option<Page>, CliError> {
        Ok(match self {
            #[cfg(feature = "postgres")]
            Self::Table(table) => table.next_page().await?.map(said),
            #[cfg(feature = "mongo")]
            Self::Collection(collection) => collection.next_page().await?.map(said),
        })
    }
}

/// The meaning of a column that is not known.
pub(super) const ATTRIBUTE: &str = "attribute";
const LEFT_OUT: &str = "left out";

fn said<E: std::fmt::Display>(page: Vec<Result<DeadLetter, E>>) -> Page {
    page.into_iter().map(|row| row.map_err(|bad| bad.to_string())).collect()
}

/// The URL of the database, fit to be used and fit to be shown.
fn database(
    name: &str,
    args: &TableArgs,
    at_store: Option<String>,
    example: &str,
) -> Result<(String, String), CliError> {
    let url = args.database.clone().or(at_store).ok_or_else(|| {
        CliError::refused(format!(
            "which database has `{name}`? say --database {example}, or set DLQ_DATABASE"
        ))
    })?;
    // The URL is not the one of --from, whose password is kept already.
    secret::keep(&url);
    let shown = secret::without_password(&url);
    Ok((url, shown))
}

#[cfg(feature = "postgres")]
async fn table(
    name: &str,
    from: Option<&str>,
    args: &TableArgs,
    common: &ForeignArgs,
) -> Result<Foreign, CliError> {
    let at_store = from.and_then(open::database);
    let (url, shown) = database(name, args, at_store, "postgres://USER@HOST/DATABASE")?;
    let mut builder =
        ForeignTable::builder(url, name).time_zone(&*args.time_zone).class(common.class);
    for (field, column) in &args.map {
        builder = builder.map(*field, column);
    }
    for column in &args.skip_column {
        builder = builder.skip(column);
    }
    if let Some(consumer) = &common.consumer {
        builder = builder.consumer(consumer);
    }
    if let Some(service) = &common.service {
        builder = builder.service(service);
    }
    if let Some(cluster) = &args.cluster {
        builder = builder.cluster(cluster);
    }
    let opened = builder.open().await.map_err(|error| translated(CliError::from(error)));
    let opened = opened.map_err(|error| error.about(&format!("table `{name}` of {shown}")))?;
    Ok(Foreign::Table(Box::new(opened)))
}

/// The error with what the library advises as it is said in arguments.
#[cfg(feature = "postgres")]
fn translated(error: CliError) -> CliError {
    let in_arguments = |text: String| {
        text.replace("with `ForeignBuilder::map`", "(--map payload=COLUMN --map subject=COLUMN)")
            .replace("with `PostgresStore::builder`", "as one (the URL alone, after --from)")
    };
    match error {
        CliError::Failed(text) => CliError::Failed(in_arguments(text)),
        CliError::Refused(text) => CliError::Refused(in_arguments(text)),
        other @ CliError::Closed => other,
    }
}

#[cfg(feature = "mongo")]
async fn collection(
    name: &str,
    from: Option<&str>,
    args: &TableArgs,
    common: &ForeignArgs,
) -> Result<Foreign, CliError> {
    let at_store = from.and_then(crate::mongo::database);
    let (url, shown) = database(name, args, at_store, "mongodb://USER@HOST/DATABASE")?;
    let mut builder = ForeignCollection::builder(url, name).class(common.class);
    for field in &args.skip_column {
        builder = builder.skip(field);
    }
    if let Some(consumer) = &common.consumer {
        builder = builder.consumer(consumer);
    }
    if let Some(service) = &common.service {
        builder = builder.service(service);
    }
    if let Some(cluster) = &args.cluster {
        builder = builder.cluster(cluster);
    }
    let opened = builder.open().await.map_err(CliError::from);
    let opened = opened.map_err(|error| error.about(&format!("collection `{name}` of {shown}")))?;
    Ok(Foreign::Collection(Box::new(opened)))
}
