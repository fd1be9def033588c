//! Requirements for a topic. An error keeps a consumer from starting; the rest is reported.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::Finding;
use dlq_core::Severity::{self, Error, Note, Warning};
use dlq_core::policy::duration::format as time;

use super::seen::Seen;
use super::wanted::{Role, WantedTopic};

/// Number of bytes by which a record of ours can be larger than its message: its headers.
pub(super) const ROOM: u64 = 64 * 1024;

pub(crate) fn topic_name(name: &str) -> String {
    format!("topic `{name}`")
}

/// Returns the findings about a topic.
pub(crate) fn judge(
    wanted: &WantedTopic,
    seen: &Seen,
    all: &BTreeMap<String, Seen>,
    brokers: usize,
) -> Vec<Finding> {
    let subject = topic_name(&wanted.name);
    let mut judged = Judged { subject, findings: Vec::new() };
    judged.brokers(seen, brokers);
    // The user's own topic may be compacted or short-lived on purpose. Only topics that keep what was acknowledged are
    // judged by what they keep.
    if wanted.role != Role::Source {
        judged.keeping(wanted, seen);
        judged.sources(wanted, seen, all);
    }
    if seen.settings.is_none() {
        let advice = "whether it is fit cannot be told; allow `DescribeConfigs` on it";
        judged.add(Note, "settings", ("unknown", "readable"), advice);
    }
    judged.findings
}

struct Judged {
    subject: String,
    findings: Vec<Finding>,
}

impl Judged {
    fn add(
        &mut self,
        severity: Severity,
        setting: &str,
        (found, want): (impl Into<String>, impl Into<String>),
        advice: impl Into<String>,
    ) {
        let finding = Finding::new(severity, &self.subject, setting);
        self.findings.push(finding.found(found, want).advice(advice));
    }

    /// Checks rules for every topic: the number of replicas, and the effect of losing one.
    fn brokers(&mut self, seen: &Seen, brokers: usize) {
        if !seen.leaderless.is_empty() {
            let found = format!("none of partitions {:?}", seen.leaderless);
            let advice = "the brokers that have them are away: nothing is read from them or written to them; start one";
            self.add(Warning, "leader", (found, "one of each partition"), advice);
        }
        if brokers > 1 && seen.replication == 1 {
            let advice = "it does not answer while its broker is away, and is lost with its disk; reassign it to 3";
            self.add(Warning, "replication", ("1", "3"), advice);
        }
        // Unknown settings count as 0, for which no rule below applies: what cannot be read is told once, as a note.
        let confirming = seen.number("min.insync.replicas").unwrap_or(0);
        if seen.replication > 1 && confirming == 1 {
            let advice =
                "what is confirmed may stand on one broker only, and is lost with it; set it to 2";
            self.add(Warning, "min.insync.replicas", ("1", "2"), advice);
        }
        if seen.replication > 1 && confirming >= seen.replication as i64 {
            let advice = "nothing can be written while one broker is away, and so nothing is acknowledged; set it to one \
                          less than the replicas";
            let want = format!("{} or less", seen.replication - 1);
            self.add(Warning, "min.insync.replicas", (confirming.to_string(), want), advice);
        }
        let unclean = "unclean.leader.election.enable";
        if seen.replication > 1 && seen.text(unclean) == Some("true") {
            let advice = "a broker that lacks records can become the leader, and the records are gone; set it to false";
            self.add(Warning, unclean, ("true", "false"), advice);
        }
    }

    /// Checks rules for topics of ours: their retention.
    fn keeping(&mut self, wanted: &WantedTopic, seen: &Seen) {
        if let Some(policy) = seen.text("cleanup.policy")
            && policy.contains("compact")
        {
            let advice = match wanted.role {
                Role::Letters => {
                    "of letters with one key only the newest is kept, the others are lost; set it to delete"
                }
                _ => {
                    "of waiting records with one key only the newest is kept, the others are lost; set it to delete"
                }
            };
            self.add(Error, "cleanup.policy", (policy, "delete"), advice);
        }
        if let Some(found) = seen.retention()
            && found < wanted.at_least
        {
            let (severity, advice) = match wanted.role {
                Role::Stage { delay } if found > delay => (
                    Warning,
                    "records are removed before their attempt when all consumers are away for longer than the rest; raise it",
                ),
                Role::Stage { .. } => (
                    Error,
                    "records are removed before they are due; raise it, or shorten the delay",
                ),
                _ => (
                    Error,
                    "letters are removed earlier than asked for; raise it, or ask for what there is",
                ),
            };
            let want = format!("{} or more", time(wanted.at_least));
            self.add(severity, "retention.ms", (time(found), want), advice);
        }
        // An error and not a warning: a burst would remove letters that nobody has seen, however young they are (G9).
        if let Some(bytes) = seen.number("retention.bytes").filter(|bytes| *bytes >= 0) {
            let advice =
                "the oldest are removed when there are more, whatever their age; set it to -1";
            self.add(Error, "retention.bytes", (bytes.to_string(), "-1"), advice);
        }
    }

    /// Checks rules for topics of ours against the topics whose records they take.
    fn sources(&mut self, wanted: &WantedTopic, seen: &Seen, all: &BTreeMap<String, Seen>) {
        let is_stage = matches!(wanted.role, Role::Stage { .. });
        let needed = partitions(wanted, all);
        // Partitions cannot be taken away, and more of them do no harm, so only fewer are told.
        if needed.is_some_and(|needed| seen.partitions < needed) {
            let (severity, advice) = if is_stage {
                (
                    Warning,
                    "fewer processes than in the consumer's topic can work on it; add partitions",
                )
            } else {
                (Note, "what is read by partition is read by fewer; add partitions")
            };
            let want = needed.unwrap_or_default().to_string();
            self.add(severity, "partitions", (seen.partitions.to_string(), want), advice);
        }
        let needed = max_message(wanted, all);
        if let (Some(found), Some(needed)) = (seen.max_message(), needed)
            && found < needed
        {
            let advice = "a record of ours has up to 64 KiB of headers more than its message had, and the largest messages \
                          would not fit: they are kept without their payload; raise it";
            let want = format!("{needed} or more");
            self.add(Warning, "max.message.bytes", (found.to_string(), want), advice);
            if wanted.role == Role::Letters {
                self.pointed(wanted, seen, all);
            }
        }
    }
}

impl Judged {
    /// Judges topics to which letters may point: what is too large for the topic of letters stays there only, so they keep it
    /// for as long as the letters.
    fn pointed(&mut self, wanted: &WantedTopic, seen: &Seen, all: &BTreeMap<String, Seen>) {
        let letters = topic_name(&wanted.name);
        for name in &wanted.sources {
            let Some(source) = all.get(name) else { continue };
            let mut add = |setting: &str, found: String, want: String, why: &str| {
                let advice = format!(
                    "letters too large for {letters} only say where their message stands here, and {why}; raise \
                     `max.message.bytes` of {letters}, or set this"
                );
                let finding = Finding::new(Warning, &topic_name(name), setting);
                self.findings.push(finding.found(found, want).advice(advice));
            };
            if let Some(policy) = source.text("cleanup.policy")
                && policy.contains("compact")
            {
                let why = "it is lost when another message with its key comes";
                add("cleanup.policy", policy.to_owned(), "delete".to_owned(), why);
            }
            let (kept, letters_kept) = (source.retention(), seen.retention());
            // A topic that only compacts removes nothing by age.
            if let Some(kept) = kept.filter(|_| source.text("cleanup.policy") != Some("compact"))
                && letters_kept.is_none_or(|letters| kept < letters)
                && seen.settings.is_some()
            {
                let want = letters_kept
                    .map_or_else(|| "-1".to_owned(), |it| format!("{} or more", time(it)));
                let why = "it is removed before the letter is";
                add("retention.ms", time(kept), want, why);
            }
            if let Some(bytes) = source.number("retention.bytes").filter(|bytes| *bytes >= 0) {
                let why = "it is removed when there is more, whatever its age";
                add("retention.bytes", bytes.to_string(), "-1".to_owned(), why);
            }
        }
    }
}

/// Returns the number of partitions that the topic should have; `None` for the brokers' default.
pub(super) fn partitions(wanted: &WantedTopic, all: &BTreeMap<String, Seen>) -> Option<i32> {
    let of_sources = || sources(wanted, all).map(|seen| seen.partitions).max();
    wanted.partitions.map(i32::from).or_else(of_sources)
}

/// Returns the largest size of its records, in bytes.
pub(super) fn max_message(wanted: &WantedTopic, all: &BTreeMap<String, Seen>) -> Option<u64> {
    // The largest of all sources counts, since any of them may send its largest message here.
    let largest = sources(wanted, all).filter_map(Seen::max_message).max()?;
    // The brokers keep `max.message.bytes` in 32 bits with a sign.
    Some((largest + ROOM).min(i32::MAX as u64))
}

fn sources<'a>(
    wanted: &'a WantedTopic,
    all: &'a BTreeMap<String, Seen>,
) -> impl Iterator<Item = &'a Seen> {
    wanted.sources.iter().filter_map(|name| all.get(name))
}

/// Findings in a line.
pub(super) fn list(findings: &[&Finding]) -> String {
    let told = findings.iter().map(|finding| {
        let Finding { subject, setting, found, want, advice, .. } = finding;
        format!("{subject} will not do: `{setting}` is {found}, wanted is {want}: {advice}")
    });
    told.collect::<Vec<_>>().join("; ")
}

/// As Kafka writes it.
pub(super) fn millis(duration: Duration) -> String {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).to_string()
}
