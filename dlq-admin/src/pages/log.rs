//! Pages of a log of a broker, where they differ from those of a store.

use std::time::Duration;

use axum::response::Response;
use dlq_core::replay::ReplayPlan;
use dlq_core::store::{Group, Hours};
use dlq_core::{Clock as _, Filter, SystemClock};
use maud::{Markup, html};

use super::parts::{
    change_fields, conditions, cut, expect, facts, hidden, letter_link, letters, table, time,
};
use super::replay::would_be_sent;
use super::{Section, chart, groups as of_stores, overview as of_store, page};
use crate::access::Role;
use crate::actions::{self, PlannedAtLog};
use crate::call::{Call, NO_QUERY, see_other, segment};
use crate::filter;
use crate::log::{LogReplay, Sending};
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

/// Shows what a replay would do, and asks.
pub(super) async fn replay(call: &Call) -> Result<Response, Refusal> {
    let PlannedAtLog { asked, planned } = actions::plan_of_log(call).await?;
    let plan = &planned.plan;
    // The filter of the plan ends before now, so that letters which come while somebody reads are not sent along.
    let filter = filter::params(&asked.filter);
    let all = call.params.is("all").then_some(("all", "true"));
    let body = html! {
        h1 { "Replay letters" }
        (conditions(call, &filter, None))
        (explain(plan, &asked))
        @if !plan.sample.is_empty() {
            h2 { "The first of them" }
            div.sample { (letters(call, &plan.sample)) }
        }
        form.narrow method="post" action=(call.at_store("replay", NO_QUERY)) {
            (change_fields(&call.visitor))
            (hidden(filter.iter().cloned()))
            (hidden(all))
            h2 { "How" }
            @for (name, label, about) in OPTIONS {
                div.field {
                    label for=(name) { (label) }
                    input id=(name) name=(name) value=[call.params.text(name)] aria-describedby={ "h-" (name) } autocomplete="off";
                    small id={ "h-" (name) } { (about) }
                }
            }
            div.field {
                label for="to" { "Destination" }
                input id="to" name="to" value=(asked.target) list="destinations" aria-describedby="h-to";
                datalist #destinations { option value="handler"; option value="origin"; }
                small #h-to {
                    "handler: the consumer that failed, and nobody else. origin: where each letter came from, for everybody who listens "
                    "there. Or a subject, topic or stream."
                }
            }
            // Neither a reason nor a number is needed to look, so the browser does not ask for them.
            button type="submit" formaction=(call.at_store("plan", NO_QUERY)) formnovalidate { "Show what would be sent" }
            @if plan.letters > 0 {
                h2 { "Send" }
                (reason("note", call.params.text("note")))
                (expect(plan.letters))
                button.primary type="submit" { "Replay " (plan.letters) " letters" }
            }
        }
    };
    Ok(page(call, Section::Operations, "Replay", body))
}

/// Options of a replay that its form has, beside the destination.
const OPTIONS: [(&str, &str, &str); 3] = [
    ("rate", "Rate at most", "e.g. 50/s; empty for as fast as the broker takes them"),
    ("limit", "Letters at most", "the oldest first; empty for all"),
    (
        "max-replays",
        "Cap on replays",
        "letters that were replayed this often are skipped; 10 unless said, 0 for none",
    ),
];

/// Returns the field for the reason. A log has no audit, and the reason is kept with the replay.
fn reason(id: &str, so_far: Option<&str>) -> Markup {
    html! {
        div.field {
            label for=(id) { "Reason, shown until the next replay" }
            input id=(id) name="note" value=[so_far] required maxlength="1000" autocomplete="off";
        }
    }
}

fn explain(plan: &ReplayPlan, asked: &LogReplay) -> Markup {
    html! {
        p { (would_be_sent(plan.letters, &asked.target, asked.pace)) }
        @if !plan.skipped.is_empty() {
            ul { @for (why, count) in &plan.skipped { li { (count) " more match and would be skipped: " (why) } } }
        }
        @if !plan.subscribers.is_empty() {
            ul { @for subscriber in &plan.subscribers { li { (cut(&subscriber.to_string(), 200)) " hears them too" } } }
        }
        @for note in &plan.notes { p.warning { (cut(note, 1_000)) } }
    }
}

/// Begins a replay, and leads to its page.
pub(super) async fn start(call: &Call) -> Result<Response, Refusal> {
    match actions::replay_of_log(call, true).await? {
        (_, Some(_)) => see_other(&call.at_store("latest-replay", NO_QUERY)),
        // The page offered letters, so others have sent them since.
        (_, None) => Err(Refusal::conflict("no letter can be sent back any more; look again")),
    }
}

/// Stops the replay, and leads to its page.
pub(crate) async fn stop(call: Call) -> Result<Response, Refusal> {
    actions::stop_replay(&call)?;
    see_other(&call.at_store("latest-replay", NO_QUERY))
}

/// Shows the latest replay.
pub(crate) async fn latest(call: Call) -> Result<Response, Refusal> {
    let body = html! {
        h1 { "Latest replay" }
        @match call.log()?.sending() {
            Some(sending) => (told(&call, &sending)),
            None => p { "Nothing of this log was sent back since the process was started." },
        }
        p.muted {
            "A replay runs in this process, and ends with it. What was sent is marked at the broker: another replay sends the rest."
        }
        @if call.may(Role::Operate) {
            p { a href=(call.at_store("letters", [("status", "pending")])) { "Letters that were not sent" } }
        }
    };
    Ok(page(&call, Section::Operations, "Latest replay", body))
}

fn told(call: &Call, sending: &Sending) -> Markup {
    let document = sending.document();
    let state = document["state"].as_str().unwrap_or_default();
    let is_over = !document["ended"].is_null();
    let store = call.store.as_ref().map_or("", |(name, _)| name);
    let events = call.link(&format!("api/v1/{}/latest-replay/events", segment(store)));
    let number = |name: &str| {
        html! { span data-live={ "replay." (name) } { (document[name].as_u64().unwrap_or_default()) } }
    };
    let texts = |name: &str| document[name].as_array().cloned().unwrap_or_default();
    html! {
        div data-events=[(!is_over).then_some(&events)] data-shown=(state) {
            p.live role="status" data-state="" {}
            (facts([
                ("state", html! { span.status data-status=(state) { (state) } }),
                ("to", html! { (cut(&sending.to.to_string(), 200)) }),
                ("by", html! { (cut(&sending.by, 80)) ", " (time(sending.began)) }),
                ("reason", html! { (cut(&sending.note, 1_000)) }),
                ("letters", number("total")),
                ("sent", number("sent")),
                ("failed", number("failed")),
                ("left", number("left")),
            ]))
        }
        @if let Some(doubtful) = document["doubtful"].as_u64().filter(|count| *count > 0) {
            p.warning { (doubtful) " of them may have been sent twice: a replay died while it sent them, and nobody can find out." }
        }
        @if let Some(skipped) = document["skipped"].as_object().filter(|skipped| !skipped.is_empty()) {
            ul { @for (why, count) in skipped { li { (count) " skipped: " (why) } } }
        }
        @if let Some(error) = document["stopped"].as_str() {
            p.error role="alert" { "It ended early: " (cut(error, 2_000)) }
        }
        @for note in texts("notes") { p { (cut(note.as_str().unwrap_or_default(), 1_000)) } }
        @if !texts("failures").is_empty() {
            h2 { "The first that failed" }
            ul {
                @for failure in texts("failures") {
                    @let id = failure["id"].as_str().unwrap_or_default();
                    li { a href=(letter_link(call, &id)) { code { (cut(id, 12)) } } ": " (cut(failure["error"].as_str().unwrap_or_default(), 500)) }
                }
            }
        }
        @if !is_over && call.may(Role::Operate) {
            form.narrow method="post" action=(call.at_store("latest-replay/stop", NO_QUERY)) {
                (change_fields(&call.visitor))
                (reason("stop-note", None))
                button.danger type="submit" { "Stop" }
            }
        }
    }
}
