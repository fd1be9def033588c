//! Installs servers from ordinary package sources. Doing it twice, or from many processes at once,
//! is fine.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;

use crate::folder::cache;
use crate::{Error, ErrorKind, Service, kafka, mongo, nats, postgres, redis};

/// Installs what is missing and returns where the server is: its program, for Kafka the folder of
/// its jars, for MongoDB the folder of jars and launcher. Says on standard error what it runs.
///
/// # Errors
///
/// `NotInstalled` when a tool is missing, when we may not install, or when installing fails; the
/// text says what to run.
pub fn ensure_installed(service: Service) -> Result<PathBuf, Error> {
    match service {
        Service::Nats => nats::install(),
        Service::Kafka => kafka::install(),
        Service::Postgres => postgres::install(),
        Service::Redis => redis::install(),
        Service::Mongo => mongo::install(),
    }
}

/// Finds a program, or installs the Debian package that has it.
pub(crate) fn debian(
    subject: &'static str,
    package: &str,
    find_it: impl Fn() -> Option<PathBuf>,
) -> Result<PathBuf, Error> {
    if let Some(program) = find_it() {
        return Ok(program);
    }
    let missing = |why: &str| {
        let text = format!("it is not installed{why}; run `apt-get install {package}` as root");
        Error::new(ErrorKind::NotInstalled, subject, text)
    };
    if user_id() != 0 {
        return Err(missing(", and only root may install it"));
    }
    if find("apt-get").is_none() {
        return Err(missing(", and `apt-get` is missing"));
    }
    let _lock = lock(subject, "apt")?;
    if find_it().is_none() {
        static UPDATED: Once = Once::new();
        let mut outcome = Ok(());
        UPDATED.call_once(|| outcome = apt_get(subject, &["update", "-q"]));
        outcome?;
        apt_get(subject, &["install", "-y", "-q", "--no-install-recommends", package])?;
    }
    find_it().ok_or_else(|| missing(", although its package is"))
}

fn apt_get(subject: &'static str, args: &[&str]) -> Result<(), Error> {
    let mut command = Command::new("apt-get");
    // Packages of servers start them as system services; in run level 1 they do not.
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    run(subject, &mut command)
}

/// Runs `install` for `folder`, unless it was done before.
pub(crate) fn once(
    subject: &'static str,
    folder: &Path,
    install: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let complete = folder.join("complete");
    if complete.exists() {
        return Ok(());
    }
    let _lock = lock(subject, subject)?;
    if complete.exists() {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(Error::system(subject, "create the cache folder"))?;
    install()?;
    fs::write(&complete, "").map_err(Error::system(subject, "note that it is installed"))
}

/// Locks installations of a kind, across processes. Released when the file is closed.
fn lock(subject: &'static str, name: &str) -> Result<File, Error> {
    let folder = cache();
    fs::create_dir_all(&folder).map_err(Error::system(subject, "create the cache folder"))?;
    let file = File::create(folder.join(format!("{name}.lock")))
        .map_err(Error::system(subject, "open the installation lock"))?;
    file.lock().map_err(Error::system(subject, "take the installation lock"))?;
    Ok(file)
}

/// Variable that forbids installing.
const VARIABLE: &str = "DLQ_SERVICES";

/// Runs an installer to its end.
pub(crate) fn run(subject: &'static str, command: &mut Command) -> Result<(), Error> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let shown = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    if !may_install(subject, std::env::var_os(VARIABLE).as_deref())? {
        let text = format!("it is not installed, and {VARIABLE}=off forbids `{shown}`");
        return Err(Error::new(ErrorKind::NotInstalled, subject, text));
    }
    eprintln!("{subject}: installing: {shown}");
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<_> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(15)..].join("\n");
            let detail = format!("`{shown}` failed:\n{tail}");
            Err(Error::new(ErrorKind::NotInstalled, subject, detail))
        }
        Err(error) => {
            let detail = format!("cannot run `{shown}`: {error}");
            Err(Error::new(ErrorKind::NotInstalled, subject, detail))
        }
    }
}

fn may_install(subject: &'static str, value: Option<&OsStr>) -> Result<bool, Error> {
    match value.map(|value| value.to_str().unwrap_or("?")) {
        None | Some("" | "on") => Ok(true),
        Some("off") => Ok(false),
        Some(other) => {
            let text = format!("{VARIABLE} is `{other}`; set it to `on` or `off`");
            Err(Error::new(ErrorKind::NotInstalled, subject, text))
        }
    }
}

/// A tool that must be there before anything is installed with it.
pub(crate) fn tool(service: Service, name: &str, what: &str) -> Result<PathBuf, Error> {
    find(name).ok_or_else(|| {
        let variable = service.variable();
        let text = format!("`{name}` is missing; install {what}, or set {variable}");
        Error::new(ErrorKind::NotInstalled, service, text)
    })
}

/// A program on the path.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Our own user id: that of the owner of a process' own entry where the system has one. Elsewhere
/// we count as an ordinary user, who installs nothing.
pub(crate) fn user_id() -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").map_or(u32::MAX, |entry| entry.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installing_can_be_forbidden() {
        let may = |value: &str| may_install("nats", Some(OsStr::new(value)));
        assert!(may_install("nats", None).unwrap());
        assert!(may("").unwrap());
        assert!(may("on").unwrap());
        assert!(!may("off").unwrap());
        let refused = may("no").unwrap_err();
        assert!(
            refused.to_string().contains("DLQ_SERVICES is `no`; set it to `on` or `off`"),
            "{refused}"
        );
    }
}
