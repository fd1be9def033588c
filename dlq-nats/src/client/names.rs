//! Names and subjects: what a server takes as one.

/// The longest text that becomes part of a subject, in bytes.
const LONGEST: usize = 200;

/// `text` as one token of a subject, or as the name of a consumer: other characters than letters, digits, `-` and `_`
/// are written as `=` and the hexadecimal digits of their bytes, so that no two texts share a token.
pub(crate) fn token(text: &str) -> String {
    let mut token = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            token.push(char::from(byte));
        } else {
            token.push_str(&format!("={byte:02X}"));
        }
    }
    if token.is_empty() { "=".to_owned() } else { token }
}

/// The text of which this is the [`token`]; `None` when it is of none.
pub(crate) fn text(token_of: &str) -> Option<String> {
    let mut parts = token_of.split('=');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    // A token is only what `token` itself would write, and no other spelling of the same text.
    String::from_utf8(bytes).ok().filter(|text| token(text) == token_of)
}

/// Returns true if a message can be published to a subject of this name.
pub(crate) fn is_subject(text: &str) -> bool {
    text.len() <= LONGEST
        && text.split('.').all(|token| !token.is_empty())
        && text.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != '*' && c != '>')
}

/// The part of a subject that says where a message was addressed. A subject that is none, of a letter from elsewhere,
/// is written as one token, cut where it is long: the subject is for filters, the letter knows the whole.
pub(crate) fn tail(subject: &str) -> String {
    if is_subject(subject) {
        return subject.to_owned();
    }
    let mut token = token(subject);
    // A token is ASCII, so that it can be cut anywhere.
    token.truncate(LONGEST);
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_consumers_share_a_token() {
        assert_eq!(token("payments.charge"), "payments=2Echarge");
        assert_eq!(token("payments-charge_1"), "payments-charge_1");
        assert_ne!(token("a=2Eb"), token("a.b"));
        assert_eq!(token(""), "=");
        assert!(is_subject(&token("a b\0>*.é")));
    }

    #[test]
    fn a_token_is_read_back_and_what_is_none_is_not() {
        for name in ["payments.charge", "a b\0>*.é", "a=2Eb", "plain-1_x"] {
            assert_eq!(text(&token(name)).as_deref(), Some(name));
        }
        for none in ["a=b", "a=2e", "a=", "a=C3", "a=41", "a.b", "=="] {
            assert_eq!(text(none), None, "{none}");
        }
    }

    #[test]
    fn what_is_no_subject_becomes_one() {
        for subject in ["", "a..b", ".", "a b", "*", "orders.>", "a\0b", "s\u{85}"] {
            assert!(!is_subject(subject), "{subject:?}");
            assert!(is_subject(&tail(subject)), "{subject:?}");
        }
        assert!(is_subject(&tail(&"s".repeat(5_000))));
        assert_eq!(tail("orders.eu.created"), "orders.eu.created");
    }
}
