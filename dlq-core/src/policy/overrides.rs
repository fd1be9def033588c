use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Backoff, InvalidPolicy, PanicPolicy, RetryPolicy, duration};

/// Changes to a policy from a configuration file or the environment. What is absent stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
#[must_use]
pub struct RetryPolicyOverrides {
    /// See [`RetryPolicy::with_max_attempts`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// See [`RetryPolicy::with_max_crashes`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_crashes: Option<u32>,
    /// See [`RetryPolicy::with_backoff`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// See [`RetryPolicy::with_max_in_process_delay`].
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub max_in_process_delay: Option<Duration>,
    /// See [`RetryPolicy::with_max_retry_after`].
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub max_retry_after: Option<Duration>,
    /// See [`RetryPolicy::with_panic`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub panic: Option<PanicPolicy>,
}

impl RetryPolicyOverrides {
    /// Reads `<PREFIX>MAX_ATTEMPTS`, `<PREFIX>MAX_CRASHES`, `<PREFIX>BACKOFF`, `<PREFIX>MAX_IN_PROCESS_DELAY`,
    /// `<PREFIX>MAX_RETRY_AFTER` and `<PREFIX>PANIC`.
    ///
    /// `<PREFIX>MAX_RETRIES` is read as `MAX_ATTEMPTS`: programs that have such a variable mean by it how often the
    /// handler is tried in all. Setting both to different numbers is refused.
    ///
    /// # Errors
    ///
    /// When a variable is set to something that cannot be read; the error names it.
    pub fn from_env(
        prefix: &str,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, InvalidPolicy> {
        fn read<T>(
            name: String,
            lookup: impl Fn(&str) -> Option<String>,
            parse: impl FnOnce(&str) -> Result<T, String>,
        ) -> Result<Option<T>, InvalidPolicy> {
            let Some(text) = lookup(&name) else { return Ok(None) };
            parse(text.trim())
                .map(Some)
                .map_err(|why| InvalidPolicy::new(format!("the variable {name}: {why}")))
        }
        fn number(text: &str) -> Result<u32, String> {
            text.parse()
                .map_err(|_| format!("`{text}` is not a whole number from 0 to {}", u32::MAX))
        }
        fn length(text: &str) -> Result<Duration, String> {
            duration::parse(text).map_err(|error| error.to_string())
        }
        let attempts = read(format!("{prefix}MAX_ATTEMPTS"), &lookup, number)?;
        let retries = read(format!("{prefix}MAX_RETRIES"), &lookup, number)?;
        if let (Some(attempts), Some(retries)) = (attempts, retries)
            && attempts != retries
        {
            return Err(InvalidPolicy::new(format!(
                "{prefix}MAX_ATTEMPTS = {attempts} and {prefix}MAX_RETRIES = {retries} mean the same and differ; \
                 set one of them"
            )));
        }
        Ok(Self {
            max_attempts: attempts.or(retries),
            max_crashes: read(format!("{prefix}MAX_CRASHES"), &lookup, number)?,
            backoff: read(format!("{prefix}BACKOFF"), &lookup, |text| {
                text.parse().map_err(|error: InvalidPolicy| error.to_string())
            })?,
            max_in_process_delay: read(format!("{prefix}MAX_IN_PROCESS_DELAY"), &lookup, length)?,
            max_retry_after: read(format!("{prefix}MAX_RETRY_AFTER"), &lookup, length)?,
            panic: read(format!("{prefix}PANIC"), &lookup, |text| {
                text.parse().map_err(|error: crate::UnknownWord| error.to_string())
            })?,
        })
    }

    /// The changed policy.
    ///
    /// # Errors
    ///
    /// When the result contradicts itself.
    pub fn apply(self, policy: &RetryPolicy) -> Result<RetryPolicy, InvalidPolicy> {
        let mut changed = policy.clone();
        if let Some(backoff) = self.backoff {
            changed = changed.with_backoff(backoff);
        }
        if let Some(attempts) = self.max_attempts {
            changed = changed.with_max_attempts(attempts);
        }
        if let Some(crashes) = self.max_crashes {
            changed = changed.with_max_crashes(crashes);
        }
        if let Some(limit) = self.max_in_process_delay {
            changed = changed.with_max_in_process_delay(limit);
        }
        if let Some(limit) = self.max_retry_after {
            changed = changed.with_max_retry_after(limit);
        }
        if let Some(panic) = self.panic {
            changed = changed.with_panic(panic);
        }
        // The result is checked and not the change, which may be right for one backoff and wrong for another.
        changed.check()?;
        Ok(changed)
    }
}
