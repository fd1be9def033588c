//! nats-server with JetStream, alone or three together.

use std::fs;

use crate::folder::Data;
use crate::install::ensure_installed;
use crate::port::free_port;
use crate::process::Launch;
use crate::running::Running;
use crate::wire::nats_monitor;
use crate::{Cluster, Error, ErrorKind, Service};
use std::time::Duration;

const SERVICE: Service = Service::Nats;

pub(crate) fn start() -> Result<Running, Error> {
    let port = port()?;
    let data = Data::new(SERVICE)?;
    let config = format!(
        "listen: 127.0.0.1:{port}\njetstream {{ store_dir: \"{}\" }}\nmax_payload: 1MB\n",
        data.path().join("jetstream").display()
    );
    Running::start(SERVICE, launch(&data, &config)?, port, data)
}

/// Three nodes whose JetStream keeps three copies.
pub(crate) fn cluster() -> Result<Cluster, Error> {
    let ports: Vec<[u16; 3]> =
        (0..3).map(|_| Ok([port()?, port()?, port()?])).collect::<Result<_, Error>>()?;
    let routes: Vec<_> =
        ports.iter().map(|[_, route, _]| format!("nats://127.0.0.1:{route}")).collect();
    let mut nodes = Vec::new();
    for (index, [client, route, monitor]) in ports.iter().enumerate() {
        let data = Data::new(SERVICE)?;
        let config = format!(
            "server_name: node-{index}\nlisten: 127.0.0.1:{client}\nhttp: 127.0.0.1:{monitor}\n\
             jetstream {{ store_dir: \"{}\" }}\n\
             cluster {{ name: dlq, listen: 127.0.0.1:{route}, routes: [{}] }}\n",
            data.path().join("jetstream").display(),
            routes.join(", ")
        );
        nodes.push(Running::launch(SERVICE, launch(&data, &config)?, *client, data)?);
    }
    for (node, [_, _, monitor]) in nodes.iter_mut().zip(&ports) {
        node.wait_until(|node| {
            node.ping()?;
            has_leader(&format!("127.0.0.1:{monitor}"))
        })?;
    }
    Ok(Cluster::new(nodes))
}

/// Whether the node knows a leader of the group that keeps JetStream's metadata.
fn has_leader(monitor: &str) -> Result<(), Error> {
    let answer = nats_monitor(monitor, "/jsz", Duration::from_secs(2)).unwrap_or_default();
    if answer.contains("\"leader\": \"node-") || answer.contains("\"leader\":\"node-") {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::NotReady, SERVICE, "JetStream has no leader yet"))
    }
}

fn launch(data: &Data, config: &str) -> Result<Launch, Error> {
    let program = ensure_installed(SERVICE)?;
    let file = data.path().join("nats.conf");
    fs::write(&file, config).map_err(Error::system(SERVICE, "write its configuration"))?;
    Ok(Launch { program, args: vec!["-c".to_owned(), file.display().to_string()], user: None })
}

fn port() -> Result<u16, Error> {
    free_port().map_err(Error::system(SERVICE, "find a free port"))
}
