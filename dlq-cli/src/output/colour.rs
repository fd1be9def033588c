//! Colours of states, at a terminal only.

use std::env;

/// Returns true if whoever looks has not asked for none: with `NO_COLOR`, or a terminal that has none.
pub(super) fn is_wanted() -> bool {
    // By the convention of NO_COLOR an empty value counts as not set.
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns the text in the colour of the state that its first word names.
pub(super) fn painted(text: &str) -> String {
    match code(text.split_whitespace().next().unwrap_or_default()) {
        Some(code) => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        None => text.to_owned(),
    }
}

/// Red for what somebody has to look at, yellow for what waits, green for what is well, cyan for what is going on.
fn code(state: &str) -> Option<&'static str> {
    match state {
        "regressed" => Some("1;31"),
        "quarantined" | "new" | "stopped" | "gone" => Some("31"),
        "pending" | "held" | "acknowledged" | "paused" => Some("33"),
        "resolved" | "completed" | "alive" => Some("32"),
        "retrying" | "replaying" | "sent" | "preparing" | "running" => Some("36"),
        "snoozed" | "cancelled" => Some("2"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::Status;

    use super::*;

    #[test]
    fn every_status_has_a_colour() {
        for status in Status::ALL {
            assert!(code(status.as_str()).is_some(), "{status}");
        }
        assert_eq!(painted("resolved (succeeded)"), "\u{1b}[32mresolved (succeeded)\u{1b}[0m");
        assert_eq!(painted("\\u{1b}[31m"), "\\u{1b}[31m");
    }
}
