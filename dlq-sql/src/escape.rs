//! Names in URLs.

/// A path or name as it stands in a URL.
pub(crate) fn escaped(text: &[u8]) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let one = |byte: &u8| {
        if is_plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.iter().map(one).collect()
}
