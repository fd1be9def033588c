//! Programs that are installed and not started.

use std::path::PathBuf;

use crate::Error;
use crate::install::{debian, find};

/// The program `promtool`, which checks alert rules; installed if it is missing.
///
/// # Errors
///
/// `NotInstalled` when it cannot be installed; the text says what to run.
pub fn promtool() -> Result<PathBuf, Error> {
    debian("promtool", "prometheus", || find("promtool"))
}
