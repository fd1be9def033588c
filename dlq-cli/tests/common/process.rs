//! The command in the background.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::common::Ran;

/// One that runs. Killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    err: BufReader<ChildStderr>,
    said: String,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        Self { child, err, said: String::new() }
    }

    /// The next line that it says; `None` when it says no more.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        tokio::task::block_in_place(|| self.err.read_line(&mut line)).unwrap();
        self.said.push_str(&line);
        (!line.is_empty()).then_some(line)
    }

    /// Waits until it says this.
    #[track_caller]
    pub(crate) fn says(&mut self, text: &str) {
        while let Some(line) = self.line() {
            if line.contains(text) {
                return;
            }
        }
        panic!("it ended without a word of `{text}`; it said: {}", self.said);
    }

    pub(crate) fn signal(&self, signal: &str) {
        let mut kill = Command::new("kill");
        let sent = kill.args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ran {
        while self.line().is_some() {}
        let stdout = self.child.stdout.take().unwrap();
        let out = tokio::task::block_in_place(|| std::io::read_to_string(stdout)).unwrap();
        let status = tokio::task::block_in_place(|| self.child.wait()).unwrap();
        let code = status.code().expect("it was not killed");
        Ran { code, out, err: std::mem::take(&mut self.said) }
    }

    /// Kills it, with everything that it said.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().unwrap();
        while self.line().is_some() {}
        std::mem::take(&mut self.said)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
