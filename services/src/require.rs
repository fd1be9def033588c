use std::io::Write;
use std::path::PathBuf;

use crate::tools::Chromium;
use crate::{Cluster, Error, Running, Service, start, start_cluster, tools};

/// The environment variable that lists the servers without which tests must fail.
const VARIABLE: &str = "DLQ_TEST_REQUIRE";

/// Reason why a test was skipped. It was written to standard error, past the capture of the test runner.
#[derive(Debug, thiserror::Error)]
#[error("skipped: {0}")]
#[must_use = "the test must end here"]
pub struct Skip(#[source] Error);

/// Names of [`tools`] in that list.
const CHROMIUM: &str = "chromium";
const PGBOUNCER: &str = "pgbouncer";
const PROMTOOL: &str = "promtool";

/// Starts a server for a test, which is skipped if there is none to be had:
///
/// ```no_run
/// # fn test() {
/// let Ok(redis) = dlq_services::require(dlq_services::Service::Redis) else { return };
/// # }
/// ```
///
/// # Errors
///
/// [`Skip`] if the server cannot be had and `DLQ_TEST_REQUIRE` (such as `nats,postgres`) does not
/// list it.
///
/// # Panics
///
/// If it cannot be had and is listed, or if the list names something that is not a server.
pub fn require(service: Service) -> Result<Running, Skip> {
    or_skip(service, start(service))
}

/// Starts a cluster for a test, as [`require`] does a server.
///
/// # Errors
///
/// As [`require`].
///
/// # Panics
///
/// As [`require`].
pub fn require_cluster(service: Service) -> Result<Cluster, Skip> {
    or_skip(service, start_cluster(service))
}

/// Judges any attempt to have a server as [`require`] does.
///
/// # Errors
///
/// As [`require`].
///
/// # Panics
///
/// As [`require`].
pub fn or_skip<T>(service: Service, outcome: Result<T, Error>) -> Result<T, Skip> {
    let list = std::env::var(VARIABLE).unwrap_or_default();
    // Not `eprintln!`, which the test runner swallows when a test passes.
    judge(&list, service.name(), outcome, &mut std::io::stderr())
}

/// A browser for a test, as [`require`] gives a server; its name in `DLQ_TEST_REQUIRE` is `chromium`.
///
/// # Errors
///
/// As [`require`].
///
/// # Panics
///
/// As [`require`].
pub fn require_chromium() -> Result<Chromium, Skip> {
    let list = std::env::var(VARIABLE).unwrap_or_default();
    judge(&list, CHROMIUM, tools::chromium(), &mut std::io::stderr())
}

/// The program `promtool` for a test, as [`require`] gives a server; its name in `DLQ_TEST_REQUIRE` is `promtool`.
///
/// # Errors
///
/// As [`require`].
///
/// # Panics
///
/// As [`require`].
pub fn require_promtool() -> Result<PathBuf, Skip> {
    let list = std::env::var(VARIABLE).unwrap_or_default();
    judge(&list, PROMTOOL, tools::promtool(), &mut std::io::stderr())
}

/// The program `pgbouncer` for a test, as [`require`] gives a server; its name in `DLQ_TEST_REQUIRE` is `pgbouncer`.
///
/// # Errors
///
/// As [`require`].
///
/// # Panics
///
/// As [`require`].
pub fn require_pgbouncer() -> Result<PathBuf, Skip> {
    let list = std::env::var(VARIABLE).unwrap_or_default();
    judge(&list, PGBOUNCER, tools::pgbouncer(), &mut std::io::stderr())
}

fn judge<T>(
    list: &str,
    subject: &str,
    outcome: Result<T, Error>,
    aloud: &mut impl Write,
) -> Result<T, Skip> {
    let required = match is_listed(list, subject) {
        Ok(required) => required,
        Err(wrong) => panic!("{VARIABLE}: {wrong}"),
    };
    match outcome {
        Ok(value) => Ok(value),
        Err(error) if required => {
            panic!("{VARIABLE} lists {subject}, which cannot be had: {error}")
        }
        Err(error) => {
            let thread = std::thread::current();
            let test = thread.name().unwrap_or("a test");
            // Where nobody can hear, there is nobody to tell.
            let _ = writeln!(aloud, "SKIPPED {test}: {error}");
            Err(Skip(error))
        }
    }
}

fn is_listed(list: &str, subject: &str) -> Result<bool, String> {
    let mut is_listed = false;
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if ![CHROMIUM, PGBOUNCER, PROMTOOL].contains(&name) {
            name.parse::<Service>()?;
        }
        is_listed |= name == subject;
    }
    Ok(is_listed)
}

#[cfg(test)]
mod tests {
    use super::{CHROMIUM, PROMTOOL, Skip, is_listed, judge};
    use crate::{Error, ErrorKind, Service};

    #[test]
    fn lists_are_read_and_misspellings_found() {
        assert_eq!(is_listed("", "nats"), Ok(false));
        assert_eq!(is_listed(" postgres, nats ", "nats"), Ok(true));
        assert_eq!(is_listed("postgres", "nats"), Ok(false));
        assert_eq!(is_listed("nats,promtool", PROMTOOL), Ok(true));
        assert_eq!(is_listed("nats,promtool", "postgres"), Ok(false));
        assert_eq!(is_listed("chromium,nats", CHROMIUM), Ok(true));
        let wrong = is_listed("nats,postgress", "nats").unwrap_err();
        assert!(wrong.starts_with("`postgress` is not a server; expected one of: nats, kafka"));
    }

    fn missing(list: &str) -> (Result<(), Skip>, String) {
        let error = Error::new(ErrorKind::NotInstalled, Service::Nats, "it is not there");
        let mut said = Vec::new();
        let outcome = judge(list, "nats", Err(error), &mut said);
        (outcome, String::from_utf8(said).unwrap())
    }

    #[test]
    fn what_nobody_requires_is_skipped_aloud() {
        let (outcome, said) = missing("postgres");
        assert_eq!(outcome.unwrap_err().to_string(), "skipped: nats: it is not there");
        assert!(
            said.starts_with("SKIPPED ") && said.ends_with(": nats: it is not there\n"),
            "{said}"
        );
    }

    #[test]
    #[should_panic(expected = "DLQ_TEST_REQUIRE lists nats, which cannot be had: nats: it is not")]
    fn what_is_required_is_not_skipped() {
        let _ = missing("postgres,nats");
    }

    #[test]
    fn what_is_there_is_used() {
        let outcome = judge("nats", "nats", Ok(7), &mut Vec::new());
        assert_eq!(outcome.unwrap(), 7);
    }
}
