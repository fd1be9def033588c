use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::builder::{Login, Plan};
use crate::folder::cache;
use crate::install::{once, tool};
use crate::process::{Launch, run_to_end};
use crate::{Builder, Cluster, Error, Running, Service, maven};

/// The version of Apache Kafka that is installed.
pub const KAFKA_VERSION: &str = "4.3.0";

/// An id as the storage tool wants it: sixteen bytes in base64.
const CLUSTER_ID: &str = "ZGxxLXNlcnZpY2VzLTAwMQ";

/// Mechanisms by which a user may log in besides `PLAIN`.
const SCRAM: [&str; 2] = ["SCRAM-SHA-256", "SCRAM-SHA-512"];

/// Apache Kafka, each node both broker and controller.
#[derive(Clone, Copy, Debug)]
pub struct Kafka;

impl Kafka {
    /// Returns a builder. Settings are lines of its `server.properties`.
    pub fn builder() -> Builder {
        Builder::new(Service::Kafka)
    }

    /// Installs another version than [`KAFKA_VERSION`] and returns the folder of its jars, for [`Builder::program`]. The
    /// tools of that version are among them, such as `org.apache.kafka.tools.ConfigCommand`.
    ///
    /// # Errors
    ///
    /// As [`ensure_installed`](crate::ensure_installed).
    pub fn installed(version: &str) -> Result<PathBuf, Error> {
        fetch(version, &["kafka_2.13", "kafka-tools"])
    }

    /// Starts one as it is by default: 512 MB of heap, internal topics with one replica.
    ///
    /// # Errors
    ///
    /// See [`Builder::start`].
    pub fn start() -> Result<Running, Error> {
        Self::builder().start()
    }
}

/// Three Kafka nodes: topics have three replicas of which two must confirm (`min.insync.replicas`).
#[derive(Clone, Copy, Debug)]
pub struct KafkaCluster;

impl KafkaCluster {
    /// Returns a builder; end with [`Builder::start_cluster`].
    pub fn builder() -> Builder {
        Kafka::builder()
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
    fetch(KAFKA_VERSION, &["kafka_2.13"])
}

/// Fetches the jars of these artifacts, with all that they need, and returns their folder.
fn fetch(version: &str, artifacts: &[&str]) -> Result<PathBuf, Error> {
    let name = Service::Kafka.name();
    tool(Service::Kafka, "java", "Java 17 or later")?;
    let folder = cache().join(format!("kafka-{version}"));
    let jars = folder.join("jars");
    once(name, &folder, || {
        maven::fetch(Service::Kafka, ("org.apache.kafka", artifacts, version), &folder, &jars)
    })?;
    Ok(jars)
}

pub(crate) fn prepare(jars: PathBuf, plan: &Plan<'_>) -> Result<Launch, Error> {
    let file = plan.folder.join("server.properties").display().to_string();
    fs::write(&file, properties(plan))
        .map_err(Error::system(Service::Kafka, "write its configuration"))?;
    let java = |arguments: &[&str]| -> Result<Launch, Error> {
        let mut args: Vec<String> =
            ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"].map(str::to_owned).to_vec();
        args.extend(["-cp".to_owned(), format!("{}/*", jars.display())]);
        args.extend(arguments.iter().map(|&argument| argument.to_owned()));
        let program = tool(Service::Kafka, "java", "Java 17 or later")?;
        Ok(Launch { program, args, env: Vec::new(), user: None, stop_signal: "TERM" })
    };
    let format = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", CLUSTER_ID];
    let users = plan.login.map_or_else(Vec::new, |Login { user, password }| {
        let user = |mechanism| format!("{mechanism}=[name={user},password={password}]");
        SCRAM.map(user).to_vec()
    });
    let users: Vec<_> = users.iter().flat_map(|user| ["--add-scram", user.as_str()]).collect();
    run_to_end(Service::Kafka, &java(&[&format[..], &["-c", &file], &users].concat())?)?;
    java(&["kafka.Kafka", &file])
}

fn properties(plan: &Plan<'_>) -> String {
    let ports = plan.own_ports();
    let count = plan.ports.len();
    let (replicas, in_sync) = if count > 1 { (3, 2) } else { (1, 1) };
    let voters = plan.ports.iter().enumerate();
    let voters = voters
        .map(|(index, ports)| format!("{}@127.0.0.1:{}", node_id(index), ports.peer))
        .collect::<Vec<_>>()
        .join(",");
    let mut text = format!(
        "process.roles=broker,controller\n\
         node.id={id}\n\
         controller.quorum.voters={voters}\n\
         controller.listener.names=CONTROLLER\n\
         listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{peer}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{client}\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
         inter.broker.listener.name=PLAINTEXT\n\
         log.dirs={logs}\n\
         default.replication.factor={replicas}\n\
         min.insync.replicas={in_sync}\n\
         group.initial.rebalance.delay.ms=0\n\
         broker.heartbeat.interval.ms=500\n\
         broker.session.timeout.ms=6000\n",
        id = node_id(plan.index),
        client = ports.client,
        peer = ports.peer,
        logs = plan.folder.join("logs").display(),
    );
    for topic in ["offsets.topic", "transaction.state.log", "share.coordinator.state.topic"] {
        let _ = writeln!(text, "{topic}.replication.factor={replicas}");
        let _ = writeln!(text, "{topic}.num.partitions=5");
    }
    for topic in ["transaction.state.log", "share.coordinator.state.topic"] {
        let _ = writeln!(text, "{topic}.min.isr={in_sync}");
    }
    if let Some(Login { user, password }) = plan.login {
        let port = ports.monitor;
        let _ = writeln!(
            text,
            "listeners=PLAINTEXT://127.0.0.1:{},LOGIN://127.0.0.1:{port},CONTROLLER://127.0.0.1:{}",
            ports.client, ports.peer
        );
        let _ = writeln!(
            text,
            "advertised.listeners=PLAINTEXT://127.0.0.1:{},LOGIN://127.0.0.1:{port}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT\n\
             listener.name.login.sasl.enabled.mechanisms=PLAIN,{}",
            ports.client,
            SCRAM.join(",")
        );
        let module = "org.apache.kafka.common.security";
        let jaas = |mechanism: &str, module: &str| {
            let mechanism = mechanism.to_lowercase();
            format!("listener.name.login.{mechanism}.sasl.jaas.config={module} required")
        };
        let plain = jaas("PLAIN", &format!("{module}.plain.PlainLoginModule"));
        let _ = writeln!(text, "{plain} user_{user}=\"{password}\";");
        for mechanism in SCRAM {
            let scram = jaas(mechanism, &format!("{module}.scram.ScramLoginModule"));
            let _ = writeln!(text, "{scram};");
        }
    }
    // A property that is given twice has its last value.
    for (name, value) in plan.settings {
        let _ = writeln!(text, "{name}={value}");
    }
    text
}

/// The id of the node with this index.
pub(crate) fn node_id(index: usize) -> usize {
    index + 1
}
