use axum::response::Response;
use dlq_core::store::AuditEntry;
use maud::{Markup, html};

use super::parts::{cut, short, table, time};
use super::{Section, page as show};
use crate::access::Role;
use crate::actions;
use crate::call::{Call, NO_QUERY};
use crate::refusal::Refusal;
use crate::shown::{audit_diff, audit_subject};

/// Number of lines of an edit, and their length, on the page.
const DIFF: (usize, usize) = (12, 160);

pub(crate) async fn page(call: Call) -> Result<Response, Refusal> {
    let limit = actions::limit(&call, actions::PAGE)?;
    let entries = actions::audit(&call).await?;
    let last = entries.last().filter(|_| entries.len() >= limit as usize);
    let next = last.map(|last| {
        let number = last.number.to_string();
        let kept = call.params.without(&["before"]);
        call.at_store("audit", kept.into_iter().chain([("before", number.as_str())]))
    });
    let fields = ["letter", "op", "by", "action", "since", "until"];
    let body = html! {
        h1 { "Audit" }
        p { "What was done to letters, by whom and why, newest first." }
        details.filter {
            summary { "Filter" }
            form method="get" action=(call.at_store("audit", NO_QUERY)) {
                div.fields {
                    @for name in fields {
                        div.field {
                            label for={ "f-" (name) } { (name) }
                            input id={ "f-" (name) } name=(name) value=[call.params.text(name)];
                        }
                    }
                }
                button type="submit" { "Show" }
            }
        }
        @if entries.is_empty() { p { "Nothing was done that matches." } } @else { (table_of(&call, &entries)) }
        nav.pages aria-label="Pages" {
            @if let Some(next) = next { a rel="next" href=(next) { "Next page" } }
        }
    };
    Ok(show(&call, Section::Audit, "Audit", body))
}

pub(crate) fn table_of(call: &Call, entries: &[AuditEntry]) -> Markup {
    let is_whole = call.may(Role::Operate);
    let rows = html! {
        @for entry in entries {
            tr {
                th scope="row" { (time(entry.at)) }
                td { (cut(&entry.by.who, 60)) }
                td { (cut(&entry.action, 40)) }
                td.number { (entry.affected) }
                td.wide {
                    (cut(&audit_subject(entry), 300))
                    @if is_whole { (diff_of(entry)) }
                }
                td.wide { @if let Some(note) = &entry.by.note { (cut(note, 300)) } }
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

fn diff_of(entry: &AuditEntry) -> Markup {
    let lines = audit_diff(entry);
    html! {
        @if !lines.is_empty() {
            pre.diff tabindex="0" {
                @for line in lines.iter().take(DIFF.0) { (diff_line(line, DIFF.1)) }
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
