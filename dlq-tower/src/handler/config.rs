use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::policy::{Backoff, PanicPolicy, RetryPolicyOverrides, duration};
use serde::{Deserialize, Serialize};

use super::InvalidConfig;

/// Changes to one handler, from a file or the environment. What is absent stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HandlerOverrides {
    /// Maximum number of runs of the handler. Also read as `max_retries`.
    #[serde(alias = "max_retries", skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Maximum number of runs that may end with the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_crashes: Option<u32>,
    /// Delays after each attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// Longest delay for which a message waits in the process.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub max_in_process_delay: Option<Duration>,
    /// The longest delay that an error may ask for.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub max_retry_after: Option<Duration>,
    /// Meaning of a panic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub panic: Option<PanicPolicy>,
    /// Time limit of an attempt.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// Number of attempts that run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<usize>,
}

impl HandlerOverrides {
    /// These, and where they say nothing, those of `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            max_attempts: self.max_attempts.or(other.max_attempts),
            max_crashes: self.max_crashes.or(other.max_crashes),
            backoff: self.backoff.or(other.backoff),
            max_in_process_delay: self.max_in_process_delay.or(other.max_in_process_delay),
            max_retry_after: self.max_retry_after.or(other.max_retry_after),
            panic: self.panic.or(other.panic),
            timeout: self.timeout.or(other.timeout),
            concurrency: self.concurrency.or(other.concurrency),
        }
    }

    /// Returns the changes of the policy.
    pub(super) fn policy(&self) -> RetryPolicyOverrides {
        let mut overrides = RetryPolicyOverrides::default();
        overrides.max_attempts = self.max_attempts;
        overrides.max_crashes = self.max_crashes;
        overrides.backoff.clone_from(&self.backoff);
        overrides.max_in_process_delay = self.max_in_process_delay;
        overrides.max_retry_after = self.max_retry_after;
        overrides.panic = self.panic;
        overrides
    }
}

impl From<RetryPolicyOverrides> for HandlerOverrides {
    fn from(policy: RetryPolicyOverrides) -> Self {
        Self {
            max_attempts: policy.max_attempts,
            max_crashes: policy.max_crashes,
            backoff: policy.backoff,
            max_in_process_delay: policy.max_in_process_delay,
            max_retry_after: policy.max_retry_after,
            panic: policy.panic,
            ..Self::default()
        }
    }
}

/// Changes to handlers by their names; those under `*` apply to every handler.
///
/// ```
/// use dlq_tower::handler::HandlerConfig;
///
/// let config: HandlerConfig = serde_json::from_str(
///     r#"{ "*": { "max_attempts": 5 }, "payments.charge": { "timeout": "10s", "backoff": "ladder(30s, 5m)" } }"#,
/// )?;
/// let charge = config.overrides("payments.charge");
/// assert_eq!((charge.max_attempts, charge.timeout.unwrap().as_secs()), (Some(5), 10));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HandlerConfig(BTreeMap<String, HandlerOverrides>);

impl HandlerConfig {
    /// No changes.
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds changes to the handler `name`, or to all for `*`; in place of those it has.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, overrides: HandlerOverrides) -> Self {
        self.0.insert(name.into(), overrides);
        self
    }

    /// Returns the changes for the handler `name`: its own, and for the rest those for all.
    #[must_use]
    pub fn overrides(&self, name: &str) -> HandlerOverrides {
        let of = |name: &str| self.0.get(name).cloned().unwrap_or_default();
        // What names the handler says more than what is for all.
        of(name).or(of("*"))
    }

    /// Refuses changes to handlers that are none of `names`: most likely misspelt. For programs that know all handlers which
    /// are configured by it, e.g. by [`Handles::names`](super::Handles::names).
    ///
    /// # Errors
    ///
    /// When there are such changes. The error lists the handlers.
    pub fn check(&self, names: &[impl AsRef<str>]) -> Result<(), InvalidConfig> {
        let listed = |names: Vec<&str>| {
            names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        };
        let unknown = self.unknown(names);
        if unknown.is_empty() {
            return Ok(());
        }
        Err(InvalidConfig::new(format!(
            "the configuration is for {}, which is no handler here; there are {}, and `*` for all",
            listed(unknown),
            listed(names.iter().map(AsRef::as_ref).collect())
        )))
    }

    /// Names that none of the handlers has: most likely misspelt.
    pub fn unknown<'a>(&'a self, names: &[impl AsRef<str>]) -> Vec<&'a str> {
        let known = |name: &str| name == "*" || names.iter().any(|known| known.as_ref() == name);
        self.0.keys().map(String::as_str).filter(|name| !known(name)).collect()
    }
}
