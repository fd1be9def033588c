//! Secrets.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Returns bytes that nobody can guess.
pub(crate) fn bytes() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(bytes)
}

/// Returns a text that nobody can guess, of letters, digits, `-` and `_`.
pub(crate) fn text() -> std::io::Result<String> {
    bytes().map(|bytes| URL_SAFE_NO_PAD.encode(bytes))
}
