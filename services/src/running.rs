use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::folder::Data;
use crate::port::Ports;
use crate::process::{Launch, POLL, Process};
use crate::{Error, ErrorKind, Service, wire};

/// Time limit for a server to answer. It is long because the machine may be busy.
pub(crate) const READY: Duration = Duration::from_secs(90);

/// Time limit for a server to end in good order.
const STOP: Duration = Duration::from_secs(20);

/// Time limit of a ping.
const PING: Duration = Duration::from_secs(3);

/// A server that answers: ours, or one whose URL was given.
///
/// Ours is killed when this is dropped, with everything it started, and its data are removed unless
/// [`Builder::keep_in`](crate::Builder::keep_in) said where to keep them. If our process is killed,
/// Linux kills the server too, provided that `setpriv` is installed; elsewhere it lives on.
#[derive(Debug)]
#[must_use = "the server is killed when this is dropped"]
pub struct Running {
    service: Service,
    url: String,
    own: Option<Own>,
}

/// Facts about a server that we started.
#[derive(Debug)]
pub(crate) struct Own {
    // Before the data: it must be dead when its folder is removed.
    process: Process,
    launch: Launch,
    ports: Ports,
    folder: PathBuf,
    starts: u32,
    _data: Arc<Data>,
}

impl Own {
    pub(crate) fn start(
        service: Service,
        launch: Launch,
        ports: Ports,
        folder: PathBuf,
        data: Arc<Data>,
    ) -> Result<Self, Error> {
        let process = Process::start(service, &launch, &folder.join("server.log"))?;
        Ok(Self { process, launch, ports, folder, starts: 1, _data: data })
    }

    fn start_again(&mut self, service: Service) -> Result<(), Error> {
        self.process = Process::start(service, &self.launch, &self.folder.join("server.log"))?;
        self.starts += 1;
        Ok(())
    }
}

impl Running {
    /// A server that somebody else runs. It is not asked whether it is there; [`ping`](Self::ping)
    /// does that.
    pub fn at(service: Service, url: impl Into<String>) -> Self {
        Self { service, url: url.into(), own: None }
    }

    pub(crate) fn ours(service: Service, own: Own) -> Self {
        Self { service, url: service.local_url(own.ports.client), own: Some(own) }
    }

    /// Returns the service.
    #[must_use]
    pub fn service(&self) -> Service {
        self.service
    }

    /// Returns the address for clients: a URL, or for Kafka `host:port`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns true if we started it, so that it can be killed, paused and restarted.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.own.is_some()
    }

    /// The id of its process, if it is ours. Each start has a new one.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.own.as_ref().map(|own| own.process.id())
    }

    /// Returns the number of starts; 0 if the server is not ours. A test that kills a server asserts on this, since a
    /// kill that does not happen makes every result perfect.
    #[must_use]
    pub fn starts(&self) -> u32 {
        self.own.as_ref().map_or(0, |own| own.starts)
    }

    /// The folder of its configuration, data and log, if it is ours.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.own.as_ref().map(|own| own.folder.as_path())
    }

    /// `host:port` of the monitoring pages of NATS, if it is ours.
    #[must_use]
    pub fn monitor(&self) -> Option<String> {
        let own = self.own.as_ref().filter(|_| self.service == Service::Nats)?;
        Some(format!("127.0.0.1:{}", own.ports.monitor))
    }

    /// `host:port` where clients of Kafka have to log in, if it is ours; see
    /// [`Builder::login`](crate::Builder::login).
    #[must_use]
    pub fn login_url(&self) -> Option<String> {
        let own = self.own.as_ref().filter(|_| self.service == Service::Kafka)?;
        Some(format!("127.0.0.1:{}", own.ports.monitor))
    }

    /// Asks it something in its own protocol and checks the answer; see [`wire::ping`]. Gives up
    /// after three seconds.
    ///
    /// # Errors
    ///
    /// `NoAnswer`; `Unsupported` for a MongoDB whose URL asks for TLS or names no host.
    pub fn ping(&self) -> Result<(), Error> {
        self.ping_within(PING)
    }

    /// The same with other patience.
    ///
    /// # Errors
    ///
    /// As [`ping`](Self::ping).
    pub fn ping_within(&self, patience: Duration) -> Result<(), Error> {
        wire::ping(self.service, &self.url, patience)
    }

    /// Takes the URL of a server that cannot be asked here at its word.
    pub(crate) fn ping_if_known(&self) -> Result<(), Error> {
        match self.ping() {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
            outcome => outcome,
        }
    }

    /// Kills it as a crash would (`SIGKILL`), with everything it started. Killing a dead one is
    /// fine.
    ///
    /// # Errors
    ///
    /// `External` if it is not ours.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.own("killed")?.process.kill();
        Ok(())
    }

    /// Asks it to end in good order and waits; kills it after 20 seconds.
    ///
    /// # Errors
    ///
    /// `External` if it is not ours.
    pub fn stop(&mut self) -> Result<(), Error> {
        let own = self.own("stopped")?;
        own.process.stop(own.launch.stop_signal, STOP);
        Ok(())
    }

    /// Freezes it (`SIGSTOP`): its connections stay open and it answers nothing.
    ///
    /// # Errors
    ///
    /// `External` if it is not ours, `System` if it is not running.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.own("paused")?.process.signal_family("STOP")
    }

    /// Lets it go on after [`pause`](Self::pause).
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause).
    pub fn resume(&mut self) -> Result<(), Error> {
        self.own("resumed")?.process.signal_family("CONT")
    }

    /// Starts it again on the same data and the same port, and waits until it serves. One that is
    /// still running is killed first.
    ///
    /// # Errors
    ///
    /// `External` if it is not ours, `NotReady` with the end of its log.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.revive()?;
        self.await_ready()
    }

    /// The same, and waits until it answers: a node of a cluster serves when there are others.
    pub(crate) fn revive(&mut self) -> Result<(), Error> {
        let service = self.service;
        self.own("restarted")?.process.kill();
        let deadline = Instant::now() + READY;
        loop {
            self.own("restarted")?.start_again(service)?;
            match self.await_answer() {
                // What the dead one left in the kernel may hold its port for a moment.
                Err(error) if error.kind() == ErrorKind::PortTaken && Instant::now() < deadline => {
                    thread::sleep(POLL);
                }
                outcome => return outcome,
            }
        }
    }

    /// Waits until it answers a ping.
    pub(crate) fn await_answer(&mut self) -> Result<(), Error> {
        let (service, url) = (self.service, self.url.clone());
        self.await_that("it does not answer", || match wire::ping(service, &url, PING) {
            // Whom it does not know it tells so once it serves.
            Err(error)
                if ["Authorization Violation", "NOAUTH"]
                    .iter()
                    .any(|refusal| error.to_string().contains(refusal)) =>
            {
                Ok(())
            }
            outcome => outcome,
        })
    }

    /// Waits until it serves: a Kafka broker answers before its controller has let it in.
    pub(crate) fn await_ready(&mut self) -> Result<(), Error> {
        if self.service != Service::Kafka {
            return Ok(());
        }
        let url = self.url.clone();
        self.await_that("it does not serve", || {
            let brokers = wire::kafka::metadata(&url, &[], PING)?.brokers;
            if brokers.is_empty() {
                return Err(wire::no_answer(Service::Kafka, "it knows no broker yet"));
            }
            Ok(())
        })
    }

    /// Waits until `check` succeeds while the server lives.
    pub(crate) fn await_that(
        &mut self,
        what: &str,
        mut check: impl FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + READY;
        loop {
            let outcome = check();
            // Looked at after the answer: whoever else answers on the port, ours has ended then.
            self.must_live()?;
            let Err(error) = outcome else { return Ok(()) };
            if Instant::now() >= deadline {
                let (seconds, log) = (READY.as_secs(), self.log_tail());
                let text = format!("{what} after {seconds} s ({error}); its log ends:\n{log}");
                return Err(Error::new(ErrorKind::NotReady, self.service, text));
            }
            thread::sleep(POLL);
        }
    }

    /// An error with the end of its log if it is ours and has ended.
    pub(crate) fn must_live(&mut self) -> Result<(), Error> {
        let service = self.service;
        let Some(own) = &mut self.own else { return Ok(()) };
        if !own.process.has_ended() {
            return Ok(());
        }
        let log = own.process.log_tail();
        let taken = log.to_lowercase().contains("in use");
        let kind = if taken { ErrorKind::PortTaken } else { ErrorKind::NotReady };
        let text = format!("it ended instead of serving; its log ends:\n{log}");
        Err(Error::new(kind, service, text))
    }

    /// The end of what it wrote since its last start; empty if it is not ours.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.own.as_ref().map(|own| own.process.log_tail()).unwrap_or_default()
    }

    fn own(&mut self, what: &str) -> Result<&mut Own, Error> {
        let service = self.service;
        self.own.as_mut().ok_or_else(|| {
            let variable = service.variable();
            let text = format!(
                "it cannot be {what}: its URL was given, and only servers started here can be; \
                 unset {variable} to have one started"
            );
            Error::new(ErrorKind::External, service, text)
        })
    }
}
