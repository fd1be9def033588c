use std::collections::BTreeMap;

use axum::response::Response;
use dlq_core::store::Group;
use dlq_core::{Filter, LetterSummary, PageRequest};
use maud::{Markup, html};

use super::parts::{conditions, cut, facts, letters, table, time};
use super::{Section, page};
use crate::access::Role;
use crate::call::Call;
use crate::filter;
use crate::refusal::Refusal;

/// Number of groups on the page.
const GROUPS: u32 = 100;
/// Number of the latest letters of a group that are compared.
const SAMPLES: u32 = 20;

pub(crate) async fn all(call: Call) -> Result<Response, Refusal> {
    let store = call.letters()?;
    let filter = filter::read(&call.params, store).await?;
    let groups = store.groups(filter.clone(), GROUPS).await?;
    let body = html! {
        h1 { "Groups" }
        p { "Letters that failed for the same reason in the same place, the largest group first." }
        (conditions(&call, &filter, Some("groups")))
        @if groups.is_empty() { p { "No letters match." } } @else { (table_of(&call, &groups)) }
        @if groups.len() >= GROUPS as usize { p { "Only the largest " (GROUPS) " are shown; narrow the filter to see others." } }
    };
    Ok(page(&call, Section::Groups, "Groups", body))
}

pub(crate) fn table_of(call: &Call, groups: &[Group]) -> Markup {
    let rows = html! {
        @for group in groups {
            tr {
                th scope="row" { a href=(link(call, group)) { code { (group.fingerprint) } } }
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

fn link(call: &Call, group: &Group) -> String {
    let fingerprint = group.fingerprint.to_string();
    call.at_store("group", [("fingerprint", &fingerprint), ("consumer", &group.consumer)])
}

pub(crate) async fn one(call: Call) -> Result<Response, Refusal> {
    let store = call.letters()?;
    let filter = filter::read(&call.params, store).await?;
    let [fingerprint] = filter.fingerprints[..] else {
        return Err(Refusal::invalid(
            "`fingerprint` names no single group; see the list of groups",
        ));
    };
    let groups = store.groups(filter.clone(), 2).await?;
    let samples = store.list(filter.clone(), PageRequest::new().limit(SAMPLES)).await?;
    let Some(first) = groups.first() else {
        return Err(Refusal::not_found("no letter is of this group any more"));
    };
    let stats = store.stats(filter.clone()).await?;
    let query: Vec<_> = filter::params(&filter);
    let seen = groups.iter().fold((first.first_seen, first.last_seen), |seen, group| {
        (seen.0.min(group.first_seen), seen.1.max(group.last_seen))
    });
    let statuses = html! {
        @for (status, count) in stats.by_status.iter().filter(|(_, count)| **count > 0) {
            span { (count) " " (status) " " }
        }
    };
    let body = html! {
        h1 { "Group " code { (fingerprint) } }
        p.error-text { (cut(&first.sample.error, 1_000)) }
        (facts([
            ("letters", html! { (stats.total) }),
            ("by status", statuses),
            ("first stored", time(seen.0)),
            ("last stored", time(seen.1)),
        ]))
        (conditions(&call, &filter, None))
        ul.actions {
            @if call.may(Role::Operate) {
                li { a.button href=(call.at_store("replay", query.iter().cloned())) { "Replay this group" } }
                @for (verb, name) in [("resolved", "Resolve"), ("quarantined", "Quarantine")] {
                    li { a.button href=(call.at_store("change", query.iter().cloned().chain([("verb", verb.to_owned())]))) { (name) } }
                }
            }
            li { a.button href=(call.at_store("letters", query.iter().cloned())) { "All letters of the group" } }
        }
        section aria-labelledby="common" {
            h2 #common { "In common" }
            (common(&samples.letters))
        }
        section aria-labelledby="samples" {
            h2 #samples { "Latest letters" }
            (letters(&call, &samples.letters))
        }
    };
    Ok(page(&call, Section::Groups, "Group", body))
}

/// Returns the fields that the samples share, and how many values the others have.
fn common(samples: &[LetterSummary]) -> Markup {
    let mut values: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for letter in samples {
        let mut add = |name: &str, value: String| {
            *values.entry(name.to_owned()).or_default().entry(value).or_default() += 1;
        };
        add("subject", letter.subject.clone());
        add("consumer", letter.consumer.clone());
        add("reason", letter.reason.to_string());
        add("class", letter.class.to_string());
        add("attempts", letter.attempts.to_string());
        add("cluster", letter.origin.cluster().to_owned());
        add("stream", letter.origin.stream().to_owned());
        if let Some(event) = &letter.event {
            add("event", event.clone());
        }
        if let Some(service) = &letter.service {
            add("service", service.clone());
        }
        if let Some(partition) = letter.origin.partition() {
            add("partition", partition.to_string());
        }
        for (name, value) in letter.attributes.iter().take(20) {
            add(&format!("attribute {name}"), value.clone());
        }
    }
    let all = samples.len();
    html! {
        p { "Of the latest " (all) " letters:" }
        dl.facts {
            @for (name, of_name) in values.iter().take(40) {
                div {
                    dt { (cut(name, 60)) }
                    dd {
                        @match of_name.iter().next() {
                            Some((value, count)) if of_name.len() == 1 && *count == all => (cut(value, 120)),
                            _ => span.muted { (of_name.len()) " values" },
                        }
                    }
                }
            }
        }
    }
}

/// Returns the filter of one group, for links.
pub(crate) fn filter_of(letter: &dlq_core::DeadLetter) -> Vec<(&'static str, String)> {
    let filter =
        Filter::new().with_fingerprint(letter.fingerprint).with_consumer(letter.consumer.clone());
    filter::params(&filter)
}
