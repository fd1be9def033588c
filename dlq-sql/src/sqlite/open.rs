//! Opening of a connection: refusals, settings, and the functions that SQL may call.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use dlq_core::{StoreErrorKind, SubjectPattern};
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, OpenFlags};

use super::filter::{ATTRIBUTE_FUNCTION, SUBJECT_FUNCTION};
use super::names::Names;
use super::{migrate, schema};
use crate::error::{Fault, Result};

/// Place of the letters.
#[derive(Clone, Debug)]
pub(super) enum Location {
    File { path: PathBuf, create: bool },
    Memory,
}

impl Location {
    fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. } => Some(path),
            Self::Memory => None,
        }
    }
}

/// Behaviour of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    pub(super) busy_timeout: Duration,
    /// A bound on the file's size, in pages.
    pub(super) max_pages: Option<u32>,
    /// True if tables of an older version are migrated.
    pub(super) migrate: bool,
}

/// Opens the connection that writes, and brings the schema up to date.
pub(super) fn writer(place: &Location, tuning: Tuning, names: &Names) -> Result<Connection> {
    let mut conn = match place {
        Location::Memory => Connection::open_in_memory()?,
        Location::File { path, create } => file(path, *create, tuning)?,
    };
    prepare(&conn, tuning)?;
    // This comes before anything is written: the log would be created beside a database of another program, too.
    schema::recognise(&conn)?;
    if conn.is_readonly(rusqlite::MAIN_DB)? {
        return Err(Fault::new(
            StoreErrorKind::Unavailable,
            "the file is read-only; make it writable for this user",
        ));
    }
    if let Location::File { path, create } = place {
        // The file is refused before the log is switched on, so that it stays as it is.
        if !create && !tuning.migrate && schema::version(&conn, names)? == 0 {
            return Err(migrate::missing(path));
        }
        write_ahead(&conn, tuning)?;
    }
    // Durable before it is confirmed: every commit is flushed to the disk.
    conn.pragma_update(None, "synchronous", "FULL")?;
    // Copied back into the file in larger portions than by default: a letter that is claimed and finished soon after is
    // then copied once.
    conn.pragma_update(None, "wal_autocheckpoint", 8_000)?;
    // One long transaction would otherwise leave the log as large as it was then.
    conn.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)?;
    // A negative number is KiB and not pages.
    conn.pragma_update(None, "cache_size", -16 * 1024)?;
    // The file does not keep the bound. It holds for this connection, the only one of the process that writes.
    if let Some(pages) = tuning.max_pages {
        conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    }
    // Last, since it writes: by now the file is known to be ours and writable, and what is committed is durable.
    schema::ensure(&mut conn, names, |found, known| {
        (!tuning.migrate).then(|| migrate::refused(found, known, place.path()))
    })?;
    Ok(conn)
}

/// Opens a connection that only reads. The writer has been opened before.
pub(super) fn reader(place: &Location, tuning: Tuning) -> Result<Connection> {
    let conn = match place {
        Location::Memory => Connection::open_in_memory()?,
        Location::File { path, .. } => file(path, false, tuning)?,
    };
    prepare(&conn, tuning)?;
    // A mistake cannot write here, past the one thread that writes.
    conn.pragma_update(None, "query_only", true)?;
    Ok(conn)
}

fn file(path: &Path, create: bool, tuning: Tuning) -> Result<Connection> {
    // SQLite would only say that it cannot open the file, which may have many reasons.
    if !create && !path.exists() {
        return Err(Fault::new(
            StoreErrorKind::NotFound,
            format!("there is no file `{}`; check the path, or let it be created", path.display()),
        ));
    }
    // A connection belongs to one thread, so SQLite need not guard it.
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(tuning.busy_timeout)?;
    Ok(conn)
}

fn prepare(conn: &Connection, tuning: Tuning) -> Result<()> {
    conn.busy_timeout(tuning.busy_timeout)?;
    // More statements are in use than fit into the cache by default, and each would be prepared again and again.
    conn.set_prepared_statement_cache_capacity(128);
    // SQLite has them off by default, and aliases are deleted with their letter by one.
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    rusqlite::vtab::array::load_module(conn)?;
    let flags = FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_UTF8;
    conn.create_scalar_function(SUBJECT_FUNCTION, 2, flags, |context| {
        // What was parsed stays with the statement, so that it is parsed once and not for each row.
        let pattern = context.get_or_create_aux(0, |value| {
            value
                .as_str()
                .map_err(|error| error.to_string())?
                .parse::<SubjectPattern>()
                .map_err(|error| error.to_string())
        })?;
        Ok(pattern.matches(context.get_raw(1).as_str()?))
    })?;
    conn.create_scalar_function(ATTRIBUTE_FUNCTION, 3, flags, |context| {
        let text = |at| context.get_raw(at).as_str().map_err(rusqlite::Error::from);
        let attributes: BTreeMap<String, String> = serde_json::from_str(text(0)?)
            .map_err(|error| rusqlite::Error::UserFunctionError(Box::new(error)))?;
        let (name, value) = (text(1)?, text(2)?);
        Ok(attributes.get(name).is_some_and(|found| found == value))
    })?;
    Ok(())
}

/// Switches to the write-ahead log. Of several that switch at once SQLite refuses some without waiting.
fn write_ahead(conn: &Connection, tuning: Tuning) -> Result<()> {
    let deadline = Instant::now() + tuning.busy_timeout;
    loop {
        let mode = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        match mode.map_err(Fault::from) {
            Ok(mode) if mode == "wal" => return Ok(()),
            // SQLite does not fail where it cannot switch: it answers with the mode that it stays in.
            Ok(mode) => {
                return Err(Fault::new(
                    StoreErrorKind::InvalidConfig,
                    format!(
                        "the file system cannot keep a write-ahead log (the journal stays `{mode}`); \
                         put the file on a local disk"
                    ),
                ));
            }
            Err(fault)
                if fault.kind() == StoreErrorKind::Unavailable && Instant::now() < deadline =>
            {
                // This is the writer's own thread, so that no task of a runtime waits with it.
                thread::sleep(Duration::from_millis(5));
            }
            Err(fault) => return Err(fault),
        }
    }
}
