/// Undoes the percent-encoding of a user, password or token in a URL.
pub(crate) fn percent_decode(text: &str) -> Result<String, crate::error::CliError> {
    decode(text).ok_or_else(|| {
        crate::error::CliError::refused(
            "the user, password or token in the URL is not percent-encoded; write `%` as %25 and `@` as %40",
        )
    })
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = after;
            continue;
        }
        bytes.push(crate::secret::hex_byte(after.get(..2)?)?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_digits_follow_each_percent_sign() {
        assert_eq!(percent_decode("a%40b%2Fc").unwrap(), "a@b/c");
        for text in ["%+4", "%-1", "%4", "%", "%g0", "% 4"] {
            percent_decode(text).unwrap_err();
        }
    }
}
