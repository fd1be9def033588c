//! Before and after.

use bytes::Bytes;
use dlq_core::{Headers, Message};

use super::{bytes, escape, indented};

/// Number of lines around a change that are shown.
const AROUND: usize = 3;
/// Number of lines of a change that are shown.
// A replaced payload of megabytes would else be printed twice, line by line.
const MOST: usize = 200;

/// Returns the differences of two messages, line by line: `-` before, `+` after.
#[must_use]
pub fn diff(before: &Message, after: &Message) -> Vec<String> {
    let mut lines = Vec::new();
    // Bytes are compared and not texts, so that no difference is lost where two of them look alike.
    if before.payload() != after.payload() {
        lines.push("payload".to_owned());
        let (old, new) = texts(before.payload(), after.payload());
        changes(&old, &new, &mut lines);
    }
    if before.headers() != after.headers() {
        lines.push("headers".to_owned());
        changes(&headers(before.headers()), &headers(after.headers()), &mut lines);
    }
    lines
}

/// The payloads as lines: as indented JSON where that shows the difference.
fn texts(before: Option<&Bytes>, after: Option<&Bytes>) -> (Vec<String>, Vec<String>) {
    let pretty = |payload: Option<&Bytes>| -> Option<Vec<String>> {
        Some(indented(payload?)?.lines().map(escape).collect())
    };
    // Indented texts of payloads that differ in blanks only are the same: those are shown as they are.
    if let (Some(old), Some(new)) = (pretty(before), pretty(after))
        && old != new
    {
        return (old, new);
    }
    let plain = |payload: Option<&Bytes>| match payload {
        None => vec!["(none, a tombstone)".to_owned()],
        Some(payload) if payload.is_empty() => vec!["(empty)".to_owned()],
        Some(payload) => {
            let mut lines: Vec<_> = bytes(payload, true).lines().map(str::to_owned).collect();
            if payload.ends_with(b"\n") {
                lines.push("(ends with a line break)".to_owned());
            }
            lines
        }
    };
    (plain(before), plain(after))
}

fn headers(headers: &Headers) -> Vec<String> {
    let value =
        |value: &Option<Bytes>| value.as_ref().map_or("(none)".to_owned(), |v| bytes(v, false));
    headers.iter().map(|h| format!("{}: {}", bytes(&h.name, false), value(&h.value))).collect()
}

/// Adds the changed lines, with a few lines of the common beginning and end.
fn changes(before: &[String], after: &[String], lines: &mut Vec<String>) {
    let common = |pairs: &mut dyn Iterator<Item = (&String, &String)>| {
        pairs.take_while(|(one, other)| one == other).count()
    };
    // A common beginning and end is enough for an edit by hand; a real diff of large payloads could take quadratic time.
    let start = common(&mut before.iter().zip(after));
    // The common end is looked for behind the common beginning, so that no line counts as both.
    let end = common(&mut before[start..].iter().rev().zip(after[start..].iter().rev()));
    let show = |sign: char, some: &[String], lines: &mut Vec<String>| {
        lines.extend(some.iter().take(MOST).map(|line| format!("{sign} {line}")));
        if some.len() > MOST {
            lines.push(format!("{sign} … {} more lines", some.len() - MOST));
        }
    };
    show(' ', &before[start.saturating_sub(AROUND)..start], lines);
    show('-', &before[start..before.len() - end], lines);
    show('+', &after[start..after.len() - end], lines);
    let rest = &before[before.len() - end..];
    show(' ', &rest[..rest.len().min(AROUND)], lines);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_shown_and_nothing_can_steer_the_terminal() {
        let before =
            Message::new("s", "{\"a\":1,\"b\":\"\u{202e}\"}").with_header("h", "\u{1b}[1m");
        let after = Message::new("s", "{\"a\":2,\"b\":\"\u{202e}\"}");
        let expected = [
            "payload",
            "  {",
            "-   \"a\": 1,",
            "+   \"a\": 2,",
            "    \"b\": \"\\u{202e}\"",
            "  }",
            "headers",
            "- h: \\u{1b}[1m",
        ];
        assert_eq!(diff(&before, &after), expected);
    }

    #[test]
    fn what_json_does_not_show_is_shown_as_text() {
        let lines = |one: &'static str, other: &'static str| {
            diff(&Message::new("s", one), &Message::new("s", other)).join("|")
        };
        assert_eq!(lines("{}", "{ }"), "payload|- {}|+ { }");
        assert_eq!(lines("{}", "{}\n"), "payload|  {}|+ (ends with a line break)");
        assert_eq!(lines("", "x"), "payload|- (empty)|+ x");
        let gone = Message::tombstone("s");
        assert_eq!(diff(&Message::new("s", ""), &gone)[2], "+ (none, a tombstone)");
    }
}
