//! The configuration file.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use dlq_admin::mask::Mask;
use serde::{Deserialize, Deserializer};

use crate::error::CliError;
use crate::secret;

/// Content of the file.
#[derive(Debug, Default, Deserialize)]
// A mistyped `password_command` would else be passed over, and a mistyped `mask` would show what it should hide.
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// The context that is meant when none is named.
    pub(crate) default: Option<String>,
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Location>,
    /// Brokers that letters of a store are sent to.
    #[serde(default)]
    pub(crate) clusters: BTreeMap<String, Cluster>,
    #[serde(default)]
    pub(crate) console: Console,
    /// Parts of messages that are masked, wherever these come from.
    #[serde(default, deserialize_with = "mask")]
    pub(crate) mask: Mask,
    #[serde(skip)]
    pub(crate) path: PathBuf,
}

/// Settings of the console.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Console {
    /// Tokens by the name of who has them.
    #[serde(default)]
    pub(crate) tokens: BTreeMap<String, ConsoleToken>,
}

/// A token, which is in the file, in a file of its own, or printed by a command.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsoleToken {
    /// The role: `read`, `operate` or `admin`.
    pub(crate) role: String,
    /// The token; `${NAME}` stands for a variable of the environment.
    pub(crate) token: Option<String>,
    /// A command that prints the token.
    pub(crate) token_command: Option<String>,
    /// A file that holds the token.
    pub(crate) token_file: Option<PathBuf>,
}

/// Without the token.
impl std::fmt::Debug for ConsoleToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsoleToken").field("role", &self.role).finish_non_exhaustive()
    }
}

/// Location of dead letters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Location {
    /// The URL; `${NAME}` stands for a variable of the environment.
    pub(crate) from: String,
    /// A command that prints the password.
    pub(crate) password_command: Option<String>,
    /// A file that holds the password.
    pub(crate) password_file: Option<PathBuf>,
    /// Parts of messages that are masked, besides those of the whole file.
    #[serde(default, deserialize_with = "mask")]
    pub(crate) mask: Mask,
}

/// Reads rules as they are written: a list of texts.
fn mask<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mask, D::Error> {
    Mask::new(Vec::<String>::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// A broker that letters of a store are sent to.
#[derive(Debug, Deserialize)]
#[serde(from = "ClusterFields")]
pub(crate) struct Cluster {
    /// The alias by which letters name the cluster. Defaults to the name of its table.
    #[cfg_attr(
        not(any(feature = "kafka", feature = "nats", feature = "redis")),
        allow(dead_code, reason = "it has no brokers")
    )]
    pub(crate) alias: Option<String>,
    pub(crate) at: Location,
}

// Fields of a flattened struct would not be checked against a list of known ones.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFields {
    url: String,
    alias: Option<String>,
    password_command: Option<String>,
    password_file: Option<PathBuf>,
}

impl From<ClusterFields> for Cluster {
    fn from(fields: ClusterFields) -> Self {
        let ClusterFields { url, alias, password_command, password_file } = fields;
        // Letters are sent there as they are, and shown nowhere.
        let mask = Mask::default();
        Self { alias, at: Location { from: url, password_command, password_file, mask } }
    }
}

/// Without what may be secret.
impl std::fmt::Debug for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Location").field("from", &self.shown()).finish_non_exhaustive()
    }
}

impl File {
    /// Reads the file; one that is not there, unless somebody named it, has no contexts.
    pub(crate) fn read() -> Result<Self, CliError> {
        let Some(ConfigFile { path, is_named }) = place() else { return Ok(Self::default()) };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_named => {
                String::new()
            }
            Err(error) => {
                return Err(CliError::refused(format!("cannot read {}: {error}", path.display())));
            }
        };
        Self::parse(&text, path)
    }

    fn parse(text: &str, path: PathBuf) -> Result<Self, CliError> {
        let file: Self = toml::from_str(text).map_err(|error| {
            let place = error.span().map_or_else(String::new, |span| place_of(text, span.start));
            // The text of the TOML error is shown without its excerpt of the file, which may hold a password.
            CliError::refused(format!("{}{place}: {}", path.display(), unquoted(error.message())))
        })?;
        Ok(Self { path, ..file })
    }

    /// The context of this name.
    pub(crate) fn get(&self, name: &str) -> Result<&Location, CliError> {
        self.contexts.get(name).ok_or_else(|| self.unknown(name))
    }

    pub(crate) fn unknown(&self, name: &str) -> CliError {
        let shown = secret::without_password(name);
        if self.contexts.is_empty() {
            let path = match self.path.as_os_str().is_empty() {
                true => "~/.config/dlq/config.toml".to_owned(),
                false => self.path.display().to_string(),
            };
            return CliError::refused(format!(
                "there is no context `{shown}`, and {path} has none; write one there: [contexts.NAME] and from = \"URL\""
            ));
        }
        let known: Vec<_> = self.contexts.keys().map(String::as_str).collect();
        CliError::refused(format!(
            "there is no context `{shown}`; {} has: {}",
            self.path.display(),
            known.join(", ")
        ))
    }

    /// Warns of passwords that others can read.
    pub(crate) fn warn(&self) {
        let clusters = self.clusters.values().map(|cluster| &cluster.at);
        let holds = self.contexts.values().chain(clusters).any(Location::holds_password)
            || self.console.tokens.values().any(|token| {
                token.token.as_deref().is_some_and(|token| !literal(token).is_empty())
            });
        if holds && is_readable_by_others(&self.path) {
            say!(
                "dlq: warning: {} holds a password and others can read it; chmod 600 it, or use password_command",
                self.path.display()
            );
        }
    }

    /// Makes another context the default one. The file changes in one step or not at all; what else stands in it stays.
    pub(crate) fn set_default(&self, name: &str) -> Result<(), CliError> {
        self.get(name)?;
        let failed = |error: &dyn std::fmt::Display| {
            CliError::failed(format!("cannot change {}: {error}", self.path.display()))
        };
        // Where the file is a link, what it leads to is changed.
        let path = self.path.canonicalize().map_err(|error| failed(&error))?;
        let text = std::fs::read_to_string(&path).map_err(|error| failed(&error))?;
        // The text is changed and not written anew from what was read: comments and the order of the file are the
        // user's.
        let text = with_default(&text, name);
        // The new text is read before it is written: `with_default` does not understand every way to write TOML.
        let is_so = Self::parse(&text, path.clone()).is_ok_and(|file| {
            file.default.as_deref() == Some(name) && file.contexts.contains_key(name)
        });
        if !is_so {
            return Err(failed(&format!(
                "write default = \"{name}\" into its first line yourself"
            )));
        }
        replace(&path, &text).map_err(|error| failed(&error))
    }
}

struct ConfigFile {
    path: PathBuf,
    /// It must be there.
    is_named: bool,
}

/// Returns the place of the file; an empty `DLQ_CONFIG` is none.
fn place() -> Option<ConfigFile> {
    if let Some(path) = std::env::var_os("DLQ_CONFIG") {
        return (!path.is_empty()).then(|| ConfigFile { path: path.into(), is_named: true });
    }
    // The standard of these folders says that a relative path is to be ignored.
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = if cfg!(windows) { folder("APPDATA") } else { folder("XDG_CONFIG_HOME") };
    let base = base.or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(ConfigFile { path: base.join("dlq").join("config.toml"), is_named: false })
}

/// `:LINE:COLUMN`, counted from one.
fn place_of(text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!(":{line}:{column}")
}

/// A message without what it quotes of the file, which may be a URL with its password.
fn unquoted(message: &str) -> String {
    let pieces = message.split('"').enumerate();
    pieces.map(|(index, piece)| if index % 2 == 0 { piece } else { "\"…\"" }).collect()
}

/// A URL without what comes from the environment.
pub(super) fn literal(from: &str) -> String {
    let mut pieces = from.split("${");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + piece.split_once('}').map_or(piece, |(_, rest)| rest))
}

/// The text with this default: in the place of the former, or before everything.
fn with_default(text: &str, name: &str) -> String {
    let line = format!("default = {}", toml::Value::from(name));
    let is_default = |line: &str| {
        line.split_once('=').is_some_and(|(key, _)| matches!(key.trim(), "default" | "\"default\""))
    };
    // What stands below a heading belongs to it.
    let top = text.lines().take_while(|line| !line.trim_start().starts_with('['));
    let Some(index) = top.into_iter().position(is_default) else {
        return format!("{line}\n{text}");
    };
    let lines = text.split_inclusive('\n').enumerate();
    lines.map(|(at, old)| if at == index { format!("{line}\n") } else { old.to_owned() }).collect()
}

/// Puts a new file in the place of the old one.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // Beside the old file, since a rename is one step only within a file system; the process id keeps two commands
    // apart.
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let write = || {
        // A file of this name that is there already may be a link that somebody has laid, so it is refused.
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&new)?;
        // The file has the permissions of the old one before a password is in it.
        file.set_permissions(std::fs::metadata(path)?.permissions())?;
        file.write_all(text.as_bytes())?;
        // The text is on the disk before the rename, so that a power cut leaves one whole file or the other.
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    let written = write();
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

#[cfg(unix)]
pub(crate) fn is_readable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
pub(crate) fn is_readable_by_others(_path: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        match File::parse(text, "c.toml".into()) {
            Err(CliError::Refused(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_error_says_where_and_no_password() {
        assert!(refused("default = \"a\"\nx y\n").starts_with("c.toml:2:3: "));
        let text = refused("[contexts]\nprod = \"postgres://ana:s3cret@h/db\"\n");
        assert!(text.starts_with("c.toml:2:8: ") && !text.contains("s3cret"), "{text}");
        let text = refused("[contexts.prod]\nfrom = \"x\"\npasswd = \"s3cret\"\n");
        assert!(text.starts_with("c.toml:3:1: ") && text.contains("`password_file`"), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }

    #[test]
    fn a_cluster_is_its_table_unless_it_has_an_alias() {
        let text = "[clusters.eu]\nurl = \"nats://h\"\n[clusters.k]\nurl = \"kafka://k\"\nalias = \"default\"\n";
        let file = File::parse(text, "c.toml".into()).unwrap();
        let shown: Vec<_> = file
            .clusters
            .iter()
            .map(|(name, one)| (one.alias.as_deref().unwrap_or(name), one.at.from.as_str()))
            .collect();
        assert_eq!(shown, [("eu", "nats://h"), ("default", "kafka://k")]);
        let text = refused("[clusters.eu]\nurl = \"nats://h\"\npasswort = \"s3cret\"\n");
        assert!(text.contains("`password_file`") && !text.contains("s3cret"), "{text}");
    }

    #[test]
    fn a_rule_that_is_none_is_refused_with_its_line() {
        let text =
            refused("mask = [\"$.a\"]\n[contexts.a]\nfrom = \"x\"\nmask = [\"$.b\", \"card\"]\n");
        assert!(text.starts_with("c.toml:4:8: cannot mask `card`"), "{text}");
    }

    #[test]
    fn a_default_is_set_and_the_rest_stays() {
        let rest = "[contexts.a]\nfrom = \"x\" # default = 1\n";
        assert_eq!(with_default(rest, "a"), format!("default = \"a\"\n{rest}"));
        let text = format!("# mine\n default=\"b\"\n\n{rest}");
        assert_eq!(with_default(&text, "a"), format!("# mine\ndefault = \"a\"\n\n{rest}"));
        assert_eq!(with_default("default = \"b\"", "a\"b"), "default = 'a\"b'\n");
    }

    #[test]
    fn what_comes_from_the_environment_is_no_password_in_the_file() {
        assert!(!secret::has_password(&literal("postgres://ana:${PW}@h/db")));
        assert!(secret::has_password(&literal("postgres://ana:x${PW}@h/db")));
    }
}
