//! The user's editor on a draft.

use std::env;
use std::io::{self, Write as _};
use std::path::PathBuf;

use bytes::Bytes;
use tempfile::NamedTempFile;
use tokio::process::Command;

use crate::error::CliError;

/// A file that only this user can read, which goes away with this value.
pub(crate) struct Draft(NamedTempFile);

impl Draft {
    /// Writes `payload` to a file and waits until the user's editor has ended.
    pub(crate) async fn edit(payload: Option<&Bytes>) -> Result<Self, CliError> {
        let editor = ["VISUAL", "EDITOR"].into_iter().filter_map(env::var_os);
        let editor = editor.map(|name| name.to_string_lossy().into_owned());
        // None is assumed: which editor this machine has, and which of them the operator knows, cannot be told here.
        let editor = editor.into_iter().find(|name| !name.trim().is_empty()).ok_or_else(|| {
            CliError::refused("no editor is set; set EDITOR, or say --payload FILE")
        })?;
        let payload = payload.map(|payload| &payload[..]).unwrap_or_default();
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_ok();
        // Editors tell the kind of a file by its suffix.
        let suffix = if is_json { ".json" } else { ".txt" };
        // The file holds a payload; such a file is created with rights for its owner alone.
        let draft = tempfile::Builder::new().prefix("dlq-").suffix(suffix).tempfile();
        let mut draft = draft.map_err(|error| cannot("write a draft", &error))?;
        draft.write_all(payload).map_err(|error| cannot("write a draft", &error))?;
        // It may have arguments, as in `code --wait`.
        let mut command = if cfg!(unix) {
            // The path is an argument of the shell and not part of its text, so that no character of it is read as a
            // command.
            let mut shell = Command::new("sh");
            // The shell takes `dlq` as `$0`, and the path that is added below as `$1`.
            shell.arg("-c").arg(format!("{editor} \"$1\"")).arg("dlq");
            shell
        } else {
            Command::new(&editor)
        };
        let ended = command.arg(draft.path()).status().await;
        let ended =
            ended.map_err(|error| cannot(&format!("start the editor `{editor}`"), &error))?;
        // An editor that fails gives the edit up, as vim does after `:cq`. The draft goes with it.
        if !ended.success() {
            return Err(CliError::refused(format!(
                "the editor `{editor}` ended with {ended}; nothing was changed"
            )));
        }
        Ok(Self(draft))
    }

    /// Returns what was written; `None` if the payload is unchanged. Editors end the last line: if the payload did not,
    /// the end is removed.
    pub(crate) fn written(&self, payload: Option<&Bytes>) -> Result<Option<Bytes>, CliError> {
        // It is read by its path, since many editors write a new file and rename it over the old one.
        let read = std::fs::read(self.0.path());
        let mut written = read.map_err(|error| cannot("read the draft", &error))?;
        let before = payload.map(|payload| &payload[..]).unwrap_or_default();
        if !before.ends_with(b"\n") && written.ends_with(b"\n") {
            written.pop();
        }
        Ok((written != before).then(|| written.into()))
    }

    /// Leaves the file where it is.
    pub(crate) fn keep(self) -> Result<PathBuf, CliError> {
        let kept = self.0.keep().map_err(|error| cannot("keep the draft", &error.error))?;
        Ok(kept.1)
    }
}

fn cannot(what: &str, error: &io::Error) -> CliError {
    CliError::failed(format!("cannot {what}: {error}"))
}
