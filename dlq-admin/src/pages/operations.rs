use axum::response::Response;
use dlq_core::store::{Control, ItemOutcome, Operation, OperationItem, OperationState};
use dlq_core::{Clock as _, SystemClock};
use maud::{Markup, html};

use super::parts::{
    change_fields, conditions, cut, facts, letter_link, note, short, table, time, waits_for,
};
use super::{Section, page};
use crate::access::Role;
use crate::actions::{self, PAGE};
use crate::call::{Call, NO_QUERY, see_other, segment};
use crate::filter;
use crate::refusal::Refusal;

/// Number of operations on the page.
const OPERATIONS: u32 = 50;

pub(crate) async fn all(call: Call) -> Result<Response, Refusal> {
    let operations = call.letters()?.operations(OPERATIONS).await?;
    let body = html! {
        h1 { "Operations" }
        p { "The latest " (OPERATIONS) " replays, newest first." }
        @if operations.is_empty() { p { "No letter was sent back yet." } } @else { (table_of(&call, &operations)) }
    };
    Ok(page(&call, Section::Operations, "Operations", body))
}

pub(crate) fn table_of(call: &Call, operations: &[Operation]) -> Markup {
    let rows = html! {
        @for operation in operations {
            @let progress = &operation.progress;
            tr {
                th scope="row" { a href=(link(call, operation)) { code { (short(&operation.id)) } } }
                td { span.status data-status=(operation.state.as_str()) { (operation.state) } }
                td.number { (progress.done()) " of " (progress.total) }
                td.number { (progress.with_outcome(ItemOutcome::Succeeded)) }
                td.number { (progress.with_outcome(ItemOutcome::FailedAgain)) }
                td.number { (progress.with_outcome(ItemOutcome::Skipped)) }
                td { (time(operation.created_at)) }
                td { (cut(&operation.by.who, 60)) }
                td.wide { @if let Some(note) = &operation.by.note { (cut(note, 160)) } }
            }
        }
    };
    let head = [
        "Operation",
        "State",
        "Done",
        "Succeeded",
        "Failed again",
        "Skipped",
        "Begun",
        "By",
        "Reason",
    ];
    table("Operations", &head, rows)
}

fn link(call: &Call, operation: &Operation) -> String {
    call.at_store(&format!("operations/{}", operation.id), NO_QUERY)
}

pub(crate) async fn one(call: Call) -> Result<Response, Refusal> {
    let operation = actions::operation(&call).await?;
    let after = call.params.get("after")?.unwrap_or(0);
    let limit = actions::limit(&call, PAGE)?.min(PAGE);
    let items = call.letters()?.items(operation.id, after, limit).await?;
    let next = items.next.map(|next| {
        let next = next.to_string();
        call.at_store(&format!("operations/{}", operation.id), [("after", next)])
    });
    let store = call.store.as_ref().map_or("", |(name, _)| name);
    let events =
        call.link(&format!("api/v1/{}/operations/{}/events", segment(store), operation.id));
    // An operation that has ended has no more news, and a listener would take one of few places.
    let events = (!operation.state.is_final()).then_some(events);
    let unattended = call.letters()?.unattended_in(&operation).await?;
    let body = html! {
        h1 { "Operation " code { (operation.id) } }
        div data-events=[events] data-shown=(operation.state) {
            p.live role="status" data-state="" {}
            (progress(&operation))
        }
        (waits_for(&call, &unattended))
        (steering(&call, &operation))
        (pacing(&call, &operation))
        (facts(details(&operation)))
        h2 { "Letters" }
        (conditions(&call, &filter::params(&operation.spec.filter), None))
        (items_table(&call, &items.items))
        nav.pages aria-label="Pages" {
            @if after > 0 { a rel="first" href=(link(&call, &operation)) { "First page" } " " }
            @if let Some(next) = next { a rel="next" href=(next) { "Next page" } }
        }
    };
    Ok(page(&call, Section::Operations, &format!("Operation {}", short(&operation.id)), body))
}

fn progress(operation: &Operation) -> Markup {
    let progress = &operation.progress;
    html! {
        p {
            span.status data-status=(operation.state.as_str()) data-live="operation.state" { (operation.state) }
            ": " strong data-live="done" { (progress.done()) } " of "
            span data-live="operation.progress.total" { (progress.total) } " letters have an outcome"
        }
        // A bar whose maximum is zero is not valid, as of an operation that is still being prepared.
        progress value=(progress.done()) max=(progress.total.max(1)) data-live="done" aria-label="Letters with an outcome" {}
        ul.counts aria-label="Letters by outcome" {
            @for outcome in ItemOutcome::ALL {
                li data-status=(outcome.as_str()) {
                    strong data-live={ "operation.progress.by_outcome." (outcome) } { (progress.with_outcome(*outcome)) }
                    " " (outcome.as_str().replace('_', " "))
                }
            }
        }
        @match operation.state {
            OperationState::Preparing => p {
                "Its letters are being frozen, and none is sent before all of them are. If whoever started it is gone, resume it to go on "
                "with the letters it has, or cancel it."
            },
            OperationState::Stopped => p { "Letters of its canary died again, and the rest was not sent. See why below; resume it to go on all the same, or cancel it." },
            _ => {}
        }
    }
}

/// Returns the buttons that the state of an operation leaves.
fn steering(call: &Call, operation: &Operation) -> Markup {
    let verbs = [
        (Control::Pause, "Pause"),
        (Control::Resume, "Resume"),
        (Control::Cancel, "Cancel for good"),
    ];
    let of_state = verbs.iter().filter(|(control, _)| {
        // The rules of the operation itself say which button would do something, so that the page cannot differ from the
        // store.
        operation.steer(*control).is_some_and(|next| next != operation.state)
    });
    let of_state: Vec<_> = of_state.collect();
    let action = |control: Control| {
        call.at_store(&format!("operations/{}/{control}", operation.id), NO_QUERY)
    };
    let filter = filter::params(&operation.spec.filter);
    let all = filter.is_empty().then(|| ("all", "true".to_owned()));
    let rest = call.at_store("replay", filter.into_iter().chain(all));
    html! {
        @if call.may(Role::Operate) && operation.state == OperationState::Cancelled {
            p { a.button href=(rest) { "Replay what was not sent" } }
        }
        @if let (true, Some((first, _))) = (call.may(Role::Operate), of_state.first()) {
            // One form for all buttons, each with its own action, so that the reason is typed once; Enter in its field
            // presses the first.
            form.narrow method="post" action=(action(*first)) {
                (change_fields(&call.visitor))
                (note("note"))
                div.buttons {
                    @for (control, name) in &of_state {
                        button type="submit" class=[(*control == Control::Cancel).then_some("danger")] formaction=(action(*control)) { (name) }
                    }
                }
            }
        }
    }
}

/// Returns the form that changes the rate, as long as there is something to send.
fn pacing(call: &Call, operation: &Operation) -> Markup {
    let rate = operation.spec.pace.map_or_else(|| "none".to_owned(), |pace| pace.to_string());
    let action = call.at_store(&format!("operations/{}/rate", operation.id), NO_QUERY);
    html! {
        @if call.may(Role::Operate) && !operation.state.is_final() {
            details {
                summary { "Change the rate" }
                form.narrow method="post" action=(action) {
                    (change_fields(&call.visitor))
                    div.field {
                        label for="rate" { "Rate at most" }
                        input id="rate" name="rate" value=(rate) required aria-describedby="h-rate";
                        small #h-rate { "from the next letters on, e.g. 50/s; none for no limit" }
                    }
                    (note("rate-note"))
                    button type="submit" { "Set the rate" }
                }
            }
        }
    }
}

fn details(operation: &Operation) -> Vec<(&'static str, Markup)> {
    let spec = &operation.spec;
    let mut rows = vec![
        ("begun", html! { (time(operation.created_at)) " by " (cut(&operation.by.who, 80)) }),
        ("destination", html! { (cut(&spec.target.to_string(), 200)) }),
        ("rate", html! { @if let Some(pace) = spec.pace { (pace) } @else { "no limit" } }),
        (
            "all sent",
            html! { @match operation.estimated_end(SystemClock.now()) { Some(end) => { "at the earliest " (time(end)) }, None => "–" } },
        ),
        ("canary", html! { @if let Some(canary) = spec.canary { (canary) } @else { "none" } }),
        (
            "cap on replays",
            html! { @if spec.max_replays == 0 { "none" } @else { (spec.max_replays) } },
        ),
        ("changed", time(operation.updated_at)),
    ];
    if let Some(note) = &operation.by.note {
        rows.push(("reason", html! { (cut(note, 500)) }));
    }
    if !spec.via.is_empty() {
        let via: Vec<_> = spec.via.iter().map(ToString::to_string).collect();
        rows.push(("through", html! { (cut(&via.join(", "), 200)) }));
    }
    rows
}

fn items_table(call: &Call, items: &[OperationItem]) -> Markup {
    let rows = html! {
        @for item in items {
            tr {
                th scope="row" { (item.index) }
                td { a href=(letter_link(call, &item.letter)) { code { (short(&item.letter)) } } }
                td.number { (item.generation) }
                td { span.status data-status=(item.outcome.as_str()) { (item.outcome.as_str().replace('_', " ")) } }
                td { (time(item.at)) }
                td.wide { @if let Some(why) = &item.why { (cut(why, 200)) } }
            }
        }
    };
    html! {
        @if items.is_empty() { p { "No letters on this page." } }
        @else { (table("Letters of the operation", &["#", "Letter", "Generation", "Outcome", "Changed", "Why"], rows)) }
    }
}

pub(crate) async fn pause(call: Call) -> Result<Response, Refusal> {
    steer(&call, Control::Pause).await
}

pub(crate) async fn resume(call: Call) -> Result<Response, Refusal> {
    steer(&call, Control::Resume).await
}

pub(crate) async fn cancel(call: Call) -> Result<Response, Refusal> {
    steer(&call, Control::Cancel).await
}

pub(crate) async fn rate(call: Call) -> Result<Response, Refusal> {
    let operation = actions::set_rate(&call).await?;
    see_other(&link(&call, &operation))
}

async fn steer(call: &Call, control: Control) -> Result<Response, Refusal> {
    let operation = actions::steer(call, control).await?;
    see_other(&link(call, &operation))
}
