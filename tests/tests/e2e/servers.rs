//! The servers that are killed.

use dlq_services::{Builder, Cluster, RedisSentinel, Running, Sentinels, Service, or_skip};

pub(crate) enum Servers {
    One(Running),
    Three(Cluster),
    /// A master of Redis and its replica, under sentinels.
    Sentinels(Sentinels),
}

impl Servers {
    /// One server with these settings, in its own words.
    pub(crate) fn one(service: Service, settings: &[(&str, &str)]) -> Option<Self> {
        or_skip(service, builder(service, settings).start()).ok().map(Self::One)
    }

    pub(crate) fn three(service: Service, settings: &[(&str, &str)]) -> Option<Self> {
        or_skip(service, builder(service, settings).start_cluster()).ok().map(Self::Three)
    }

    pub(crate) fn sentinels(settings: &[(&str, &str)]) -> Option<Self> {
        let ours = RedisSentinel::builder().ours();
        let builder =
            settings.iter().fold(ours, |builder, (name, value)| builder.setting(*name, *value));
        or_skip(Service::Redis, builder.start_sentinels()).ok().map(Self::Sentinels)
    }

    /// How many of them keep a message.
    pub(crate) const fn replicas(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Three(_) => 3,
            Self::Sentinels(_) => 2,
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        match self {
            Self::One(server) => vec![server.url().to_owned()],
            Self::Three(cluster) => cluster.nodes().iter().map(|node| node.url().into()).collect(),
            Self::Sentinels(sentinels) => sentinels.urls(),
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
            Self::Sentinels(sentinels) => {
                // On a busy machine they may be in the middle of a fail-over of their own accord.
                sentinels.await_formed().unwrap();
                let master = sentinels.master().unwrap();
                sentinels.kill(master).unwrap();
                sentinels.await_failover(master).unwrap();
                sentinels.restart(master).unwrap();
                // Another one may die only when this one has what the new master has.
                sentinels.await_formed().unwrap();
            }
        }
    }

    /// How often one was started.
    pub(crate) fn starts(&self) -> u32 {
        match self {
            Self::One(server) => server.starts(),
            Self::Three(cluster) => cluster.nodes().iter().map(Running::starts).sum(),
            Self::Sentinels(sentinels) => sentinels.nodes().iter().map(Running::starts).sum(),
        }
    }
}

fn builder(service: Service, settings: &[(&str, &str)]) -> Builder {
    let ours = service.builder().ours();
    settings.iter().fold(ours, |builder, (name, value)| builder.setting(*name, *value))
}
