//! A server as a child process.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::install::{find, is_root};
use crate::{Error, ErrorKind, Service};

/// How to start a server.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// The user to become when we are root.
    pub(crate) user: Option<&'static str>,
}

/// A server that was started by us.
#[derive(Debug)]
pub(crate) struct Process {
    service: Service,
    child: Child,
}

impl Process {
    /// Starts it, with its output appended to `log`. It leads a process group of its own, and where `setpriv` is
    /// installed it is killed when our process ends, however that happens.
    pub(crate) fn start(service: Service, launch: &Launch, log: &Path) -> Result<Self, Error> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(log)
            .map_err(Error::system(service, "open its log"))?;
        let second = log.try_clone().map_err(Error::system(service, "open its log"))?;
        let mut command = become_user(launch);
        command.args(&launch.args).current_dir("/").process_group(0);
        command.stdin(Stdio::null()).stdout(log).stderr(second);
        let child = spawn(command)
            .map_err(Error::system(service, &format!("start {}", launch.program.display())))?;
        Ok(Self { service, child })
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it and everything it started, at once.
    pub(crate) fn kill(&mut self) {
        // The group may be gone already, which is what is wanted.
        let _ = self.signal("KILL");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end and waits; kills it after `patience`.
    pub(crate) fn stop(&mut self, patience: Duration) {
        let _ = self.signal_leader("TERM");
        let deadline = Instant::now() + patience;
        while !self.has_ended() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        self.kill();
    }

    /// Sends a signal to the whole group.
    pub(crate) fn signal(&self, name: &str) -> Result<(), Error> {
        self.send(name, format!("-{}", self.child.id()))
    }

    fn signal_leader(&self, name: &str) -> Result<(), Error> {
        self.send(name, self.child.id().to_string())
    }

    fn send(&self, name: &str, target: String) -> Result<(), Error> {
        let status = Command::new("kill")
            .args(["-s", name, "--", &target])
            .stderr(Stdio::null())
            .status()
            .map_err(Error::system(self.service, "run `kill`"))?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::new(
                ErrorKind::System,
                self.service,
                format!("cannot send {name}: it has ended"),
            ))
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The command under the right user, tied to our life where that can be had.
fn become_user(launch: &Launch) -> Command {
    let user = launch.user.filter(|_| is_root());
    let Some(setpriv) = find("setpriv") else {
        let mut command =
            Command::new(if user.is_some() { "runuser".into() } else { launch.program.clone() });
        if let Some(user) = user {
            command.args(["-u", user, "--"]).arg(&launch.program);
        }
        return command;
    };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL"]);
    if let Some(user) = user {
        command.args(["--reuid", user, "--regid", user, "--init-groups"]);
    }
    command.arg("--").arg(&launch.program);
    command
}

/// Runs a command to its end under the right user.
pub(crate) fn run_as(service: Service, launch: &Launch) -> Result<(), Error> {
    let mut command = become_user(launch);
    let output = command
        .args(&launch.args)
        .current_dir("/")
        .output()
        .map_err(Error::system(service, &format!("run {}", launch.program.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::new(
        ErrorKind::NotReady,
        service,
        format!("{} failed:\n{text}", launch.program.display()),
    ))
}

type Request = (Command, Sender<std::io::Result<Child>>);

/// Starts a child from a thread that lives as long as the process. Linux ties the death signal to the *thread* that
/// started the child, and a test's thread ends with the test.
fn spawn(command: Command) -> std::io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Request>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = mpsc::channel::<Request>();
        thread::spawn(move || {
            for (mut command, answer) in requests {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (answer, spawned) = mpsc::channel();
    let gone = || std::io::Error::other("the thread that starts servers has ended");
    spawner.send((command, answer)).map_err(|_| gone())?;
    spawned.recv().map_err(|_| gone())?
}

/// The end of a log, for errors.
pub(crate) fn tail(log: &Path) -> String {
    const LENGTH: u64 = 2000;
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LENGTH)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_else(|error| format!("(its log cannot be read: {error})"))
}
