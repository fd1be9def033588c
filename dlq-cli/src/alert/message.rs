//! Messages to receivers: a digest of many groups, or an event for each.

use dlq_core::store::{AlertKind, GroupState, TriagedGroup};
use dlq_core::{ErrorClass, Fingerprint, Reason, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::receiver::{Format, Receiver};
use crate::output::escape;

/// Number of groups that a message of Slack names; the rest is counted.
// Slack cuts long messages, and nobody reads more lines of one.
const NAMED: usize = 20;
/// Most characters of an error that are sent.
const LONGEST: usize = 300;

/// Alert that is due.
#[derive(Clone, Debug)]
pub(super) struct DueAlert {
    pub(super) kind: AlertKind,
    pub(super) group: TriagedGroup,
    /// Number of its letters that are pending, held or quarantined.
    pub(super) waiting: u64,
}

/// Alert as it stands in a webhook, and among the details of an event.
#[derive(Serialize)]
struct AlertDocument<'a> {
    alert: AlertKind,
    /// The same in each alert about the group.
    id: String,
    group: Fingerprint,
    consumer: &'a str,
    state: GroupState,
    /// Number of letters, and of those that are pending, held or quarantined.
    count: u64,
    waiting: u64,
    last_hour: u64,
    is_growing: bool,
    first_seen: Timestamp,
    last_seen: Timestamp,
    subject: &'a str,
    reason: Reason,
    class: ErrorClass,
    error: String,
    owner: Option<&'a str>,
    note: Option<&'a str>,
}

impl Receiver {
    /// Returns how many alerts one message may hold.
    pub(super) const fn alerts_per_message(&self) -> usize {
        match self.format {
            Format::Webhook | Format::Slack => usize::MAX,
            // An incident is of one group, and is resolved with it.
            Format::PagerDuty { .. } => 1,
        }
    }

    /// Returns true if it takes alerts of this kind.
    pub(super) fn takes(&self, kind: AlertKind) -> bool {
        // Only an incident has to be closed; people in a channel need no message that something is over.
        kind != AlertKind::Resolved || matches!(self.format, Format::PagerDuty { .. })
    }

    /// Returns the JSON document of a message about these groups of the store of this name.
    pub(super) fn message(&self, store: &str, alerts: &[DueAlert]) -> Vec<u8> {
        let document = match (&self.format, alerts) {
            (Format::PagerDuty { routing_key }, [alert, ..]) => event(routing_key, store, alert),
            (Format::Slack, _) => json!({ "text": text(store, alerts) }),
            _ => {
                let alerts: Vec<_> = alerts.iter().map(DueAlert::document).collect();
                json!({ "schema_version": 1, "store": store, "alerts": alerts })
            }
        };
        document.to_string().into_bytes()
    }
}

impl DueAlert {
    fn document(&self) -> AlertDocument<'_> {
        let TriagedGroup { group, state, last_hour, is_growing, record, .. } = &self.group;
        AlertDocument {
            alert: self.kind,
            id: group.key().digest(),
            group: group.fingerprint,
            consumer: &group.consumer,
            state: *state,
            count: group.count,
            waiting: self.waiting,
            last_hour: *last_hour,
            is_growing: *is_growing,
            first_seen: group.first_seen,
            last_seen: group.last_seen,
            subject: &group.sample.subject,
            reason: group.sample.reason,
            class: group.sample.class,
            error: cut(&group.sample.error, LONGEST),
            owner: record.owner.as_deref(),
            note: record.note.as_deref(),
        }
    }

    /// Returns a line for people.
    fn line(&self) -> String {
        let TriagedGroup { group, .. } = &self.group;
        let letters = if self.waiting == 1 { "letter" } else { "letters" };
        let waiting = self.waiting;
        let consumer = escape(&cut(&group.consumer, 100));
        // Texts of errors hold what producers sent. Escaped, a line break in one cannot make a line of its own in the
        // message.
        let error = escape(&cut(&group.sample.error, LONGEST));
        format!("{}: {waiting} {letters} of {consumer}, {}: {error}", self.kind, group.fingerprint)
    }
}

fn text(store: &str, alerts: &[DueAlert]) -> String {
    let groups = if alerts.len() == 1 { "group" } else { "groups" };
    let mut text = format!("*{} {groups} of dead letters* in {}", alerts.len(), for_slack(store));
    for alert in alerts.iter().take(NAMED) {
        text.push_str("\n• ");
        text.push_str(&for_slack(&alert.line()));
    }
    if alerts.len() > NAMED {
        text.push_str(&format!("\n• and {} more: `dlq groups` shows them", alerts.len() - NAMED));
    }
    text
}

/// Escapes the characters with which Slack marks links and mentions.
fn for_slack(text: &str) -> String {
    // Unescaped, an error with `<!channel>` in it would wake everybody. The `&` comes first, or it would escape the
    // others' marks.
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn event(routing_key: &str, store: &str, alert: &DueAlert) -> Value {
    let document = alert.document();
    let action = if alert.kind == AlertKind::Resolved { "resolve" } else { "trigger" };
    json!({
        "routing_key": routing_key,
        "event_action": action,
        // The same key for each alert about a group makes a second trigger no second incident, also after a lost answer.
        "dedup_key": document.id,
        "client": "dlq",
        "payload": {
            // 1,024 characters at most are taken.
            "summary": cut(&alert.line(), 1_000),
            "source": store,
            "severity": "error",
            "component": document.consumer,
            "group": document.group,
            "class": document.class,
            "custom_details": document,
        },
    })
}

fn cut(text: &str, longest: usize) -> String {
    let mut kept: String = text.chars().take(longest).collect();
    if kept.len() < text.len() {
        kept.push('…');
    }
    kept
}
