use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::builder::Plan;
use crate::folder::cache;
use crate::install::{once, run, tool};
use crate::process::Launch;
use crate::{Builder, Cluster, Error, Running, Service};

/// The version of nats-server that is installed.
pub const NATS_VERSION: &str = "2.15.2";

/// nats-server with JetStream on files.
#[derive(Clone, Copy, Debug)]
pub struct Nats;

impl Nats {
    /// Returns a builder. Settings are lines of its configuration file, such as `max_payload`.
    pub fn builder() -> Builder {
        Builder::new(Service::Nats)
    }

    /// Installs another version than [`NATS_VERSION`] and returns its program, for [`Builder::program`].
    ///
    /// # Errors
    ///
    /// As [`ensure_installed`](crate::ensure_installed).
    pub fn installed(version: &str) -> Result<PathBuf, Error> {
        let name = Service::Nats.name();
        let folder = cache().join(format!("nats-{version}"));
        once(name, &folder, || {
            let go = tool(Service::Nats, "go", "Go")?;
            let module = format!("github.com/nats-io/nats-server/v2@v{version}");
            run(name, Command::new(go).args(["install", &module]).env("GOBIN", &folder))
        })?;
        Ok(folder.join("nats-server"))
    }

    /// Starts one as it is by default.
    ///
    /// # Errors
    ///
    /// See [`Builder::start`].
    pub fn start() -> Result<Running, Error> {
        Self::builder().start()
    }
}

/// Three nats-servers whose JetStream can keep three replicas.
#[derive(Clone, Copy, Debug)]
pub struct NatsCluster;

impl NatsCluster {
    /// Returns a builder; end with [`Builder::start_cluster`].
    pub fn builder() -> Builder {
        Nats::builder()
    }

    /// Starts one as it is by default.
    ///
    /// # Errors
    ///
    /// See [`Builder::start_cluster`].
    pub fn start() -> Result<Cluster, Error> {
        Self::builder().start_cluster()
    }
}

pub(crate) fn install() -> Result<PathBuf, Error> {
    Nats::installed(NATS_VERSION)
}

pub(crate) fn prepare(program: PathBuf, plan: &Plan<'_>) -> Result<Launch, Error> {
    let ports = plan.own_ports();
    let mut text = format!(
        "server_name: {}\nlisten: 127.0.0.1:{}\nhttp: 127.0.0.1:{}\n\
         jetstream {{ store_dir: \"{}\", max_mem: 256MB, max_file: 4GB }}\n",
        node_name(plan.index),
        ports.client,
        ports.monitor,
        plan.folder.join("store").display(),
    );
    if plan.ports.len() > 1 {
        let routes = plan.ports.iter().map(|ports| format!("\"nats://127.0.0.1:{}\"", ports.peer));
        let routes = routes.collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            text,
            "cluster {{ name: dlq, listen: 127.0.0.1:{}, routes: [{routes}] }}",
            ports.peer
        );
    }
    for (name, value) in plan.settings {
        let _ = writeln!(text, "{name}: {value}");
    }
    let file = plan.folder.join("nats.conf");
    fs::write(&file, text).map_err(Error::system(Service::Nats, "write its configuration"))?;
    let args = vec!["--config".to_owned(), file.display().to_string()];
    Ok(Launch { program, args, env: Vec::new(), user: None, stop_signal: "TERM" })
}

/// The name under which the nodes of a cluster know the node with this index.
pub(crate) fn node_name(index: usize) -> String {
    format!("n{}", index + 1)
}
