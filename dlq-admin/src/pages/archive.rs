//! Letters that were deleted, and the form that restores them.

use axum::response::Response;
use maud::{Markup, html};

use super::parts::{change_fields, cut, note, short, status, table, time};
use super::{Section, page as show};
use crate::access::Role;
use crate::actions;
use crate::call::{Call, NO_QUERY};
use crate::refusal::Refusal;
use dlq_core::store::Archived;

pub(crate) async fn page(call: Call) -> Result<Response, Refusal> {
    let found = actions::archived(&call).await?;
    let next = found.next.map(|cursor| {
        let cursor = cursor.to_string();
        // The cursor of this page would be found before that of the next.
        let kept = call.params.without(&["cursor"]);
        call.at_store("archive", kept.into_iter().chain([("cursor", cursor.as_str())]))
    });
    let is_allowed = call.may(Role::Admin);
    let rows = table_of(&found.letters, is_allowed);
    let body = html! {
        h1 { "Deleted letters" }
        p { "They can be restored until a cleanup empties the archive. The one deleted last comes first." }
        @if found.letters.is_empty() {
            p { "No deleted letters on this page." }
        } @else if is_allowed {
            // Only ids are sent: with nothing ticked the request is refused, since this route takes no `all`.
            form method="post" action=(call.at_store("restore", NO_QUERY)) {
                (change_fields(&call.visitor))
                (rows)
                (note("note"))
                button type="submit" { "Restore those that are ticked" }
            }
        } @else {
            (rows)
        }
        nav.pages aria-label="Pages" {
            @if let Some(next) = next { a rel="next" href=(next) { "Next page" } }
        }
    };
    Ok(show(&call, Section::Letters, "Deleted letters", body))
}

fn table_of(archived: &[Archived], is_allowed: bool) -> Markup {
    let rows = html! {
        @for Archived { letter, deleted_at, deleted_by, .. } in archived {
            tr {
                th scope="row" {
                    @if is_allowed {
                        label.check {
                            input type="checkbox" name="id" value=(letter.id);
                            " " code { (short(&letter.id)) }
                        }
                    } @else { code { (short(&letter.id)) } }
                }
                td { (time(*deleted_at)) }
                td { (cut(&deleted_by.who, 60)) }
                td.wide { @if let Some(note) = &deleted_by.note { (cut(note, 160)) } }
                td { (status(letter.state.status)) }
                td { (cut(&letter.subject, 60)) }
                td { (cut(&letter.consumer, 60)) }
                td.wide { (cut(&letter.error, 160)) }
            }
        }
    };
    let head = ["Letter", "Deleted", "By", "Reason", "Status", "Subject", "Consumer", "Error"];
    table("Deleted letters", &head, rows)
}

pub(crate) async fn restore(call: Call) -> Result<Response, Refusal> {
    let restored = actions::restore(&call).await?;
    let body = html! {
        h1 { "Restored" }
        p role="status" { strong { (restored.changed) } " letters were restored." }
        @if restored.skipped > 0 {
            p { (restored.skipped) " were skipped: the store has a letter of the same message again." }
        }
        p { a href=(call.at_store("letters", NO_QUERY)) { "To the letters" } }
    };
    Ok(show(&call, Section::Letters, "Restored", body))
}
