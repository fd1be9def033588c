//! A server as a child process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::install::{find, user_id};
use crate::{Error, ErrorKind, Service};

/// Interval of checks whether something has happened.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// Command that starts a server.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// Variables of its environment, beside ours.
    pub(crate) env: Vec<(String, String)>,
    /// The user to become when we are root.
    pub(crate) user: Option<&'static str>,
    /// The signal that asks it to end in good order.
    pub(crate) stop_signal: &'static str,
}

/// A server that was started by us.
#[derive(Debug)]
pub(crate) struct Process {
    service: Service,
    child: Child,
    ended: bool,
    log: PathBuf,
    log_start: u64,
}

impl Process {
    /// Starts it, with its output appended to `log`. It leads a process group of its own, and where
    /// `setpriv` is installed it is killed when our process ends, however that happens.
    pub(crate) fn start(service: Service, launch: &Launch, log: &Path) -> Result<Self, Error> {
        let open = || File::options().create(true).append(true).open(log);
        let output = open().map_err(Error::system(service, "open its log"))?;
        let log_start = output.metadata().map_or(0, |metadata| metadata.len());
        let second = output.try_clone().map_err(Error::system(service, "open its log"))?;
        let mut command = command(launch);
        command.process_group(0).stdin(Stdio::null()).stdout(output).stderr(second);
        let what = format!("start {}", launch.program.display());
        let child = spawn(command).map_err(Error::system(service, &what))?;
        Ok(Self { service, child, ended: false, log: log.to_owned(), log_start })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.ended = self.ended || !matches!(self.child.try_wait(), Ok(None));
        self.ended
    }

    /// Kills it and everything it started, at once, and waits until they are gone.
    pub(crate) fn kill(&mut self) {
        // After its end the id may belong to somebody else.
        if self.has_ended() {
            return;
        }
        // Stopped first, it starts no more children while we look for those it has.
        let _ = self.signal("STOP");
        let family = self.family();
        let _ = send("KILL", &family);
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.ended = true;
        let deadline = Instant::now() + Duration::from_secs(5);
        while family.iter().any(|&id| is_alive(id)) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
    }

    /// Asks it to end and waits; kills it after `patience`.
    pub(crate) fn stop(&mut self, signal: &str, patience: Duration) {
        if self.has_ended() {
            return;
        }
        // A paused process would not hear the request.
        let _ = self.signal_family("CONT");
        let _ = self.signal(signal);
        let deadline = Instant::now() + patience;
        while !self.has_ended() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        self.kill();
    }

    /// Sends a signal to it and to everything it started.
    pub(crate) fn signal_family(&mut self, signal: &str) -> Result<(), Error> {
        self.must_run(signal)?;
        // The server first, so that it starts no children between the two.
        self.signal(signal)?;
        let family = self.family();
        send(signal, &family).map_err(Error::system(self.service, &format!("send {signal}")))
    }

    /// The end of what it wrote since it was started.
    pub(crate) fn log_tail(&self) -> String {
        tail(&self.log, self.log_start)
    }

    fn must_run(&mut self, signal: &str) -> Result<(), Error> {
        if self.has_ended() {
            let text = format!("cannot send {signal}: it is not running");
            return Err(Error::new(ErrorKind::System, self.service, text));
        }
        Ok(())
    }

    fn signal(&self, signal: &str) -> Result<(), Error> {
        send(signal, &[self.child.id()])
            .map_err(Error::system(self.service, &format!("send {signal}")))
    }

    /// It and its descendants. PostgreSQL gives each of its children a process group of its own, so
    /// the group is not enough.
    fn family(&self) -> Vec<u32> {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(id) = id
                && let Some((_, parent)) = state(id)
            {
                children.entry(parent).or_default().push(id);
            }
        }
        let mut family = vec![self.child.id()];
        let mut next = 0;
        while let Some(id) = family.get(next) {
            family.extend(children.get(id).into_iter().flatten().copied().collect::<Vec<_>>());
            next += 1;
        }
        family
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a command to its end as the user of the server.
pub(crate) fn run_to_end(service: Service, launch: &Launch) -> Result<(), Error> {
    let output = command(launch)
        .stdin(Stdio::null())
        .output()
        .map_err(Error::system(service, &format!("run {}", launch.program.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let detail = format!("{} failed:\n{}", launch.program.display(), text.trim_end());
    Err(Error::new(ErrorKind::NotReady, service, detail))
}

/// The command under the right user, tied to our life where that can be had.
fn command(launch: &Launch) -> Command {
    let user = launch.user.filter(|_| user_id() == 0);
    let mut command = if let Some(setpriv) = find("setpriv") {
        let mut command = Command::new(setpriv);
        command.args(["--pdeathsig", "KILL"]);
        if let Some(user) = user {
            command.args(["--reuid", user, "--regid", user, "--init-groups"]);
        }
        command.arg("--").arg(&launch.program);
        command
    } else if let Some(user) = user {
        let mut command = Command::new("runuser");
        command.args(["-u", user, "--"]).arg(&launch.program);
        command
    } else {
        Command::new(&launch.program)
    };
    command.args(&launch.args).envs(launch.env.iter().cloned()).current_dir("/");
    command
}

type Request = (Command, Sender<std::io::Result<Child>>);

/// Starts a child from a thread that lives as long as the process. Linux ties the death signal to
/// the *thread* that started the child, and a test's thread ends with the test.
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

/// Sends a signal through the shell, whose `kill` is built in. Processes that are gone are ignored.
fn send(signal: &str, ids: &[u32]) -> std::io::Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", "signal=$1; shift; for id; do kill -s \"$signal\" \"$id\"; done", "sh"]);
    command.arg(signal).args(ids.iter().map(u32::to_string));
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().map(|_| ())
}

/// The state letter of a process and its parent.
fn state(id: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name of the program comes before, in parentheses, and may contain anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

fn is_alive(id: u32) -> bool {
    state(id).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// The end of a log, from `start` at the earliest.
fn tail(log: &Path, start: u64) -> String {
    const LENGTH: u64 = 2000;
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LENGTH).max(start)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_else(|error| format!("(its log cannot be read: {error})"))
}
