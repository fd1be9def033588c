use std::time::Duration;

use axum::response::Response;
use dlq_core::store::{Claims as _, Due, Hours, Maintenance as _, Operation, Stats, TriagedGroup};
use dlq_core::{Clock as _, Filter, Status, SystemClock};
use futures_util::TryFutureExt as _;
use futures_util::future::try_join4;
use maud::{Markup, html};

use super::parts::{counted_at, cut, table, time};
use super::{Section, chart, groups, operations, page as show};
use crate::actions;
use crate::call::{Call, segment};
use crate::refusal::Refusal;

/// Time after which a letter that no consumer has claimed counts as overdue.
pub(super) const OVERDUE: Duration = Duration::from_secs(15 * 60);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Number of rows of each table.
const ROWS: usize = 20;

/// Counts over all letters of a store.
#[derive(Debug)]
pub(crate) struct Counts {
    stats: Stats,
    due: Vec<Due>,
    groups: Vec<TriagedGroup>,
    week: Hours,
}

impl Counts {
    async fn read(call: &Call) -> Result<Self, Refusal> {
        let letters = call.letters()?;
        // Older groups that nobody looked at are on their own page; here is what is new to whoever comes on call.
        let day = Filter::new().since(SystemClock.now().before(DAY));
        // Each of them may take a second, and stores answer several at once.
        let (stats, due, groups, week) = try_join4(
            letters.stats(Filter::new()).map_err(Refusal::from),
            letters.store().due(OVERDUE).map_err(Refusal::from),
            actions::groups(call, day, 10),
            letters.hours(Filter::new(), Hours::WEEK).map_err(Refusal::from),
        )
        .await?;
        Ok(Self { stats, due, groups: groups.shown, week })
    }
}

pub(crate) async fn page(call: Call) -> Result<Response, Refusal> {
    if call.is_log() {
        return super::log::overview(&call).await;
    }
    let letters = call.letters()?;
    let next_due = letters.store().next_due(Vec::new()).await?;
    let running: Vec<_> = letters.operations(50).await?;
    let running: Vec<_> = running.into_iter().filter(|one| !one.state.is_final()).collect();
    let (present, now) = letters.consumers().await?;
    let gone_count = present.iter().filter(|it| !it.is_alive(now)).count();
    let store = call.store.as_ref().map_or("", |(name, _)| name);
    let counted = call.counted(&call.console.counts.overview, Counts::read(&call)).await?;
    let Counts { stats, due, groups, week } = &counted.value;
    let events = call.link(&format!("api/v1/{}/events", segment(store)));
    let body = html! {
        h1 { "Overview" }
        (counted_at(counted.at))
        (gone(&call, gone_count))
        div data-events=(events) {
            p.live role="status" data-state="" {}
            (counts(&call, stats))
            @if let Some(oldest) = stats.oldest_unresolved {
                p { "The oldest unresolved letter was stored " (time(oldest)) "." }
            } @else {
                p { "No letter is unresolved." }
            }
            @match next_due {
                Some(at) if at <= now => p { "A letter waits to be taken by a consumer." },
                Some(at) => p { "The next letter can be taken by a consumer at " (time(at)) "." },
                None => {}
            }
        }
        section aria-labelledby="trend" {
            h2 #trend { "Letters by hour" }
            (chart::by_hour("chart", week))
        }
        @if !running.is_empty() { (operations_table(&call, &running)) }
        (consumers(&call, stats))
        (waiting(due))
        (newest(&call, groups))
    };
    Ok(show(&call, Section::Overview, "Overview", body))
}

pub(super) fn counts(call: &Call, stats: &Stats) -> Markup {
    html! {
        ul.counts aria-label="Letters by status" {
            @for status in Status::ALL {
                li data-status=(status.as_str()) {
                    a href=(call.at_store("letters", [("status", status.as_str())])) {
                        strong data-live={ "by_status." (status) } { (stats.with_status(*status)) }
                        " " (status)
                    }
                }
            }
            li { a href=(call.at_store("letters", crate::call::NO_QUERY)) { strong data-live="total" { (stats.total) } " in all" } }
        }
    }
}

/// Returns what is said if consumers are gone that nobody has stopped.
fn gone(call: &Call, count: usize) -> Markup {
    let link = call.at_store("consumers", [("gone", "true")]);
    html! {
        @if count > 0 {
            p.warning {
                a href=(link) { (count) @if count == 1 { " consumer is" } @else { " consumers are" } " gone" }
                " without having been stopped."
            }
        }
    }
}

fn operations_table(call: &Call, running: &[Operation]) -> Markup {
    html! {
        section aria-labelledby="running" {
            h2 #running { "Operations that have not ended" }
            (operations::table_of(call, running))
        }
    }
}

pub(super) fn consumers(call: &Call, stats: &Stats) -> Markup {
    let mut rows: Vec<_> = stats.by_consumer.iter().filter(|(_, count)| **count > 0).collect();
    rows.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let more = rows.len().saturating_sub(ROWS);
    rows.truncate(ROWS);
    let body = html! {
        @for (consumer, count) in &rows {
            tr {
                th scope="row" { a href=(call.at_store("letters", [("consumer", consumer.as_str())])) { (cut(consumer, 80)) } }
                td.number { (count) }
            }
        }
    };
    html! {
        @if !rows.is_empty() {
            section aria-labelledby="consumers" {
                h2 #consumers { "Unresolved letters by consumer" }
                (table("Unresolved letters by consumer", &["Consumer", "Letters"], body))
                @if more > 0 { p { "and " (more) " more consumers" } }
            }
        }
    }
}

pub(super) fn waiting(due: &[Due]) -> Markup {
    let body = html! {
        @for one in due.iter().take(ROWS) {
            tr {
                th scope="row" { (cut(&one.consumer, 80)) }
                td.number { (one.letters) }
                td.number { (one.overdue) }
            }
        }
    };
    html! {
        @if !due.is_empty() {
            section aria-labelledby="waiting" {
                h2 #waiting { "Waiting for a consumer to take them" }
                (table("Letters that wait for a consumer", &["Consumer", "Letters", "Longer than 15 minutes"], body))
            }
        }
    }
}

fn newest(call: &Call, found: &[TriagedGroup]) -> Markup {
    html! {
        section aria-labelledby="groups" {
            h2 #groups { "Groups of the last 24 hours" }
            @if found.is_empty() { p { "Nothing of the last 24 hours is to be looked at." } }
            @else { (groups::table_of(call, found)) }
        }
    }
}
