//! A pager for what is longer than the terminal.

use std::env;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use crate::signals::Signals;

/// Exit codes by which a shell says that it could not run a command.
const NOT_RUN: [i32; 2] = [126, 127];

/// Shows the text, and waits until whoever reads it has had enough. Returns false if there is no pager.
pub(super) fn show(text: &[u8]) -> io::Result<bool> {
    let Some(mut command) = command() else { return Ok(false) };
    if env::var_os("LESS").is_none() {
        // Whatever the command: ends where all fits on one screen, lets colours through, leaves the text there.
        command.env("LESS", "FRX");
    }
    // Ctrl-C is for the pager. From here on it does not end this process, which would leave the pager without a terminal.
    let _signals = Signals::new();
    let Ok(mut pager) = command.stdin(Stdio::piped()).spawn() else { return Ok(false) };
    if let Some(mut input) = pager.stdin.take() {
        // Most readers leave before the end.
        let _ = input.write_all(text);
    }
    // The prompt must not come back while somebody reads.
    let ended = pager.wait()?;
    Ok(!ended.code().is_some_and(|code| NOT_RUN.contains(&code)))
}

/// Returns the command: `DLQ_PAGER`, `PAGER` or `less`. An empty one, and `cat`, are none.
fn command() -> Option<Command> {
    let said = ["DLQ_PAGER", "PAGER"].into_iter().find_map(env::var_os);
    let Some(said) = said else {
        let mut less = Command::new("less");
        less.arg("-FRX");
        return Some(less);
    };
    let said = said.to_string_lossy();
    if matches!(said.trim(), "" | "cat") {
        return None;
    }
    // A pager may be set with arguments, as in `less -S`, which the shell takes apart.
    let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    let mut command = Command::new(shell);
    command.args([flag, &said]);
    Some(command)
}
