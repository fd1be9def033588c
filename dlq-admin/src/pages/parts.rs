//! Pieces of pages.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::{Clock as _, LetterSummary, Status, SystemClock, Timestamp};
use maud::{Markup, PreEscaped, html};

use crate::call::{Call, NO_QUERY};
use crate::door::Visitor;
use crate::random;
use crate::shown::{age, consumer_names, escape};

/// Returns a text with everything visible that would steer a reader.
pub(crate) fn visible(text: &str) -> String {
    escape(text)
}

/// Returns the beginning of a text, visible, with a mark where it was cut.
pub(crate) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => visible(&text[..end]) + "…",
        None => visible(text),
    }
}

/// Returns a time with its age.
pub(crate) fn time(at: Timestamp) -> Markup {
    let ahead = at > SystemClock.now();
    html! {
        time datetime=(at) title=(at) {
            @if ahead { (at) } @else { (age(at)) " ago" }
        }
    }
}

/// Returns what is said of counts that were not made for this page.
pub(crate) fn counted_at(at: Timestamp) -> Markup {
    /// Age that nobody notices.
    const FRESH: Duration = Duration::from_secs(2);
    html! {
        @if at.after(FRESH) < SystemClock.now() {
            p.muted { "Counted " (time(at)) ": this store takes a while to count." }
        }
    }
}

/// Returns a time in full, to the second, with its age.
pub(crate) fn moment(at: Timestamp) -> Markup {
    let text = at.to_string();
    // 2026-11-21T03:00:00.123456789Z
    let seconds = text.get(..19).unwrap_or(&text).replace('T', " ");
    html! {
        time datetime=(at) title=(at) { (seconds) "Z" }
        " " small { (age(at)) " ago" }
    }
}

/// Returns the field by which a form shows that it is ours.
pub(crate) fn csrf(visitor: &Visitor) -> Markup {
    html! {
        @if let Some(token) = &visitor.csrf { input type="hidden" name="csrf" value=(token); }
    }
}

/// Returns the hidden fields of a form that changes something: sent twice, it is carried out once.
pub(crate) fn change_fields(visitor: &Visitor) -> Markup {
    html! {
        (csrf(visitor))
        // Without random bytes the form has no key and works all the same; sent twice, it would be carried out twice.
        @if let Ok(key) = random::text() { input type="hidden" name="idempotency-key" value=(key); }
    }
}

/// Returns hidden fields.
pub(crate) fn hidden<N: AsRef<str>, V: AsRef<str>>(
    pairs: impl IntoIterator<Item = (N, V)>,
) -> Markup {
    html! {
        @for (name, value) in pairs {
            input type="hidden" name=(name.as_ref()) value=(value.as_ref());
        }
    }
}

/// Returns the field for the reason.
pub(crate) fn note(id: &str) -> Markup {
    note_so_far(id, None)
}

/// Returns the field for the reason, with what was typed of it.
pub(crate) fn note_so_far(id: &str, so_far: Option<&str>) -> Markup {
    html! {
        div.field {
            label for=(id) { "Reason, kept in the audit" }
            // A browser must not offer the reasons of others who used the same machine.
            input id=(id) name="note" value=[so_far] required maxlength="1000" autocomplete="off";
        }
    }
}

/// Returns a note about consumers that letters wait for; nothing if there are none.
pub(crate) fn waits_for(call: &Call, consumers: &[String]) -> Markup {
    html! {
        @if !consumers.is_empty() {
            p {
                "No consumer reported that it runs " (consumer_names(consumers)) ". Letters wait until one of that name runs on this "
                "store; one of an earlier version does not report. "
                a href=(call.at_store("consumers", NO_QUERY)) { "Who is there" }
            }
        }
    }
}

/// Returns the field in which the number of letters is typed.
pub(crate) fn expect(count: u64) -> Markup {
    html! {
        div.field {
            label for="expect" { "Type " strong { (count) } " to confirm" }
            // A number that the browser fills in was not read by anybody.
            input id="expect" name="expect" required inputmode="numeric" pattern="[0-9]+" autocomplete="off";
        }
    }
}

/// Returns a status as a word with a colour.
pub(crate) fn status(status: Status) -> Markup {
    html! { span.status data-status=(status.as_str()) { (status) } }
}

/// Returns the first digits of an id.
pub(crate) fn short(id: &impl ToString) -> String {
    id.to_string().chars().take(12).collect()
}

/// Returns a table, each row of which is a list of labelled values where the window is narrow.
pub(crate) fn table(label: &str, head: &[&str], rows: Markup) -> Markup {
    // The cells are labelled here and not in each page, where one would be forgotten when a column is added.
    let (rows, numbers) = labelled(&rows.into_string(), head);
    html! {
        div.table role="region" aria-label=(label) tabindex="0" {
            table {
                thead {
                    tr {
                        @for (column, name) in head.iter().enumerate() {
                            th scope="col" class=[numbers.contains(&column).then_some("number")] { (name) }
                        }
                    }
                }
                tbody { (rows) }
            }
        }
    }
}

/// Gives each cell the name of its column, which a style sheet can show beside it. Returns the columns of numbers, too.
fn labelled(rows: &str, head: &[&str]) -> (Markup, BTreeSet<usize>) {
    let mut out = String::with_capacity(rows.len() * 5 / 4);
    let mut numbers = BTreeSet::new();
    let (mut rest, mut column) = (rows, 0);
    // Texts are escaped already, so a `<` begins a tag of ours.
    while let Some(at) = rest.find('<') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let is =
            |tag: &str| rest.strip_prefix(tag).is_some_and(|behind| behind.starts_with([' ', '>']));
        let name = (is("<td") || is("<th")).then(|| head.get(column)).flatten();
        if is("<tr") {
            column = 0;
        }
        let end = if name.is_some() { 3 } else { 1 };
        out.push_str(&rest[..end]);
        rest = &rest[end..];
        if let Some(name) = name {
            if rest.starts_with(" class=\"number\"") {
                numbers.insert(column);
            }
            out.push_str(&format!(" data-label=\"{}\"", html! { (name) }.into_string()));
            column += 1;
        }
    }
    out.push_str(rest);
    (PreEscaped(out), numbers)
}

/// Returns a table of letters.
pub(crate) fn letters(call: &Call, letters: &[LetterSummary]) -> Markup {
    let rows = html! {
        @for letter in letters {
            tr {
                th scope="row" { a href=(letter_link(call, &letter.id)) { code { (short(&letter.id)) } } }
                td { (status(letter.state.status)) }
                td { (cut(&letter.subject, 60)) }
                td { (cut(&letter.consumer, 60)) }
                td { (letter.reason) @if let Some(cause) = letter.cause { " / " (cause) } }
                td.number { (letter.attempts) }
                td { (time(letter.died_at)) }
                td.wide { (cut(&letter.error, 160)) }
            }
        }
    };
    let head = ["Letter", "Status", "Subject", "Consumer", "Reason", "Attempts", "Died", "Error"];
    table("Letters", &head, rows)
}

pub(crate) fn letter_link(call: &Call, id: &impl std::fmt::Display) -> String {
    call.at_store(&format!("letters/{id}"), NO_QUERY)
}

/// Returns the conditions of a filter as a list, each with a link that leaves it out where `path` is given.
pub(crate) fn conditions(
    call: &Call,
    all: &[(&'static str, String)],
    path: Option<&str>,
) -> Markup {
    let ids = all.iter().filter(|(name, _)| *name == "id").count();
    if ids > FEW {
        // What a search found.
        let rest: Vec<_> = all.iter().filter(|(name, _)| *name != "id").cloned().collect();
        return html! {
            p { strong { (ids) } " letters, by their ids" @if !rest.is_empty() { ", and" } }
            @if !rest.is_empty() { (conditions(call, &rest, None)) }
        };
    }
    html! {
        @if all.is_empty() {
            p { "No filter: every letter." }
        } @else {
            ul.conditions aria-label="Filter" {
                @for (index, (name, value)) in all.iter().enumerate() {
                    li {
                        (name) " " strong { (cut(value, 80)) }
                        @if let Some(path) = path {
                            @let others = all.iter().enumerate().filter(|(other, _)| *other != index);
                            @let others = others.map(|(_, (name, value))| (*name, value.as_str()));
                            " " a href=(call.at_store(path, others)) aria-label={ "Without " (name) " " (cut(value, 80)) } { "×" }
                        }
                    }
                }
            }
        }
    }
}

/// Number of ids that are shown one by one.
const FEW: usize = 10;

/// Returns a list of names and values.
pub(crate) fn facts(rows: impl IntoIterator<Item = (&'static str, Markup)>) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in rows {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_the_names_of_their_columns() {
        let row = html! { tr { th scope="row" { a { "x" } } td.number { "<td>" } td { } } };
        let rows = html! { (row) (row) };
        let (shown, numbers) = labelled(&rows.into_string(), &["A", "B"]);
        let one = "<tr><th data-label=\"A\" scope=\"row\"><a>x</a></th>\
                   <td data-label=\"B\" class=\"number\">&lt;td&gt;</td><td></td></tr>";
        assert_eq!(shown.into_string(), one.repeat(2));
        assert_eq!(numbers.into_iter().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn what_is_cut_is_marked_and_visible() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "abc…");
        assert_eq!(cut("ä\u{202e}ü", 2), "ä\\u{202e}…");
    }
}
