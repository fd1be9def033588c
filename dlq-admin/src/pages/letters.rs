use axum::response::Response;
use dlq_core::{Cause, ErrorClass, Page, Reason, Status};
use maud::{Markup, html};

use super::parts::{conditions, hidden, letters};
use super::{Section, page as show};
use crate::access::Role;
use crate::actions;
use crate::call::{Call, NO_QUERY};
use crate::filter::{self, FILTER};
use crate::refusal::Refusal;

/// Length of a page. More rows than this would make it heavy.
const ROWS: u32 = 50;

pub(crate) async fn page(call: Call) -> Result<Response, Refusal> {
    let store = call.letters()?;
    let (filter, search) = filter::read_apart(&call).await?;
    let request = actions::page_request(&call)?;
    let request = request.limit(request.limit.min(ROWS));
    // Links carry the filter as it was read, in which an age has become a time: the next page goes on with the same
    // letters.
    let mut query = filter::params(&filter);
    query.extend(filter::search_params(&search));
    let (found, heading, is_any) = if search.is_empty() {
        let found = store.list(filter.clone(), request).await?;
        // The number is not capped: buttons below act on all letters that match.
        let count = store.count(filter).await?;
        (found, html! { strong { (count) } " letters match" }, count > 0)
    } else {
        let part = actions::search(&call, &search, filter, request).await?;
        let heading = html! {
            strong { (part.letters.len()) } " letters found among " (part.read)
            @if part.next.is_some() { ", and the search has not come to its end" }
        };
        let is_any = !part.letters.is_empty();
        (Page { letters: part.letters, next: part.next }, heading, is_any)
    };
    let next = found.next.map(|cursor| {
        let cursor = cursor.to_string();
        let order = call.params.is("oldest-first").then_some(("oldest-first", "true"));
        let pairs = query.iter().map(|(name, value)| (*name, value.as_str())).chain(order);
        call.at_store("letters", pairs.chain([("cursor", cursor.as_str())]))
    });
    let is_first = call.params.text("cursor").is_none();
    let body = html! {
        h1 { "Letters" }
        (form(&call))
        (conditions(&call, &query, Some("letters")))
        p { (heading) @if !is_first { "; this is not the first page of them" } "." }
        @if is_any { (actions_on(&call, &query)) }
        @if found.letters.is_empty() { p { "No letters on this page." } } @else { (letters(&call, &found.letters)) }
        @if !call.is_log() { p { a href=(call.at_store("archive", NO_QUERY)) { "Deleted letters" } } }
        nav.pages aria-label="Pages" {
            @if !is_first { a rel="first" href=(call.at_store("letters", query.iter().cloned())) { "First page" } " " }
            @if let Some(next) = next {
                a rel="next" href=(next) { @if search.is_empty() { "Next page" } @else { "Search on" } }
            }
        }
    };
    Ok(show(&call, Section::Letters, "Letters", body))
}

/// Returns the links to what can be done with all letters that match.
fn actions_on(call: &Call, query: &[(&'static str, String)]) -> Markup {
    // Without a filter every letter is meant, which has to be said.
    let all = query.is_empty().then(|| ("all", "true".to_owned()));
    let query = query.iter().cloned().chain(all);
    let change =
        |verb: &str| call.at_store("change", query.clone().chain([("verb", verb.to_owned())]));
    html! {
        @if call.may(Role::Operate) {
            ul.actions aria-label="All letters that match" {
                li { a.button href=(call.at_store("replay", query.clone())) { "Replay all" } }
                @if call.may_change(Role::Operate) {
                    li { a.button href=(change("resolved")) { "Resolve all" } }
                    li { a.button href=(change("quarantined")) { "Quarantine all" } }
                    li { a.button href=(change("pending")) { "Release all" } }
                }
                @if call.may_change(Role::Admin) { li { a.button.danger href=(change("delete")) { "Delete all" } } }
            }
        }
    }
}

fn form(call: &Call) -> Markup {
    let words = [
        ("status", Status::ALL.iter().map(|word| word.as_str()).collect::<Vec<_>>()),
        ("reason", Reason::ALL.iter().map(|word| word.as_str()).collect()),
        ("cause", Cause::ALL.iter().map(|word| word.as_str()).collect()),
        ("class", ErrorClass::ALL.iter().map(|word| word.as_str()).collect()),
    ];
    let texts = FILTER.iter().filter(|one| !words.iter().any(|(name, _)| *name == one.name));
    html! {
        details.filter {
            summary { "Filter" }
            form method="get" action=(call.at_store("letters", NO_QUERY)) {
                div.fields {
                    @for one in texts {
                        @let given: Vec<_> = call.params.all(one.name).collect();
                        div.field {
                            label for={ "f-" (one.name) } { (one.name) }
                            input id={ "f-" (one.name) } name=(one.name) value=[given.first()] aria-describedby={ "h-" (one.name) };
                            // Further values of the same name are kept as they are; the list below leaves them out again.
                            (hidden(given.iter().skip(1).map(|value| (one.name, *value))))
                            small id={ "h-" (one.name) } { (one.about) }
                        }
                    }
                }
                @for (name, words) in &words {
                    fieldset {
                        legend { (name) }
                        @for word in words {
                            label.check {
                                input type="checkbox" name=(name) value=(word) checked[call.params.all(name).any(|one| one == *word)];
                                " " (word)
                            }
                        }
                    }
                }
                label.check {
                    input type="checkbox" name="oldest-first" value="true" checked[call.params.is("oldest-first")];
                    " oldest first"
                }
                button type="submit" { "Show" }
            }
        }
    }
}
