//! [`RedisIdempotency::check`]: what a server does to keys.

use dlq_core::{Finding, Severity, StoreError};
use redis::Value;

use super::RedisIdempotency;
use crate::RedisError;
use crate::client::{as_array, as_text};

impl RedisIdempotency {
    /// Looks at the settings of each server that loses or evicts keys. Changes nothing. A user that may not run `INFO` gets a
    /// note.
    ///
    /// # Errors
    ///
    /// `Unavailable` when a server does not answer.
    pub async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let failed = |error: RedisError| error.for_running_store("check the idempotency keys");
        let mut findings = Vec::new();
        for mut node in self.client.masters().await.map_err(failed)? {
            let mut info = String::new();
            // One at a time, since servers before 7.0 take no list of sections.
            for section in ["memory", "persistence", "server"] {
                let mut cmd = redis::cmd("INFO");
                cmd.arg(section);
                let answer = cmd.query_async::<Value>(&mut node).await.map_err(RedisError::from);
                match answer {
                    Ok(text) => info.push_str(&as_text(&text).unwrap_or_default()),
                    Err(error) if error.kind() == crate::RedisErrorKind::Forbidden => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            let mut config = redis::cmd("CONFIG");
            config.arg("GET").arg("appendfsync");
            // Often forbidden, and then unknown.
            let config = config.query_async::<Value>(&mut node).await.unwrap_or(Value::Nil);
            let policy = match &config {
                Value::Map(pairs) => pairs.first().and_then(|(_, value)| as_text(value)),
                other => as_array(other).get(1).and_then(as_text),
            };
            judge(&info, policy.as_deref(), &mut findings);
        }
        Ok(findings)
    }
}

/// Adds what the answer to `INFO` and the setting `appendfsync` show.
fn judge(info: &str, appendfsync: Option<&str>, findings: &mut Vec<Finding>) {
    let field = |name: &str| {
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let subject = format!("redis server on port {}", field("tcp_port").unwrap_or("?"));
    let mut add = |finding: Finding| {
        // Masters on different machines may have the same port, and then the same finding.
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    };
    match (field("maxmemory_policy"), field("maxmemory")) {
        // Without a memory limit nothing is evicted, whatever the policy.
        (Some("noeviction"), _) | (Some(_), Some("0")) => {}
        (Some(policy), _) => add(
            Finding::new(Severity::Warning, &subject, "maxmemory-policy")
                .found(policy, "noeviction")
                .advice("keys that are done are evicted when memory is full, and their messages are handled again; set `noeviction`"),
        ),
        (None, _) => add(
            Finding::new(Severity::Note, &subject, "INFO")
                .found("not permitted", "permitted")
                .advice("eviction and persistence are unknown; grant the command with `ACL SETUSER`"),
        ),
    }
    if field("aof_enabled") == Some("0") {
        add(Finding::new(Severity::Warning, &subject, "appendonly")
            .found("no", "yes")
            .advice("keys since the last snapshot are lost when the server restarts, and their messages are handled again; set `yes`"));
    } else if let Some(policy) = appendfsync.filter(|policy| *policy != "always") {
        add(Finding::new(Severity::Note, &subject, "appendfsync")
            .found(policy, "always")
            .advice("keys that were done in the last seconds are lost with the machine, and their messages are handled again; set `always` where that matters"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(info: &str) -> Vec<String> {
        let mut findings = Vec::new();
        judge(info, Some("everysec"), &mut findings);
        judge(info, Some("always"), &mut findings);
        findings.iter().map(|finding| format!("{} {}", finding.setting, finding.found)).collect()
    }

    #[test]
    fn what_evicts_or_forgets_is_found() {
        let well = "maxmemory:100\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";
        assert_eq!(found(well), ["appendfsync everysec"]);
        let unlimited = well.replace("100", "0").replace("noeviction", "allkeys-lru");
        assert_eq!(found(&unlimited), ["appendfsync everysec"]);
        let evicting = found(&well.replace("noeviction", "volatile-ttl"));
        assert_eq!(evicting, ["maxmemory-policy volatile-ttl", "appendfsync everysec"]);
        assert_eq!(found(&well.replace("enabled:1", "enabled:0")), ["appendonly no"]);
        assert_eq!(found(""), ["INFO not permitted", "appendfsync everysec"]);
    }
}
