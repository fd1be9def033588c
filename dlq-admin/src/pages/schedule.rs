//! Page of what is due, and of what will be.

use axum::response::Response;
use dlq_core::store::{Claims as _, ItemOutcome, Maintenance as _, Operation};
use dlq_core::{Clock as _, Filter, LetterSummary, Order, PageRequest, Status, SystemClock};
use maud::{Markup, html};

use super::overview::{OVERDUE, waiting};
use super::parts::{cut, letter_link, short, table, time};
use super::{Section, page as show};
use crate::call::{Call, NO_QUERY};
use crate::refusal::Refusal;

/// Number of letters among which the next ones are looked for.
const LETTERS: u32 = 500;
/// Number of letters that are shown.
const SHOWN: usize = 50;
/// Number of operations that are looked at.
const OPERATIONS: u32 = 100;

pub(crate) async fn page(call: Call) -> Result<Response, Refusal> {
    let letters = call.letters()?;
    let due = letters.store().due(OVERDUE).await?;
    // No consumer is named, which means all of them.
    let next_due = letters.store().next_due(Vec::new()).await?;
    let retrying = Filter::new().with_status(Status::Retrying);
    // Stores list letters by the time of storing and not by when they are due, so the first are sorted here.
    let oldest = PageRequest::new().limit(LETTERS).order(Order::OldestFirst);
    let found = letters.list(retrying, oldest).await?;
    let has_more = found.next.is_some();
    let mut later: Vec<_> =
        found.letters.into_iter().filter(|letter| letter.state.due.is_some()).collect();
    later.sort_by_key(|letter| (letter.state.due, letter.id));
    later.truncate(SHOWN);
    let operations = letters.operations(OPERATIONS).await?;
    let body = html! {
        h1 { "Schedule" }
        @match next_due {
            Some(at) => p { "The next letter can be claimed: " (time(at)) "." },
            None => p { "No letter is due now or later." },
        }
        (waiting(&due))
        (retries(&call, &later, has_more))
        (paced(&call, &operations))
    };
    Ok(show(&call, Section::Schedule, "Schedule", body))
}

fn retries(call: &Call, later: &[LetterSummary], has_more: bool) -> Markup {
    let rows = html! {
        @for letter in later {
            tr {
                th scope="row" { @if let Some(due) = letter.state.due { (time(due)) } }
                td { a href=(letter_link(call, &letter.id)) { code { (short(&letter.id)) } } }
                td { (cut(&letter.consumer, 60)) }
                td { (cut(&letter.subject, 80)) }
                td.wide { (cut(&letter.error, 160)) }
            }
        }
    };
    html! {
        @if !later.is_empty() {
            section aria-labelledby="retries" {
                h2 #retries { "Retries to come" }
                (table("Retries to come", &["Due", "Letter", "Consumer", "Subject", "Latest error"], rows))
                @if has_more { p { "These are due first among the " (LETTERS) " that were stored first; the store keeps more." } }
            }
        }
    }
}

fn paced(call: &Call, operations: &[Operation]) -> Markup {
    let now = SystemClock.now();
    let paced: Vec<_> = operations
        .iter()
        // An operation without a rate ends when its consumers have taken its letters, which nobody can foretell.
        .filter_map(|it| Some((it, it.spec.pace?, it.estimated_end(now)?)))
        .collect();
    let rows = html! {
        @for (operation, pace, end) in &paced {
            tr {
                th scope="row" {
                    a href=(call.at_store(&format!("operations/{}", operation.id), NO_QUERY)) { code { (short(&operation.id)) } }
                }
                td { span.status data-status=(operation.state.as_str()) { (operation.state) } }
                td { (pace) }
                td.number { (operation.progress.with_outcome(ItemOutcome::Queued)) }
                td { (time(operation.next_release)) }
                td { (time(*end)) }
            }
        }
    };
    let head = ["Operation", "State", "Rate", "Still to send", "Next", "All sent at the earliest"];
    html! {
        @if !paced.is_empty() {
            section aria-labelledby="paced" {
                h2 #paced { "Replays at a rate" }
                (table("Replays at a rate", &head, rows))
            }
        }
    }
}
