//! Replaces the parts of an error text that vary without meaning by placeholders.
//!
//! One pass over the words of the text, no regular expressions. The kinds of value are those that Sentry's message
//! parameterisation knows; all numbers, ids, times and addresses share one placeholder, `<n>`, because telling them
//! apart would divide groups and tell the reader nothing.

use std::borrow::Cow;

use super::values::{self, Part};

/// Number of bytes of a text that are read.
const READ: usize = 8 * 1024;
/// Number of characters of the result that are kept.
const KEPT: usize = 256;
/// Words before a quoted name of the program's own: what follows them is kept.
const NAMED: &[&str] = &["field", "column", "constraint", "relation", "table"];
/// The longest name that is kept between quotes, in bytes.
const NAME: usize = 64;

/// An error text without what varies from message to message, in one line, bounded.
///
/// | Found | Becomes |
/// |---|---|
/// | a quoted value | `<quoted>` |
/// | URL | `<url>` |
/// | e-mail address | `<email>` |
/// | number, duration, date, time, IP or MAC address, UUID, trace parent, hash, id of mixed letters and digits | `<n>` |
/// | number at the end of a word, as in `worker7` | `worker<n>` |
/// | several of these in a row, as in `1m 30s` or `[1, 2, 3]` | one `<n>` |
/// | `true` or `false` after `=` | `<bool>` |
///
/// Kept are names that contain digits (`sha256`, `utf8`, `u64`, `E0308`, `Utf8Error`), and the quoted name after `field`,
/// `column`, `constraint`, `relation` or `table`, unless it is an unknown one: which field is missing is the error, which
/// unknown field was found is its producer's fancy. White space is folded. At most 8 KiB of the text are read and 256
/// characters of the result kept; linear in the length of the text.
///
/// ```
/// use dlq_core::fingerprint::normalize;
///
/// assert_eq!(normalize("order 17: timed out after 330ms"), "order <n>: timed out after <n>");
/// assert_eq!(normalize("no user 'ana' at [fe80::1]:80"), "no user <quoted> at [<n>]:<n>");
/// assert_eq!(normalize("missing field `amount` at line 1"), "missing field `amount` at line <n>");
/// ```
#[must_use]
pub fn normalize(text: &str) -> String {
    // The text comes from outside and is of any length, and this runs for each failure.
    let mut end = text.len().min(READ);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = unquote(&text[..end]);
    let mut out = String::new();
    for word in
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty())
    {
        if !out.is_empty() {
            out.push(' ');
        }
        replace_word(word, &mut out);
        // What follows can take back a separator at the end of what is here, nothing before it.
        if out.len() > KEPT + 8 && out.chars().nth(KEPT + 8).is_some() {
            break;
        }
    }
    if let Some((end, _)) = out.char_indices().nth(KEPT) {
        out.truncate(end);
    }
    out
}

/// Replaces what stands between a pair of quotes. A quote that is never closed, as in `can't`, stays.
fn unquote(text: &str) -> Cow<'_, str> {
    if !text.contains(['"', '\'', '`']) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut before: Option<char> = None;
    // Once no closing quote of a kind is found, there is none further on: this keeps the search linear.
    let mut unclosed: Vec<char> = Vec::new();
    while let Some(char) = rest.chars().next() {
        let after = &rest[char.len_utf8()..];
        // A quote behind a letter or digit is an apostrophe or an inch, and opens nothing.
        let opens = matches!(char, '"' | '\'' | '`')
            && !before.is_some_and(char::is_alphanumeric)
            && !unclosed.contains(&char);
        let close = if opens { closing(after, char) } else { None };
        before = Some(char);
        match close {
            Some(close) if is_own_name(&after[..close], &out) => {
                out.push(char);
                out.push_str(&after[..=close]);
                rest = &after[close + 1..];
            }
            Some(close) => {
                out.push_str("<quoted>");
                rest = &after[close + 1..];
            }
            None => {
                if opens {
                    unclosed.push(char);
                }
                out.push(char);
                rest = after;
            }
        }
    }
    Cow::Owned(out)
}

/// Returns the position of the closing quote: the next one that is not escaped and, if it is an apostrophe, ends a
/// word.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut chars = text.char_indices().peekable();
    while let Some((index, char)) = chars.next() {
        let next = chars.peek().map(|(_, next)| *next);
        if char == '\\' {
            chars.next();
        } else if char == quote && !(quote == '\'' && next.is_some_and(char::is_alphanumeric)) {
            return Some(index);
        }
    }
    None
}

/// Returns true if a quoted text is a name from the program's own code, judging by the words before it.
fn is_own_name(name: &str, before: &str) -> bool {
    let is_name =
        |char: char| char.is_alphabetic() || char.is_ascii_digit() || matches!(char, '_' | '.');
    if name.is_empty() || name.len() > NAME || !name.chars().all(is_name) {
        return false;
    }
    let Some(before) = before.strip_suffix(' ') else { return false };
    let (earlier, word) = before.rsplit_once(' ').unwrap_or(("", before));
    NAMED.contains(&word) && !earlier.ends_with("unknown")
}

/// Replaces one word, keeping the punctuation around it.
fn replace_word(word: &str, out: &mut String) {
    // Most words are just that; one of hexadecimal digits can be a hash.
    if word.bytes().all(|byte| byte.is_ascii_alphabetic())
        && !word.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        out.push_str(word);
        return;
    }
    let mut rest = word;
    // In a URL a colon belongs to the address as a whole, which is replaced below.
    if !word.contains("://") {
        while let Some((from, to)) = values::colon_address(rest) {
            replace_numbers(&rest[..from], out);
            push_number(out);
            rest = &rest[to..];
        }
    }
    let start = rest.len() - rest.trim_start_matches(is_edge).len();
    let inner = rest[start..].trim_end_matches(is_edge);
    let mut punctuation = &rest[start + inner.len()..];
    out.push_str(&rest[..start]);
    if inner.contains("://") {
        // An empty query is part of the address.
        punctuation = punctuation.trim_start_matches('?');
        out.push_str("<url>");
    } else if values::is_email(inner) {
        out.push_str("<email>");
    } else {
        replace_numbers(inner, out);
    }
    out.push_str(punctuation);
}

fn is_edge(char: char) -> bool {
    matches!(
        char,
        '(' | ')' | '[' | ']' | '{' | '}' | ',' | ';' | '.' | ':' | '!' | '?' | '"' | '\'' | '`'
    )
}

/// Replaces every part of a word that is a value, with the signs, points, colons and dashes that join numbers to times,
/// addresses and UUIDs, and a unit behind it.
fn replace_numbers(word: &str, out: &mut String) {
    let parts: Vec<&str> = values::parts(word).collect();
    let mut index = 0;
    while let Some(part) = parts.get(index) {
        if let Some(length) = values::dashed_hexadecimal(&parts[index..]) {
            push_number(out);
            index += length;
            continue;
        }
        match values::judge(part) {
            Part::Name if out.ends_with('=') && matches!(*part, "true" | "false") => {
                out.push_str("<bool>");
            }
            Part::Name => out.push_str(part),
            Part::Numbered(name) => {
                out.push_str(name);
                out.push_str("<n>");
            }
            Part::Value => {
                // A run of numbers joined by punctuation is one value: 10.0.0.1, 12:30:01, -1.5e3.
                while let [joiner, next, ..] = parts[index + 1..]
                    && values::is_joiner(joiner)
                    && matches!(values::judge(next), Part::Value)
                {
                    index += 2;
                }
                push_number(out);
            }
        }
        index += 1;
    }
}

/// Writes the placeholder of a number: over its sign, and not again after another one.
fn push_number(out: &mut String) {
    if let Some(before) = out.strip_suffix('-')
        && (before.is_empty() || before.ends_with([' ', '=', '(', '[', ',', ':', '<', '-']))
    {
        out.pop();
    }
    for separator in [" ", ", "] {
        if out.strip_suffix(separator).is_some_and(|before| before.ends_with("<n>")) {
            out.truncate(out.len() - separator.len());
            return;
        }
    }
    out.push_str("<n>");
}
