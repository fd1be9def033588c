use std::process::ExitCode;

use dlq_core::store::Migration;
use dlq_core::{StoreError, StoreErrorKind};
use dlq_sql::sqlite::{SqliteBuilder, SqliteStore};

use super::PARTIAL;
use crate::ask;
use crate::cli::MigrateArgs;
use crate::error::CliError;
#[cfg(feature = "mongo")]
use crate::mongo;
use crate::open;
use crate::output::{Column, Output, Table};
use crate::secret::without_password;

/// A store whose schema can be migrated.
enum Database {
    Sqlite(SqliteBuilder),
    #[cfg(feature = "postgres")]
    Postgres(dlq_sql::postgres::PostgresBuilder),
    #[cfg(feature = "mongo")]
    Mongo(dlq_mongo::MongoBuilder),
}

impl Database {
    fn at(url: &str) -> Result<Self, CliError> {
        match url.split_once("://") {
            Some(("sqlite", path)) if !path.is_empty() => {
                // A mistyped path must not become a new and empty store.
                Ok(Self::Sqlite(SqliteStore::builder().path(path).create(false)))
            }
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", _)) => Ok(Self::Postgres(open::postgres(url))),
            #[cfg(feature = "mongo")]
            Some((scheme, _)) if mongo::is_store(scheme) => Ok(Self::Mongo(mongo::builder(url))),
            _ => Err(CliError::refused(format!(
                "{} has nothing to migrate; say --from sqlite://PATH{}{}",
                without_password(url),
                if cfg!(feature = "postgres") { " or postgres://HOST/DATABASE" } else { "" },
                if cfg!(feature = "mongo") { " or mongodb://HOST/DATABASE" } else { "" }
            ))),
        }
    }

    async fn look(&self) -> Result<Migration, StoreError> {
        match self {
            Self::Sqlite(builder) => builder.migration().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(builder) => builder.migration().await,
            #[cfg(feature = "mongo")]
            Self::Mongo(builder) => builder.migration().await,
        }
    }

    async fn apply(self) -> Result<Migration, StoreError> {
        match self {
            Self::Sqlite(builder) => builder.apply_migration().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(builder) => builder.apply_migration().await,
            #[cfg(feature = "mongo")]
            Self::Mongo(builder) => builder.apply_migration().await,
        }
    }
}

pub(super) async fn run(
    url: &str,
    mut out: Output,
    args: MigrateArgs,
) -> Result<ExitCode, CliError> {
    let shown = without_password(url);
    let failed = |error: StoreError| {
        let kind = error.kind();
        match (kind, CliError::from(error).about(&shown)) {
            // A program that knows less than the tables leaves them alone.
            (StoreErrorKind::Incompatible, CliError::Failed(why)) => CliError::Refused(why),
            (_, error) => error,
        }
    };
    let database = Database::at(url)?;
    if args.deduplicate {
        return deduplicate(url, out, args).await;
    }
    let mut migration = database.look().await.map_err(failed)?;
    let wanted = args.apply && !migration.is_up_to_date();
    if wanted {
        // The operator reads before the question whether consumers have to be stopped first.
        explain(&migration, &shown);
        let what = if migration.steps.is_empty() {
            format!("make again what {shown} lacks")
        } else {
            format!("migrate {shown} to version {}", migration.known)
        };
        ask::go_on(args.yes, &what)?;
        migration = database.apply().await.map_err(failed)?;
    }
    if out.is_table() {
        show(&mut out, &migration)?;
    } else {
        out.document(&serde_json::json!({
            "migration": migration, "applied": wanted,
        }))?;
    }
    out.flush()?;
    let (known, is_left) = (migration.known, !migration.is_up_to_date());
    if wanted {
        say!("{shown} has version {known} now");
    } else if !is_left {
        say!("{shown} has version {known}, as this program has");
    } else {
        explain(&migration, &shown);
        say!("to do it: dlq migrate --apply --from '{shown}'");
    }
    // Without --check a look at what is to be done is a success, whatever it finds.
    Ok(if args.check && is_left { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS })
}

async fn deduplicate(url: &str, mut out: Output, args: MigrateArgs) -> Result<ExitCode, CliError> {
    let shown = without_password(url);
    let store = open::store(url, false).await?;
    let what = format!("collapse the letters of each original message in {shown} into one");
    ask::go_on(args.yes, &what)?;
    let removed = store.deduplicate(args.force).await.map_err(|error| {
        let is_refused = error.kind() == StoreErrorKind::Refused;
        let error = CliError::from(error).about(&shown);
        // The library refuses to remove more than half and cannot know the names of options.
        if is_refused { error.hinting("say --force") } else { error }
    })?;
    if !out.is_table() {
        out.document(&serde_json::json!({
            "deduplicated": true, "removed": removed,
        }))?;
    }
    out.flush()?;
    say!(
        "{removed} letters went into others; {shown} keeps one of each original message from now on"
    );
    Ok(ExitCode::SUCCESS)
}

fn explain(migration: &Migration, shown: &str) {
    if !migration.missing.is_empty() {
        say!(
            "{shown} lacks what somebody has removed: {}; all of it can be made again, and the letters counted again, but rows that \
             were in a table are lost",
            migration.missing.join(", ")
        );
    }
    match migration.found {
        Some(found) if found == migration.known => {}
        Some(found) => {
            say!("{shown} has version {found}, and this program has {}", migration.known);
        }
        None => say!("{shown} has no store yet"),
    }
    if !migration.is_online() {
        say!("not every step can run while consumers work; stop them first");
    }
}

fn show(out: &mut Output, migration: &Migration) -> Result<(), CliError> {
    if migration.steps.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        Column::whole("VERSION", 0),
        Column::whole("WHILE CONSUMERS WORK", 1),
        Column::text("WHAT", 0, 20),
    ]);
    for step in &migration.steps {
        let online = if step.is_online { "yes" } else { "no" };
        table.row([step.version.to_string(), online.to_owned(), step.what.clone()]);
    }
    out.table(&table)
}
