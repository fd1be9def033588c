use axum::response::Response;
use dlq_core::Status;
use dlq_core::store::{OperationSpec, Pace, Plan, Target};
use maud::{Markup, html};

use super::parts::{
    change_fields, conditions, cut, expect, hidden, letters, note_so_far, waits_for,
};
use super::{Section, page as show};
use crate::actions::{self, Planned};
use crate::call::{Call, NO_QUERY, see_other};
use crate::filter;
use crate::refusal::Refusal;

/// Options of a replay that its form has, beside the destination.
const OPTIONS: [(&str, &str, &str); 4] = [
    ("rate", "Rate at most", "e.g. 50/s; empty for as fast as consumers take them"),
    ("canary", "Canary", "send this many first, and stop when one of them fails again"),
    ("limit", "Letters at most", "the oldest first; empty for all"),
    (
        "max-replays",
        "Cap on replays",
        "letters that were replayed this often are quarantined instead; 10 unless said, 0 for none",
    ),
];

/// Shows what a replay would do, and asks.
pub(crate) async fn page(call: Call) -> Result<Response, Refusal> {
    let call = filled_in(call);
    if call.is_log() {
        return super::log::replay(&call).await;
    }
    let Planned { spec, plan, unattended } = actions::plan(&call).await?;
    // The filter of the plan ends before now, so that letters which come while somebody reads are not sent along.
    let filter = filter::params(&spec.filter);
    let all = call.params.is("all").then_some(("all", "true"));
    let canary_wait = call.params.text("canary-wait").map(|wait| ("canary-wait", wait));
    // One form for both buttons: an option that was typed and not planned counts as well.
    let body = html! {
        h1 { "Replay letters" }
        (conditions(&call, &filter::params(&spec.filter), None))
        (explain(&plan, &spec))
        (waits_for(&call, &unattended))
        @if !plan.sample.is_empty() {
            h2 { "The first of them" }
            div.sample { (letters(&call, &plan.sample)) }
        }
        form.narrow method="post" action=(call.at_store("replay", NO_QUERY)) {
            (change_fields(&call.visitor))
            (hidden(filter.iter().cloned()))
            (hidden(all))
            (hidden(canary_wait))
            h2 { "How" }
            @for (name, label, about) in OPTIONS {
                div.field {
                    label for=(name) { (label) }
                    input id=(name) name=(name) value=[call.params.text(name)] aria-describedby={ "h-" (name) } autocomplete="off";
                    small id={ "h-" (name) } { (about) }
                }
            }
            (destination(&call))
            // Neither a reason nor a number is needed to look, so the browser does not ask for them.
            button type="submit" formaction=(call.at_store("plan", NO_QUERY)) formnovalidate { "Show what would be sent" }
            @if plan.count > 0 {
                h2 { "Send" }
                (note_so_far("note", call.params.text("note")))
                (expect(plan.count))
                button.primary type="submit" { "Replay " (plan.count) " letters" }
            }
        }
    };
    Ok(show(&call, Section::Operations, "Replay", body))
}

fn destination(call: &Call) -> Markup {
    let to = call.params.text("to").unwrap_or("handler");
    let clusters: Vec<_> = call.console.via.iter().map(ToString::to_string).collect();
    html! {
        @if clusters.is_empty() {
            p.muted { "Letters go back to the consumers that failed, and to nobody else." }
        } @else {
            div.field {
                label for="to" { "Destination" }
                input id="to" name="to" value=(to) list="destinations" aria-describedby="h-to";
                datalist #destinations { option value="handler"; option value="origin"; }
                small #h-to {
                    "handler: the consumer that failed, and nobody else. origin: where each letter came from, for everybody who listens "
                    "there. Or a subject or topic. Letters for brokers are sent through " (cut(&clusters.join(", "), 200)) "."
                }
            }
        }
    }
}

/// Says how many letters a replay would send, where to and how fast.
pub(super) fn would_be_sent(letters: u64, target: &Target, pace: Option<Pace>) -> Markup {
    html! {
        strong { (letters) } " letters would be sent "
        @match target {
            Target::Handler => "back to the consumers that failed, and to nobody else.",
            Target::Origin => "to where they came from; everybody who listens there sees them again.",
            other => { "to " strong { (cut(&other.to_string(), 200)) } "; everybody who listens there sees them." },
        }
        @if let Some(pace) = pace { " At most " (pace) "." }
    }
}

fn explain(plan: &Plan, spec: &OperationSpec) -> Markup {
    html! {
        p {
            (would_be_sent(plan.count, &spec.target, spec.pace))
            @if let Some(canary) = spec.canary { " The first " (canary) " go alone, and the rest waits for their outcome." }
        }
        @if plan.past_cap > 0 { p { (plan.past_cap) " of them were replayed too often and would be quarantined instead." } }
        @if !plan.ineligible.is_empty() {
            ul {
                @for (status, count) in &plan.ineligible {
                    li {
                        (count)
                        @match status {
                            Status::Pending => " more match and are held by another operation.",
                            status => { " more match but are " (status) " and stay as they are." },
                        }
                    }
                }
            }
        }
    }
}

/// Returns the call without options that were left empty in the form.
fn filled_in(mut call: Call) -> Call {
    let names = OPTIONS.map(|(name, ..)| name);
    call.params = std::mem::take(&mut call.params).without_empty_of(&names);
    call
}

pub(crate) async fn start(call: Call) -> Result<Response, Refusal> {
    let call = filled_in(call);
    if call.is_log() {
        return super::log::start(&call).await;
    }
    match actions::replay(&call, true).await? {
        (_, Some(operation)) => {
            see_other(&call.at_store(&format!("operations/{}", operation.id), NO_QUERY))
        }
        // The page offered letters, so others have taken them since.
        (_, None) => Err(Refusal::conflict("no letter can be sent back any more; look again")),
    }
}
