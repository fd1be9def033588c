//! Installs servers from ordinary package sources. Doing it twice, or from many processes at once, is fine.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folder::cache;
use crate::{Error, ErrorKind, Service};

/// The version of nats-server that is installed.
pub const NATS_VERSION: &str = "2.15.2";
/// The version of Apache Kafka that is installed.
pub const KAFKA_VERSION: &str = "4.3.0";

/// Installs what is missing and returns where the server's programs are: a program, or for Kafka the folder of jars.
///
/// # Errors
///
/// `NotInstalled` when a tool is missing or we may not install; the text says what to run. `Unsupported` for MongoDB.
pub fn ensure_installed(service: Service) -> Result<PathBuf, Error> {
    match service {
        Service::Nats => nats(),
        Service::Kafka => kafka(),
        Service::Postgres => debian(service, "postgresql", find_postgres),
        Service::Redis => debian(service, "redis-server", || find("redis-server")),
        Service::Mongo => Err(Error::new(
            ErrorKind::Unsupported,
            service,
            format!(
                "there is no recipe for it here; start one yourself and set {}",
                service.variable()
            ),
        )),
    }
}

/// The program `promtool`, which checks alert rules.
///
/// # Errors
///
/// As [`ensure_installed`].
pub fn promtool() -> Result<PathBuf, Error> {
    debian(Service::Redis, "prometheus", || find("promtool"))
}

fn nats() -> Result<PathBuf, Error> {
    let folder = cache().join(format!("nats-{NATS_VERSION}"));
    let program = folder.join("nats-server");
    once(Service::Nats, &folder, || {
        let module = format!("github.com/nats-io/nats-server/v2@v{NATS_VERSION}");
        let mut command = Command::new("go");
        command.args(["install", &module]).env("GOBIN", &folder);
        run(Service::Nats, command)
    })?;
    Ok(program)
}

fn kafka() -> Result<PathBuf, Error> {
    if find("java").is_none() {
        return Err(Error::new(
            ErrorKind::NotInstalled,
            Service::Kafka,
            "`java` is missing; install Java 17 or later",
        ));
    }
    let folder = cache().join(format!("kafka-{KAFKA_VERSION}"));
    let jars = folder.join("jars");
    once(Service::Kafka, &folder, || {
        let pom = format!(
            "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
             <groupId>dlq</groupId><artifactId>kafka</artifactId><version>1</version><dependencies><dependency>\
             <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>\
             <version>{KAFKA_VERSION}</version></dependency></dependencies></project>"
        );
        let file = folder.join("pom.xml");
        fs::write(&file, pom).map_err(Error::system(Service::Kafka, "write the list of jars"))?;
        let mut command = Command::new("mvn");
        command.args(["-q", "-B", "-f"]).arg(&file).arg("dependency:copy-dependencies");
        command.arg(format!("-DoutputDirectory={}", jars.display()));
        run(Service::Kafka, command)
    })?;
    Ok(jars)
}

/// Finds a program, or installs the Debian package that has it.
fn debian(
    service: Service,
    package: &str,
    find: impl Fn() -> Option<PathBuf>,
) -> Result<PathBuf, Error> {
    if let Some(program) = find() {
        return Ok(program);
    }
    let advice = format!(
        "it is not installed; run `apt-get install {package}`, or set {}",
        service.variable()
    );
    let may_install = is_root() && crate::install::find("apt-get").is_some();
    if !may_install {
        return Err(Error::new(ErrorKind::NotInstalled, service, advice));
    }
    let _lock = lock(service)?;
    if find().is_none() {
        for args in [
            &["update", "-q"] as &[&str],
            &["install", "-y", "-q", "--no-install-recommends", package],
        ] {
            let mut command = Command::new("apt-get");
            command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
            run(service, command)?;
        }
    }
    find().ok_or_else(|| Error::new(ErrorKind::NotInstalled, service, advice))
}

/// Runs `install` into `folder` unless that was done before.
fn once(
    service: Service,
    folder: &Path,
    install: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let complete = folder.join("complete");
    if complete.exists() {
        return Ok(());
    }
    let _lock = lock(service)?;
    if complete.exists() {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(Error::system(service, "create the cache folder"))?;
    install()?;
    fs::write(&complete, "").map_err(Error::system(service, "note that it is installed"))
}

/// One installation at a time, across processes. Released when the file is closed.
fn lock(service: Service) -> Result<File, Error> {
    let folder = cache();
    fs::create_dir_all(&folder).map_err(Error::system(service, "create the cache folder"))?;
    let file = File::create(folder.join("lock"))
        .map_err(Error::system(service, "open the installation lock"))?;
    file.lock().map_err(Error::system(service, "take the installation lock"))?;
    Ok(file)
}

fn run(service: Service, mut command: Command) -> Result<(), Error> {
    let shown = format!("{command:?}").replace('"', "");
    eprintln!("{service}: installing: {shown}");
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            let tail: Vec<_> = text.lines().rev().take(15).collect();
            let tail: Vec<_> = tail.into_iter().rev().collect();
            Err(Error::new(
                ErrorKind::NotInstalled,
                service,
                format!("`{shown}` failed:\n{}", tail.join("\n")),
            ))
        }
        Err(error) => Err(Error::new(
            ErrorKind::NotInstalled,
            service,
            format!(
                "cannot run `{shown}`: {error}; install the tool, or set {}",
                service.variable()
            ),
        )),
    }
}

/// A program on the path, or in the folders where servers are kept.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder: PathBuf| folder.join(program)).find(|file| file.is_file())
}

/// PostgreSQL's server program of the newest version installed; Debian keeps it off the path.
fn find_postgres() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = versions
        .filter_map(|entry| {
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            let program = entry.path().join("bin").join("postgres");
            program.is_file().then_some((version, program))
        })
        .max()
        .map(|(_, program)| program);
    debian.or_else(|| find("postgres"))
}

/// Whether we are root: the owner of our own entry among the processes.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}
