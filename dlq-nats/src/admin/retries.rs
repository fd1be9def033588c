//! Records in the retry stream that should not be there.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::stream::{Info, Stream};
use async_nats::jetstream::{Context, consumer};
use dlq_core::Timestamp;
use dlq_core::policy::duration::format as time;
use futures_util::TryStreamExt as _;

use super::look::{LOOKS, PAUSE};
use super::rules::{Facts, consumer_name, stream_name, timestamp};
use super::{Finding, Severity};
use crate::client::names;
use crate::client::streams::RetryStream;
use crate::consumer::overdue::{LATE, due};

use Severity::{Note, Warning};

/// For longer than this no retry is taken to wait.
const LONGEST_RETRY: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Within this the record of a part is written.
const SOON: Duration = Duration::from_secs(10 * 60);
/// Number of waiting records that are examined. Each comes with its payload.
const MOST: usize = 100;

/// Nothing where it is not said: the stream itself has been looked at.
pub(super) async fn look(
    context: &Context,
    retries: &RetryStream,
    info: &Info,
    facts: &Facts,
) -> Vec<Finding> {
    let Ok(stream) = context.get_stream_no_info(&retries.name).await else { return Vec::new() };
    let waiting = format!("{}-at.", retries.prefix);
    let late = late(&stream, &waiting, facts.now).await;
    let late = late.into_iter().map(|(consumer, late)| overdue(&retries.name, &consumer, &late));
    let aside = format!("{}-aside.>", retries.prefix);
    let parts = counted(&stream, &aside).await.and_then(|(count, oldest)| {
        let records = info.state.messages.saturating_sub(count);
        parts(&retries.name, &aside, count, records, facts.now.since(oldest))
    });
    let unheard = unheard(&stream, facts.now).await;
    let unheard = unheard.into_iter().map(|(name, due)| deserted(&retries.name, &name, due));
    late.chain(parts).chain(unheard).collect()
}

/// Consumers whose records are due while nobody asks for them, and how many these are.
async fn unheard(stream: &Stream<()>, now: Timestamp) -> BTreeMap<String, u64> {
    let due = |found: &consumer::Info| found.num_pending + found.num_ack_pending as u64;
    let is_unheard = |found: &consumer::Info| {
        let last = found.delivered.last_active.map_or(Timestamp::EPOCH, timestamp);
        // What is in flight of one that died is in flight for ever, if nobody asks.
        let is_idle = found.num_ack_pending == 0 || now.since(last) > found.config.ack_wait * 2;
        due(found) > 0 && found.num_waiting == 0 && is_idle
    };
    let look = async || -> BTreeMap<String, u64> {
        let found: Result<Vec<_>, _> = stream.consumers().try_collect().await;
        let found = found.unwrap_or_default().into_iter().filter(is_unheard);
        found.map(|found| (found.name.clone(), due(&found))).collect()
    };
    let mut unheard = look().await;
    // A process that reads may have no request open just now, so that one look proves nothing.
    for _ in 1..LOOKS {
        if unheard.is_empty() {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        let still = look().await;
        unheard.retain(|name, _| still.contains_key(name));
    }
    unheard
}

fn deserted(stream: &str, consumer: &str, due: u64) -> Finding {
    let name = names::text(consumer).unwrap_or_else(|| consumer.to_owned());
    let advice = format!(
        "no process reads as `{name}`; start one. If the consumer has another name now, run one under the old name until \
         these are done"
    );
    Finding::new(Warning, &consumer_name(consumer, stream), "num_waiting")
        .found(format!("0, while {due} records are due"), "a process that asks for them")
        .advice(advice)
}

/// Records of one consumer that the server keeps beyond their time.
#[derive(Debug)]
struct Late {
    count: u64,
    /// The first of them: its subject, its sequence, and when it was due.
    first: (String, u64, Timestamp),
}

/// Returns the late ones among the first waiting records, by consumer.
async fn late(stream: &Stream<()>, waiting: &str, now: Timestamp) -> BTreeMap<String, Late> {
    let (mut late, mut from) = (BTreeMap::<String, Late>::new(), 1);
    let subjects = format!("{waiting}>");
    for _ in 0..MOST {
        let Ok(found) = stream.get_first_raw_message_by_subject(&subjects, from).await else {
            break;
        };
        from = found.sequence + 1;
        let consumer = found.subject.strip_prefix(waiting).and_then(|rest| rest.split('.').next());
        let (Some(consumer), Some(due)) = (consumer, due(&found.headers)) else { continue };
        if now.since(due) >= LATE {
            let first = (found.subject.to_string(), found.sequence, due);
            late.entry(consumer.to_owned()).or_insert(Late { count: 0, first }).count += 1;
        }
    }
    late
}

fn overdue(stream: &str, consumer: &str, late: &Late) -> Finding {
    let Late { count, first: (subject, sequence, due) } = late;
    let found = format!("{count} records overdue, the first `{subject}` ({sequence}) since {due}");
    let name = names::text(consumer).unwrap_or_else(|| consumer.to_owned());
    let advice = format!(
        "a server that has no room when a record is due does not try it again; a process that reads as `{name}` writes it \
         anew: it looks at some hundred records in each lease; see that one runs, and that there is room; or the server does when it is started again"
    );
    let setting = "Nats-Schedule";
    let want = "handed out within a minute of their time";
    Finding::new(Warning, &consumer_name(consumer, stream), setting)
        .found(found, want)
        .advice(advice)
}

/// Returns the number of messages under these subjects, and the time of the oldest.
async fn counted(stream: &Stream<()>, subjects: &str) -> Option<(u64, Timestamp)> {
    let counts = stream.info_with_subjects(subjects).await.ok()?;
    let counts: Vec<(String, usize)> = counts.try_collect().await.ok()?;
    let count = counts.iter().map(|(_, count)| *count as u64).sum();
    let first = stream.get_first_raw_message_by_subject(subjects, 1).await.ok()?;
    Some((count, timestamp(first.time)))
}

/// Parts of retry records stand aside from when they are written, before their record, until that is settled. Nobody
/// removes them when their process has died.
fn parts(stream: &str, subject: &str, parts: u64, records: u64, age: Duration) -> Option<Finding> {
    // Where no record waits nobody names these parts, however young they are.
    let longest = if records == 0 { Duration::ZERO } else { LONGEST_RETRY };
    if parts == 0 || age < longest {
        return None;
    }
    // One that has no record yet may be written just now.
    let severity = if age < SOON { Note } else { Warning };
    let advice = format!(
        "they are left of processes that died before they had written the record, or removed its parts; nobody reads \
         them. When no retry waits, remove them: `nats stream purge {stream} --subject '{subject}'`"
    );
    let found = format!("{parts} parts, the oldest {} old, and {records} records", time(age));
    let want = "none for longer than a retry waits";
    Some(Finding::new(severity, &stream_name(stream), "subjects").found(found, want).advice(advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_nobody_reads_are_told_from_those_that_wait() {
        let severity = |count, records, age| {
            parts("DLQ_RETRY", "retry-aside.>", count, records, age).map(|found| found.severity)
        };
        assert_eq!(severity(0, 0, LONGEST_RETRY), None);
        assert_eq!(severity(2, 0, Duration::ZERO), Some(Note), "their record may come yet");
        assert_eq!(severity(2, 0, SOON), Some(Warning));
        assert_eq!(severity(2, 1, SOON), None, "they may be of the record that waits");
        assert_eq!(severity(2, 1, LONGEST_RETRY), Some(Warning));
    }
}
