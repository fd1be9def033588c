//! Text fit for a terminal.

use std::fmt::Write as _;

use bytes::Bytes;
use dlq_core::policy::duration;
use dlq_core::{Clock as _, SystemClock, Timestamp};
use std::time::Duration;
use unicode_width::UnicodeWidthStr as _;

/// Maximum number of bytes for a column, with combining marks.
const LARGEST: usize = 16;

/// Text in which nothing can steer a terminal: control characters, and characters that change the direction of text
/// or are invisible, stand as escapes. Tabs and line breaks too.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if char.is_control() || is_deceptive(char) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(char));
            }
            char => out.push(char),
        }
    }
    out
}

fn is_deceptive(char: char) -> bool {
    matches!(
        char,
        '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Text cut to this width at a terminal, with a mark. Wide characters count as two.
pub(crate) fn fit(text: &str, width: usize) -> String {
    // Characters of no width are cut too, however many there are.
    if text.width() <= width && text.len() <= width.saturating_mul(LARGEST) {
        return text.to_owned();
    }
    let mut cut = String::new();
    for char in text.chars().take(width.saturating_mul(LARGEST / 4)) {
        let end = cut.len();
        cut.push(char);
        if cut.width() >= width {
            cut.truncate(end);
            break;
        }
    }
    if width > 0 {
        cut.push('…');
    }
    cut
}

/// Returns the age in the largest unit that says something.
pub(crate) fn age(at: Timestamp) -> String {
    let seconds = SystemClock.now().since(at).as_secs();
    let rounded = match seconds {
        0..60 => seconds,
        60..3600 => seconds / 60 * 60,
        3600..86_400 => seconds / 3600 * 3600,
        _ => seconds / 86_400 * 86_400,
    };
    duration::format(Duration::from_secs(rounded))
}

/// Bytes as text where they are text, in hexadecimal where they are not; line breaks stay when `multiline`.
pub(crate) fn bytes(bytes: &Bytes, multiline: bool) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if multiline => text.split('\n').map(escape).collect::<Vec<_>>().join("\n"),
        Ok(text) => escape(text),
        Err(_) => {
            let shown = &bytes[..bytes.len().min(4096)];
            let mut out = String::from("hex:");
            for byte in shown {
                let _ = write!(out, "{byte:02x}");
            }
            if shown.len() < bytes.len() {
                let _ = write!(out, "… ({} bytes in all)", bytes.len());
            }
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_can_steer_the_terminal() {
        let hostile = "\u{1b}[31mred\u{7}\u{9b}2J\u{202e}gnp\r\n\0";
        let escaped = escape(hostile);
        assert!(!escaped.chars().any(|char| char.is_control() || is_deceptive(char)), "{escaped}");
        assert_eq!(bytes(&Bytes::from_static(b"\xff\x00"), true), "hex:ff00");
    }

    #[test]
    fn cutting_counts_columns() {
        assert_eq!(fit("äöü", 3), "äöü");
        assert_eq!(fit("äöüß", 3), "äö…");
        assert_eq!(fit("支払い", 6), "支払い");
        assert_eq!(fit("支払い", 5), "支払…");
        assert_eq!(fit("支払い", 4), "支…");
        assert_eq!(fit("x", 0), "");
        let marked = format!("e{}", "\u{301}".repeat(10_000));
        assert!(fit(&marked, 10).len() < 200);
    }
}
