//! Telling values from names.

use std::net::Ipv6Addr;

/// Names with digits in them, in lower case. Anything else that ends in a number is taken to be counted.
const NAMES: &[&str] = &[
    "aarch64",
    "aes128",
    "aes256",
    "amd64",
    "arm64",
    "base32",
    "base58",
    "base64",
    "blake2",
    "blake3",
    "crc32",
    "ec2",
    "ed25519",
    "es256",
    "es384",
    "float32",
    "float4",
    "float64",
    "float8",
    "hs256",
    "hs384",
    "hs512",
    "http1",
    "http2",
    "http3",
    "i128",
    "i18n",
    "int16",
    "int2",
    "int32",
    "int4",
    "int64",
    "int8",
    "ipv4",
    "ipv6",
    "k8s",
    "l10n",
    "latin1",
    "log4j",
    "md5",
    "oauth1",
    "oauth2",
    "ps256",
    "rs256",
    "rs384",
    "rs512",
    "secp256k1",
    "sha1",
    "sha224",
    "sha256",
    "sha3",
    "sha384",
    "sha512",
    "sqlite3",
    "u128",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "utf16",
    "utf32",
    "utf8",
    "win32",
    "x509",
];

/// Kind of a run of letters and digits.
pub(super) enum Part<'a> {
    /// A word, or a name with digits in it.
    Name,
    /// A word with a number at its end.
    Numbered(&'a str),
    /// A number, an id, a hash.
    Value,
}

/// Judges a run of letters and digits.
pub(super) fn judge(part: &str) -> Part<'_> {
    let digits = part.bytes().filter(u8::is_ascii_digit).count();
    let hexadecimal = part.bytes().all(|byte| byte.is_ascii_hexdigit());
    if digits == 0 {
        // `deadbeef` and its like, in whole groups of four.
        // Words such as `decade` are of these letters too, hence the length.
        let hash = hexadecimal && part.len() >= 8 && part.len().is_multiple_of(4);
        return if hash { Part::Value } else { Part::Name };
    }
    // `PT1` is the beginning of an ISO 8601 duration such as `PT1.5S`.
    let number = part.strip_prefix("PT").unwrap_or(part);
    if number.starts_with(|c: char| c.is_ascii_digit()) {
        return Part::Value;
    }
    if NAMES.iter().any(|name| name.eq_ignore_ascii_case(part)) {
        return Part::Name;
    }
    let letters = part.trim_end_matches(|c: char| c.is_ascii_digit());
    if letters.contains(|c: char| c.is_ascii_digit()) {
        // A number between letters is an id, unless capitals show the name of a type.
        return if is_camel_case(part) { Part::Name } else { Part::Value };
    }
    if letters.len() == 1 {
        // `v2`, `s3`, `u64`; `E0308`, `P0001`; but a longer number is a value.
        let most = if letters.starts_with(|c: char| c.is_ascii_uppercase()) { 5 } else { 2 };
        return if digits <= most { Part::Name } else { Part::Value };
    }
    if hexadecimal && part.len() >= 7 { Part::Value } else { Part::Numbered(letters) }
}

/// Returns true if the part is written like the name of a type with a number inside, such as `Utf8Error` or
/// `FromUtf16Error`: one number, a capital behind it, and every capital followed by a small letter.
fn is_camel_case(part: &str) -> bool {
    let bytes = part.as_bytes();
    let at = |index: usize| bytes.get(index).copied().unwrap_or(b' ');
    let mut numbers = 0;
    for (index, byte) in bytes.iter().enumerate() {
        let fits = match byte {
            b'0'..=b'9' if !at(index + 1).is_ascii_digit() => {
                numbers += 1;
                at(index + 1).is_ascii_uppercase()
            }
            b'A'..=b'Z' => at(index + 1).is_ascii_lowercase(),
            _ => true,
        };
        if !fits {
            return false;
        }
    }
    numbers == 1 && at(0).is_ascii_uppercase()
}

/// Splits into runs of letters and digits on the one hand and single other characters on the other. Letters outside
/// ASCII are runs of their own, because scripts without spaces write numbers between words; the signs for "micro" are
/// units and stay with their number.
pub(super) fn parts(word: &str) -> impl Iterator<Item = &str> {
    let western = |c: char| c.is_ascii_alphanumeric() || matches!(c, 'µ' | 'μ');
    let mut rest = word;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let length = if western(first) {
            rest.find(|c: char| !western(c)).unwrap_or(rest.len())
        } else if first.is_alphanumeric() {
            rest.find(|c: char| western(c) || !c.is_alphanumeric()).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (part, after) = rest.split_at(length);
        rest = after;
        Some(part)
    })
}

/// Returns true if the text joins two numbers to one value.
pub(super) fn is_joiner(part: &str) -> bool {
    matches!(part, "." | ":" | "-" | "/" | "+" | "," | "_")
}

/// Returns the number of parts of a UUID, a trace parent or a MAC address: hexadecimal groups joined by dashes, at
/// least three of them and 16 digits in all, or six of two digits.
pub(super) fn dashed_hexadecimal(parts: &[&str]) -> Option<usize> {
    let is_hexadecimal = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut length = 0;
    let mut digits = 0;
    // A MAC address has only twelve digits. It is known by its pairs.
    let mut pairs = true;
    while let Some(part) = parts.get(length).filter(|part| is_hexadecimal(part)) {
        digits += part.len();
        pairs &= part.len() == 2;
        length += 1;
        if parts.get(length) == Some(&"-") && parts.get(length + 1).is_some_and(is_hexadecimal) {
            length += 1;
        } else {
            break;
        }
    }
    let found = (length >= 5 && digits >= 16) || (length == 11 && pairs);
    found.then_some(length)
}

/// Returns the position of the first IPv6 or MAC address in a word.
pub(super) fn colon_address(word: &str) -> Option<(usize, usize)> {
    let in_run = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut from = 0;
    while let Some(start) = word[from..].find(in_run).map(|index| from + index) {
        let end = word[start..].find(|c| !in_run(c)).map_or(word.len(), |index| start + index);
        let apart = !word[..start].ends_with(in_name) && !word[end..].starts_with(in_name);
        let run = &word[start..end];
        let run = run.trim_end_matches('.');
        // A text often has a colon behind an address, which is no part of it. The whole run is tried first, for an
        // address may end in `::`.
        let without_colon = run.strip_suffix(':').unwrap_or(run);
        if apart && run.contains(|c: char| c.is_ascii_digit()) {
            for run in [run, without_colon] {
                if is_mac(run) || run.parse::<Ipv6Addr>().is_ok() {
                    return Some((start, start + run.len()));
                }
            }
        }
        from = end;
    }
    None
}

fn is_mac(run: &str) -> bool {
    run.len() == 17
        && run.split(':').count() == 6
        && run
            .split(':')
            .all(|pair| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Returns true if a word is an e-mail address.
pub(super) fn is_email(word: &str) -> bool {
    word.split_once('@')
        .is_some_and(|(name, host)| !name.is_empty() && host.contains('.') && !host.contains('@'))
}
