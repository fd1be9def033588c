//! Running the command.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The command as Ana runs it, who is asked nothing.
pub(crate) fn dlq(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlq"));
    command
        .args(args)
        .stdin(Stdio::null())
        .env_remove("DLQ_FROM")
        .env_remove("DLQ_CONTEXT")
        .env("DLQ_CONFIG", "")
        .env_remove("RUST_LOG")
        .env("NO_PROXY", "127.0.0.1,localhost")
        .env("USER", "ana")
        .env("HOSTNAME", "ops");
    command
}

/// What it said.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("it was not killed"),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.err);
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap()
    }
}
