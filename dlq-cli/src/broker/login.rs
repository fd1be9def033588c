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
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}
