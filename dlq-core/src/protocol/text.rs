//! Text in header values: bounded, and free of control characters.

/// Maximum number of bytes of an error text in a header.
pub(super) const MAX: usize = 4 * 1024;

/// Writes these texts one behind the other, control characters and backslashes as escapes; cuts to [`MAX`] bytes with a
/// mark.
pub(super) fn escape<'a>(out: &mut Vec<u8>, texts: impl IntoIterator<Item = &'a str>) {
    let end = out.len() + MAX;
    for text in texts {
        // All are looked at, many at once.
        let is_plain = |byte: u8| matches!(byte, b' '..=b'~') & (byte != b'\\');
        let is_plain = text.bytes().fold(true, |plain, byte| plain & is_plain(byte));
        if is_plain && out.len() + text.len() <= end {
            out.extend_from_slice(text.as_bytes());
            continue;
        }
        for char in text.chars() {
            if out.len() >= end {
                out.extend_from_slice("…".as_bytes());
                return;
            }
            match char {
                '\\' => out.extend_from_slice(b"\\\\"),
                '\n' => out.extend_from_slice(b"\\n"),
                '\r' => out.extend_from_slice(b"\\r"),
                '\t' => out.extend_from_slice(b"\\t"),
                char if char.is_control() => {
                    out.extend(char.escape_unicode().map(|char| char as u8));
                }
                char => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
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
    // `from_str_radix` takes a sign, too.
    if !digits[..end].bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let char = u32::from_str_radix(&digits[..end], 16).ok().and_then(char::from_u32)?;
    Some((char, end + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escape(text: &str) -> String {
        let (front, back) = text.split_at(text.floor_char_boundary(text.len() / 2));
        let mut whole = b"before".to_vec();
        super::escape(&mut whole, [text]);
        let mut out = b"before".to_vec();
        super::escape(&mut out, [front, "", back]);
        assert_eq!(out, whole, "in pieces as in one");
        String::from_utf8(out.split_off(6)).unwrap()
    }

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
        for text in ["\\", "\\x", "\\u{zz}", "\\u{+41}", "\\u{110000}", "\\u{41"] {
            assert_eq!(unescape(text), text);
        }
    }

    #[test]
    fn long_text_is_cut_with_a_mark() {
        let escaped = escape(&"x".repeat(1 << 20));
        assert!(escaped.len() <= MAX + 4 && escaped.ends_with('…'));
        for kind in ["x", "é", "\\"] {
            let most = kind.repeat(MAX / 2);
            assert_eq!(unescape(&escape(&most)), most);
            assert!(escape(&"é".repeat(MAX / 2 + 1)).ends_with('…'));
        }
        assert_eq!(escape(&"x".repeat(MAX)), "x".repeat(MAX));
        assert_eq!(escape(&"x".repeat(MAX + 1)), "x".repeat(MAX) + "…");
    }
}
