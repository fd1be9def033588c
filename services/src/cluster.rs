use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::POLL;
use crate::redis::cluster as redis;
use crate::running::READY;
use crate::{Error, ErrorKind, Running, Service, kafka, nats, wire};

/// Time limit of a question to a node.
const PATIENCE: Duration = Duration::from_secs(3);

/// The nodes of a cluster. All are killed when this is dropped; see [`Running`].
#[derive(Debug)]
#[must_use = "the cluster is killed when this is dropped"]
pub struct Cluster {
    service: Service,
    nodes: Vec<Running>,
    /// The indexes of nodes that were killed or paused and not brought back.
    absent: BTreeSet<usize>,
}

/// View of a node on its cluster. Nodes are named by their index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct View {
    /// The nodes it knows to be there, itself included.
    pub members: BTreeSet<usize>,
    /// The leader of the cluster's own data (JetStream's meta group, Kafka's controllers), if there
    /// is one now. Redis has none.
    pub leader: Option<usize>,
}

impl Cluster {
    pub(crate) fn new(service: Service, nodes: Vec<Running>) -> Self {
        Self { service, nodes, absent: BTreeSet::new() }
    }

    /// Makes nodes that were just started one cluster.
    pub(crate) fn form(&mut self) -> Result<(), Error> {
        if self.service == Service::Redis {
            redis::form(&self.nodes)?;
        }
        self.await_formed()
    }

    /// Its nodes. A node is killed through the cluster, which keeps track.
    pub fn nodes(&self) -> &[Running] {
        &self.nodes
    }

    /// Returns the URLs of all nodes, separated by commas.
    #[must_use]
    pub fn url(&self) -> String {
        self.nodes.iter().map(Running::url).collect::<Vec<_>>().join(",")
    }

    /// Kills a node as a crash would.
    ///
    /// # Errors
    ///
    /// `External` if the cluster is not ours; `System` if there is no such node. So for the other
    /// methods that change a node.
    pub fn kill(&mut self, index: usize) -> Result<(), Error> {
        self.node(index)?.kill()?;
        self.absent.insert(index);
        Ok(())
    }

    /// Freezes a node: its connections stay open and it answers nothing.
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill).
    pub fn pause(&mut self, index: usize) -> Result<(), Error> {
        self.node(index)?.pause()?;
        self.absent.insert(index);
        Ok(())
    }

    /// Lets a node go on after [`pause`](Self::pause).
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill).
    pub fn resume(&mut self, index: usize) -> Result<(), Error> {
        self.node(index)?.resume()?;
        self.absent.remove(&index);
        Ok(())
    }

    /// Starts a node again on the same data and the same port. Waits until it answers and, if a
    /// majority is there, until all present nodes know one another again.
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill); `NotReady` with the end of a log.
    pub fn restart(&mut self, index: usize) -> Result<(), Error> {
        self.node(index)?.revive()?;
        self.absent.remove(&index);
        if 2 * self.present().len() > self.nodes.len() { self.await_formed() } else { Ok(()) }
    }

    /// Returns a node's view of the cluster.
    ///
    /// # Errors
    ///
    /// `NoAnswer`; `External` for a NATS node that is not ours, whose monitoring address is unknown;
    /// `System` if there is no such node.
    pub fn view(&self, index: usize) -> Result<View, Error> {
        let node = self.nodes.get(index).ok_or_else(|| self.no_such(index))?;
        match self.service {
            Service::Nats => self.nats_view(node),
            Service::Redis => redis::view(&self.nodes, node),
            _ => self.kafka_view(node),
        }
    }

    /// The leader on which all present nodes agree, if there is one now.
    ///
    /// # Errors
    ///
    /// As [`view`](Self::view).
    pub fn leader(&self) -> Result<Option<usize>, Error> {
        let mut leaders = BTreeSet::new();
        for index in self.present() {
            leaders.insert(self.view(index)?.leader);
        }
        Ok(if leaders.len() == 1 { leaders.pop_first().flatten() } else { None })
    }

    /// Waits until the present nodes, and no others, know one another and agree on a leader; with
    /// NATS, until JetStream answers on each and, if all are present, keeps a replica on each; with
    /// Redis, until each knows the owners of all slots and serves its own.
    ///
    /// # Errors
    ///
    /// `NotReady` after 90 seconds, with the end of a log.
    pub fn await_formed(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + READY;
        let present = self.present();
        loop {
            let Err(reason) = self.is_formed_of(&present) else { return Ok(()) };
            for &index in &present {
                self.node(index)?.must_live()?;
            }
            if Instant::now() >= deadline {
                let logs: Vec<_> = self.nodes.iter().map(Running::log_tail).collect();
                let (seconds, logs) = (READY.as_secs(), logs.join("\n---\n"));
                let text = format!(
                    "the nodes form no cluster after {seconds} s ({reason}); their logs end:\n{logs}"
                );
                return Err(Error::new(ErrorKind::NotReady, self.service, text));
            }
            thread::sleep(POLL);
        }
    }

    fn is_formed_of(&self, present: &BTreeSet<usize>) -> Result<(), Error> {
        let wrong = |text: String| Err(wire::no_answer(self.service, text));
        for &index in present {
            let members = self.view(index)?.members;
            if members != *present {
                return wrong(format!("node {index} knows {members:?}, not {present:?}"));
            }
        }
        if self.service == Service::Redis {
            return present.iter().try_for_each(|&index| redis::serves(&self.nodes[index]));
        }
        match self.leader()? {
            Some(leader) if present.contains(&leader) => self.serves(present),
            Some(leader) => wrong(format!("their leader, node {leader}, is gone")),
            None => wrong("they agree on no leader".to_owned()),
        }
    }

    /// JetStream ignores requests for some seconds after its leader was elected, and places no
    /// replicas on nodes it has not yet heard of. So it is asked what will be asked of it.
    fn serves(&self, present: &BTreeSet<usize>) -> Result<(), Error> {
        const PROBE: &str = "DLQ_SERVICES_PROBE";
        if self.service != Service::Nats {
            return Ok(());
        }
        let ask = |index: usize, what: &str, payload: &str| {
            let url = self.nodes[index].url();
            let reply = wire::nats::request(url, &format!("$JS.API.{what}"), payload, PATIENCE)?;
            let refused = reply.contains("\"error\":");
            if refused { Err(wire::no_answer(self.service, reply)) } else { Ok(()) }
        };
        for &index in present {
            ask(index, "INFO", "")?;
        }
        // A stream with a replica on each node needs all of them.
        if present.len() == self.nodes.len() {
            let replicas = present.len();
            let stream = format!(
                r#"{{"name":"{PROBE}","subjects":["{PROBE}"],"storage":"memory","num_replicas":{replicas}}}"#
            );
            ask(0, &format!("STREAM.CREATE.{PROBE}"), &stream)?;
            ask(0, &format!("STREAM.DELETE.{PROBE}"), "")?;
        }
        Ok(())
    }

    fn present(&self) -> BTreeSet<usize> {
        (0..self.nodes.len()).filter(|index| !self.absent.contains(index)).collect()
    }

    fn node(&mut self, index: usize) -> Result<&mut Running, Error> {
        let error = self.no_such(index);
        self.nodes.get_mut(index).ok_or(error)
    }

    fn no_such(&self, index: usize) -> Error {
        let count = self.nodes.len();
        let text = format!("there is no node {index}; there are {count}, counted from 0");
        Error::new(ErrorKind::System, self.service, text)
    }

    fn nats_view(&self, node: &Running) -> Result<View, Error> {
        let address = node.monitor().ok_or_else(|| {
            let text = "its monitoring address is known only if it was started here";
            Error::new(ErrorKind::External, self.service, text)
        })?;
        let index_of = |name: &Value| {
            let name = name.as_str()?;
            (0..self.nodes.len()).find(|&index| nats::node_name(index) == name)
        };
        let routes = wire::nats::monitor(&address, "/routez", PATIENCE)?;
        let jetstream = wire::nats::monitor(&address, "/jsz", PATIENCE)?;
        let own = index_of(&routes["server_name"]);
        let others = routes["routes"].as_array().into_iter().flatten();
        let others = others.filter_map(|route| index_of(&route["remote_name"]));
        Ok(View {
            members: others.chain(own).collect(),
            leader: index_of(&jetstream["meta_cluster"]["leader"]),
        })
    }

    fn kafka_view(&self, node: &Running) -> Result<View, Error> {
        let index_of = |id: i32| {
            (0..self.nodes.len()).find(|&index| i32::try_from(kafka::node_id(index)) == Ok(id))
        };
        let brokers = wire::kafka::metadata(node.url(), &[], PATIENCE)?.brokers;
        let leader = wire::kafka::quorum_leader(node.url(), PATIENCE)?;
        Ok(View {
            members: brokers.iter().filter_map(|broker| index_of(broker.id)).collect(),
            leader: index_of(leader),
        })
    }
}
