//! Contexts: names for locations of dead letters, in a configuration file that can keep passwords elsewhere.
//!
//! ```toml
//! default = "prod"
//!
//! [contexts.prod]
//! from = "postgres://ops@db.internal/orders"
//! password_command = "pass show db/orders"
//!
//! [contexts.here]
//! from = "sqlite://${HOME}/dlq.db"
//!
//! # Brokers that `dlq replay --to origin` sends letters of a store to, by the alias that letters name their cluster with.
//! [clusters.eu]
//! url = "nats://dlq@nats.internal:4222"
//! password_file = "nats.password"
//!
//! [clusters.kafka]
//! url = "kafka://kafka.internal:9092"
//! alias = "default"
//!
//! # Parts of messages that nobody is shown, of all letters and of those of a context.
//! mask = ["$.card.number", "headers.authorization"]     # at the top of the file, or below [contexts.NAME]
//!
//! # Who may use the console of `dlq serve --console`: read, operate or admin.
//! [console.tokens.ana]
//! role = "admin"
//! token_command = "pass show dlq/ana"
//! ```
//!
//! The file is `DLQ_CONFIG`, or `dlq/config.toml` below `XDG_CONFIG_HOME`, `~/.config` or (on Windows) `APPDATA`. The first
//! of these that is given decides: `--from` (a URL, or the name of a context), `--context`, `DLQ_FROM`, `DLQ_CONTEXT`, the
//! file's `default`.
//!
//! Nothing is written except by `dlq context use`, which puts a whole new file in the place of the old one: a process
//! that dies before the last step leaves the old file, and perhaps a new one beside it whose name ends in `.new`.

mod file;

pub(crate) use file::{File, Location, is_readable_by_others};

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use dlq_admin::mask::Mask;

use crate::cli::Cli;
use crate::error::CliError;
use crate::secret;

/// Returns the URL of the dead letters, with its password. `None` if no option, variable or default names any.
pub(crate) async fn resolve(cli: &Cli) -> Result<Option<String>, CliError> {
    let url = match said(cli) {
        Some(Said::From(from)) => Some(url(from).await?),
        Some(Said::Context(name)) => Some(File::read()?.open(name).await?),
        None => {
            let file = File::read()?;
            match &file.default {
                Some(name) => Some(file.open(name).await?),
                None => None,
            }
        }
    };
    if let Some(url) = &url {
        // From here on errors and the log are written without the password, whichever way it came.
        secret::keep(url);
    }
    Ok(url)
}

/// Returns the parts of messages that are masked: those of the file, and of the context that is meant.
///
/// A file that cannot be read is an error: without its rules everything would be shown.
pub(crate) fn mask(cli: &Cli) -> Result<Mask, CliError> {
    let file = File::read()?;
    let name = match said(cli) {
        Some(Said::From(name) | Said::Context(name)) => Some(name),
        None => file.default.as_deref(),
    };
    // A URL names no context, so that the rules of the whole file alone hold for it.
    let of_context = name.and_then(|name| file.contexts.get(name)).map(|it| it.mask.clone());
    Ok(file.mask.clone().and(of_context.unwrap_or_default()))
}

/// Place that options or variables name.
enum Said<'a> {
    /// A URL, or the name of a context.
    From(&'a str),
    Context(&'a str),
}

/// Returns a text that says something.
fn given(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

/// Returns the place that the nearest option or variable names.
fn said(cli: &Cli) -> Option<Said<'_>> {
    match (given(&cli.from), given(&cli.context)) {
        // What was typed counts before any variable, whichever option it is: a variable was set for another day.
        (Some(from), _) if cli.typed.from => Some(Said::From(from)),
        (_, Some(context)) if cli.typed.context => Some(Said::Context(context)),
        (Some(from), _) => Some(Said::From(from)),
        (None, context) => context.map(Said::Context),
    }
}

/// Returns `text` if it is a URL, or else the URL of the context with this name.
pub(crate) async fn url(text: &str) -> Result<String, CliError> {
    if text.contains("://") {
        return Ok(text.to_owned());
    }
    let file = File::read()?;
    if !file.contexts.contains_key(text) {
        let shown = secret::without_password(text);
        let hint = format!(
            "`{shown}` does not name dead letters; expected sqlite://PATH, e.g. sqlite://dlq.db, \
             postgres://HOST/DATABASE, nats://HOST/STREAM, kafka://HOST:PORT/TOPIC, or the name of a context"
        );
        return Err(match file.unknown(text) {
            CliError::Refused(why) => CliError::refused(format!("{hint}; {why}")),
            other => other,
        });
    }
    file.open(text).await
}

/// Returns the URL of the context with this name, with its password, and the parts of its messages that are masked.
pub(crate) async fn named(name: &str) -> Result<(String, Mask), CliError> {
    let file = File::read()?;
    let url = file.open(name).await?;
    secret::keep(&url);
    let mask = file.contexts.get(name).map(|it| it.mask.clone());
    Ok((url, mask.unwrap_or_default()))
}

/// Returns the alias and the URL of each cluster of the file, with passwords.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(crate) async fn clusters() -> Result<Vec<(String, String)>, CliError> {
    let file = File::read()?;
    if !file.clusters.is_empty() {
        file.warn();
    }
    let mut clusters = Vec::new();
    for (name, cluster) in &file.clusters {
        let url = file.url_of(&cluster.at, &format!("cluster `{name}`")).await?;
        secret::keep(&url);
        clusters.push((cluster.alias.clone().unwrap_or_else(|| name.clone()), url));
    }
    Ok(clusters)
}

/// Returns name, role and token of everybody who may use the console.
pub(crate) async fn console_tokens() -> Result<Vec<(String, String, String)>, CliError> {
    let file = File::read()?;
    if !file.console.tokens.is_empty() {
        file.warn();
    }
    let folder = file.path.parent().unwrap_or(Path::new(""));
    let mut tokens = Vec::new();
    for (name, token) in &file.console.tokens {
        let about = |error: CliError| error.about(&format!("token of `{name}`"));
        // Two sources for one token would leave nobody sure which of them lets people in.
        let secret = match (&token.token, &token.token_command, &token.token_file) {
            (Some(text), None, None) => expand(text).map_err(about)?,
            (None, Some(command), None) => run(command, "token").await.map_err(about)?,
            (None, None, Some(path)) => read(path, folder, "token").map_err(about)?,
            _ => {
                return Err(about(CliError::refused(
                    "expected exactly one of token, token_command and token_file",
                )));
            }
        };
        tokens.push((name.clone(), token.role.clone(), secret));
    }
    Ok(tokens)
}

impl File {
    /// The URL of a context, with its password.
    async fn open(&self, name: &str) -> Result<String, CliError> {
        let location = self.get(name)?;
        self.warn();
        self.url_of(location, &format!("context `{name}`")).await
    }

    async fn url_of(&self, location: &Location, about: &str) -> Result<String, CliError> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        location.url(folder).await.map_err(|error| error.about(about))
    }
}

impl Location {
    /// Returns the URL without its password.
    pub(crate) fn shown(&self) -> String {
        // In nats://NAME@HOST the name may be a token, so it is normally hidden. If the password comes from elsewhere,
        // the name is a user, and a dummy password says so.
        let with_user = self.is_given().then(|| with_password(&self.from, "x").ok()).flatten();
        secret::without_password(with_user.as_ref().unwrap_or(&self.from))
    }

    /// Returns true if a command or a file provides the password.
    fn is_given(&self) -> bool {
        self.password_command.is_some() || self.password_file.is_some()
    }

    /// Returns true if the configuration file itself contains the password, other than as an environment variable.
    fn holds_password(&self) -> bool {
        let from = file::literal(&self.from);
        let is_user = self.is_given() && with_password(&from, "x").is_ok();
        !is_user && secret::has_password(&from)
    }

    /// Returns the source of the password, in words.
    pub(crate) fn password_source(&self) -> &'static str {
        match (&self.password_command, &self.password_file) {
            (Some(_), _) => "command",
            (None, Some(_)) => "file",
            (None, None) if secret::has_password(&self.from) => "in the URL",
            (None, None) => "none",
        }
    }

    async fn url(&self, folder: &Path) -> Result<String, CliError> {
        let url = expand(&self.from)?;
        let password = match (&self.password_command, &self.password_file) {
            (Some(_), Some(_)) => {
                return Err(CliError::refused(
                    "cannot choose a password: password_command and password_file are both set; remove one of them",
                ));
            }
            (Some(command), None) => run(command, "password").await?,
            (None, Some(path)) => read(path, folder, "password")?,
            (None, None) => return Ok(url),
        };
        with_password(&url, &password)
    }
}

/// Replaces each `${NAME}` by that environment variable. Values in the user and password part are percent-encoded.
fn expand(from: &str) -> Result<String, CliError> {
    // The login is found before anything is expanded, or a value with an `@` would move its end.
    let login = from.find("://").and_then(|start| {
        let start = start + 3;
        let end = from[start..].find('/').map_or(from.len(), |end| start + end);
        Some(start..start + from[start..end].rfind('@')?)
    });
    let mut url = String::new();
    let mut rest = from;
    while let Some((before, after)) = rest.split_once("${") {
        url.push_str(before);
        let Some((name, behind)) = after.split_once('}') else {
            return Err(CliError::refused(
                "cannot expand the URL: `${` has no closing `}`; write `${NAME}`",
            ));
        };
        let value = std::env::var(name).map_err(|_| {
            CliError::refused(format!(
                "cannot expand the URL: environment variable {name} is not set or not UTF-8; set it, or write its \
                 value into the URL"
            ))
        })?;
        let place = from.len() - after.len();
        let is_login = login.as_ref().is_some_and(|login| login.contains(&place));
        // In the login a `/` or `@` of the value would end it. Elsewhere the value may be a whole path.
        url.push_str(&if is_login { encode(&value) } else { value });
        rest = behind;
    }
    url.push_str(rest);
    Ok(url)
}

/// Inserts the password after the user name of the URL, percent-encoded.
fn with_password(url: &str, password: &str) -> Result<String, CliError> {
    let login = url.split_once("://").and_then(|(scheme, rest)| {
        let (login, host) = rest.split_once('@')?;
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        Some((scheme, user, password, host)).filter(|_| !user.is_empty())
    });
    let Some((scheme, user, former, host)) = login else {
        return Err(CliError::refused(format!(
            "cannot insert the password into {}: the URL has no user; write SCHEME://USER@HOST/…",
            secret::without_password(url)
        )));
    };
    let shown = || secret::without_password(&format!("{scheme}://{user}:x@{host}"));
    // With two passwords one would be used, and nobody could see which.
    if !former.is_empty() || secret::has_password(&format!("{scheme}://{host}")) {
        return Err(CliError::refused(format!(
            "cannot insert the password into {}: the URL already has one; remove it there, or remove \
             password_command or password_file",
            shown()
        )));
    }
    Ok(format!("{scheme}://{user}:{}@{host}", encode(password)))
}

/// Runs a command that prints a `password` or `token`, and returns its output, without the end of the line.
async fn run(command: &str, of: &str) -> Result<String, CliError> {
    let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    // What the command complains of reaches the operator; its output is the password alone.
    let ran = Command::new(shell).args([flag, command]).stderr(Stdio::inherit()).output().await;
    let output =
        ran.map_err(|error| CliError::failed(format!("cannot run {of}_command: {error}")))?;
    if !output.status.success() {
        return Err(CliError::failed(format!(
            // The output is not quoted: a command that fails may have printed part of the secret.
            "cannot get the {of}: {of}_command failed ({}); run it by hand to see why",
            output.status
        )));
    }
    password(String::from_utf8(output.stdout).ok(), &format!("{of}_command"))
}

/// Reads a `password` or `token` from a file of one line. `~/` means the home folder; other relative paths start at the folder of the
/// configuration file.
fn read(path: &Path, folder: &Path, of: &str) -> Result<String, CliError> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let path = match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => folder.join(path),
    };
    let text = std::fs::read(&path).map_err(|error| {
        CliError::failed(format!(
            "cannot read {of}_file {}: {error}; check the path and its permissions",
            path.display()
        ))
    })?;
    if file::is_readable_by_others(&path) {
        say!("dlq: warning: others can read the {of} in {}; chmod 600 it", path.display());
    }
    password(String::from_utf8(text).ok(), &format!("{of}_file"))
}

/// Returns the one line of `text`, without its end. More lines are refused: only the first would be the password.
fn password(text: Option<String>, of: &str) -> Result<String, CliError> {
    let text = text.ok_or_else(|| {
        CliError::failed(format!(
            "cannot use the output of {of}: it is not UTF-8; provide the password as text"
        ))
    })?;
    // Blanks are kept, as they may belong to the password.
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() || text.contains(['\r', '\n']) {
        return Err(CliError::failed(format!(
            "cannot use the output of {of}: it has {} lines; provide exactly one, the secret",
            text.lines().count()
        )));
    }
    Ok(text.to_owned())
}

/// Percent-encodes everything but letters, digits and `-._~`.
fn encode(text: &str) -> String {
    // More is encoded than a URL needs, since drivers differ in what they take unescaped.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(result: Result<String, CliError>) -> String {
        match result {
            Err(CliError::Refused(text) | CliError::Failed(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_password_is_put_after_the_user() {
        let with = |url| with_password(url, "s@c/r et");
        assert_eq!(
            with("postgres://ops@h/db?a=b").unwrap(),
            "postgres://ops:s%40c%2Fr%20et@h/db?a=b"
        );
        assert_eq!(with("nats://ops@h,g/DLQ").unwrap(), "nats://ops:s%40c%2Fr%20et@h,g/DLQ");
        assert!(refused(with("postgres://h/db")).contains("no user"));
        assert!(refused(with("postgres://ops@h/db?password=x")).contains("already"));
        let text = refused(with("postgres://ops:t1ger@h/db"));
        assert!(text.contains("URL already has one") && !text.contains("t1ger"), "{text}");
    }

    #[test]
    fn a_password_is_one_line() {
        let given = |text: &str| password(Some(text.to_owned()), "password_file");
        assert_eq!(given(" s3 cret\r\n").unwrap(), " s3 cret");
        assert!(refused(given("\n")).contains("exactly one"));
        assert!(refused(given("s3cret\nuser: ana\n")).contains("2 lines"));
    }

    #[test]
    fn a_variable_that_is_not_set_is_named() {
        assert!(
            refused(expand("sqlite://${DLQ_NOT_SET_ANYWHERE}")).contains("DLQ_NOT_SET_ANYWHERE")
        );
        assert!(refused(expand("sqlite://${x")).contains("no closing `}`"));
    }
}
