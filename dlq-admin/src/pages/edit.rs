use axum::response::Response;
use base64::Engine as _;
use dlq_core::{Binding, DeadLetter};
use maud::{Markup, html};

use super::audit::diff_line;
use super::letter::reveal_form;
use super::parts::{change_fields, csrf, hidden, letter_link, note, short};
use super::{Section, page as show};
use crate::actions::{self, Edited};
use crate::call::{Call, NO_QUERY, see_other};
use crate::params::{Parameter, Params};
use crate::refusal::Refusal;

/// Number of bytes of a payload that is edited on the page.
// The payload goes through a text field and comes back in Base64, which is a third longer, with the form of the preview.
const LARGEST: usize = 48 * 1024;
/// Number of lines of a difference, and their length, on the page.
const DIFF: (usize, usize) = (200, 240);

/// Parameters of the form, from which those of the edit are made.
pub(crate) const FORM: &[Parameter] = &[
    Parameter::one("mode", "keep, text or none"),
    Parameter::one("text", "the payload"),
    Parameter::one("line-ends", "how the payload ends its lines: lf or crlf"),
    Parameter::one("set", "headers to set, a line for each: NAME=VALUE"),
    Parameter::one("remove", "names of headers to remove, a line for each"),
];

/// Line ends of a text, which a browser does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnds {
    Lf,
    CrLf,
}

/// Returns the payload as text that a browser gives back as it was, but for its line ends; or why it is none.
fn editable(letter: &DeadLetter) -> Result<(&str, LineEnds), &'static str> {
    let payload = letter.message.payload().ok_or("there is no payload")?;
    if payload.len() > LARGEST {
        return Err("it is too long to be edited here");
    }
    let text = std::str::from_utf8(payload).map_err(|_| "it is not text")?;
    // Browsers replace a zero, and make all line ends the same.
    if text.contains('\0') {
        return Err("it has characters that a browser does not keep");
    }
    let (pairs, breaks) = (text.matches("\r\n").count(), text.matches('\n').count());
    // A field of a form has one kind of line ends, so that only a payload with one kind can be given back byte for byte.
    match text.matches('\r').count() {
        0 => Ok((text, LineEnds::Lf)),
        returns if returns == pairs && pairs == breaks => Ok((text, LineEnds::CrLf)),
        _ => Err("its lines end in several ways, which a browser does not keep"),
    }
}

/// Returns what was typed, with the line ends of the letter.
fn typed(text: &str, ends: LineEnds) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    match ends {
        LineEnds::Lf => text,
        LineEnds::CrLf => text.replace('\n', "\r\n"),
    }
}

pub(crate) async fn form(call: Call) -> Result<Response, Refusal> {
    let letter = actions::letter(&call).await?;
    // An edit of what is shown masked would write the mask over the values.
    if call.is_masked(&letter) {
        let body = html! {
            h1 { "Edit letter " code { (short(&letter.id)) } }
            p { a href=(letter_link(&call, &letter.id)) { "Back to the letter" } }
            p { "Rules mask parts of it, and an edit needs all of it. It is shown with a reason, which is kept in the audit." }
            (reveal_form(&call, &letter, Some("edit")))
        };
        return Ok(show(&call, Section::Letters, "Edit", body));
    }
    show_form(&call, &letter).await
}

/// Returns the form with the letter as it is.
pub(super) async fn show_form(call: &Call, letter: &DeadLetter) -> Result<Response, Refusal> {
    // An undo that cannot be made is only not offered: the edit itself needs none.
    let undo = actions::undo(call).await.ok().filter(Edited::is_change);
    let id = letter.id;
    let body = html! {
        h1 { "Edit letter " code { (short(&id)) } }
        p { a href=(letter_link(call, &id)) { "Back to the letter" } }
        p { "What is changed is shown before it is saved. A replay sends what was edited; the audit keeps what was before." }
        form method="post" action=(call.at_store(&format!("letters/{id}/edit"), NO_QUERY)) {
            (csrf(&call.visitor))
            // It names the payload and key that are looked at, so that an edit made meanwhile by somebody else is not
            // overwritten.
            input type="hidden" name="binding" value=(Binding::of(&id, &letter.message));
            (payload_fields(letter))
            div.field {
                label for="set" { "Headers to set, a line for each: NAME=VALUE" }
                textarea id="set" name="set" rows="4" spellcheck="false" {}
            }
            div.field {
                label for="remove" { "Names of headers to remove, a line for each" }
                textarea id="remove" name="remove" rows="2" spellcheck="false" {}
            }
            label.check {
                input type="checkbox" name="allow-invalid" value="true";
                " Take a payload that is not JSON although the one before was"
            }
            button type="submit" { "Show what would change" }
        }
        @if let Some(undo) = &undo {
            h2 { "Undo the latest edit" }
            (difference(call, undo))
            form.narrow method="post" action=(call.at_store(&format!("letters/{id}/undo"), NO_QUERY)) {
                (change_fields(&call.visitor))
                input type="hidden" name="binding" value=(Binding::of(&id, &letter.message));
                (note("undo-note"))
                button type="submit" { "Undo" }
            }
        }
    };
    Ok(show(call, Section::Letters, "Edit", body))
}

fn payload_fields(letter: &DeadLetter) -> Markup {
    let found = editable(letter);
    let ends = match found {
        Ok((_, LineEnds::CrLf)) => "crlf",
        _ => "lf",
    };
    html! {
        fieldset {
            legend { "Payload" }
            // A payload that the field cannot hold is kept unless something else is chosen: an empty field must not
            // replace it.
            label.check { input type="radio" name="mode" value="keep" checked[found.is_err()]; " keep it" }
            label.check { input type="radio" name="mode" value="text" checked[found.is_ok()]; " replace it by this text" }
            label.check { input type="radio" name="mode" value="none"; " take it away: a tombstone" }
            @if let Err(why) = found {
                p.muted { "The payload is not shown here: " (why) ". Its bytes can be replaced with `dlq edit --payload FILE` or the HTTP interface." }
            }
            input type="hidden" name="line-ends" value=(ends);
            label for="text" { "Text" }
            // A browser drops the first line break of the field, so there is one more.
            textarea id="text" name="text" rows="16" spellcheck="false" { "\n" @if let Ok((text, _)) = found { (text) } }
        }
    }
}

fn difference(call: &Call, edited: &Edited) -> Markup {
    let lines = call.diff(&edited.before.message, &edited.after.message);
    html! {
        pre.diff tabindex="0" {
            @for line in focused(&lines).iter().take(DIFF.0) { (diff_line(line, DIFF.1)) }
            @if lines.len() > DIFF.0 { (lines.len() - DIFF.0) " more lines\n" }
        }
    }
}

/// Returns the lines with the part in front of their first difference left out, where it would hide the difference.
fn focused(lines: &[String]) -> Vec<String> {
    // Removed and added lines are compared in pairs, which fits a change within one long line, such as JSON without
    // breaks.
    let (removed, added) = (of_sign(lines, '-'), of_sign(lines, '+'));
    let mut out = lines.to_vec();
    for (one, other) in removed.into_iter().zip(added) {
        let common = lines[one][1..].chars().zip(lines[other][1..].chars());
        let common = common.take_while(|(before, after)| before == after).count();
        // As long as the difference lies within the first half of what is shown, the line needs no other beginning.
        if common <= DIFF.1 / 2 {
            continue;
        }
        for at in [one, other] {
            let rest: String = lines[at].chars().skip(1 + common - DIFF.1 / 4).collect();
            out[at] = format!("{} …{rest}", &lines[at][..1]);
        }
    }
    out
}

fn of_sign(lines: &[String], sign: char) -> Vec<usize> {
    let of_sign = lines.iter().enumerate().filter(|(_, line)| line.starts_with(sign));
    of_sign.map(|(index, _)| index).collect()
}

/// Shows what an edit would change. Saves nothing.
pub(crate) async fn preview(mut call: Call) -> Result<Response, Refusal> {
    // The fields of the form become the parameters of the HTTP interface, so that both make an edit by the same code.
    call.params = edit_params(&call.params)?;
    let edited = actions::edit(&call).await?;
    let id = edited.before.id;
    let back = call.at_store(&format!("letters/{id}/edit"), NO_QUERY);
    let body = html! {
        h1 { "Edit letter " code { (short(&id)) } }
        @if edited.is_change() {
            p { "This would change. Nothing is saved yet." }
            (difference(&call, &edited))
            form.narrow method="post" action=(call.at_store(&format!("letters/{id}/save"), NO_QUERY)) {
                (change_fields(&call.visitor))
                // These three belong to one request, and the next form has its own.
                (hidden(call.params.without(&["csrf", "idempotency-key", "note"])))
                (note("note"))
                button type="submit" { "Save" }
            }
        } @else {
            p { "Nothing to change: the letter is like that already." }
        }
        p { a href=(back) { "Back to the edit" } " (of the letter as it is now)" }
    };
    Ok(show(&call, Section::Letters, "Edit", body))
}

/// Returns the parameters of the edit that a form means.
fn edit_params(form: &Params) -> Result<Params, Refusal> {
    let mut params: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, value: String| params.push((name.to_owned(), value));
    match form.text("mode").unwrap_or("keep") {
        "keep" => {}
        "none" => add("no-payload", "true".to_owned()),
        "text" => {
            let ends =
                if form.text("line-ends") == Some("crlf") { LineEnds::CrLf } else { LineEnds::Lf };
            let text = typed(form.text("text").unwrap_or_default(), ends);
            // Bytes come through the next form as they are.
            add("payload-base64", base64::engine::general_purpose::STANDARD.encode(text));
        }
        _ => return Err(Refusal::invalid("`mode` is keep, text or none")),
    }
    let lines = |name| form.text(name).unwrap_or_default().lines().filter(|line| !line.is_empty());
    for line in lines("remove") {
        add("remove-header", line.trim().to_owned());
    }
    // Values may begin or end with blanks, so these lines are taken as they are.
    for line in lines("set") {
        add("header", line.to_owned());
    }
    if form.is("allow-invalid") {
        add("allow-invalid", "true".to_owned());
    }
    if let Some(binding) = form.text("binding") {
        add("binding", binding.to_owned());
    }
    Ok(Params::new(params))
}

pub(crate) async fn save(call: Call) -> Result<Response, Refusal> {
    let edited = actions::edit(&call).await?;
    finish(&call, edited).await
}

pub(crate) async fn undo(call: Call) -> Result<Response, Refusal> {
    let edited = actions::undo(&call).await?;
    finish(&call, edited).await
}

async fn finish(call: &Call, edited: Edited) -> Result<Response, Refusal> {
    let id = edited.before.id;
    if edited.is_change() {
        let _ = edited.make(call).await?;
    }
    // After a redirect a reload shows the letter again instead of sending the edit again.
    see_other(&letter_link(call, &id))
}

#[cfg(test)]
mod tests {
    use dlq_core::Message;
    use dlq_testkit::fixtures;

    use super::*;

    fn letter(payload: &str) -> DeadLetter {
        fixtures::letter(1).with_message(Message::new("s", payload.to_owned()))
    }

    #[test]
    fn a_text_comes_back_from_a_browser_as_it_was() {
        for payload in ["", "a", "a\nb\n", "a\r\nb\r\n", "\n\na", "{\"a\":\"\u{202e}\"}"] {
            let letter = letter(payload);
            let (text, ends) = editable(&letter).unwrap();
            // Browsers send every line break as CR LF.
            let sent = text.replace("\r\n", "\n").replace('\n', "\r\n");
            assert_eq!(typed(&sent, ends), payload);
        }
        for payload in ["a\rb", "a\r\nb\n", "a\0b"] {
            assert!(editable(&letter(payload)).is_err(), "{payload:?}");
        }
        assert!(editable(&letter(&"x".repeat(LARGEST + 1))).is_err());
    }

    #[test]
    fn a_difference_far_to_the_right_is_seen() {
        let lines = [format!("- {}a", "x".repeat(1_000)), format!("+ {}b", "x".repeat(1_000))];
        let shown = focused(&lines);
        assert!(shown[0].starts_with("- …") && shown[0].ends_with('a'), "{shown:?}");
        assert!(shown.iter().all(|line| line.chars().count() < DIFF.1), "{shown:?}");
    }
}
