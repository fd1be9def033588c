//! Text in header values: bounded, and free of control characters.

/// How many bytes of an error text a header carries.
pub(super) const MAX: usize = 4 * 1024;

/// Writes control characters and backslashes as escapes; cuts to [`MAX`] bytes with a mark.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX));
    for char in text.chars() {
        if out.len() >= MAX {
            out.push('…');
            break;
        }
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if char.is_control() => out.extend(char.escape_unicode()),
            char => out.push(char),
        }
    }
    out
}

/// Reads what [`escape`] wrote; anything else comes back as it is.
pub(super) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let escape = &rest[at..];
        let (char, length) = match escape.as_bytes().get(1) {
            Some(b'\\') => ('\\', 2),
            Some(b'n') => ('\n', 2),
            Some(b'r') => ('\r', 2),
            Some(b't') => ('\t', 2),
            Some(b'u') => unicode(escape).unwrap_or(('\\', 1)),
            _ => ('\\', 1),
        };
        out.push(char);
        rest = &escape[length..];
    }
    out.push_str(rest);
    out
}

/// The character of `\u{…}` at the start of `text`, and the length of the escape.
fn unicode(text: &str) -> Option<(char, usize)> {
    let digits = text.strip_prefix("\\u{")?;
    let end = digits.find('}').filter(|end| *end <= 6)?;
    let char = u32::from_str_radix(&digits[..end], 16).ok().and_then(char::from_u32)?;
    Some((char, end + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_come_back_and_never_stand_in_the_value() {
        for text in
            ["plain", "a\r\nX-Evil: 1\n\n", "tab\tnul\0esc\u{1b}[31m", "C:\\new\\u{41}", "é\u{85}"]
        {
            let escaped = escape(text);
            assert!(!escaped.chars().any(char::is_control), "{escaped:?}");
            assert_eq!(unescape(&escaped), text);
        }
    }

    #[test]
    fn foreign_text_is_read_as_it_is() {
        for text in ["\\", "\\x", "\\u{zz}", "\\u{110000}", "\\u{41"] {
            assert_eq!(unescape(text), text);
        }
    }

    #[test]
    fn long_text_is_cut_with_a_mark() {
        let escaped = escape(&"x".repeat(1 << 20));
        assert!(escaped.len() <= MAX + 4 && escaped.ends_with('…'));
    }
}
