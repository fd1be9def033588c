use axum::response::Response;
use bytes::Bytes;
use dlq_core::policy::duration;
use dlq_core::store::AuditEntry;
use dlq_core::{Attempt, DeadLetter, Status};
use maud::{Markup, html};

use super::parts::{
    change_fields, cut, facts, letter_link, moment, note, short, status, table, time,
};
use super::{Section, audit, edit, groups, page as show};
use crate::access::Role;
use crate::actions;
use crate::call::{Call, NO_QUERY, segment};
use crate::mask::MASKED;
use crate::refusal::Refusal;
use crate::shown::{bytes, indented};

/// Number of bytes of a payload on the page.
// A page stays quick to load and to read; the whole payload is a download.
const PAYLOAD: usize = 8 * 1024;
/// Number of bytes of them as hexadecimal digits, which take more room.
const HEX: usize = 4 * 1024;
/// Number of headers on the page.
const HEADERS: usize = 40;
/// Number of characters of the value of a header, and of an error, on the page.
const TEXT: usize = 160;
/// Number of attributes on the page.
const ATTRIBUTES: usize = 20;
/// Most bytes of an attribute or a key that has a link, which has them as well.
// Servers and proxies refuse long URLs.
const LINKED: usize = 500;
/// Number of bytes of the texts on the page of one attempt.
const ATTEMPT: usize = 24 * 1024;
/// Number of the first and of the latest attempts on the page.
// The first attempts show how it began and the latest how it stands; those in between mostly repeat them.
const ATTEMPTS: (usize, usize) = (3, 12);
/// Number of bytes of long texts of entries of the audit on the page.
const DONE: usize = 10 * 1024;
/// Number of entries of the audit on the page.
const ENTRIES: u32 = 20;

pub(crate) async fn page(call: Call) -> Result<Response, Refusal> {
    // Masked before anything of it is shown, so that no part of the page has to think of it.
    let letter = call.masked(actions::letter(&call).await?);
    let is_shown = call.may(Role::Operate);
    show_letter(&call, &letter, is_shown).await
}

pub(crate) async fn reveal(call: Call) -> Result<Response, Refusal> {
    let letter = actions::reveal(&call).await?;
    // The form of the edit has the whole payload, which a lower role is not shown by a reveal where rules mask it.
    if call.params.text("then") == Some("edit") && call.may(Role::Admin) {
        return edit::show_form(&call, &letter).await;
    }
    show_letter(&call, &letter, true).await
}

async fn show_letter(
    call: &Call,
    letter: &DeadLetter,
    is_shown: bool,
) -> Result<Response, Refusal> {
    // The audit is read after the reveal was written, so that the page shows its own entry.
    let entries =
        if call.is_log() { Vec::new() } else { actions::audit_of(call, letter, ENTRIES).await? };
    let body = html! {
        h1 { "Letter " code { (letter.id) } }
        p.error-text { (cut(&letter.error(), 1_000)) }
        (actions_on(call, letter))
        section aria-labelledby="state" { h2 #state { "State" } (state(call, letter)) }
        section aria-labelledby="origin" { h2 #origin { "Where it comes from" } (origin(call, letter, is_shown)) }
        section aria-labelledby="attempts" {
            h2 #attempts { "Attempts (" (letter.history.len()) ")" }
            (attempts(call, letter))
        }
        @if is_shown {
            section aria-labelledby="headers" { h2 #headers { "Headers (" (letter.message.headers().len()) ")" } (headers(call, letter)) }
            @if let Some(parts) = letter.attributes.get(MASKED) { (masked(call, letter, parts)) }
            section aria-labelledby="payload" { h2 #payload { "Payload" } (payload(call, letter)) }
        } @else {
            section aria-labelledby="payload" { h2 #payload { "Headers and payload" } (concealed(call, letter)) }
        }
        @if !call.is_log() { section aria-labelledby="audit" { h2 #audit { "What was done to it" } (done(call, &entries)) } }
    };
    Ok(show(call, Section::Letters, &format!("Letter {}", short(&letter.id)), body))
}

fn actions_on(call: &Call, letter: &DeadLetter) -> Markup {
    let id = letter.id.to_string();
    let change = |verb: &str| call.at_store("change", [("id", id.as_str()), ("verb", verb)]);
    let status = letter.state.status;
    html! {
        ul.actions aria-label="Actions" {
            @if call.may(Role::Operate) {
                @if status == Status::Pending { li { a.button href=(call.at_store("replay", [("id", &id)])) { "Replay" } } }
            }
            @if call.may_change(Role::Operate) {
                @if status != Status::Resolved { li { a.button href=(change("resolved")) { "Resolve" } } }
                @if status != Status::Quarantined { li { a.button href=(change("quarantined")) { "Quarantine" } } }
                @if status != Status::Pending { li { a.button href=(change("pending")) { "Put back to pending" } } }
            }
            @if call.may_change(Role::Admin) {
                li { a.button href=(call.at_store(&format!("letters/{id}/edit"), NO_QUERY)) { "Edit" } }
                li { a.button.danger href=(change("delete")) { "Delete" } }
            }
            // The link is safe for every role: the interface hides and masks by the role of who asks.
            li { a href=(json_link(call, letter)) { "The whole letter as JSON" } }
        }
    }
}

fn json_link(call: &Call, letter: &DeadLetter) -> String {
    let store = call.store.as_ref().map_or("", |(name, _)| name);
    call.link(&format!("api/v1/{}/letters/{}", segment(store), letter.id))
}

fn state(call: &Call, letter: &DeadLetter) -> Markup {
    let state = &letter.state;
    let mut rows = vec![
        (
            "status",
            html! { (status(state.status)) @if let Some(how) = state.resolution { " (" (how) ")" } },
        ),
        (
            "reason",
            html! { (letter.reason) "; of class " (letter.class) @if let Some(cause) = letter.cause { ", by " (cause) } },
        ),
        (
            "group",
            html! { a href=(call.at_store("group", groups::filter_of(letter))) { code { (letter.fingerprint) } } },
        ),
        (
            "counts",
            html! {
                (letter.attempts) " attempts, " (letter.deliveries) " deliveries, " (letter.crashes) " crashes, "
                (letter.delayed_retries) " delayed retries"
            },
        ),
        (
            "lineage",
            html! {
                "generation " (letter.generation) "; sent back " (state.retry_count) " times, " (state.replays)
                " of them by operators; edited " (state.edited_from.len()) " times; seen " (state.seen) " times"
            },
        ),
        ("died", moment(letter.died_at)),
        ("stored", moment(state.created_at)),
        ("changed", moment(state.updated_at)),
    ];
    if let Some(due) = state.due {
        rows.push(("due", time(due)));
    }
    if let Some(at) = state.last_retry_at {
        rows.push(("last handed out", time(at)));
    }
    if let Some(operation) = state.operation {
        let link = call.at_store(&format!("operations/{operation}"), NO_QUERY);
        // A log keeps the id of what sent the letter, and nothing else of it.
        let link = (!call.is_log()).then_some(link);
        rows.push(("operation", html! { a href=[link] { code { (short(&operation)) } } }));
    }
    if !letter.confirmed {
        rows.push(("confirmed", html! { "no: the death was heard of, not seen" }));
    }
    facts(rows)
}

fn origin(call: &Call, letter: &DeadLetter, is_shown: bool) -> Markup {
    let message = &letter.message;
    let mut rows = vec![
        ("consumer", html! { (cut(&letter.consumer, 200)) }),
        ("subject", html! { (cut(message.subject(), 200)) }),
        ("origin", html! { (cut(&letter.origin.to_string(), 300)) }),
    ];
    if let Some(service) = &letter.service {
        rows.push(("service", html! { (cut(service, 200)) }));
    }
    if let Some(id) = message.id() {
        let link = call.at_store("letters", [("event-id", id)]);
        rows.push((
            "message id",
            html! { (cut(id, 200)) " " a href=(link) { "all letters of this message" } },
        ));
    }
    if let Some(event) = message.event() {
        rows.push(("event", html! { (cut(event, 200)) }));
    }
    if let Some(at) = message.published_at() {
        rows.push(("published", time(at)));
    }
    if is_shown {
        if let Some(key) = message.key() {
            // The filter takes texts, so a key of other bytes has no link.
            let text = std::str::from_utf8(key).ok();
            let linked = text.filter(|text| !text.is_empty() && text.len() <= LINKED);
            let link = linked.map(|text| call.at_store("letters", [("key", text)]));
            rows.push((
                "key",
                html! {
                    (cut(&bytes(key, false), 200))
                    @if let Some(link) = link { " " a href=(link) { "all letters of this key" } }
                },
            ));
        }
        // The trace is the value of a header, and values of headers are hidden from the role `read`.
        if let Some(trace) = trace_id(letter) {
            rows.push(("trace", html! { code { (trace) } }));
        }
    }
    let attributes = letter.attributes.iter().take(ATTRIBUTES);
    let attributes = html! {
        @for (name, value) in attributes {
            (cut(name, 60)) "="
            @if name.len() + value.len() <= LINKED {
                a href=(call.at_store("letters", [("attr", format!("{name}={value}"))])) title="all letters that have it" { (cut(value, 100)) }
            } @else { (cut(value, 100)) }
            br;
        }
        @if letter.attributes.len() > ATTRIBUTES { "and " (letter.attributes.len() - ATTRIBUTES) " more: " a href=(json_link(call, letter)) { "all" } }
    };
    if !letter.attributes.is_empty() {
        rows.push(("attributes", attributes));
    }
    facts(rows)
}

/// The id of the trace that the producer's header of the W3C names.
fn trace_id(letter: &DeadLetter) -> Option<&str> {
    let id = letter.message.headers().get_str("traceparent")?.split('-').nth(1)?;
    // Producers may write anything into the header; only what has the form of an id is shown as one.
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

fn attempts(call: &Call, letter: &DeadLetter) -> Markup {
    let all = letter.history.attempts();
    let (first, last) = ATTEMPTS;
    let skipped = all.len().saturating_sub(first + last);
    html! {
        @if all.is_empty() { p { "No attempt is recorded." } }
        ol.timeline {
            @for (index, attempt) in all.iter().enumerate() {
                @if index == first && skipped > 0 {
                    li.muted { (skipped) " attempts are left out here: " a href=(json_link(call, letter)) { "all of them" } }
                }
                @if index < first || index >= first + skipped {
                    li { (attempt_of(call, letter, index, attempt)) }
                }
            }
        }
        @if letter.history.omitted() > 0 { p { (letter.history.omitted()) " attempts from the middle were not kept." } }
    }
}

fn attempt_of(call: &Call, letter: &DeadLetter, index: usize, attempt: &Attempt) -> Markup {
    let failure = &attempt.failure;
    let whole = call.at_store(&format!("letters/{}/attempts/{index}", letter.id), NO_QUERY);
    let is_cut = failure.messages.len() > 2
        || failure.messages.iter().any(|message| message.len() > TEXT)
        || failure.backtrace.is_some();
    html! {
        p {
            strong { "Attempt " (attempt.number) } " of generation " (attempt.generation) ", " (time(failure.at)) ": "
            (failure.class) " " (failure.cause) " after " (duration::format(failure.duration))
        }
        p { code { (cut(&failure.error_type, 120)) } }
        @for message in failure.messages.iter().take(2) { p.error-text { (cut(message, TEXT)) } }
        @if let Some(location) = &failure.location { p.muted { "at " (cut(location, 120)) } }
        @if is_cut { p { a href=(whole) { "The whole attempt" } } }
    }
}

pub(crate) async fn attempt(call: Call) -> Result<Response, Refusal> {
    let letter = actions::letter(&call).await?;
    // What is no number names no attempt, and is answered like a number that is too high.
    let index: usize = call.path("n").parse().unwrap_or(usize::MAX);
    let Some(attempt) = letter.history.attempts().get(index) else {
        return Err(Refusal::not_found("the letter has no such attempt"));
    };
    let failure = &attempt.failure;
    let mut room = ATTEMPT;
    let mut text = |text: &str| {
        // One room for all texts: a chain of a hundred long messages must not make a page of megabytes.
        let shown = cut_lines(text, room);
        room = room.saturating_sub(shown.len());
        lines(&shown)
    };
    let messages: Vec<_> = failure.messages.iter().map(|message| text(message)).collect();
    let backtrace = failure.backtrace.as_deref().map(text);
    let body = html! {
        h1 { "Attempt " (attempt.number) " of generation " (attempt.generation) }
        p { a href=(letter_link(&call, &letter.id)) { "Letter " code { (letter.id) } } }
        (facts([
            ("ended", time(failure.at)),
            ("took", html! { (duration::format(failure.duration)) }),
            ("class", html! { (failure.class) }),
            ("cause", html! { (failure.cause) }),
            ("type", html! { code { (cut(&failure.error_type, 500)) } }),
            ("location", html! { @if let Some(location) = &failure.location { (cut(location, 500)) } @else { "unknown" } }),
        ]))
        h2 { "Messages" }
        @for message in &messages { pre tabindex="0" { (message) } }
        @if let Some(backtrace) = &backtrace {
            h2 { "Backtrace" }
            pre tabindex="0" { (backtrace) }
        }
        p { a href=(json_link(&call, &letter)) { "The whole letter as JSON" } }
    };
    Ok(show(&call, Section::Letters, "Attempt", body))
}

fn headers(call: &Call, letter: &DeadLetter) -> Markup {
    let all = letter.message.headers();
    let rows = html! {
        @for header in all.iter().take(HEADERS) {
            tr {
                th scope="row" { (cut(&bytes(&header.name, false), 60)) }
                td.wide {
                    @match &header.value {
                        None => span.muted { "(none)" },
                        Some(value) => {
                            (cut(&bytes(value, false), TEXT))
                            @if value.len() > TEXT { " " a href=(json_link(call, letter)) { "whole" } }
                        },
                    }
                }
            }
        }
    };
    html! {
        @if all.is_empty() { p { "None." } } @else { (table("Headers", &["Name", "Value"], rows)) }
        @if all.len() > HEADERS { p { "and " (all.len() - HEADERS) " more: " a href=(json_link(call, letter)) { "all of them" } } }
    }
}

fn payload(call: &Call, letter: &DeadLetter) -> Markup {
    let Some(payload) = letter.message.payload() else {
        return html! { p { "None: the message is a tombstone, or its letter only points to it." } };
    };
    let view = call.params.text("view").unwrap_or(if indented(payload).is_some() {
        "json"
    } else {
        "text"
    });
    let (text, is_cut) = match view {
        "hex" => (hex(&payload[..payload.len().min(HEX)]), payload.len() > HEX),
        "json" => match indented(payload) {
            Some(json) => (cut_lines(&json, PAYLOAD), json.len() > PAYLOAD),
            None => ("(it is not JSON)".to_owned(), false),
        },
        _ => match std::str::from_utf8(payload) {
            Ok(text) => (cut_lines(text, PAYLOAD), text.len() > PAYLOAD),
            Err(_) => ("(it is not text; see it in hexadecimal digits)".to_owned(), false),
        },
    };
    let download = call.at_store(&format!("letters/{}/payload", letter.id), NO_QUERY);
    // What is downloaded is masked, and would be taken for what is shown of a letter that is revealed.
    let is_revealed = !letter.attributes.contains_key(MASKED) && call.is_masked(letter);
    html! {
        p { (payload.len()) " bytes" @if is_cut { ", of which the beginning is shown" } "." }
        ul.actions aria-label="Views" {
            // The views are links, and a GET of the role `read` would show the letter concealed again.
            @if call.may(Role::Operate) {
                @for name in ["json", "text", "hex"] {
                    li { a href=(call.at_store(&format!("letters/{}", letter.id), [("view", name)])) aria-current=[(name == view).then_some("true")] { (name) } }
                }
                @if !is_revealed { li { a href=(download) download { "Download the whole payload" } } }
            }
        }
        pre tabindex="0" { (lines(&text)) }
    }
}

/// Returns the beginning of a text over several lines.
fn cut_lines(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// Returns the lines of a text, each with everything visible.
fn lines(text: &str) -> String {
    text.split('\n').map(super::parts::visible).collect::<Vec<_>>().join("\n")
}

/// Returns bytes as lines of sixteen: the offset, hexadecimal digits, and what of it is text.
fn hex(payload: &[u8]) -> String {
    let mut out = String::new();
    for (row, chunk) in payload.chunks(16).enumerate() {
        out.push_str(&format!("{:08x} ", row * 16));
        for at in 0..16 {
            match chunk.get(at) {
                Some(byte) => out.push_str(&format!(" {byte:02x}")),
                None => out.push_str("   "),
            }
        }
        out.push_str("  ");
        let plain = |byte: &u8| matches!(byte, 0x20..=0x7e);
        out.extend(chunk.iter().map(|byte| if plain(byte) { char::from(*byte) } else { '.' }));
        out.push('\n');
    }
    out
}

/// Returns the form by which somebody of the role `read` sees a letter whole.
fn concealed(call: &Call, letter: &DeadLetter) -> Markup {
    let size = letter.message.payload().map_or(0, Bytes::len);
    html! {
        p {
            "The message has " (letter.message.headers().len()) " headers and a payload of " (size) " bytes. The role `"
            (call.visitor.role)
            // A reveal is an entry of the audit, and a log has none.
            @if call.is_log() { "` does not see them: a log of a broker keeps no audit of who has looked." }
            @else { "` sees them with a reason, which is kept in the audit." }
        }
        @if !call.is_log() { (reveal_form(call, letter, None)) }
    }
}

/// Returns what is said of a letter of which rules mask parts, and the form by which the role `admin` sees it whole.
fn masked(call: &Call, letter: &DeadLetter, parts: &str) -> Markup {
    html! {
        section aria-labelledby="masked" {
            h2 #masked { "Masked" }
            p {
                "Rules mask parts of: " (cut(parts, 100)) "."
                @if !call.is_log() { " The role `admin` sees them with a reason, which is kept in the audit." }
            }
            @if call.may_change(Role::Admin) { (reveal_form(call, letter, None)) }
        }
    }
}

/// Returns the form that asks for the reason, and leads to the letter, or to what comes `then`.
pub(super) fn reveal_form(call: &Call, letter: &DeadLetter, then: Option<&str>) -> Markup {
    html! {
        form.narrow method="post" action=(call.at_store(&format!("letters/{}/reveal", letter.id), NO_QUERY)) {
            (change_fields(&call.visitor))
            @if let Some(then) = then { input type="hidden" name="then" value=(then); }
            (note("reveal-note"))
            button type="submit" { "Reveal" }
        }
    }
}

fn done(call: &Call, entries: &[AuditEntry]) -> Markup {
    html! {
        @if entries.is_empty() { p { "Nothing." } } @else { (audit::table_of(call, entries, DONE)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stand_in_lines_of_sixteen() {
        let text = hex(b"{\"a\":1}\n\x00\xff and more");
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some("00000000  7b 22 61 22 3a 31 7d 0a 00 ff 20 61 6e 64 20 6d  {\"a\":1}... and m")
        );
        assert_eq!(
            lines.next(),
            Some("00000010  6f 72 65                                         ore")
        );
    }

    #[test]
    fn a_text_is_cut_between_two_characters() {
        assert_eq!(cut_lines("aä", 2), "a…");
        assert_eq!(cut_lines("aä", 3), "aä");
    }
}
