use dlq_core::log::{Content, Entries, Log as _, Range};
use dlq_core::{Finding, Severity, StoreError};

use super::RedisLetters;
use super::letters::READING;
use crate::client::{ServerInfo, as_text};

/// Number of entries that are read at once.
const BATCH: usize = 256;

impl RedisLetters {
    /// Looks for settings of the server by which letters are lost, for keys of another type, and, by reading all of the stream,
    /// for entries that are no letters.
    ///
    /// # Errors
    ///
    /// As [`Log::read`](dlq_core::log::Log::read).
    pub async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        self.stands().await?;
        let mut findings = settings(self.client.server());
        let types = self.types().await?;
        // With a ledger of another type reading fails, and the finding says more.
        let can_read = types.is_empty();
        findings.extend(types);
        if can_read {
            let mut entries = self.read(Range::all()).await?;
            let object = format!("stream `{}`", self.stream());
            findings.extend(others(&mut entries, &object).await?);
        }
        Ok(findings)
    }

    /// Finds keys beside the stream that hold something else.
    async fn types(&self) -> Result<Vec<Finding>, StoreError> {
        let keys = [
            (self.keys.ledger(), "hash"),
            (self.keys.followers(), "set"),
            (self.keys.replaying(), "zset"),
        ];
        let mut findings = Vec::new();
        for (key, wanted) in keys {
            let kind = self.client.command(redis::cmd("TYPE").arg(&key)).await;
            let kind = as_text(&kind.map_err(|error| error.for_store(READING))?);
            let kind = kind.unwrap_or_default();
            if kind != wanted && kind != "none" {
                let finding = Finding::new(Severity::Error, &format!("key `{key}`"), "type");
                findings.push(finding.found(kind, wanted).advice(
                    "letters can neither be read nor sent back; somebody else uses the key: rename it, or remove it",
                ));
            }
        }
        Ok(findings)
    }
}

/// Finds entries that are no letters.
pub(super) async fn others(
    entries: &mut impl Entries,
    object: &str,
) -> Result<Option<Finding>, StoreError> {
    let (mut foreign, mut damaged, mut first) = (0_u64, 0_u64, None);
    loop {
        let batch = entries.next(BATCH).await?;
        if batch.is_empty() {
            break;
        }
        for entry in batch {
            match entry.content {
                Content::Letter(_) | Content::Outline(_) => continue,
                Content::Foreign => foreign += 1,
                Content::Damaged(_) => damaged += 1,
            }
            // The first one is named and the others are counted, since there may be thousands.
            first.get_or_insert_with(|| entry.place.position().clone());
        }
    }
    Ok(first.map(|first| {
        let found = format!("{foreign} foreign and {damaged} damaged, the first at {first}");
        Finding::new(Severity::Warning, object, "entries").found(found, "letters").advice(
            "they are passed over by whoever reads letters; keep others from writing here, and look at what was written: \
             XRANGE",
        )
    }))
}

pub(super) fn settings(server: &ServerInfo) -> Vec<Finding> {
    let finding = |severity, setting, found: &str, want, advice: &str| {
        Finding::new(severity, "server", setting).found(found, want).advice(advice)
    };
    // Without a version `INFO` was forbidden, and the other fields are defaults that say nothing.
    if server.version.is_none() {
        return vec![finding(
            Severity::Note,
            "settings",
            "unknown",
            "known",
            "the user may not run `info`, so that nothing is known of eviction and persistence; grant it: ACL SETUSER NAME +info",
        )];
    }
    let mut findings = Vec::new();
    if server.append_only == Some(false) {
        findings.push(finding(
            Severity::Warning,
            "appendonly",
            "no",
            "yes",
            "a crash of the server loses messages and letters; set it at the server: CONFIG SET appendonly yes, and in its \
             configuration",
        ));
    }
    if let Some(policy) =
        server.maxmemory_policy.as_deref().filter(|policy| *policy != "noeviction")
    {
        findings.push(finding(
            Severity::Warning,
            "maxmemory-policy",
            policy,
            "noeviction",
            "the server deletes keys once it has a memory limit and reaches it, letters among them; set it at the server: CONFIG \
             SET maxmemory-policy noeviction",
        ));
    }
    findings
}
