use std::collections::BTreeMap;

use axum::response::Response;
use dlq_core::store::{GroupKey, Hours, Stats, Triage, TriagedGroup};
use dlq_core::{Filter, LetterSummary, PageRequest};
use futures_util::future::try_join3;
use maud::{Markup, html};

use super::parts::{
    change_fields, conditions, counted_at, cut, facts, hidden, letters, note, table, time,
};
use super::{Section, chart, page};
use crate::access::Role;
use crate::actions;
use crate::call::{Call, NO_QUERY, see_other};
use crate::filter;
use crate::refusal::Refusal;

/// Number of groups on the page.
const GROUPS: u32 = 100;
/// Number of the latest letters of a group that are compared.
const SAMPLES: u32 = 20;

pub(crate) async fn all(call: Call) -> Result<Response, Refusal> {
    if call.is_log() {
        return super::log::groups(&call).await;
    }
    let filter = filter::read(&call).await?;
    let count = actions::groups(&call, filter.clone(), GROUPS);
    let counted = call.counted(&call.console.counts.groups, count).await?;
    let groups = &counted.value;
    let is_open = call.params.text("state").is_none();
    let mut query = filter::params(&filter);
    query.extend(call.params.text("began").map(|began| ("began", began.to_owned())));
    let closed = ["snoozed", "resolved"].map(|state| ("state", state.to_owned()));
    let others = call.at_store("groups", query.iter().cloned().chain(closed));
    let body = html! {
        h1 { "Groups" }
        p { "Letters that failed for the same reason in the same place: first those that nobody has decided about, then those that grow." }
        (counted_at(counted.at))
        (presets(&call))
        (conditions(&call, &filter::params(&filter), Some("groups")))
        @if groups.shown.is_empty() { p { "No group is to be looked at." } } @else { (table_of(&call, &groups.shown)) }
        @if groups.has_more { p { "Only " (GROUPS) " are shown; narrow the filter to see others." } }
        @if is_open && groups.others > 0 {
            p { a href=(others) { (groups.others) " more are snoozed or resolved" } }
        } @else if !is_open {
            p { a href=(call.at_store("groups", query)) { "Show those that are open" } }
        }
    };
    Ok(page(&call, Section::Groups, "Groups", body))
}

/// Returns links to what somebody on call asks first.
fn presets(call: &Call) -> Markup {
    let links = [
        ("All", vec![]),
        ("Began in the last hour", vec![("began", "1h")]),
        ("Began in the last 24 hours", vec![("began", "24h")]),
        ("Letters of the last hour", vec![("since", "1h")]),
    ];
    let is_this = |pairs: &[(&str, &str)]| {
        let said = |name| call.params.text(name);
        ["began", "since"].iter().all(|name| {
            said(name) == pairs.iter().find(|(one, _)| one == name).map(|(_, value)| *value)
        })
    };
    html! {
        ul.actions aria-label="Groups of a time" {
            @for (name, pairs) in &links {
                li { a href=(call.at_store("groups", pairs.iter().copied())) aria-current=[is_this(pairs).then_some("true")] { (name) } }
            }
        }
    }
}

pub(crate) fn table_of(call: &Call, groups: &[TriagedGroup]) -> Markup {
    let rows = html! {
        @for it in groups {
            @let group = &it.group;
            tr {
                th scope="row" { a href=(link(call, &group.key())) { code { (group.fingerprint) } } }
                td { span.status data-status=(it.state) { (it.state) } }
                td.number { (group.count) }
                td.number { (it.last_hour) @if it.is_growing { " " span title="growing" { "↑" } } }
                td { (cut(&group.consumer, 60)) }
                td { (group.sample.class) @if let Some(cause) = group.sample.cause { " / " (cause) } }
                td { (time(group.first_seen)) }
                td { (time(group.last_seen)) }
                td { @if let Some(owner) = &it.record.owner { (cut(owner, 40)) } }
                td.wide { (cut(&group.sample.error, 160)) }
            }
        }
    };
    let head = [
        "Group",
        "State",
        "Letters",
        "Last hour",
        "Consumer",
        "Class",
        "First",
        "Last",
        "Owner",
        "Latest error",
    ];
    table("Groups", &head, rows)
}

pub(super) fn link(call: &Call, key: &GroupKey) -> String {
    let fingerprint = key.fingerprint.to_string();
    call.at_store("group", [("fingerprint", &fingerprint), ("consumer", &key.consumer)])
}

/// Decides about a group, and shows it again.
pub(crate) async fn triage(call: Call) -> Result<Response, Refusal> {
    let key = actions::triage(&call).await?;
    see_other(&link(&call, &key))
}

/// Returns what is known of a group besides its letters.
fn known(call: &Call, it: &TriagedGroup) -> Markup {
    let record = &it.record;
    let state = html! {
        span.status data-status=(it.state) { (it.state) }
        @if let Triage::Snoozed(until) = record.triage { " until " (until) }
        @if let (Some(at), Some(who)) = (record.decided_at, &record.decided_by) {
            span.muted { ", by " (cut(who, 60)) " " (time(at)) }
        }
    };
    let of_late = html! {
        (it.last_hour) " in an hour, " (it.last_day) " in a day"
        @if it.is_growing { ", growing" }
    };
    html! {
        (facts([
            ("state", state),
            ("of late", of_late),
            ("owner", html! { (record.owner.as_deref().map_or_else(|| "nobody".to_owned(), |owner| cut(owner, 80))) }),
            ("note", html! { (record.note.as_deref().map_or_else(|| "none".to_owned(), |note| cut(note, 1_000))) }),
        ]))
        @if call.may(Role::Operate) { (form_of(call, it)) }
    }
}

fn form_of(call: &Call, it: &TriagedGroup) -> Markup {
    let key = it.group.key();
    let decisions = [
        ("", "leave as it is"),
        ("acknowledged", "acknowledge: somebody knows of it"),
        ("snoozed", "snooze"),
        ("resolved", "resolve: its cause is mended"),
        ("new", "reopen: nobody has decided anything"),
    ];
    html! {
        details.filter {
            summary { "Decide" }
            form.narrow method="post" action=(call.at_store("group", NO_QUERY)) {
                (change_fields(&call.visitor))
                (hidden([("fingerprint", key.fingerprint.to_string()), ("consumer", key.consumer)]))
                div.field {
                    label for="decision" { "Decision" }
                    select id="decision" name="decision" {
                        @for (value, name) in decisions { option value=(value) { (name) } }
                    }
                }
                div.field {
                    label for="for" { "Snooze for, e.g. 2h or 7d" }
                    // Of no meaning for other decisions.
                    input id="for" name="for" value="4h" list="spans" autocomplete="off";
                    datalist #spans { @for span in ["1h", "4h", "1d", "7d"] { option value=(span); } }
                }
                div.field {
                    label for="owner" { "Owner" }
                    input id="owner" name="owner" maxlength="200" value=[it.record.owner.as_deref()];
                }
                div.field {
                    label for="text" { "Note" }
                    // A browser leaves the first line break out.
                    textarea id="text" name="text" maxlength="4000" rows="3" spellcheck="false" { "\n" (it.record.note.as_deref().unwrap_or_default()) }
                }
                (note("reason"))
                button type="submit" { "Save" }
            }
        }
    }
}

/// Counts over the letters of one fingerprint.
#[derive(Debug)]
pub(crate) struct Counts {
    groups: Vec<TriagedGroup>,
    stats: Stats,
    week: Hours,
}

impl Counts {
    async fn read(call: &Call, filter: &Filter) -> Result<Self, Refusal> {
        let store = call.letters()?;
        // Each of them may take seconds, and stores answer several at once.
        let (groups, stats, week) = try_join3(
            // Two are enough to see whether several consumers have letters of this fingerprint.
            store.triaged_groups(filter.clone(), 2),
            store.stats(filter.clone()),
            store.hours(filter.clone(), Hours::WEEK),
        )
        .await?;
        Ok(Self { groups, stats, week })
    }
}

pub(crate) async fn one(call: Call) -> Result<Response, Refusal> {
    let store = call.letters()?;
    let filter = filter::read(&call).await?;
    let [fingerprint] = filter.fingerprints[..] else {
        return Err(Refusal::invalid(
            "`fingerprint` names no single group; see the list of groups",
        ));
    };
    let count = Counts::read(&call, &filter);
    let counted = call.counted(&call.console.counts.group, count).await?;
    let Counts { groups, stats, week } = &counted.value;
    let samples = store.list(filter.clone(), PageRequest::new().limit(SAMPLES)).await?;
    let Some(first) = groups.first() else {
        return Err(Refusal::not_found("no letter is of this group any more"));
    };
    let query: Vec<_> = filter::params(&filter);
    let times = (first.group.first_seen, first.group.last_seen);
    let seen = groups
        .iter()
        .fold(times, |seen, it| (seen.0.min(it.group.first_seen), seen.1.max(it.group.last_seen)));
    let statuses = html! {
        @for (status, count) in stats.by_status.iter().filter(|(_, count)| **count > 0) {
            span { (count) " " (status) " " }
        }
    };
    let body = html! {
        h1 { "Group " code { (fingerprint) } }
        p.error-text { (cut(&first.group.sample.error, 1_000)) }
        (counted_at(counted.at))
        ul.actions {
            @if call.may(Role::Operate) {
                li { a.button href=(call.at_store("replay", query.iter().cloned())) { "Replay this group" } }
                @for (verb, name) in [("resolved", "Resolve"), ("quarantined", "Quarantine")].into_iter().filter(|_| !call.is_log()) {
                    li { a.button href=(call.at_store("change", query.iter().cloned().chain([("verb", verb.to_owned())]))) { (name) } }
                }
            }
            li { a.button href=(call.at_store("letters", query.iter().cloned())) { "All letters of the group" } }
        }
        (facts([
            ("letters", html! { (stats.total) }),
            ("by status", statuses),
            ("first stored", time(seen.0)),
            ("last stored", time(seen.1)),
        ]))
        // A decision is about one consumer's group, so there is no form where the filter means several.
        @if groups.len() == 1 && !call.is_log() { (known(&call, first)) }
        (conditions(&call, &filter::params(&filter), None))
        section aria-labelledby="trend" {
            h2 #trend { "By hour" }
            (chart::by_hour("chart", week))
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
        // Attributes come from messages, and a letter with thousands of them must not fill the page.
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
                            // A field that some of the samples lack is not common to them, although it has one value.
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
