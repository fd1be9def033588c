use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::folder::Data;
use crate::process::{Launch, Process, tail};
use crate::{Error, ErrorKind, Service, ping};

/// How long a server may take to become ready.
const READY: Duration = Duration::from_secs(60);
/// How long it may take to end when asked to.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long one ping may take.
const ANSWER: Duration = Duration::from_secs(2);
/// How often a server that is starting is asked.
const LOOK: Duration = Duration::from_millis(30);

/// A server that runs: one that we started, or one whose URL the environment names.
///
/// Dropping it kills what we started and removes its data.
#[derive(Debug)]
pub struct Running {
    service: Service,
    url: String,
    node: Option<Node>,
}

/// The part of a server that is ours. Fields are dropped in this order: the process first, then its data.
#[derive(Debug)]
struct Node {
    process: Process,
    launch: Launch,
    log: PathBuf,
    #[expect(dead_code, reason = "held so that it is removed when the server is dropped")]
    data: Data,
}

impl Running {
    /// The server that the environment names, if it does.
    pub(crate) fn from_environment(service: Service) -> Option<Self> {
        let url = std::env::var(service.variable()).ok().filter(|url| !url.is_empty())?;
        Some(Self { service, url, node: None })
    }

    /// Starts a server on `port` and waits until it answers.
    pub(crate) fn start(
        service: Service,
        launch: Launch,
        port: u16,
        data: Data,
    ) -> Result<Self, Error> {
        let started = Self::launch(service, launch, port, data)?;
        started.await_ready()
    }

    /// Starts a server on `port` without waiting, for clusters whose nodes need each other to become ready.
    pub(crate) fn launch(
        service: Service,
        launch: Launch,
        port: u16,
        data: Data,
    ) -> Result<Self, Error> {
        let log = data.path().join("server.log");
        let process = Process::start(service, &launch, &log)?;
        let url = service.url(&format!("127.0.0.1:{port}"));
        Ok(Self { service, url, node: Some(Node { process, launch, log, data }) })
    }

    /// Waits until it answers.
    pub(crate) fn await_ready(mut self) -> Result<Self, Error> {
        self.wait_until(|running| running.ping())?;
        Ok(self)
    }

    /// Waits until `ready` says so.
    pub(crate) fn wait_until(
        &mut self,
        ready: impl Fn(&Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + READY;
        loop {
            let Err(error) = ready(self) else { return Ok(()) };
            let Some(node) = &mut self.node else { return Err(error) };
            let ended = node.process.has_ended();
            if ended || Instant::now() > deadline {
                let what = if ended {
                    "it ended while starting"
                } else {
                    "it did not become ready in time"
                };
                let log = tail(&node.log);
                return Err(Error::new(
                    ErrorKind::NotReady,
                    self.service,
                    format!("{what} ({error}); its log ends:\n{log}"),
                ));
            }
            thread::sleep(LOOK);
        }
    }

    /// Which server it is.
    #[must_use]
    pub fn service(&self) -> Service {
        self.service
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Asks whether it answers; see [`ping`].
    ///
    /// # Errors
    ///
    /// `NoAnswer` when it does not.
    pub fn ping(&self) -> Result<(), Error> {
        ping(self.service, &self.url, ANSWER)
    }

    /// Kills it at once, as a power cut would. Its data stays.
    ///
    /// # Errors
    ///
    /// `External` when it is not ours.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.ours()?.process.kill();
        Ok(())
    }

    /// Asks it to end, and waits until it has. Its data stays.
    ///
    /// # Errors
    ///
    /// `External` when it is not ours.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.ours()?.process.stop(PATIENCE);
        Ok(())
    }

    /// Stops its processes where they are: it holds its connections and does not answer.
    ///
    /// # Errors
    ///
    /// `External` when it is not ours.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.ours()?.process.signal("STOP")
    }

    /// Lets it go on after a pause.
    ///
    /// # Errors
    ///
    /// `External` when it is not ours.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.ours()?.process.signal("CONT")
    }

    /// Starts it again on the same data and port, after stopping it if it still runs, and waits until it answers.
    ///
    /// # Errors
    ///
    /// `External` when it is not ours; `NotReady` when it does not come back.
    pub fn restart(&mut self) -> Result<(), Error> {
        let service = self.service;
        let node = self.ours()?;
        node.process.stop(PATIENCE);
        node.process = Process::start(service, &node.launch, &node.log)?;
        self.wait_until(|running| running.ping())
    }

    fn ours(&mut self) -> Result<&mut Node, Error> {
        let service = self.service;
        self.node.as_mut().ok_or_else(|| {
            let detail = format!(
                "{} names it, so it is not ours to kill, pause or restart",
                service.variable()
            );
            Error::new(ErrorKind::External, service, detail)
        })
    }
}
