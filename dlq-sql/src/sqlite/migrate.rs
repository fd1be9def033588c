//! Looking at the version of the schema, and migrating it as a step of its own.
//!
//! All steps run in one transaction, so that there are two states only: the old version and the new one. A process that
//! dies between them leaves the old version, and whoever comes next begins again; of several at once one migrates and
//! the others find it done. Opening a store migrates too, unless [`SqliteBuilder::migrate`] says otherwise.

use std::path::Path;

use dlq_core::store::Migration;
use dlq_core::{StoreError, StoreErrorKind};
use rusqlite::{Connection, OpenFlags};

use super::SqliteBuilder;
use super::names::Names;
use super::unit::Unit;
use super::{config, schema};
use crate::error::{During, Fault, Result};
use crate::escape::escaped;

impl SqliteBuilder {
    /// Sets whether opening migrates tables of an older version. Without, they are refused as `Incompatible`, with the
    /// command that migrates them; missing tables are created all the same, if the file may be. Defaults to yes.
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Returns the migration that opening would do. Only looks: the file is neither created nor changed.
    ///
    /// # Errors
    ///
    /// - `NotFound`: there is no such file, or the builder names none.
    /// - `Incompatible`: the file is not a dlq database, or of a newer version of the schema.
    /// - `InvalidConfig`, `Unavailable`, `Corrupt`: as for [`SqliteBuilder::open`].
    pub async fn migration(&self) -> std::result::Result<Migration, StoreError> {
        let names = self.names().during("look at the schema")?;
        let path = self.path.clone();
        let timeout = config::bounded(self.busy_timeout);
        let look = move || {
            let Some(path) = path else {
                return Err(Fault::new(
                    StoreErrorKind::NotFound,
                    "a store in memory has no file to look at",
                ));
            };
            let conn = only_looking(&path)?;
            conn.busy_timeout(timeout)?;
            schema::recognise(&conn)?;
            schema::migration(&conn, &names)
        };
        super::worker::once(look).await.during("look at the schema")
    }

    /// Migrates the tables, makes again what is [missing](Migration::missing) of them, and closes the file again; creates
    /// neither the file nor tables in a database of another program. Returns what it did. Safe while others work, when [`Migration::is_online`] said so.
    ///
    /// # Errors
    ///
    /// As for [`SqliteBuilder::migration`] and [`SqliteBuilder::open`]; `Corrupt` when the table of letters itself is missing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the old version or the new one.
    pub async fn apply_migration(self) -> std::result::Result<Migration, StoreError> {
        let migration = self.migration().await?;
        // A path that is mistyped must not become a new database.
        let store = self.create(false).migrate(true).open().await?;
        if !migration.missing.is_empty() {
            let again = |unit: &mut Unit<'_>| schema::make_again(unit.conn(), unit.names());
            store.write(again).await.during("make again what is missing")?;
        }
        Ok(migration)
    }
}

/// Opens a file that stays as it is.
fn only_looking(path: &Path) -> Result<Connection> {
    if !path.exists() {
        return Err(Fault::new(
            StoreErrorKind::NotFound,
            format!("there is no file `{}`; check the path", path.display()),
        ));
    }
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // Where a log is, others work with the file or died doing so, and the version may stand in the log.
    if Path::new(&log).exists() {
        return Ok(Connection::open_with_flags(path, flags)?);
    }
    // Without a log even looking would create one, unless SQLite is told that nothing changes the file.
    let uri = format!("file:{}?immutable=1", escaped(path.as_os_str().as_encoded_bytes()));
    Ok(Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)?)
}

/// The fault of a file without tables, which is not to get any.
pub(super) fn missing(path: &Path) -> Fault {
    Fault::new(
        StoreErrorKind::NotFound,
        format!(
            "the file has no tables yet; check the path, or make them: dlq migrate --apply --from sqlite://{}",
            path.display()
        ),
    )
}

/// The fault of tables that are older than this program, which is not to migrate them.
pub(super) fn refused(found: i64, known: i64, path: Option<&Path>) -> Fault {
    let place =
        path.map_or_else(|| "memory".to_owned(), |path| format!("sqlite://{}", path.display()));
    Fault::new(
        StoreErrorKind::Incompatible,
        format!(
            "the tables have version {found} of the schema and this program works with version {known}; migrate them: \
             dlq migrate --apply --from {place}"
        ),
    )
}

impl SqliteBuilder {
    /// Returns the names of the tables.
    pub(super) fn names(&self) -> Result<Names> {
        Names::new(&self.table).ok_or_else(|| {
            Fault::new(
                StoreErrorKind::InvalidConfig,
                format!(
                    "`{}` is not a table name; use letters, digits and underscores, at most 48, and no leading digit",
                    self.table.chars().take(80).collect::<String>()
                ),
            )
        })
    }
}
