//! The servers that are killed.

use dlq_services::{Cluster, NatsCluster, Running, Service, or_skip};

pub(crate) enum Servers {
    One(Running),
    Three(Cluster),
}

impl Servers {
    pub(crate) fn one() -> Option<Self> {
        or_skip(Service::Nats, Service::Nats.builder().ours().start()).ok().map(Self::One)
    }

    pub(crate) fn three() -> Option<Self> {
        let started = NatsCluster::builder().ours().start_cluster();
        or_skip(Service::Nats, started).ok().map(Self::Three)
    }

    /// How many of them keep a message.
    pub(crate) const fn replicas(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Three(_) => 3,
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        match self {
            Self::One(server) => vec![server.url().to_owned()],
            Self::Three(cluster) => cluster.nodes().iter().map(|node| node.url().into()).collect(),
        }
    }

    /// `kill -9` of one of them, in turn, which then starts again on its data.
    pub(crate) fn restart(&mut self, turn: u64) {
        match self {
            Self::One(server) => server.restart().unwrap(),
            Self::Three(cluster) => {
                let index = usize::try_from(turn % 3).unwrap();
                cluster.kill(index).unwrap();
                // The others go on without it.
                cluster.await_formed().unwrap();
                cluster.restart(index).unwrap();
            }
        }
    }

    /// How often one was started.
    pub(crate) fn starts(&self) -> u32 {
        match self {
            Self::One(server) => server.starts(),
            Self::Three(cluster) => cluster.nodes().iter().map(Running::starts).sum(),
        }
    }
}
