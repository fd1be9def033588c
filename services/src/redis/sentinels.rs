//! A master and its replica, and the sentinels that make the replica the master when the master is gone.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use crate::builder::Plan;
use crate::process::POLL;
use crate::running::READY;
use crate::{Builder, Error, ErrorKind, Redis, Running, Service, wire};

/// How many servers of data there are: a master and its replica.
pub(crate) const SERVERS: usize = 2;

/// How many sentinels watch them; two must agree.
pub(crate) const SENTINELS: usize = 3;

/// How long one question to a node may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// A master of Redis, one replica and three sentinels.
#[derive(Clone, Copy, Debug)]
pub struct RedisSentinel;

impl RedisSentinel {
    /// How to start them; end with [`Builder::start_sentinels`].
    pub fn builder() -> Builder {
        Redis::builder()
    }

    /// Starts them as they are by default.
    ///
    /// # Errors
    ///
    /// See [`Builder::start_sentinels`].
    pub fn start() -> Result<Sentinels, Error> {
        Self::builder().start_sentinels()
    }
}

/// Two servers of Redis, nodes 0 and 1, and three sentinels, nodes 2 to 4. At first node 0 is the master. All are killed
/// when this is dropped; see [`Running`].
///
/// Replication is asynchronous: a fail-over forgets what the old master had not passed on.
#[derive(Debug)]
#[must_use = "the servers are killed when this is dropped"]
pub struct Sentinels {
    nodes: Vec<Running>,
    /// The indexes of nodes that were killed or paused and not brought back.
    absent: BTreeSet<usize>,
}

impl Sentinels {
    /// Name under which the sentinels know the master.
    pub const MASTER_NAME: &'static str = "dlq";

    pub(crate) fn new(nodes: Vec<Running>) -> Self {
        Self { nodes, absent: BTreeSet::new() }
    }

    /// All nodes: the two servers, then the sentinels. A node is killed through [`kill`](Self::kill), which keeps track.
    pub fn nodes(&self) -> &[Running] {
        &self.nodes
    }

    /// The URLs of the sentinels, which clients ask for the master.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().skip(SERVERS).map(|node| node.url().to_owned()).collect()
    }

    /// Kills a node as a crash would.
    ///
    /// # Errors
    ///
    /// `System` if there is no such node. So for the other methods that change a node.
    pub fn kill(&mut self, index: usize) -> Result<(), Error> {
        self.node(index)?.kill()?;
        self.absent.insert(index);
        Ok(())
    }

    /// Freezes a node: its connections stay open and it answers nothing. A master that is paused for longer than two
    /// seconds is taken for dead; when it goes on it still takes itself for the master, until the sentinels tell it.
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

    /// Starts a node again on the same data and the same port, and waits until it answers. A former master follows the new
    /// one after [`await_formed`](Self::await_formed).
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill); `NotReady` with the end of its log.
    pub fn restart(&mut self, index: usize) -> Result<(), Error> {
        self.node(index)?.revive()?;
        self.absent.remove(&index);
        Ok(())
    }

    /// Index of the server that all present sentinels call the master and that calls itself so.
    ///
    /// # Errors
    ///
    /// `NoAnswer` while they disagree or somebody does not answer.
    pub fn master(&self) -> Result<usize, Error> {
        let mut named = BTreeSet::new();
        for sentinel in self.present().filter(|&index| index >= SERVERS) {
            let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::MASTER_NAME];
            named.insert(self.ask(sentinel, &words)?.lines().nth(1).unwrap_or_default().to_owned());
        }
        let (Some(port), true) = (named.first(), named.len() == 1) else {
            return Err(no_answer(format!("the sentinels name these ports of masters: {named:?}")));
        };
        let ends = format!(":{port}");
        let server = self.nodes.iter().take(SERVERS).position(|node| node.url().ends_with(&ends));
        let Some(server) = server else {
            return Err(no_answer(format!("the sentinels name a master on port `{port}`")));
        };
        let role = self.role(server)?;
        if role[0] == "master" {
            return Ok(server);
        }
        Err(no_answer(format!(
            "the sentinels call node {server} the master, which is `{}`",
            role[0]
        )))
    }

    /// Waits until another server than `former` is the master, and returns its index. For after `former` was killed or
    /// paused.
    ///
    /// # Errors
    ///
    /// `NotReady` after 90 seconds, with the ends of the logs.
    pub fn await_failover(&mut self, former: usize) -> Result<usize, Error> {
        self.await_that("there is no other master", |nodes| match nodes.master()? {
            master if master == former => Err(no_answer(format!("node {former} is the master"))),
            master => Ok(master),
        })
    }

    /// Waits until the present nodes agree: the sentinels on a master and on how many they are, and the replica, if it is
    /// present, follows that master and has all of its data.
    ///
    /// # Errors
    ///
    /// `NotReady` after 90 seconds, with the ends of the logs.
    pub fn await_formed(&mut self) -> Result<(), Error> {
        self.await_that("the nodes do not agree", Self::is_formed)
    }

    fn is_formed(&self) -> Result<(), Error> {
        let master = self.master()?;
        for sentinel in self.present().filter(|&index| index >= SERVERS) {
            let state = self.ask(sentinel, &["SENTINEL", "MASTER", Self::MASTER_NAME])?;
            let words: Vec<_> = state.split('\n').collect();
            for (name, expected) in
                [("num-other-sentinels", SENTINELS - 1), ("num-slaves", SERVERS - 1)]
            {
                let found =
                    words.chunks(2).find(|pair| pair[0] == name).and_then(|pair| pair.get(1));
                if found.copied() != Some(expected.to_string().as_str()) {
                    return Err(no_answer(format!("node {sentinel} has {name} {found:?}")));
                }
            }
        }
        let replica = SERVERS - 1 - master;
        if self.absent.contains(&replica) {
            return Ok(());
        }
        // slave, host, port, state, offset
        let role = self.role(replica)?;
        let follows =
            role.get(2).is_some_and(|port| self.nodes[master].url().ends_with(&format!(":{port}")));
        if role[0] == "slave" && follows && role.get(3).is_some_and(|state| state == "connected") {
            return Ok(());
        }
        Err(no_answer(format!("node {replica} does not follow node {master}: {role:?}")))
    }

    fn await_that<T>(
        &mut self,
        what: &str,
        check: impl Fn(&Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + READY;
        loop {
            let error = match check(self) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            for index in self.present().collect::<Vec<_>>() {
                self.node(index)?.must_live()?;
            }
            if Instant::now() >= deadline {
                let logs: Vec<_> = self.nodes.iter().map(Running::log_tail).collect();
                let (seconds, logs) = (READY.as_secs(), logs.join("\n---\n"));
                let text = format!("{what} after {seconds} s ({error}); their logs end:\n{logs}");
                return Err(Error::new(ErrorKind::NotReady, Service::Redis, text));
            }
            thread::sleep(POLL);
        }
    }

    fn role(&self, index: usize) -> Result<Vec<String>, Error> {
        Ok(self.ask(index, &["ROLE"])?.split('\n').map(str::to_owned).collect())
    }

    fn ask(&self, index: usize, words: &[&str]) -> Result<String, Error> {
        Ok(wire::redis::command(self.nodes[index].url(), words, PATIENCE)?.unwrap_or_default())
    }

    fn present(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|index| !self.absent.contains(index))
    }

    fn node(&mut self, index: usize) -> Result<&mut Running, Error> {
        let count = self.nodes.len();
        self.nodes.get_mut(index).ok_or_else(|| {
            let text = format!("there is no node {index}; there are {count}, counted from 0");
            Error::new(ErrorKind::System, Service::Redis, text)
        })
    }
}

/// The configuration of a server besides what every server has.
pub(super) fn server_configuration(plan: &Plan<'_>) -> String {
    // Otherwise the first copy waits five seconds for other replicas.
    let mut text = "repl-diskless-sync-delay 0\n".to_owned();
    if plan.index > 0 {
        let _ = writeln!(text, "replicaof 127.0.0.1 {}", plan.ports[0].client);
    }
    text
}

pub(super) fn configuration(plan: &Plan<'_>) -> String {
    let name = Sentinels::MASTER_NAME;
    format!(
        "bind 127.0.0.1\nport {}\ndir \"{}\"\nsentinel monitor {name} 127.0.0.1 {} 2\n\
         sentinel down-after-milliseconds {name} 2000\nsentinel failover-timeout {name} 10000\n",
        plan.own_ports().client,
        plan.folder.display(),
        plan.ports[0].client,
    )
}

fn no_answer(text: String) -> Error {
    wire::no_answer(Service::Redis, text)
}
