use axum::response::Response;
use dlq_core::store::AuditEntry;
use dlq_core::{Clock as _, SystemClock, Timestamp};
use maud::{Markup, html};

use super::parts::{cut, moment, short, table};
use super::{Section, page as show};
use crate::access::Role;
use crate::actions;
use crate::call::{Call, NO_QUERY};
use crate::refusal::Refusal;
use crate::routes::AUDIT;
use crate::shown::{audit_diff, audit_subject};

/// Number of lines of an edit, and their length, on the page.
const DIFF: (usize, usize) = (12, 160);
/// Number of bytes of long texts on the page.
// With notes and differences of full length a page of 500 entries would be megabytes, and slow in a browser.
const ROOM: usize = 70 * 1024;
/// Number of characters of a text for which there is no room any more.
const SHORT: usize = 60;

/// Nanoseconds of a day.
const DAY: i64 = 24 * 3_600 * 1_000_000_000;
/// Actions that the audit has.
const ACTIONS: [&str; 17] = [
    "replay",
    "pause",
    "resume",
    "cancel",
    "rate",
    "quarantine",
    "release",
    "resolve",
    "edit",
    "delete",
    "undelete",
    "delete-for-good",
    "empty-archive",
    "cleanup",
    "deduplicate",
    "restore",
    "triage",
];

pub(crate) async fn page(call: Call) -> Result<Response, Refusal> {
    let limit = actions::limit(&call, actions::PAGE)?;
    let entries = actions::audit(&call).await?;
    // A full page may be the last one too. Then the next one is empty, which costs less than to count all entries.
    let last = entries.last().filter(|_| entries.len() >= limit as usize);
    let next = last.map(|last| {
        let number = last.number.to_string();
        let kept = call.params.without(&["before"]);
        call.at_store("audit", kept.into_iter().chain([("before", number.as_str())]))
    });
    let fields = AUDIT.iter().filter(|one| !["action", "before", "limit"].contains(&one.name));
    let said = call.params.text("action");
    let body = html! {
        h1 { "Audit" }
        p { "What was done to letters, by whom and why, newest first." }
        (days(&call))
        details.filter {
            summary { "Filter" }
            form method="get" action=(call.at_store("audit", NO_QUERY)) {
                div.fields {
                    div.field {
                        label for="f-action" { "action" }
                        select id="f-action" name="action" {
                            option value="" { "any" }
                            @for action in ACTIONS { option value=(action) selected[said == Some(action)] { (action) } }
                            // A later version of the command may have others.
                            @if let Some(other) = said.filter(|said| !ACTIONS.contains(said)) { option value=(other) selected { (cut(other, 40)) } }
                        }
                    }
                    @for one in fields {
                        div.field {
                            label for={ "f-" (one.name) } { (one.name) }
                            input id={ "f-" (one.name) } name=(one.name) value=[call.params.text(one.name)] aria-describedby={ "h-" (one.name) };
                            small id={ "h-" (one.name) } { (one.about) }
                        }
                    }
                }
                button type="submit" { "Show" }
            }
        }
        @if entries.is_empty() { p { "Nothing was done that matches." } } @else { (table_of(&call, &entries, ROOM)) }
        nav.pages aria-label="Pages" {
            @if let Some(next) = next { a rel="next" href=(next) { "Next page" } }
        }
    };
    Ok(show(&call, Section::Audit, "Audit", body))
}

/// Returns links to the days that people ask about, with everything else that was asked for.
fn days(call: &Call) -> Markup {
    // Timestamps are in UTC on every page, and so are days: people in two places have to mean the same one.
    let today = SystemClock.now().as_nanos().div_euclid(DAY);
    let start = |day: i64| Timestamp::from_nanos(day * DAY).to_string();
    let days = [
        ("All", vec![]),
        ("Today", vec![("since", start(today))]),
        ("Yesterday", vec![("since", start(today - 1)), ("until", start(today))]),
        ("The last 7 days", vec![("since", start(today - 6))]),
    ];
    // A page of one day says nothing of where another begins, so `before` goes too.
    let kept = call.params.without(&["since", "until", "before"]);
    let link = |day: &[(&'static str, String)]| {
        let day = day.iter().map(|(name, value)| (*name, value.as_str()));
        call.at_store("audit", kept.clone().into_iter().chain(day))
    };
    let is_this = |day: &[(&'static str, String)]| {
        let of_day =
            |name: &str| day.iter().find(|(one, _)| *one == name).map(|(_, value)| &**value);
        ["since", "until"].iter().all(|name| call.params.text(name) == of_day(name))
    };
    html! {
        ul.actions aria-label="Days, by UTC" {
            @for (name, day) in &days {
                li { a href=(link(day)) aria-current=[is_this(day).then_some("true")] { (name) } }
            }
            li.muted { "Days are those of UTC." }
        }
    }
}

/// Returns a table of entries, whose long texts take as many bytes as there is room.
pub(crate) fn table_of(call: &Call, entries: &[AuditEntry], mut room: usize) -> Markup {
    let is_whole = call.may(Role::Operate);
    let mut fitted = |text: &str, most: usize| {
        // Texts that come after the room is used up are shortened and never left out: each entry stays in the audit.
        let shown = cut(text, if room > 0 { most } else { SHORT });
        // Escapes count as well.
        room = room.saturating_sub(html! { (shown) }.into_string().len());
        (shown, room > 0)
    };
    let rows = html! {
        @for entry in entries {
            tr {
                th scope="row" { (moment(entry.at)) }
                td { (cut(&entry.by.who, 60)) }
                td { (cut(&entry.action, 40)) }
                td.number { (entry.affected) }
                td.wide {
                    @let (subject, has_room) = fitted(&audit_subject(entry), 300);
                    (subject)
                    // A difference quotes payloads, which the role `read` does not see.
                    @if is_whole && has_room { (diff_of(entry, &mut fitted)) }
                }
                td.wide { @if let Some(note) = &entry.by.note { (fitted(note, 300).0) } }
                td {
                    @if let Some(operation) = entry.operation {
                        a href=(call.at_store(&format!("operations/{operation}"), NO_QUERY)) { code { (short(&operation)) } }
                    }
                }
            }
        }
    };
    let head = ["When", "By", "Action", "Letters", "Subject", "Reason", "Operation"];
    table("Audit", &head, rows)
}

fn diff_of(entry: &AuditEntry, fitted: &mut impl FnMut(&str, usize) -> (String, bool)) -> Markup {
    let lines = audit_diff(entry);
    html! {
        @if !lines.is_empty() {
            pre.diff tabindex="0" {
                @for line in lines.iter().take(DIFF.0) {
                    @let (line, _) = fitted(line, DIFF.1);
                    // Escapes make a line longer than it was cut to, so this limit is twice as high.
                    (diff_line(&line, DIFF.1 * 2))
                }
                @if lines.len() > DIFF.0 { (lines.len() - DIFF.0) " more lines\n" }
            }
        }
    }
}

/// Returns a line of a difference. Its text is escaped already.
pub(crate) fn diff_line(line: &str, most: usize) -> Markup {
    let text = match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    };
    html! {
        @match line.as_bytes().first() {
            Some(b'-') => del { (text) },
            Some(b'+') => ins { (text) },
            _ => (text),
        }
        "\n"
    }
}
