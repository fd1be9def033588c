//! Overrides from variables, e.g. `DLQ_PAYMENTS_CHARGE_MAX_ATTEMPTS`.

use dlq_core::policy::{RetryPolicyOverrides, duration};

use super::{HandlerOverrides, InvalidConfig};

/// Returns how the variables of the handler `name` begin.
pub(super) fn own(prefix: &str, name: &str) -> String {
    format!("{}{}_", all(prefix), variable(name))
}

/// Returns how those of all handlers begin.
fn all(prefix: &str) -> String {
    let prefix = prefix.trim_end_matches('_');
    if prefix.is_empty() { String::new() } else { format!("{prefix}_") }
}

/// Returns the changes of variables that begin with `prefix` and the name of the handler; for the rest those that begin
/// with `prefix` alone.
pub(super) fn overrides(
    prefix: &str,
    name: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<HandlerOverrides, InvalidConfig> {
    let own = read(name, &own(prefix, name), lookup)?;
    Ok(own.or(read(name, &all(prefix), lookup)?))
}

/// The name as it stands in a variable: upper case, everything but letters and digits as `_`.
fn variable(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    name.chars().map(letter).collect()
}

fn read(
    name: &str,
    prefix: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<HandlerOverrides, InvalidConfig> {
    let policy = RetryPolicyOverrides::from_env(prefix, lookup)
        .map_err(|error| InvalidConfig::policy(name, error))?;
    let mut overrides = HandlerOverrides::from(policy);
    let variable = format!("{prefix}TIMEOUT");
    if let Some(text) = lookup(&variable) {
        let timeout = duration::parse(&text)
            .map_err(|error| InvalidConfig::new(format!("the variable {variable}: {error}")))?;
        overrides.timeout = Some(timeout);
    }
    let variable = format!("{prefix}CONCURRENCY");
    if let Some(text) = lookup(&variable) {
        let limit = text.trim().parse().map_err(|_| {
            InvalidConfig::new(format!("the variable {variable}: `{text}` is not a whole number"))
        })?;
        overrides.concurrency = Some(limit);
    }
    Ok(overrides)
}
