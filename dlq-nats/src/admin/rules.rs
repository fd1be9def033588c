//! Rules that decide what is right and what is wrong, from what was seen.

use std::time::Duration;

use async_nats::jetstream::consumer::{self, AckPolicy};
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, RetentionPolicy, StorageType};
use dlq_core::Timestamp;
use dlq_core::policy::duration::format as time;

use super::{ConsumerPlan, Finding, Severity};
use crate::client::bounds;
use crate::client::difference::{Difference, Differences};
use crate::client::streams;
use crate::client::version::{FILTERS, SCHEDULES, parse};

use Severity::{Error, Note, Warning};

/// A lease below it is exceeded by a slow network or a busy machine.
const SHORTEST_LEASE: Duration = Duration::from_secs(5);
/// With a lease above it, it takes long until another process takes over.
const LONGEST_LEASE: Duration = Duration::from_secs(15 * 60);
/// Share of a bound, in percent, above which a finding is reported.
const NEARLY: u64 = 80;

pub(super) fn stream_name(name: &str) -> String {
    format!("stream `{name}`")
}

pub(super) fn consumer_name(name: &str, stream: &str) -> String {
    format!("consumer `{name}` of stream `{stream}`")
}

/// Facts besides the item that is checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) now: Timestamp,
    pub(super) is_cluster: bool,
    pub(super) max_payload: usize,
    /// The longest lease of consumers of ours.
    pub(super) lease: Duration,
}

/// Knowledge about who serves a consumer that is not ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    /// There is a router for it.
    pub(super) is_watched: bool,
    /// It is named as one to be watched.
    pub(super) is_named: bool,
    pub(super) expected: Option<u32>,
}

/// Differences as findings.
pub(super) fn differ(subject: &str, severity: Severity, wrong: Differences) -> Vec<Finding> {
    let finding = |Difference { setting, found, wanted, why }| {
        let so = if why.is_empty() { "" } else { ", " };
        Finding::new(severity, subject, setting)
            .found(found, wanted)
            .advice(format!("change `{setting}`, or ask for what there is{so}{why}"))
    };
    wrong.0.into_iter().map(finding).collect()
}

/// Returns the differences of a stream from the wanted one; of a stream of ours at servers that take messages as large
/// as `max_payload`.
pub(super) fn stream_differs(
    found: &Config,
    wanted: &Config,
    ours: bool,
    max_payload: usize,
) -> Vec<Finding> {
    let subject = stream_name(&found.name);
    if ours {
        differ(&subject, Error, streams::differences(found, wanted, max_payload))
    } else {
        differ(&subject, Warning, streams::settings(found, wanted))
    }
}

/// Checks rules for every stream that keeps something for us, including buckets.
pub(super) fn keeping(subject: &str, config: &Config, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if config.storage == StorageType::Memory {
        let advice = "all of it is gone when its servers stop; make it anew on files";
        findings
            .push(Finding::new(Warning, subject, "storage").found("memory", "file").advice(advice));
    }
    if facts.is_cluster && config.num_replicas < 3 {
        let advice = "it does not answer while its server is down, and is lost with its disk; set `num_replicas` to 3";
        let found = config.num_replicas.to_string();
        findings
            .push(Finding::new(Warning, subject, "num_replicas").found(found, "3").advice(advice));
    }
    findings
}

/// Checks how full a stream is that refuses messages when it is full.
pub(super) fn fullness(info: &Info) -> Vec<Finding> {
    let (config, state) = (&info.config, &info.state);
    if config.discard != DiscardPolicy::New {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (setting, bound) in bounds::all(config) {
        let used = match setting {
            "max_msgs" => state.messages,
            "max_bytes" => state.bytes,
            _ => continue,
        };
        // Only bounds above 0 are listed, so that this divides by none of them.
        let percent = used.saturating_mul(100) / bound.unsigned_abs();
        if percent >= NEARLY {
            let severity = if percent >= 98 { Error } else { Warning };
            let advice = "when it is full, nothing can be written and nothing is acknowledged; remove what is settled, \
                          or raise the bound";
            findings.push(
                Finding::new(severity, &stream_name(&config.name), setting)
                    .found(
                        format!("used to {percent} % ({used} of {bound})"),
                        format!("below {NEARLY} %"),
                    )
                    .advice(advice),
            );
        }
    }
    findings
}

/// Checks rules for streams of ours besides their settings.
pub(super) fn own(info: &Info, facts: &Facts) -> Vec<Finding> {
    let config = &info.config;
    let subject = stream_name(&config.name);
    let mut findings = keeping(&subject, config, facts);
    // The comparison with the wanted settings tells that already, as an error.
    findings.retain(|finding| finding.setting != "storage");
    findings.extend(fullness(info));
    let enough = facts.lease + facts.lease / 2;
    // Advisories have no ids, so that the window of their stream is of no use.
    if config.duplicate_window < enough && config.subjects.iter().all(|s| !s.starts_with('$')) {
        let advice = format!(
            "a process that dies after it wrote and before it acknowledged writes again when its lease of {} ends, which \
             the server would take for something new; raise `duplicate_window`",
            time(facts.lease)
        );
        findings.push(
            Finding::new(Warning, &subject, "duplicate_window")
                .found(time(config.duplicate_window), format!("{} or more", time(enough)))
                .advice(advice),
        );
    }
    findings
}

/// Letters that are about to be removed.
pub(super) fn ageing(info: &Info, facts: &Facts) -> Option<Finding> {
    let (config, state) = (&info.config, &info.state);
    if config.max_age.is_zero() || state.messages == 0 {
        return None;
    }
    let age = facts.now.since(timestamp(state.first_timestamp));
    if age < config.max_age * NEARLY as u32 / 100 {
        return None;
    }
    let left = config.max_age.saturating_sub(age).as_secs();
    let advice = format!(
        "the server removes the oldest letter in {}, resolved or not; replay or ingest it, or raise `max_age`",
        time(Duration::from_secs(left))
    );
    let found = format!(
        "{}, and the oldest letter {} old",
        time(config.max_age),
        time(Duration::from_secs(age.as_secs()))
    );
    Some(
        Finding::new(Warning, &stream_name(&config.name), "max_age")
            .found(found, format!("letters younger than {NEARLY} % of it"))
            .advice(advice),
    )
}

/// Checks rules for a stream of the user's.
pub(super) fn source(info: &Info, facts: &Facts, has_router: bool) -> Vec<Finding> {
    let config = &info.config;
    let subject = stream_name(&config.name);
    let mut findings = keeping(&subject, config, facts);
    findings.extend(fullness(info));
    let drops = config.retention != RetentionPolicy::Limits;
    if drops && has_router {
        let advice = "a message that a consumer terminates leaves the stream before the router can read it: its letter \
                      has no payload; let such consumers reach `max_deliver`, or use `limits`";
        findings.push(
            Finding::new(Warning, &subject, "retention")
                .found(word(config.retention), "limits")
                .advice(advice),
        );
    }
    // In a work queue everything that is there waits to be handled.
    let severity = if drops { Warning } else { Note };
    let evicting = bounds::evicting(config);
    let mut bounds: Vec<_> =
        evicting.map(|(setting, bound)| (setting, bound.to_string())).collect();
    if !config.max_age.is_zero() {
        bounds.push(("max_age", time(config.max_age)));
    }
    for (setting, bound) in bounds {
        let advice = "what reaches it is removed whether it was handled or not; watch how far consumers are behind, or \
                      set `discard` to new, and for each subject `discard_new_per_subject`";
        findings
            .push(Finding::new(severity, &subject, setting).found(bound, "none").advice(advice));
    }
    findings
}

/// Messages that are removed soon and that a consumer has not settled.
pub(super) fn behind(stream: &Info, consumer: &consumer::Info, facts: &Facts) -> Option<Finding> {
    let (config, state) = (&stream.config, &stream.state);
    let oldest = state.first_sequence.max(1);
    let waits = consumer.num_pending > 0 || consumer.num_ack_pending > 0;
    if !waits || consumer.ack_floor.stream_sequence >= oldest {
        return None;
    }
    // The oldest message there is was not settled by this consumer: how soon is it removed?
    let age = facts.now.since(timestamp(state.first_timestamp));
    let mut percent = Vec::new();
    if !config.max_age.is_zero() {
        percent.push(("max_age", age.as_millis() * 100 / config.max_age.as_millis().max(1)));
    }
    // With `New` a bound refuses what comes, and removes nothing.
    if config.discard == DiscardPolicy::Old {
        for (setting, bound) in bounds::all(config) {
            let used = match setting {
                "max_msgs" => state.messages,
                "max_bytes" => state.bytes,
                _ => continue,
            };
            percent.push((setting, u128::from(used) * 100 / u128::from(bound.unsigned_abs())));
        }
    }
    let (setting, percent) = percent.into_iter().max_by_key(|(_, percent)| *percent)?;
    (percent >= u128::from(NEARLY)).then(|| {
        let advice = format!(
            "it has not settled the oldest message of the stream, which is removed when `{setting}` is reached; raise it, \
             or add processes"
        );
        Finding::new(Error, &consumer_name(&consumer.name, &consumer.stream_name), setting)
            .found(format!("used to {percent} %"), format!("below {NEARLY} %"))
            .advice(advice)
    })
}

/// A consumer of ours, besides what its plan says.
pub(super) fn ours(
    plan: &ConsumerPlan,
    found: &consumer::Config,
    subject: &str,
    facts: &Facts,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lease = found.ack_wait;
    let wrong = if lease < SHORTEST_LEASE {
        Some(
            "a slow network or a busy machine lets it end while a handler runs: messages are handled twice; raise it",
        )
    } else if lease > LONGEST_LEASE {
        Some(
            "so long it takes until what a dead process held is handled; lower it, since a handler that runs extends it",
        )
    } else {
        None
    };
    if let Some(advice) = wrong {
        let want = format!("from {} to {}", time(SHORTEST_LEASE), time(LONGEST_LEASE));
        findings.push(
            Finding::new(Warning, subject, "ack_wait").found(time(lease), want).advice(advice),
        );
    }
    let room = found.max_ack_pending;
    if room > 0 && usize::try_from(room).is_ok_and(|room| room < plan.prefetch) {
        let advice = "one process fetches them all, and others get nothing; raise `max_ack_pending`, or lower the prefetch";
        findings.push(
            Finding::new(Warning, subject, "max_ack_pending")
                .found(
                    room.to_string(),
                    format!("{} or more, the prefetch of one process", plan.prefetch),
                )
                .advice(advice),
        );
    }
    findings.extend(kept(found, subject, facts));
    findings
}

fn kept(found: &consumer::Config, subject: &str, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if found.memory_storage {
        let advice = "what it has settled is forgotten when its server stops, and comes again; make it anew on files";
        findings.push(
            Finding::new(Warning, subject, "mem_storage").found("true", "false").advice(advice),
        );
    }
    if facts.is_cluster && found.num_replicas == 1 {
        let advice = "nothing is handed out while its server is down; set `num_replicas` to 0, as its stream has them";
        findings.push(
            Finding::new(Warning, subject, "num_replicas").found("1", "0 or 3").advice(advice),
        );
    }
    findings
}

/// A consumer that is not ours.
pub(super) fn foreign(found: &consumer::Config, subject: &str, watch: Watch) -> Vec<Finding> {
    let mut findings = Vec::new();
    if found.ack_policy == AckPolicy::None {
        let advice = "what it cannot handle is lost, and no router hears of it; use `explicit`";
        findings.push(
            Finding::new(Warning, subject, "ack_policy").found("none", "explicit").advice(advice),
        );
        return findings;
    }
    let limit = found.max_deliver;
    if limit > 0 && !watch.is_watched {
        let advice = "what was handed out that often is dropped in silence; watch it with an event router, or handle it by \
                      a consumer of ours, with `max_deliver` -1";
        findings.push(
            Finding::new(Error, subject, "max_deliver")
                .found(limit.to_string(), "a router, or -1")
                .advice(advice),
        );
    } else if limit <= 0 && watch.is_named {
        let advice = "it never gives a message up, so that the router never hears of one; set `max_deliver`, or do not \
                      watch it";
        findings.push(
            Finding::new(Warning, subject, "max_deliver")
                .found("-1", expected(watch))
                .advice(advice),
        );
    } else if limit > 0 && watch.expected.is_some_and(|expected| i64::from(expected) != limit) {
        let advice = "the router expects another number; change the consumer, or `max_retries` of the router";
        findings.push(
            Finding::new(Warning, subject, "max_deliver")
                .found(limit.to_string(), expected(watch))
                .advice(advice),
        );
    }
    findings
}

fn expected(watch: Watch) -> String {
    watch.expected.map_or_else(|| "a limit".to_owned(), |expected| expected.to_string())
}

/// A bucket of crash marks or idempotency keys.
pub(super) fn bucket(name: &str, config: &Config, facts: &Facts) -> Vec<Finding> {
    let subject = format!("bucket `{name}`");
    let mut findings = keeping(&subject, config, facts);
    for (setting, bound) in bounds::forgetting(config) {
        let advice = "keys are evicted when it is full, and what they protect is handled again; remove the bound";
        let found = bound.to_string();
        findings.push(Finding::new(Error, &subject, setting).found(found, "-1").advice(advice));
    }
    let mut wrong = Differences::default();
    streams::breaks_its_word(config, &mut wrong);
    findings.extend(differ(&subject, Error, wrong));
    findings
}

/// Returns a finding about features that a server of this version lacks.
pub(super) fn version(version: &str, wants_schedules: bool) -> Option<Finding> {
    let found = parse(version)?;
    let (severity, wanted, advice) = if found < FILTERS {
        let advice = "consumers with several filters do not work; upgrade the server";
        (Error, FILTERS, advice)
    } else if found < SCHEDULES && wants_schedules {
        let advice = "retries that wait are held by the server's delayed redelivery instead of its schedules, which costs \
                      it memory for each; upgrade the server, or use `without_schedules`";
        (Warning, SCHEDULES, advice)
    } else {
        return None;
    };
    let want = format!("{}.{} or later", wanted.0, wanted.1);
    Some(Finding::new(severity, "server", "version").found(version, want).advice(advice))
}

fn word(retention: RetentionPolicy) -> &'static str {
    match retention {
        RetentionPolicy::Limits => "limits",
        RetentionPolicy::Interest => "interest",
        RetentionPolicy::WorkQueue => "workqueue",
    }
}

pub(super) fn timestamp(at: async_nats::datetime::DateTime) -> Timestamp {
    Timestamp::from_nanos(i64::try_from(at.unix_timestamp_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_told_from_new_ones() {
        let severity =
            |text: &str, schedules: bool| version(text, schedules).map(|found| found.severity);
        assert_eq!(severity("2.9.25", false), Some(Error));
        assert_eq!(severity("2.11.11", true), Some(Warning));
        assert_eq!(severity("2.11.11", false), None);
        assert_eq!(severity("2.12.0-RC.1", true), None);
        assert_eq!(severity("3.0.0", true), None);
        assert_eq!(severity("dev", true), None, "what cannot be read is not judged");
        let text = version("2.11.11", true).unwrap().to_string();
        assert!(text.contains("2.11.11") && text.contains("2.12 or later"), "{text}");
    }
}
