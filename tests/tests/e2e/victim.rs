//! The program that is killed.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How long it may say nothing: three servers take their time to choose a leader.
pub(crate) const SILENCE: Duration = Duration::from_secs(120);

pub(crate) struct Victim {
    child: Child,
    lines: Receiver<String>,
    log: Log,
}

/// What it logged last.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<VecDeque<String>>>);

impl Log {
    const LINES: usize = 40;

    fn add(&self, line: String) {
        let mut lines = self.0.lock().unwrap();
        lines.push_back(line);
        if lines.len() > Self::LINES {
            lines.pop_front();
        }
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lock().unwrap().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl Victim {
    pub(crate) fn start(folder: &Path, flags: &[&str]) -> Self {
        Self::of(env!("CARGO_BIN_EXE_victim"), folder, flags)
    }

    pub(crate) fn of(program: &str, folder: &Path, flags: &[&str]) -> Self {
        let (said, lines) = mpsc::channel();
        let say = move |line| said.send(line).is_ok();
        let mut victim = Self::telling(program, folder, flags, say);
        victim.lines = lines;
        victim
    }

    /// Each line that it says is told, until that is no longer wanted.
    pub(crate) fn telling(
        program: &str,
        folder: &Path,
        flags: &[&str],
        mut say: impl FnMut(String) -> bool + Send + 'static,
    ) -> Self {
        let mut child = Command::new(program)
            .arg(folder)
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (log, stderr) = (Log::default(), BufReader::new(child.stderr.take().unwrap()));
        let logged = log.clone();
        thread::spawn(move || {
            stderr.lines().map_while(Result::ok).for_each(|line| logged.add(line));
        });
        let stdout = BufReader::new(child.stdout.take().unwrap());
        // Ends with the child, whose death closes the pipe.
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if !say(line) {
                    return;
                }
            }
        });
        Self { child, lines: mpsc::channel().1, log }
    }

    /// The next line that it says; `None` when it has ended.
    fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(SILENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("it has said nothing for {SILENCE:?}; it logged last:\n{}", self.log)
            }
        }
    }

    /// Waits until it has noted so many things; fewer when it ends before.
    pub(crate) fn progress(&self, lines: usize) -> usize {
        (0..lines).take_while(|_| self.line().is_some()).count()
    }

    pub(crate) fn signal(&self, name: &str) {
        let command = format!("kill -s {name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// `kill -9`; says how it ended, which may have been before.
    pub(crate) fn kill(mut self) -> ExitStatus {
        self.child.kill().unwrap();
        self.child.wait().unwrap()
    }

    /// Waits for its end; what it said last, and how it ended.
    pub(crate) fn end(mut self) -> (String, ExitStatus) {
        let last = std::iter::from_fn(|| self.line()).last().unwrap_or_default();
        (last, self.child.wait().unwrap())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How the processes of a run ended.
#[derive(Default)]
pub(crate) struct Deaths {
    /// By our hand.
    pub(crate) killed: u64,
    /// By a message that aborts the process.
    pub(crate) aborted: u64,
    /// By an error at their start.
    pub(crate) refused: u64,
}

impl Deaths {
    pub(crate) fn count(&mut self, status: ExitStatus) {
        match status.signal() {
            Some(9) => self.killed += 1,
            Some(6) => self.aborted += 1,
            _ if status.success() => {}
            _ => self.refused += 1,
        }
    }
}

impl fmt::Display for Deaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} processes killed, {} aborted", self.killed, self.aborted)?;
        if self.refused > 0 { write!(f, ", {} found no server", self.refused) } else { Ok(()) }
    }
}
