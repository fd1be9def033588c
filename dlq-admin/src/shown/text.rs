//! Texts of letters that can steer nothing.

use std::fmt::Write as _;

use bytes::Bytes;
use dlq_core::policy::duration;
use dlq_core::{Clock as _, SystemClock, Timestamp};
use std::time::Duration;

/// Returns the text with control characters, and characters that are invisible or change the direction of text, as
/// escapes. Tabs and line breaks too.
#[must_use]
pub fn escape(text: &str) -> String {
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

/// Returns the age of a time in the largest unit that says something.
#[must_use]
pub fn age(at: Timestamp) -> String {
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
#[must_use]
pub fn bytes(bytes: &Bytes, multiline: bool) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if multiline => text.split('\n').map(escape).collect::<Vec<_>>().join("\n"),
        Ok(text) => escape(text),
        Err(_) => {
            // Hexadecimal digits take twice the room, and nobody reads more of them.
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
}
