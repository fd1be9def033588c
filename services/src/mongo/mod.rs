//! What speaks MongoDB's protocol: mongo-java-server, behind a launcher of our own.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::builder::Plan;
use crate::folder::cache;
use crate::install::{debian, find, once, run, tool};
use crate::process::Launch;
use crate::{Builder, Error, Running, Service, maven};

/// The version of mongo-java-server that is installed.
pub const MONGO_VERSION: &str = "1.47.0";

/// The library's own main classes take no port and report a protocol that drivers no longer speak.
const LAUNCHER: &str = include_str!("Launcher.java");

/// mongo-java-server with its data in a file, which calls itself MongoDB 4.4.
///
/// It shows the state machine of a store, atomic claims, filters and pages. It cannot show replication, write concerns,
/// transactions, change streams, or whether an index is used, and its TTL indexes never expire anything.
#[derive(Clone, Copy, Debug)]
pub struct Mongo;

impl Mongo {
    /// How to start one. Settings are those of the launcher: `file` (empty for data in memory), `version` and `wireVersion`.
    pub fn builder() -> Builder {
        Builder::new(Service::Mongo)
    }

    /// Starts one as it is by default: every write in its file before it is answered.
    ///
    /// # Errors
    ///
    /// See [`Builder::start`].
    pub fn start() -> Result<Running, Error> {
        Self::builder().start()
    }
}

/// Fetches the jars, compiles the launcher, and returns the folder of both.
pub(crate) fn install() -> Result<PathBuf, Error> {
    let name = Service::Mongo.name();
    let folder = cache().join(format!("mongo-java-server-{MONGO_VERSION}"));
    // Only a development kit has the compiler; it has the machine to run it as well.
    let compiler = || debian("javac", "default-jdk-headless", || find("javac"));
    let jars = folder.join("jars");
    if !folder.join("complete").exists() {
        compiler()?;
    }
    once(name, &folder, || {
        let artifacts = &["mongo-java-server", "mongo-java-server-h2-backend"];
        maven::fetch(Service::Mongo, ("de.bwaldvogel", artifacts, MONGO_VERSION), &folder, &jars)
    })?;
    let launcher = launcher(&folder);
    once(name, &launcher, || {
        let source = launcher.join("Launcher.java");
        fs::write(&source, LAUNCHER).map_err(Error::system(name, "write its launcher"))?;
        let mut command = Command::new(compiler()?);
        command.args(["--release", "17", "-cp"]).arg(format!("{}/*", jars.display()));
        run(name, command.arg("-d").arg(&launcher).arg(&source))
    })?;
    Ok(folder)
}

/// The folder of the compiled launcher. Another launcher has another folder.
fn launcher(folder: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    LAUNCHER.hash(&mut hasher);
    folder.join(format!("launcher-{:016x}", hasher.finish()))
}

pub(crate) fn prepare(folder: &Path, plan: &Plan<'_>) -> Result<Launch, Error> {
    let path = format!("{}:{}/jars/*", launcher(folder).display(), folder.display());
    let mut args: Vec<String> =
        ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", &path, "Launcher"]
            .map(str::to_owned)
            .to_vec();
    args.push(plan.own_ports().client.to_string());
    args.push(format!("file={}", plan.folder.join("data.h2").display()));
    args.extend(plan.settings.iter().map(|(name, value)| format!("{name}={value}")));
    let program = tool(Service::Mongo, "java", "Java 17 or later")?;
    Ok(Launch { program, args, env: Vec::new(), user: None, stop_signal: "TERM" })
}
