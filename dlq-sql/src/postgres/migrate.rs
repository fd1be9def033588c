//! Looking at the version of the schema, and migrating it as a step of its own.
//!
//! Whoever migrates holds a lock of the database for as long as it lives. A process that dies leaves
//!
//! - the old version, when it dies in a step that changes tables: such a step is one transaction;
//! - the old version, indexes that are done and perhaps one that is half-built, when it dies in a step that adds indexes:
//!   consumers do not use that one, and whoever comes next drops it and builds it again.
//!
//! Opening a store migrates too, unless [`PostgresBuilder::migrate`] says otherwise.

use dlq_core::store::Migration;
use dlq_core::{StoreError, StoreErrorKind};
use sqlx::postgres::{PgConnectOptions, PgPool};

use super::PostgresBuilder;
use super::names::{DEFAULT_TABLE, Names};
use super::schema;
use crate::error::{During, Fault, Result};
use crate::escape::escaped;

impl PostgresBuilder {
    /// Returns the migration that opening would do. Only looks: nothing is created or changed.
    ///
    /// # Errors
    ///
    /// - `Incompatible`: the tables are of a newer version of the schema, or not of dlq.
    /// - `NotFound`, `InvalidConfig`, `Unavailable`: as for [`PostgresBuilder::open`].
    pub async fn migration(&self) -> std::result::Result<Migration, StoreError> {
        let look = async {
            let (pool, names) = self.connect().await?;
            self.look(&pool, &names).await
        };
        look.await.during("look at the schema")
    }

    /// Returns the place of the tables as a URL without user and password: server, database, schema, and the table if
    /// it is not the default one. The same for all who name the server alike.
    ///
    /// # Errors
    ///
    /// As for [`PostgresBuilder::open`], but for what concerns the tables, which need not be there.
    pub async fn place(&self) -> std::result::Result<String, StoreError> {
        let (pool, names) = self.connect().await.during("find the store")?;
        Ok(at("", &pool.connect_options(), &names))
    }

    /// Creates or migrates the tables, and makes again what is [missing](Migration::missing) of them. Returns what it did. Safe when many do it at once, and while others work, when
    /// [`Migration::is_online`] said so. Needs the right `CREATE` on the schema, and for an older version the tables'
    /// owner.
    ///
    /// # Errors
    ///
    /// As for [`PostgresBuilder::migration`]; `Corrupt` when the table of letters itself is missing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves behind what was migrated so far; migrating again goes on from there.
    pub async fn apply_migration(self) -> std::result::Result<Migration, StoreError> {
        let apply = async {
            if self.is_pooled() {
                return Err(Fault::new(
                    StoreErrorKind::InvalidConfig,
                    "a pooler in transaction mode stands before the database, and a migration needs a connection of its \
                     own; name the database itself",
                ));
            }
            let (pool, names) = self.connect().await?;
            // What is to be done is told as it was found before anything changes.
            let migration = self.look(&pool, &names).await?;
            let ensure = schema::ensure(&pool, &names, schema::latest());
            self.checked_answer_timeout()?.long().on(ensure).await?;
            if !migration.missing.is_empty() {
                self.checked_answer_timeout()?.long().on(schema::make_again(&pool, &names)).await?;
            }
            Ok(migration)
        };
        apply.await.during("migrate the schema")
    }

    async fn look(&self, pool: &PgPool, names: &Names) -> Result<Migration> {
        let begin = self.begin()?;
        let mut migration = schema::migration(
            self.checked_answer_timeout()?.on(schema::found(pool, names, &begin)).await?,
        );
        // What an older version lacks is made by its migration, so that it is not missing.
        if migration.is_up_to_date() {
            let missing =
                self.checked_answer_timeout()?.on(schema::lacks(pool, names, &begin)).await?;
            migration.missing = missing;
        }
        Ok(migration)
    }
}

/// Returns the place of the tables and the user, as a URL without password.
pub(super) fn place(options: &PgConnectOptions, names: &Names) -> String {
    at(&format!("{}@", escaped(options.get_username().as_bytes())), options, names)
}

pub(super) fn at(login: &str, options: &PgConnectOptions, names: &Names) -> String {
    let text = |text: &str| escaped(text.as_bytes());
    // Whoever names no database means the one that is called like the user.
    let database = text(options.get_database().unwrap_or(options.get_username()));
    let mut parameters = vec![format!("schema={}", names.schema)];
    if names.table != DEFAULT_TABLE {
        parameters.push(format!("table={}", names.table));
    }
    let host = match options.get_socket() {
        Some(socket) => {
            parameters.push(format!("host={}", escaped(socket.as_os_str().as_encoded_bytes())));
            String::new()
        }
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    format!("postgres://{login}{host}/{database}?{}", parameters.join("&"))
}
