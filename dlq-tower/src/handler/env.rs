//! Overrides from variables, e.g. `DLQ_PAYMENTS_CHARGE_MAX_ATTEMPTS`.

use dlq_core::policy::{RetryPolicyOverrides, duration};

use super::{HandlerOverrides, InvalidConfig};

/// Settings that a variable may change.
const SETTINGS: [&str; 9] = [
    "MAX_ATTEMPTS",
    "MAX_RETRIES",
    "MAX_CRASHES",
    "BACKOFF",
    "MAX_IN_PROCESS_DELAY",
    "MAX_RETRY_AFTER",
    "PANIC",
    "TIMEOUT",
    "CONCURRENCY",
];

/// Refuses variables of this process that would set something for a handler that is none of `names`: most likely misspelt.
/// For programs that know all handlers which are configured with this prefix; [`HandlerBuilder::env`] looks at those of its
/// own handler only.
///
/// [`HandlerBuilder::env`]: super::HandlerBuilder::env
///
/// ```
/// use dlq_tower::handler::{Handles, check_env, handler};
/// use dlq_tower::router::Router;
/// # async fn charge() {}
///
/// let charge = handler("payments.charge", charge).env("SHOP");
/// let router = Router::new().name("shop").route("payments.*", charge).build()?;
/// check_env("SHOP", &router.names())?;
/// # Ok::<(), dlq_tower::handler::InvalidConfig>(())
/// ```
///
/// # Errors
///
/// When there is such a variable. The error lists the handlers.
pub fn check_env(prefix: &str, names: &[impl AsRef<str>]) -> Result<(), InvalidConfig> {
    check_handlers(prefix, names, variables())
}

/// Returns the names of the process' variables. One that is not UTF-8 is none of ours.
pub(super) fn variables() -> Vec<String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
}

fn check_handlers(
    prefix: &str,
    names: &[impl AsRef<str>],
    variables: Vec<String>,
) -> Result<(), InvalidConfig> {
    let all = all(prefix);
    let known: Vec<_> = names.iter().map(|name| variable(name.as_ref())).collect();
    for name in variables {
        let set = name.strip_prefix(&all).and_then(|rest| {
            let handler = |setting: &&str| rest.strip_suffix(setting)?.strip_suffix('_');
            // The longest setting: `MAX_RETRY_AFTER` before one that it may end with.
            SETTINGS.iter().filter_map(handler).min_by_key(|handler| handler.len())
        });
        if let Some(handler) = set
            && !known.iter().any(|known| known == handler)
        {
            let names: Vec<_> = names.iter().map(|name| format!("`{}`", name.as_ref())).collect();
            return Err(InvalidConfig::new(format!(
                "the variable {name} is for no handler here; there are {}",
                names.join(", ")
            )));
        }
    }
    Ok(())
}

/// Refuses a variable that begins as those of the handler `name` and sets nothing.
pub(super) fn check(prefix: &str, name: &str, variables: Vec<String>) -> Result<(), InvalidConfig> {
    let own = own(prefix, name);
    // One word may be what other variables of the program begin with, such as `TEST` in `DLQ_TEST_NATS_URL`.
    let is_distinct = !all(prefix).is_empty() && variable(name).contains('_');
    for found in variables {
        let Some(rest) = found.strip_prefix(&own) else { continue };
        // The variables of a handler `a.b` begin like those of a handler `a`.
        let is_of_another = |setting: &&str| {
            rest.strip_suffix(setting).is_some_and(|handler| handler.ends_with('_'))
        };
        if rest.is_empty() || SETTINGS.contains(&rest) || SETTINGS.iter().any(is_of_another) {
            continue;
        }
        // Two letters are as many as a slip has. With three a short name of the program's own could be taken for one.
        let is_misspelt = SETTINGS.iter().any(|setting| strsim::levenshtein(rest, setting) <= 2);
        if is_distinct || is_misspelt {
            return Err(InvalidConfig::new(format!(
                "the variable {found} sets nothing of the handler `{name}`; what it reads is {own} with {}",
                SETTINGS.join(", ")
            )));
        }
    }
    Ok(())
}

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
    // A variable that names the handler says more than one for all, so it wins.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(prefix: &str, name: &str, variables: &[&str]) -> Option<String> {
        let variables = variables.iter().map(|name| (*name).to_owned()).collect();
        check(prefix, name, variables).err().map(|error| error.to_string())
    }

    #[test]
    fn a_variable_that_sets_nothing_of_its_handler_is_refused() {
        let charge = |variable| refused("DLQ", "payments.charge", &["PATH", variable]);
        for wrong in ["DLQ_PAYMENTS_CHARGE_MAX_ATTEMPS", "DLQ_PAYMENTS_CHARGE_RETRIES"] {
            let error = charge(wrong).unwrap();
            assert!(error.contains(wrong) && error.contains("`payments.charge`"), "{error}");
            assert!(SETTINGS.iter().all(|setting| error.contains(setting)), "{error}");
        }
        for fine in [
            "DLQ_PAYMENTS_CHARGE_MAX_ATTEMPTS",
            "DLQ_PAYMENTS_CHARGE_LATER_MAX_ATTEMPTS",
            "DLQ_PAYMENTS_CHARGED",
            "DLQ_MAX_ATTEMPTS",
            "DLQ_FROM",
        ] {
            assert_eq!(charge(fine), None, "{fine}");
        }
    }

    /// Other variables of a program may begin with the same word.
    #[test]
    fn a_name_of_one_word_refuses_only_what_is_misspelt() {
        assert_eq!(refused("DLQ", "test", &["DLQ_TEST_NATS_URL", "DLQ_TEST_REQUIRE"]), None);
        assert!(refused("DLQ", "test", &["DLQ_TEST_TIMEOT"]).is_some());
        assert_eq!(refused("", "payments.charge", &["PAYMENTS_CHARGE_URL"]), None);
        assert!(refused("", "payments.charge", &["PAYMENTS_CHARGE_TIMEOUTS"]).is_some());
    }

    #[test]
    fn a_variable_of_no_handler_is_refused_by_who_knows_them_all() {
        let names = ["payments.charge", "test"];
        let check = |variable: &str| {
            let checked = check_handlers("DLQ", &names, vec![variable.to_owned()]);
            checked.err().map(|error| error.to_string())
        };
        let error = check("DLQ_PAYMENTS_CHAGRE_MAX_RETRY_AFTER").unwrap();
        assert!(error.contains("DLQ_PAYMENTS_CHAGRE_MAX_RETRY_AFTER"), "{error}");
        assert!(error.contains("there are `payments.charge`, `test`"), "{error}");
        for fine in [
            "DLQ_PAYMENTS_CHARGE_TIMEOUT",
            "DLQ_TEST_MAX_RETRIES",
            "DLQ_MAX_RETRIES",
            "DLQ_TEST_NATS_URL",
            "OTHER_TIMEOUT",
        ] {
            assert_eq!(check(fine), None, "{fine}");
        }
    }
}
