//! Programs that are installed and not started.

use std::path::PathBuf;

use crate::Error;
use crate::install::{debian, find};

/// Programs with which a test goes through web pages.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Chromium {
    /// The program `chromium`, the browser.
    pub browser: PathBuf,
    /// The program `chromedriver`, which steers it.
    pub driver: PathBuf,
}

/// The programs `chromium` and `chromedriver`; installed if they are missing.
///
/// # Errors
///
/// `NotInstalled` when they cannot be installed; the text says what to run.
pub fn chromium() -> Result<Chromium, Error> {
    let browser = debian("chromium", "chromium", || find("chromium"))?;
    let driver = debian("chromium", "chromium-driver", || find("chromedriver"))?;
    Ok(Chromium { browser, driver })
}

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
