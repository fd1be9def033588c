//! Programs that are installed and not started.

use std::path::PathBuf;

use crate::Error;
use crate::install::{debian, find};

/// The program `pgbouncer`, a pooler of PostgreSQL's connections; installed if it is missing.
///
/// # Errors
///
/// `NotInstalled` when it cannot be installed; the text says what to run.
pub fn pgbouncer() -> Result<PathBuf, Error> {
    // Debian keeps it where only root looks.
    let find_it = || {
        find("pgbouncer")
            .or_else(|| Some("/usr/sbin/pgbouncer".into()).filter(|path: &PathBuf| path.is_file()))
    };
    debian("pgbouncer", "pgbouncer", find_it)
}

/// The program `promtool`, which checks alert rules; installed if it is missing.
///
/// # Errors
///
/// `NotInstalled` when it cannot be installed; the text says what to run.
pub fn promtool() -> Result<PathBuf, Error> {
    debian("promtool", "prometheus", || find("promtool"))
}
