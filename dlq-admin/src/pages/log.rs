//! Pages of a log of a broker, where they differ from those of a store.

use std::time::Duration;

use axum::response::Response;
use dlq_core::store::{Group, Hours};
use dlq_core::{Clock as _, Filter, SystemClock};
use maud::{Markup, html};

use super::parts::{conditions, cut, table, time};
use super::{Section, chart, groups as of_stores, overview as of_store, page};
use crate::actions;
use crate::call::Call;
use crate::filter;
use crate::refusal::Refusal;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Number of groups on the page.
const GROUPS: u32 = 100;
/// Number of them on the overview.
const NEWEST: u32 = 10;

/// Returns when the letters of the page were read; nothing for a store.
pub(super) fn as_of(call: &Call) -> Markup {
    html! {
        @if let Some(taken) = &call.taken {
            p.muted { "A log of a broker, as of " (time(taken.at)) ". It is read anew when the page is loaded later." }
        }
    }
}

/// Shows the overview.
pub(super) async fn overview(call: &Call) -> Result<Response, Refusal> {
    let letters = call.letters()?;
    let stats = letters.stats(Filter::new()).await?;
    let day = Filter::new().since(SystemClock.now().before(DAY));
    let newest = letters.groups(day, NEWEST).await?;
    let week = letters.hours(Filter::new(), Hours::WEEK).await?;
    let body = html! {
        h1 { "Overview" }
        (of_store::counts(call, &stats))
        section aria-labelledby="trend" {
            h2 #trend { "Letters by hour" }
            (chart::by_hour("chart", &week))
        }
        (of_store::consumers(call, &stats))
        section aria-labelledby="groups" {
            h2 #groups { "Groups of the last 24 hours" }
            @if newest.is_empty() { p { "No letter is of the last 24 hours." } } @else { (table_of(call, &newest)) }
        }
    };
    Ok(page(call, Section::Overview, "Overview", body))
}

/// Shows the groups of errors, the largest first.
pub(super) async fn groups(call: &Call) -> Result<Response, Refusal> {
    let filter = filter::read(call).await?;
    // One more than is shown tells whether there are others.
    let mut found = actions::groups_of_log(call, filter.clone(), GROUPS + 1).await?;
    let has_more = found.len() > GROUPS as usize;
    found.truncate(GROUPS as usize);
    let body = html! {
        h1 { "Groups" }
        p { "Letters that failed for the same reason in the same place, the largest group first." }
        (conditions(call, &filter::params(&filter), Some("groups")))
        @if found.is_empty() { p { "No letters match." } } @else { (table_of(call, &found)) }
        @if has_more { p { "Only " (GROUPS) " are shown; narrow the filter to see others." } }
    };
    Ok(page(call, Section::Groups, "Groups", body))
}

fn table_of(call: &Call, groups: &[Group]) -> Markup {
    let rows = html! {
        @for group in groups {
            tr {
                th scope="row" { a href=(of_stores::link(call, &group.key())) { code { (group.fingerprint) } } }
                td.number { (group.count) }
                td { (cut(&group.consumer, 60)) }
                td { (group.sample.class) @if let Some(cause) = group.sample.cause { " / " (cause) } }
                td { (time(group.first_seen)) }
                td { (time(group.last_seen)) }
                td.wide { (cut(&group.sample.error, 160)) }
            }
        }
    };
    let head = ["Group", "Letters", "Consumer", "Class", "First", "Last", "Latest error"];
    table("Groups", &head, rows)
}
