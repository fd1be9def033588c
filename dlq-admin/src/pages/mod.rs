//! Pages for people, each of which works without the script.
//!
//! Texts of letters come into a page through [`visible`] and [`cut`] alone, which leave no character that could steer a
//! reader; the templates escape what HTML would take for its own.

pub(crate) mod archive;
pub(crate) mod audit;
pub(crate) mod change;
mod chart;
pub(crate) mod consumers;
pub(crate) mod edit;
pub(crate) mod groups;
pub(crate) mod letter;
pub(crate) mod letters;
pub(crate) mod log;
pub(crate) mod login;
pub(crate) mod operations;
pub(crate) mod overview;
mod parts;
pub(crate) mod replay;
pub(crate) mod schedule;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use maud::{DOCTYPE, Markup, html};

use crate::Console;
use crate::call::{Call, NO_QUERY, html as respond_html, respond, see_other, segment};
use crate::door::Visitor;
use crate::refusal::Refusal;
use parts::{csrf, cut};

pub(crate) use groups::Counts as GroupCounts;
pub(crate) use overview::Counts as OverviewCounts;

pub(crate) async fn style(_: Call) -> Result<Response, Refusal> {
    Ok(respond(StatusCode::OK, "text/css; charset=utf-8", include_str!("../assets/style.css")))
}

pub(crate) async fn script(_: Call) -> Result<Response, Refusal> {
    let script = include_str!("../assets/console.js");
    Ok(respond(StatusCode::OK, "text/javascript; charset=utf-8", script))
}

pub(crate) async fn root(call: Call) -> Result<Response, Refusal> {
    to_overview(&call.console, &call.root)
}

/// Leads to the overview of the first store.
pub(crate) fn to_overview(console: &Console, root: &str) -> Result<Response, Refusal> {
    see_other(&overview_link(console, root))
}

/// Returns the link to the overview of the first store. A nested router is not asked for its own path with a `/` behind it, so
/// that no page may link there.
fn overview_link(console: &Console, root: &str) -> String {
    let first = console.stores.first().map_or("", |(name, _)| name);
    format!("{root}s/{}", segment(first))
}

/// Returns the page that says why a request was not carried out; who is not logged in is sent to the login.
pub(crate) fn refused(
    console: &Console,
    visitor: Option<&Visitor>,
    root: &str,
    refusal: Refusal,
) -> Response {
    let has_login = matches!(console.access.0, crate::access::Kind::Tokens(_));
    if refusal.status == StatusCode::UNAUTHORIZED
        && has_login
        // A visitor who is known and still refused would be sent back and forth between the login and this page.
        && visitor.is_none()
        && let Ok(response) = see_other(&format!("{root}login"))
    {
        return response;
    }
    let title = refusal.title.unwrap_or(match refusal.status {
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => "Not allowed",
        StatusCode::CONFLICT => "It has changed meanwhile",
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::INTERNAL_SERVER_ERROR => {
            "The store does not answer"
        }
        _ => "Not done",
    });
    let body = html! {
        h1 { (title) }
        // Messages may quote what a client sent, so they are cut and made visible like texts of letters.
        p.error role="alert" { (cut(&refusal.message, 2_000)) }
        p { a href=(overview_link(console, root)) { "To the overview" } }
    };
    let page = frame(console, root, title, None, visitor, None, body);
    let mut response = respond_html(refusal.status, page);
    if let Some(seconds) = refusal.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Section of the console, as its navigation names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Overview,
    Groups,
    Letters,
    Operations,
    Schedule,
    Consumers,
    Audit,
}

/// Sections of a log of a broker, which knows nothing but its letters.
const OF_LOGS: [(Section, &str, &str); 4] = [
    (Section::Overview, "", "Overview"),
    (Section::Groups, "groups", "Groups"),
    (Section::Letters, "letters", "Letters"),
    (Section::Operations, "latest-replay", "Replay"),
];

const SECTIONS: [(Section, &str, &str); 7] = [
    (Section::Overview, "", "Overview"),
    (Section::Groups, "groups", "Groups"),
    (Section::Letters, "letters", "Letters"),
    (Section::Operations, "operations", "Operations"),
    (Section::Schedule, "schedule", "Schedule"),
    (Section::Consumers, "consumers", "Consumers"),
    (Section::Audit, "audit", "Audit"),
];

/// Returns a page of the store or log that the path names.
pub(crate) fn page(call: &Call, section: Section, title: &str, body: Markup) -> Response {
    let body = html! { (log::as_of(call)) (body) };
    let frame = frame(
        &call.console,
        &call.root,
        title,
        Some((call, section)),
        Some(&call.visitor),
        call.store.as_ref().map(|(name, _)| name.as_str()),
        body,
    );
    respond_html(StatusCode::OK, frame)
}

fn frame(
    console: &Console,
    root: &str,
    title: &str,
    at: Option<(&Call, Section)>,
    visitor: Option<&Visitor>,
    store: Option<&str>,
    body: Markup,
) -> Markup {
    // Names of stores are for those who were let in.
    let known = visitor.filter(|visitor| visitor.name != "nobody");
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="robots" content="noindex";
                title { (cut(title, 80)) @if let Some(store) = store { " · " (cut(store, 40)) } " · dlq" }
                link rel="stylesheet" href={ (root) "assets/style.css" };
                // Both files are our own, as the policy demands; the script only updates what a page shows already.
                script src={ (root) "assets/console.js" } defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    a.brand href=(overview_link(console, root)) { "dlq" }
                    @if let Some((call, section)) = at {
                        nav aria-label="Sections" {
                            ul {
                                @for (one, path, name) in if call.is_log() { &OF_LOGS[..] } else { &SECTIONS } {
                                    li {
                                        a href=(call.at_store(path, NO_QUERY)) aria-current=[(*one == section).then_some("page")] { (name) }
                                    }
                                }
                            }
                        }
                    }
                    @if known.is_some() && console.stores.len() > 1 {
                        nav aria-label="Stores" {
                            ul {
                                @for (name, _) in &console.stores {
                                    li {
                                        a href={ (root) "s/" (segment(name)) } aria-current=[(Some(name.as_str()) == store).then_some("true")] { (cut(name, 40)) }
                                    }
                                }
                            }
                        }
                    }
                    @if let Some(visitor) = known {
                        div.visitor {
                            span { (cut(&visitor.name, 40)) " (" (visitor.role) ")" }
                            @if visitor.has_session {
                                form method="post" action={ (root) "logout" } {
                                    (csrf(visitor))
                                    button type="submit" { "Log out" }
                                }
                            }
                        }
                    }
                }
                main #main { (body) }
            }
        }
    }
}
