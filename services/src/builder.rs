use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::folder::Data;
use crate::install::ensure_installed;
use crate::port::Ports;
use crate::process::Launch;
use crate::running::Own;
use crate::{
    Cluster, Error, ErrorKind, Running, Sentinels, Service, kafka, mongo, nats, postgres, redis,
};

/// Number of times that other ports are tried when somebody else was faster.
const PORT_ATTEMPTS: u32 = 5;

/// Builder of a server or a cluster.
#[derive(Clone, Debug)]
#[must_use = "nothing is started before `start` or `start_cluster`"]
pub struct Builder {
    service: Service,
    settings: Vec<(String, String)>,
    env: Vec<(String, String)>,
    keep_in: Option<PathBuf>,
    program: Option<PathBuf>,
    ours: bool,
    login: Option<Login>,
}

/// User who may log in.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The server that the environment names, or else one that is installed and started as it is by
/// default.
///
/// # Errors
///
/// See [`Builder::start`].
pub fn start(service: Service) -> Result<Running, Error> {
    Builder::new(service).start()
}

/// The same for three nodes of NATS, Kafka or Redis that form a cluster.
///
/// # Errors
///
/// See [`Builder::start_cluster`].
pub fn start_cluster(service: Service) -> Result<Cluster, Error> {
    Builder::new(service).start_cluster()
}

/// Arrangement of the nodes that are started together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Single,
    Cluster,
    /// Two servers of Redis and the sentinels that watch them.
    Sentinels,
}

impl Layout {
    const fn size(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Cluster => 3,
            Self::Sentinels => redis::SERVERS + redis::SENTINELS,
        }
    }
}

/// Plan of one node, for the recipe of a server.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) layout: Layout,
    pub(crate) index: usize,
    /// Ports of all nodes.
    pub(crate) ports: &'a [Ports],
    pub(crate) folder: &'a Path,
    pub(crate) settings: &'a [(String, String)],
    pub(crate) login: Option<&'a Login>,
}

impl Plan<'_> {
    pub(crate) fn own_ports(&self) -> Ports {
        self.ports[self.index]
    }
}

impl Builder {
    pub(crate) fn new(service: Service) -> Self {
        Self {
            service,
            settings: Vec::new(),
            env: Vec::new(),
            keep_in: None,
            program: None,
            ours: false,
            login: None,
        }
    }

    /// A setting in the server's own words, for each node. Later ones and those given here prevail
    /// over earlier ones and over the defaults.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// A variable of the server's environment, beside ours, for each node.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The folder for data, which then stays; data that are in it are used. Defaults to a temporary
    /// folder that is removed with the server.
    pub fn keep_in(mut self, folder: impl Into<PathBuf>) -> Self {
        self.keep_in = Some(folder.into());
        self
    }

    /// Has Kafka listen also where who connects has to log in as this user, by SASL without TLS: `PLAIN`,
    /// `SCRAM-SHA-256` or `SCRAM-SHA-512`; see [`Running::login_url`]. Implies [`ours`](Self::ours). Name and password
    /// are letters and digits.
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some(Login { user: user.into(), password: password.into() });
        self.ours()
    }

    /// Sets the program to start: what [`ensure_installed`] would return, of another version. Defaults to installing
    /// and starting the usual one.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Starts a server even when a URL in the environment names another: for those who must kill
    /// it. Defaults to using the other.
    pub fn ours(mut self) -> Self {
        self.ours = true;
        self
    }

    /// Installs the server if need be, starts it and waits until it answers; or, when its variable
    /// is set, asks the server at that URL whether it is there.
    ///
    /// # Errors
    ///
    /// `NotInstalled` or `Unsupported` from [`ensure_installed`]; `NotReady` with the end of its
    /// log; `NoAnswer` from a server whose URL was given.
    pub fn start(self) -> Result<Running, Error> {
        if let Some(url) = self.given_url() {
            let running = Running::at(self.service, url);
            running.ping_if_known()?;
            return Ok(running);
        }
        let mut nodes = self.start_nodes(Layout::Single)?;
        let mut node =
            nodes.pop().ok_or_else(|| self.error(ErrorKind::System, "nothing started"))?;
        node.await_ready()?;
        Ok(node)
    }

    /// Does the same with three nodes that form a cluster. A given URL lists its nodes with commas.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start); `Unsupported` for servers other than NATS, Kafka and Redis.
    pub fn start_cluster(self) -> Result<Cluster, Error> {
        if !self.service.forms_clusters() {
            let text = "only nats, kafka and redis form clusters here";
            return Err(self.error(ErrorKind::Unsupported, text));
        }
        if let Some(urls) = self.given_url() {
            let nodes = urls.split(',').map(|url| Running::at(self.service, url.trim()));
            let nodes: Vec<_> = nodes.collect();
            nodes.iter().try_for_each(Running::ping)?;
            if self.service == Service::Redis {
                // One server without a cluster answers as well.
                nodes.iter().try_for_each(redis::cluster::serves)?;
            }
            return Ok(Cluster::new(self.service, nodes));
        }
        let mut cluster = Cluster::new(self.service, self.start_nodes(Layout::Cluster)?);
        cluster.form()?;
        Ok(cluster)
    }

    /// Starts a master of Redis, its replica and three sentinels that watch both, and waits until the replica follows and
    /// the sentinels know one another. Settings are those of the two servers. A given URL is not used.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start); `Unsupported` for servers other than Redis.
    pub fn start_sentinels(self) -> Result<Sentinels, Error> {
        if self.service != Service::Redis {
            return Err(self.error(ErrorKind::Unsupported, "only redis has sentinels"));
        }
        let mut sentinels = Sentinels::new(self.start_nodes(Layout::Sentinels)?);
        sentinels.await_formed()?;
        Ok(sentinels)
    }

    fn given_url(&self) -> Option<String> {
        self.service.given_url().filter(|_| !self.ours)
    }

    fn error(&self, kind: ErrorKind, detail: &str) -> Error {
        Error::new(kind, self.service, detail)
    }

    /// Starts the nodes and waits until each answers or, in a cluster, until none has ended at once.
    fn start_nodes(&self, layout: Layout) -> Result<Vec<Running>, Error> {
        let installed = match &self.program {
            Some(program) => program.clone(),
            None => ensure_installed(self.service)?,
        };
        let mut attempt = 1;
        loop {
            match self.try_start_nodes(&installed, layout) {
                Err(error) if error.kind() == ErrorKind::PortTaken && attempt < PORT_ATTEMPTS => {
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn try_start_nodes(&self, installed: &Path, layout: Layout) -> Result<Vec<Running>, Error> {
        let count = layout.size();
        let has_bus = self.service == Service::Redis && layout == Layout::Cluster;
        let free = if has_bus { Ports::free_with_bus } else { Ports::free };
        let ports: Result<Vec<_>, _> = (0..count).map(|_| free()).collect();
        let ports = ports.map_err(Error::system(self.service, "find free ports"))?;
        let data = Arc::new(match &self.keep_in {
            Some(folder) => Data::kept(self.service, folder)?,
            None => Data::temporary(self.service)?,
        });
        let mut nodes = Vec::with_capacity(count);
        for index in 0..count {
            let folder = data.node(self.service, index + 1)?;
            let (settings, login) = (&*self.settings, self.login.as_ref());
            let plan = Plan { layout, index, ports: &ports, folder: &folder, settings, login };
            let launch = Launch { env: self.env.clone(), ..self.prepare(installed, &plan)? };
            let own = Own::start(self.service, launch, ports[index], folder, Arc::clone(&data))?;
            let mut node = Running::ours(self.service, own);
            if layout == Layout::Sentinels {
                // A sentinel that is started before its master takes it for dead.
                node.await_answer()?;
            }
            nodes.push(node);
        }
        for node in &mut nodes {
            node.await_answer()?;
        }
        Ok(nodes)
    }

    fn prepare(&self, installed: &Path, plan: &Plan<'_>) -> Result<Launch, Error> {
        if plan.login.is_some() && self.service != Service::Kafka {
            return Err(
                self.error(ErrorKind::Unsupported, "only kafka has a listener for logins here")
            );
        }
        let installed = installed.to_owned();
        match self.service {
            Service::Nats => nats::prepare(installed, plan),
            Service::Kafka => kafka::prepare(installed, plan),
            Service::Postgres => postgres::prepare(installed, plan),
            Service::Redis => redis::prepare(installed, plan),
            Service::Mongo => mongo::prepare(&installed, plan),
        }
    }
}
