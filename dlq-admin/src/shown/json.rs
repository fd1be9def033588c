//! JSON for people.

use serde::de::IgnoredAny;

/// Deeper ones are not indented: their lines would be mostly blanks.
const DEEPEST: usize = 128;

/// Returns the same JSON over several lines, every token as it stands: no number is rounded, no field moved, none
/// dropped. `None` for what is not JSON, or too deep.
#[must_use]
pub fn indented(json: &[u8]) -> Option<String> {
    let json = std::str::from_utf8(json).ok()?;
    serde_json::from_str::<IgnoredAny>(json).ok()?;
    // The text is valid JSON from here on, so a scan of single characters is enough.
    let (mut out, mut depth) = (String::new(), 0);
    let line = |out: &mut String, depth| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                out.push(c);
                let mut is_escaped = false;
                for c in chars.by_ref() {
                    out.push(c);
                    match c {
                        '"' if !is_escaped => break,
                        c => is_escaped = c == '\\' && !is_escaped,
                    }
                }
            }
            '{' | '[' => {
                out.push(c);
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                if let Some(end) = chars.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(end);
                    continue;
                }
                depth += 1;
                if depth > DEEPEST {
                    return None;
                }
                line(&mut out, depth);
            }
            '}' | ']' => {
                depth -= 1;
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_stays_as_it_is() {
        let json = r#" {"z":1,"id":12345678901234567890123,"price":0.10000000000000000555, "a" :[ ], "a":[1, {}],"s":"x\\\"{,:[\\"} "#;
        let expected = r#"{
  "z": 1,
  "id": 12345678901234567890123,
  "price": 0.10000000000000000555,
  "a": [],
  "a": [
    1,
    {}
  ],
  "s": "x\\\"{,:[\\"
}"#;
        assert_eq!(indented(json.as_bytes()).as_deref(), Some(expected));
        assert_eq!(indented(b" 1e400 ").as_deref(), Some("1e400"));
    }

    #[test]
    fn what_cannot_be_indented_is_left_to_others() {
        for json in [&b"{\"a\":1"[..], b"", b"{} {}", b"\xff", b"nul"] {
            assert_eq!(indented(json), None, "{json:?}");
        }
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert!(indented(&nested(DEEPEST)).is_some());
        // The innermost pair stands on one line.
        assert!(indented(&nested(DEEPEST + 1)).is_some());
        assert_eq!(indented(&nested(100_000)), None);
    }
}
