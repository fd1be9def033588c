use axum::response::Response;
use maud::html;

use super::parts::{cut, table, time};
use super::{Section, page as show};
use crate::actions;
use crate::call::{Call, NO_QUERY};
use crate::refusal::Refusal;

pub(crate) async fn page(call: Call) -> Result<Response, Refusal> {
    let (present, now) = actions::consumers(&call).await?;
    let is_gone = call.params.is("gone");
    // Those that are gone are what somebody comes for.
    let (gone, alive): (Vec<_>, Vec<_>) = present.iter().partition(|it| !it.is_alive(now));
    let rows = html! {
        @for it in gone.into_iter().chain(alive) {
            @let heartbeat = &it.heartbeat;
            tr {
                th scope="row" {
                    a href=(call.at_store("letters", [("consumer", heartbeat.consumer.as_str())])) { (cut(&heartbeat.consumer, 80)) }
                }
                td {
                    @if it.is_alive(now) { span.status data-status="resolved" { "alive" } }
                    @else { span.status data-status="quarantined" { "gone" } }
                }
                td { (time(it.last_seen)) }
                td { (heartbeat.host.as_deref().map_or_else(|| "–".to_owned(), |host| cut(host, 60))) }
                td { (heartbeat.build.as_deref().map_or_else(|| "–".to_owned(), |build| cut(build, 40))) }
                td { (time(it.since)) }
                td.wide { (cut(&heartbeat.reads.join(", "), 200)) }
            }
        }
    };
    let head = ["Consumer", "State", "Last heard of", "Host", "Build", "Since", "Reads"];
    let body = html! {
        h1 { "Consumers" }
        p { "Consumers that have this store as theirs. One that is not heard of for a minute counts as gone." }
        p {
            @if is_gone { a href=(call.at_store("consumers", NO_QUERY)) { "Show all" } }
            @else { a href=(call.at_store("consumers", [("gone", "true")])) { "Show only those that are gone" } }
        }
        @if present.is_empty() { p { "No consumer was heard of." } } @else { (table("Consumers", &head, rows)) }
    };
    Ok(show(&call, Section::Consumers, "Consumers", body))
}
