//! Apache Kafka in KRaft mode, one node or three, each both broker and controller.

use std::fs;
use std::path::Path;

use crate::folder::Data;
use crate::install::{ensure_installed, find};
use crate::port::free_port;
use crate::process::{Launch, run_as};
use crate::running::Running;
use crate::wire::kafka_size;
use crate::{Cluster, Error, ErrorKind, Service};
use std::time::Duration;

const SERVICE: Service = Service::Kafka;
/// Any 16 bytes in URL-safe base64.
const CLUSTER_ID: &str = "ZGxxLXRlc3QtY2x1c3Rlcg";

pub(crate) fn start() -> Result<Running, Error> {
    let ports = [ports()?];
    let data = Data::new(SERVICE)?;
    let launch = prepare(&data, 0, &ports)?;
    Running::start(SERVICE, launch, ports[0].client, data)
}

/// Three nodes; topics may have three copies, and the internal ones do.
pub(crate) fn cluster() -> Result<Cluster, Error> {
    let ports = [ports()?, ports()?, ports()?];
    let mut nodes = Vec::new();
    for (index, node) in ports.iter().enumerate() {
        let data = Data::new(SERVICE)?;
        let launch = prepare(&data, index, &ports)?;
        nodes.push(Running::launch(SERVICE, launch, node.client, data)?);
    }
    for node in &mut nodes {
        node.wait_until(|node| {
            let known = kafka_size(node.url(), Duration::from_secs(2)).unwrap_or(0);
            if known == ports.len() {
                return Ok(());
            }
            Err(Error::new(
                ErrorKind::NotReady,
                SERVICE,
                format!("it knows {known} of {} brokers", ports.len()),
            ))
        })?;
    }
    Ok(Cluster::new(nodes))
}

struct Ports {
    client: u16,
    controller: u16,
}

fn ports() -> Result<Ports, Error> {
    let port = || free_port().map_err(Error::system(SERVICE, "find a free port"));
    Ok(Ports { client: port()?, controller: port()? })
}

/// Writes the configuration of node `index`, formats its storage, and says how to start it.
fn prepare(data: &Data, index: usize, ports: &[Ports]) -> Result<Launch, Error> {
    let jars = ensure_installed(SERVICE)?;
    let voters: Vec<_> = ports
        .iter()
        .enumerate()
        .map(|(id, node)| format!("{id}@127.0.0.1:{}", node.controller))
        .collect();
    let Ports { client, controller } = ports[index];
    let copies = ports.len();
    let config = format!(
        "process.roles=broker,controller\nnode.id={index}\ncontroller.quorum.voters={}\n\
         listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{client}\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
         controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n\
         log.dirs={}\nnum.partitions=1\nauto.create.topics.enable=false\n\
         offsets.topic.replication.factor={copies}\noffsets.topic.num.partitions=3\n\
         transaction.state.log.replication.factor={copies}\ntransaction.state.log.num.partitions=3\n\
         transaction.state.log.min.isr={isr}\nshare.coordinator.state.topic.replication.factor={copies}\n\
         share.coordinator.state.topic.min.isr={isr}\nmin.insync.replicas={isr}\n\
         default.replication.factor={copies}\ngroup.initial.rebalance.delay.ms=0\n",
        voters.join(","),
        data.path().join("log").display(),
        isr = if copies > 1 { 2 } else { 1 },
    );
    let file = data.path().join("server.properties");
    fs::write(&file, config).map_err(Error::system(SERVICE, "write its configuration"))?;
    let file = file.display().to_string();
    let format =
        java(&jars, data, "kafka.tools.StorageTool", &["format", "-t", CLUSTER_ID, "-c", &file])?;
    run_as(SERVICE, &format)?;
    java(&jars, data, "kafka.Kafka", &[&file])
}

fn java(jars: &Path, data: &Data, class: &str, args: &[&str]) -> Result<Launch, Error> {
    let program = find("java").ok_or_else(|| {
        Error::new(ErrorKind::NotInstalled, SERVICE, "`java` is missing; install Java 17 or later")
    })?;
    let mut all = vec![
        "-Xmx512m".to_owned(),
        "-XX:+UseSerialGC".to_owned(),
        format!("-Dkafka.logs.dir={}", data.path().display()),
        "-cp".to_owned(),
        format!("{}/*", jars.display()),
        class.to_owned(),
    ];
    all.extend(args.iter().map(|arg| (*arg).to_owned()));
    Ok(Launch { program, args: all, user: None })
}
