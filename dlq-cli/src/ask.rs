//! Asking before something is changed.

use std::io::{IsTerminal as _, Write as _};

use dlq_core::store::Actor;

use crate::cli::ChangeArgs;
use crate::error::CliError;

/// From this many letters on the answer is the number itself.
const MANY: u64 = 1000;

/// Asks whether to `verb` that many letters, unless `--yes` was given.
pub(crate) fn confirm(change: &ChangeArgs, verb: &str, count: u64) -> Result<(), CliError> {
    agree(change.yes, verb, count)
}

/// Asks whether to `verb` that many letters, unless that was answered.
pub(crate) fn agree(is_agreed: bool, verb: &str, count: u64) -> Result<(), CliError> {
    if is_agreed {
        return Ok(());
    }
    let letters = if count == 1 { "letter" } else { "letters" };
    // A script must neither wait for an answer nor agree by whatever is piped into it.
    if !std::io::stdin().is_terminal() {
        return Err(CliError::refused(format!(
            "about to {verb} {count} {letters}, and there is no terminal to ask at; say --yes (or --dry-run to look first)"
        )));
    }
    // Nobody agrees to a change of more than a thousand letters by typing `y` out of habit.
    let expected = if count > MANY { count.to_string() } else { "y".to_owned() };
    let hint = if count > MANY { "type the number to go on" } else { "y to go on" };
    expect(&format!("{verb} {count} {letters}"), &expected, hint)
}

/// Asks whether to do something that is not about letters, unless `--yes` was given.
pub(crate) fn go_on(yes: bool, what: &str) -> Result<(), CliError> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(CliError::refused(format!(
            "about to {what}, and there is no terminal to ask at; say --yes"
        )));
    }
    expect(what, "y", "y to go on")
}

fn expect(what: &str, expected: &str, hint: &str) -> Result<(), CliError> {
    // Not locked: others may have something to say while the operator thinks.
    let mut stderr = std::io::stderr();
    if write!(stderr, "{what}? [{hint}] ").and_then(|()| stderr.flush()).is_err() {
        return Err(CliError::refused(
            "there is nobody to ask; say --yes (or --dry-run to look first)",
        ));
    }
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    // The end of the input leaves the answer empty, which is a refusal.
    if answer.trim().eq_ignore_ascii_case(expected) {
        Ok(())
    } else {
        Err(CliError::refused("nothing was changed"))
    }
}

/// Returns the person at the keyboard.
pub(crate) fn actor(note: Option<&str>) -> Actor {
    let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let user =
        // A change is not refused for want of a name, as in a container that has neither variable.
        variable("USER").or_else(|| variable("LOGNAME")).unwrap_or_else(|| "unknown".to_owned());
    // Many shells set HOSTNAME without exporting it, so the file is asked as well.
    let host = variable("HOSTNAME")
        .or_else(|| {
            std::fs::read_to_string("/etc/hostname").ok().map(|text| text.trim().to_owned())
        })
        .filter(|text| !text.is_empty());
    // The name is for honest people: whoever reaches the store could write any other, so it is not checked.
    let actor = Actor::new(host.map_or_else(|| user.clone(), |host| format!("{user}@{host}")));
    match note {
        Some(note) => actor.with_note(note),
        None => actor,
    }
}
