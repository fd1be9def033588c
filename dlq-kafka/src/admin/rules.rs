use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::Finding;
use dlq_core::Severity::{Note, Warning};
use dlq_core::policy::duration::format as time;

use crate::client::topics::topic_name;

/// Share of a retention, in percent, after which a finding is reported.
const NEARLY: u32 = 80;
/// For how long the offsets of a group should be known that nobody is in, in minutes: a week.
const OFFSETS: i64 = 7 * 24 * 60;
/// Maximum size of a commit's metadata, in bytes, unless it was configured.
const METADATA: i64 = 4096;

/// Settings of a broker; `None` when the user may not read them.
pub(super) type Settings = Option<BTreeMap<String, String>>;

/// The age from which a letter is said to be about to be removed.
pub(super) fn nearly(retention: Duration) -> Duration {
    retention * NEARLY / 100
}

/// Letters that are about to be removed.
pub(super) fn ageing(topic: &str, retention: Duration, letters: u64) -> Option<Finding> {
    let old = time(nearly(retention));
    let found = format!("{}, and {letters} letters are older than {old}", time(retention));
    let advice = "the brokers remove letters of that age, resolved or not; replay or ingest them, or raise it";
    let finding = Finding::new(Warning, &topic_name(topic), "retention.ms");
    (letters > 0)
        .then(|| finding.found(found, format!("letters younger than {old}")).advice(advice))
}

/// Letters of which that is not known.
pub(super) fn ageless(topic: &str, why: &str) -> Finding {
    let advice =
        format!("whether letters are about to be removed cannot be told ({why}); look again later");
    Finding::new(Note, &topic_name(topic), "age of letters")
        .found("unknown", "known")
        .advice(advice)
}

/// A topic that was a stage of a ladder once.
pub(super) fn former(topic: &str) -> Finding {
    let advice = "consumers that start read it besides their ladder, since what waits there was acknowledged; delete it when \
                  nothing waits there any more";
    Finding::new(Note, &topic_name(topic), "ladder")
        .found("no stage of it", "a stage of it, or no topic")
        .advice(advice)
}

/// Returns findings about brokers: each finding once, for the first broker that has it.
pub(super) fn brokers(all: &[(i32, Settings)]) -> Vec<Finding> {
    RULES
        .iter()
        // Brokers mostly share their settings, and the same finding for each of them would bury the others.
        .filter_map(|rule| all.iter().find_map(|(id, settings)| rule(*id, settings)))
        .collect()
}

type Rule = fn(i32, &Settings) -> Option<Finding>;

const RULES: &[Rule] = &[creating, forgetting, metadata];

fn broker(id: i32) -> String {
    format!("broker `{id}`")
}

/// A broker that the others know and that does not answer.
pub(super) fn silent(id: i32, why: &str) -> Finding {
    let advice = format!("it is away, or cannot be reached from here: {why}");
    Finding::new(Warning, &broker(id), "answer").found("none", "one").advice(advice)
}

fn number(settings: &Settings, name: &str) -> Option<i64> {
    settings.as_ref()?.get(name)?.parse().ok()
}

fn creating(id: i32, settings: &Settings) -> Option<Finding> {
    let setting = "auto.create.topics.enable";
    let is_on = settings.as_ref()?.get(setting)? == "true";
    let advice = "whoever mistypes a name makes a topic with default settings instead of seeing an error; set it to false";
    let finding = Finding::new(Note, &broker(id), setting);
    is_on.then(|| finding.found("true", "false").advice(advice))
}

fn forgetting(id: i32, settings: &Settings) -> Option<Finding> {
    let setting = "offsets.retention.minutes";
    let found = number(settings, setting).filter(|minutes| *minutes < OFFSETS)?;
    let advice = "a group that is away for longer forgets where it was, and reads again from the start or skips to the \
                  end; raise it";
    let want = format!("{OFFSETS} or more");
    Some(Finding::new(Warning, &broker(id), setting).found(found.to_string(), want).advice(advice))
}

fn metadata(id: i32, settings: &Settings) -> Option<Finding> {
    let setting = "offset.metadata.max.bytes";
    let subject = broker(id);
    let want = format!("{METADATA} or more");
    match number(settings, setting) {
        Some(found) if found >= METADATA => None,
        Some(found) => {
            let advice = "marks of records that kill the process are kept beside the offset, and may not fit; raise it";
            Some(
                Finding::new(Warning, &subject, setting)
                    .found(found.to_string(), want)
                    .advice(advice),
            )
        }
        None => {
            let advice = "how much can be kept beside an offset cannot be told, nor what else is set; allow \
                          `DescribeConfigs` on the cluster";
            Some(Finding::new(Note, &subject, setting).found("unknown", want).advice(advice))
        }
    }
}
