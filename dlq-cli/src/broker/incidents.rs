use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use dlq_core::BoxError;
use dlq_core::ingest::Incident;

use crate::error::CliError;

/// Destination of incidents.
pub(super) enum Incidents {
    Stderr,
    File(File),
}

impl Incidents {
    pub(super) fn open(path: Option<&Path>) -> Result<Self, CliError> {
        let Some(path) = path else { return Ok(Self::Stderr) };
        let open = || {
            let mut options = OpenOptions::new();
            // Append mode places each write at the end, also where another ingest writes to the same file.
            let mut file = options.read(true).append(true).create(true).open(path)?;
            // A process that died may have left half a line.
            let mut last = [b'\n'];
            if file.seek(SeekFrom::End(0))? > 0 {
                file.seek(SeekFrom::End(-1))?;
                file.read_exact(&mut last)?;
            }
            if last != [b'\n'] {
                file.write_all(b"\n")?;
            }
            Ok(file)
        };
        open().map(Self::File).map_err(|error: std::io::Error| {
            CliError::failed(format!("cannot write incidents to {}: {error}", path.display()))
        })
    }

    /// They are on the disk when this returns.
    pub(super) fn write(&mut self, incidents: &[Incident]) -> Result<(), BoxError> {
        // All lines go in one write, as far as the system takes them, so that those of two processes do not mix.
        let mut lines = Vec::new();
        for incident in incidents {
            serde_json::to_writer(&mut lines, incident)?;
            lines.push(b'\n');
        }
        let written = match self {
            // The lock keeps the lines of the log from coming in between.
            Self::Stderr => std::io::stderr().lock().write_all(&lines),
            // Letters are confirmed after this. An incident may stand there twice after a crash, and is never missing.
            Self::File(file) => file.write_all(&lines).and_then(|()| file.sync_data()),
        };
        written.map_err(|error| format!("cannot write incidents: {error}").into())
    }
}
