use axum::response::Response;
use dlq_core::PageRequest;
use dlq_core::store::{Mark, Marked};
use maud::html;

use super::parts::{change_fields, conditions, expect, hidden, letters, note};
use super::{Section, page as show};
use crate::access::Role;
use crate::actions::{self, Chosen};
use crate::call::{Call, NO_QUERY};
use crate::filter;
use crate::refusal::Refusal;

/// Number of letters of a change that are shown before it.
const SAMPLE: u32 = 10;

/// Shows what a change is about, and asks.
pub(crate) async fn page(call: Call) -> Result<Response, Refusal> {
    let verb = call.params.text("verb").unwrap_or_default();
    let (title, about, path, mark) = match verb {
        "delete" => (
            "Delete letters",
            "They leave the store, and can be restored until a cleanup empties the archive.",
            "delete",
            None,
        ),
        "quarantined" => (
            "Quarantine letters",
            "They are set aside: nothing sends them back until they are released.",
            "mark",
            Some(Mark::Quarantined),
        ),
        "pending" => (
            "Put letters back to pending",
            "They wait again; what was arranged for them is cancelled, and their count of replays starts over.",
            "mark",
            Some(Mark::Pending),
        ),
        "resolved" => (
            "Resolve letters",
            "Nothing more is to be done about them.",
            "mark",
            Some(Mark::Resolved),
        ),
        _ => return Err(Refusal::invalid("`verb` is quarantined, pending, resolved or delete")),
    };
    // The route takes `operate`, as marks do. The deletion itself is a route of its own for `admin`; this keeps its form
    // from those whom it would refuse.
    if path == "delete" && !call.may(Role::Admin) {
        return Err(Refusal::forbidden("only the role `admin` deletes letters"));
    }
    let chosen = Chosen::read(&call).await?;
    let page = PageRequest::new().limit(SAMPLE);
    let sample = call.letters()?.list(chosen.filter.clone(), page).await?.letters;
    let mark = mark.map(|mark| ("mark", mark.as_str()));
    let all = call.params.is("all").then_some(("all", "true"));
    let body = html! {
        h1 { (title) }
        p { (about) }
        (conditions(&call, &filter::params(&chosen.filter), None))
        p { strong { (chosen.count) } " letters match. Those that a consumer is running now are left alone." }
        @if !sample.is_empty() { div.sample { (letters(&call, &sample)) } }
        @if chosen.count == 0 {
            p { a href=(call.at_store("letters", NO_QUERY)) { "To the letters" } }
        } @else {
            form.narrow method="post" action=(call.at_store(path, NO_QUERY)) {
                (change_fields(&call.visitor))
                // The filter that was read is written back and not the one that was sent: ids that were found and the
                // end in time are in it.
                (hidden(filter::params(&chosen.filter)))
                (hidden(mark))
                (hidden(all))
                @if path == "delete" {
                    label.check {
                        input type="checkbox" name="for-good" value="true";
                        " for good: keep no copy, such as of personal data"
                    }
                }
                (note("note"))
                // The number is typed rather than sent along, so that somebody has read it.
                (expect(chosen.count))
                button.danger type="submit" { (title) }
            }
        }
    };
    Ok(show(&call, Section::Letters, title, body))
}

pub(crate) async fn mark(call: Call) -> Result<Response, Refusal> {
    let (mark, marked) = actions::mark(&call, true).await?;
    Ok(done(&call, &format!("Marked {mark}"), marked))
}

pub(crate) async fn delete(call: Call) -> Result<Response, Refusal> {
    let deleted = actions::delete(&call, true).await?;
    let title = if call.params.is("for-good") { "Deleted for good" } else { "Deleted" };
    Ok(done(&call, title, deleted))
}

fn done(call: &Call, title: &str, marked: Marked) -> Response {
    let body = html! {
        h1 { (title) }
        p role="status" { strong { (marked.changed) } " letters were changed." }
        @if marked.skipped > 0 {
            p { (marked.skipped) " were skipped: consumers are running them now; try again later." }
        }
        p { a href=(call.at_store("letters", NO_QUERY)) { "To the letters" } }
    };
    show(call, Section::Letters, title, body)
}
