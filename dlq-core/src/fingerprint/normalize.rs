//! What varies in an error text without meaning anything is replaced by a placeholder.

/// How much of a text is read, in bytes.
const READ: usize = 8 * 1024;
/// How much of the result is kept, in characters.
const KEPT: usize = 256;

/// An error text without what varies from message to message, in one line, bounded.
///
/// Quoted values, e-mail addresses, URLs, IP addresses, UUIDs, times, durations, hexadecimal and decimal numbers (also
/// within words such as `order-17`) become placeholders; white space is folded. Linear in the length of the text.
///
/// ```
/// use dlq_core::fingerprint::normalize;
///
/// assert_eq!(normalize("order 17: timed out after 330ms"), "order <n>: timed out after <n>");
/// assert_eq!(normalize("no user 'ana@example.org'"), "no user <quoted>");
/// ```
#[must_use]
pub fn normalize(text: &str) -> String {
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
        // Placeholders only shorten, so that what is cut here was beyond what is kept.
        if out.chars().nth(KEPT).is_some() {
            break;
        }
    }
    out.chars().take(KEPT).collect()
}

/// Replaces what stands between a pair of quotes. A quote that is never closed, as in `can't`, stays.
fn unquote(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut before: Option<char> = None;
    while let Some(char) = rest.chars().next() {
        let after = &rest[char.len_utf8()..];
        let opens = matches!(char, '"' | '\'' | '`') && !before.is_some_and(char::is_alphanumeric);
        match after.find(char).filter(|_| opens) {
            Some(close) => {
                out.push_str("<quoted>");
                rest = &after[close + char.len_utf8()..];
                before = Some(char);
            }
            None => {
                out.push(char);
                rest = after;
                before = Some(char);
            }
        }
    }
    out
}

/// Replaces one word, keeping the punctuation around it.
fn replace_word(word: &str, out: &mut String) {
    let is_edge = |c: char| {
        matches!(
            c,
            '(' | ')'
                | '['
                | ']'
                | '{'
                | '}'
                | ','
                | ';'
                | '.'
                | ':'
                | '!'
                | '?'
                | '"'
                | '\''
                | '`'
        )
    };
    let start = word.len() - word.trim_start_matches(is_edge).len();
    let inner = word[start..].trim_end_matches(is_edge);
    out.push_str(&word[..start]);
    if inner.contains("://") {
        out.push_str("<url>");
    } else if is_email(inner) {
        out.push_str("<email>");
    } else {
        replace_numbers(inner, out);
    }
    out.push_str(&word[start + inner.len()..]);
}

fn is_email(word: &str) -> bool {
    word.split_once('@')
        .is_some_and(|(name, host)| !name.is_empty() && host.contains('.') && !host.contains('@'))
}

/// Replaces every part of a word that carries a number: decimal or hexadecimal, with the signs, points, colons and
/// dashes that join numbers to times, addresses and UUIDs, and a unit behind it.
fn replace_numbers(word: &str, out: &mut String) {
    let parts: Vec<&str> = split_parts(word).collect();
    let mut index = 0;
    while index < parts.len() {
        if let Some(length) = dashed_hexadecimal(&parts[index..]) {
            out.push_str("<n>");
            index += length;
            continue;
        }
        if !is_number(parts[index]) {
            out.push_str(parts[index]);
            index += 1;
            continue;
        }
        // A run of numbers joined by punctuation is one value: 10.0.0.1, 12:30:01, a UUID, -1.5e3.
        let mut last = index;
        let mut next = index + 1;
        while next + 1 < parts.len() && is_joiner(parts[next]) && is_number(parts[next + 1]) {
            last = next + 1;
            next = last + 1;
        }
        if out.ends_with('-')
            && (out.len() == 1 || out[..out.len() - 1].ends_with([' ', '=', '(', '<']))
        {
            out.pop();
        }
        out.push_str("<n>");
        index = last + 1;
    }
}

/// Splits into runs of letters and digits on the one hand and single other characters on the other.
fn split_parts(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let length = if first.is_alphanumeric() {
            rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (part, after) = rest.split_at(length);
        rest = after;
        Some(part)
    })
}

/// How many parts a UUID, a traceparent or the like takes: hexadecimal groups joined by dashes, at least three of them
/// and 16 digits in all.
fn dashed_hexadecimal(parts: &[&str]) -> Option<usize> {
    let is_hexadecimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut length = 0;
    let mut digits = 0;
    while parts.get(length).is_some_and(|part| is_hexadecimal(part)) {
        digits += parts[length].len();
        length += 1;
        if parts.get(length) == Some(&"-")
            && parts.get(length + 1).is_some_and(|part| is_hexadecimal(part))
        {
            length += 1;
        } else {
            break;
        }
    }
    (length >= 5 && digits >= 16).then_some(length)
}

fn is_joiner(part: &str) -> bool {
    matches!(part, "." | ":" | "-" | "/" | "+" | ",")
}

/// Whether a run of letters and digits is a value: anything with a decimal digit in it, save for names such as `utf8`,
/// `sha256`, `E0308`-like codes, whose digit belongs to the name.
fn is_number(part: &str) -> bool {
    let digits = part.bytes().filter(u8::is_ascii_digit).count();
    if digits == 0 {
        return part.len() >= 8
            && part.len().is_multiple_of(4)
            && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    }
    if part.starts_with(|c: char| c.is_ascii_digit()) {
        return true;
    }
    let hexadecimal = part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let letters_then_digits =
        part.trim_end_matches(|c: char| c.is_ascii_digit()).chars().all(char::is_alphabetic);
    // `a1b2`, `x7f3…` and other mixtures are values; `sha256` and `E0308` are names; `deadbeef01` is a value.
    (hexadecimal && (part.len() >= 7 || !letters_then_digits)) || !letters_then_digits
}
