//! Secrets that must not be printed: passwords, wherever they stand in a URL, and in whatever text they come back.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Passwords of this process.
// One list for the process: a password that one part knows may come back in an error of any other.
static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Shorter ones are not looked for in texts, which would be full of them.
const SHORTEST: usize = 3;

/// A URL fit to be shown: without password or token, also in its parameters.
pub(crate) fn without_password(url: &str) -> String {
    let Parts { scheme, user, rest, parameters, .. } = Parts::of(url);
    let mut shown = scheme.map_or_else(String::new, |scheme| format!("{scheme}://"));
    if let Some(user) = user {
        shown.push_str(user);
        shown.push('@');
    }
    shown.push_str(rest);
    // Secret parameters are left out and not starred, so that what is shown can be copied as a URL.
    let kept: Vec<_> = parameters.into_iter().filter(|one| !is_secret(one)).collect();
    if !kept.is_empty() {
        shown.push('?');
        shown.push_str(&kept.join("&"));
    }
    shown
}

/// Returns true if a URL has a password or token.
pub(crate) fn has_password(url: &str) -> bool {
    !secrets(url).is_empty()
}

/// Keeps the passwords of a URL from being printed, by [`hide`].
pub(crate) fn keep(url: &str) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    for secret in secrets(url) {
        // An error may quote the password as it stands in the URL, or decoded.
        kept.push(decoded(&secret));
        kept.push(secret);
    }
    // One may be part of another.
    kept.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    kept.dedup();
}

/// Keeps the path and query of a URL from being printed, where they are long enough to be a secret.
pub(crate) fn keep_path(path: &str) {
    /// Shorter ones are words, with which texts are full.
    const SHORTEST_PATH: usize = 16;
    if path.len() < SHORTEST_PATH {
        return;
    }
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push(path.to_owned());
    kept.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    kept.dedup();
}

/// The text with every kept password struck out.
pub(crate) fn hide(text: &str) -> String {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let meant = kept.iter().filter(|secret| secret.chars().count() >= SHORTEST);
    // The longest first: a password that holds a shorter one would else keep its ends.
    meant.fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
}

/// Writer that removes passwords.
pub(crate) struct Hiding<W>(pub(crate) W);

impl<W: Write> Write for Hiding<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A password that is split over two calls would not be found. The log writes each line in one call.
        self.0.write_all(hide(&String::from_utf8_lossy(bytes)).as_bytes())?;
        // The length before the replacement, since the caller would write what it takes for the rest once more.
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A URL taken apart, however wrong it is.
struct Parts<'u> {
    scheme: Option<&'u str>,
    /// Without the password.
    user: Option<&'u str>,
    password: Option<&'u str>,
    /// Host and path.
    rest: &'u str,
    parameters: Vec<&'u str>,
}

impl<'u> Parts<'u> {
    fn of(url: &'u str) -> Self {
        let (scheme, rest) = match url.split_once("://") {
            Some((scheme, rest)) => (Some(scheme), rest),
            None => (None, url),
        };
        let mut parts = Self { scheme, user: None, password: None, rest, parameters: Vec::new() };
        // A path of a file may hold anything.
        if scheme == Some("sqlite") {
            return parts;
        }
        // The text is taken apart by hand and not by a parser of URLs: one that is wrong has a password too, and is
        // quoted in the error.
        if let Some(login_end) = login_end(rest) {
            let login = &rest[..login_end];
            parts.rest = &rest[login_end + 1..];
            match login.split_once(':') {
                Some((user, password)) => {
                    (parts.user, parts.password) = (Some(user), Some(password));
                }
                // It may be a token, or a URL that is not one.
                None if matches!(scheme, None | Some("nats" | "tls")) => {
                    parts.password = Some(login)
                }
                None => parts.user = Some(login),
            }
        }
        if let Some((rest, query)) = parts.rest.split_once('?') {
            (parts.rest, parts.parameters) = (rest, query.split('&').collect());
        }
        parts
    }
}

/// Returns the end of the user and password. A password in which `/` or `?` stands unescaped is one all the same.
fn login_end(rest: &str) -> Option<usize> {
    let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // The last one: a password may have an `@` that nobody has escaped.
    if let Some(at) = rest[..authority].rfind('@') {
        return Some(at);
    }
    // After the colon stands a port, or a password that goes on behind the `/`, `?` or `#`.
    let (_, port) = rest[..authority].split_once(':')?;
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // Several hosts may stand in a row.
    let first = port.split(',').next().unwrap_or_default();
    if is_port(first) { None } else { rest.rfind('@') }
}

fn is_secret(parameter: &str) -> bool {
    let name = parameter.split('=').next().unwrap_or_default();
    // A driver decodes names before it looks at them, so this does as well.
    let name = decoded(name).to_ascii_lowercase();
    // Each driver has names of its own, such as `sslpassword`, so parts of them are looked for.
    // The properties of MongoDB's authentication may hold a session token of AWS.
    ["pass", "pwd", "secret", "token", "routing_key", "authmechanismproperties"]
        .iter()
        .any(|word| name.contains(word))
}

fn secrets(url: &str) -> Vec<String> {
    let parts = Parts::of(url);
    let secrets = parts.parameters.iter().filter(|one| is_secret(one));
    let parameters = secrets.filter_map(|one| Some(one.split_once('=')?.1));
    let all = parts.password.into_iter().chain(parameters);
    all.filter(|text| !text.is_empty()).map(str::to_owned).collect()
}

/// Returns the byte that two hexadecimal digits say.
pub(crate) fn hex_byte(digits: &[u8]) -> Option<u8> {
    // Integers are read with a sign, too.
    let are_digits = digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| are_digits)?;
    u8::from_str_radix(digits, 16).ok()
}

/// Without percent-encoding; what is not encoded well stays as it is.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        match after.get(..2).and_then(hex_byte) {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://ana:s3cret@h/db", "postgres://ana@h/db"),
            ("postgres://ana:s@cret@h/db", "postgres://ana@h/db"),
            ("postgres://ana:s3c/ret@h/db", "postgres://ana@h/db"),
            ("postgres://ana:s3c?r=et@h/db", "postgres://ana@h/db"),
            ("postgres://ana:#s3cret@h:5432/db", "postgres://ana@h:5432/db"),
            ("postgres://ana@h/db?password=s3cret", "postgres://ana@h/db"),
            ("postgres://h/db?a=b&PassWord=s3cret&c=d", "postgres://h/db?a=b&c=d"),
            (
                "postgres://h/db?sslpassword=s3cret&sslmode=require",
                "postgres://h/db?sslmode=require",
            ),
            ("postgres://h/db?pass%77ord=s3cret", "postgres://h/db"),
            (
                "mongodb://h/db?authMechanismProperties=AWS_SESSION_TOKEN:s3cret&tls=true",
                "mongodb://h/db?tls=true",
            ),
            ("nats://t0ken@h,g/DLQ", "nats://h,g/DLQ"),
            ("nats://ana:s3cret@h,g/DLQ", "nats://ana@h,g/DLQ"),
            ("kafka://h:9092,g:9093/topic@x", "kafka://h:9092,g:9093/topic@x"),
            ("postgres:/ana:s3cret@h/db", "postgres@h/db"),
            ("s3cret@h", "h"),
            ("sqlite://a@b/dlq.db?password=x", "sqlite://a@b/dlq.db?password=x"),
            ("dlq.db", "dlq.db"),
        ] {
            assert_eq!(without_password(url), shown, "{url}");
        }
    }

    #[test]
    fn a_password_is_struck_out_of_texts() {
        keep("postgres://ana:p%40ssw0rd@h/db?sslpassword=t1ger");
        let text = "p@ssw0rd, p%40ssw0rd and t1ger are wrong at h";
        assert_eq!(hide(text), "***, *** and *** are wrong at h");
        let mut written = Vec::new();
        Hiding(&mut written).write_all(text.as_bytes()).unwrap();
        assert_eq!(written, hide(text).as_bytes());
    }
}
