//! The account of a conformance run: each check that ran, and what was left out.

use std::fs::OpenOptions;
use std::io::Write;

/// The variable that names the file to which the account is appended. Without it none is kept.
const FILE: &str = "DLQ_CONFORMANCE_LOG";

/// Check of a suite, for the fixture that it is run with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    suite: &'static str,
    fixture: &'static str,
    check: &'static str,
}

impl Entry {
    pub(crate) fn new<F>(suite: &'static str, check: &'static str) -> Self {
        Self { suite, fixture: std::any::type_name::<F>(), check }
    }

    /// Notes whether the check runs.
    pub(crate) fn begin(self, is_available: bool) -> bool {
        if is_available {
            self.write("run", "");
        } else {
            self.left_out("there is no server");
        }
        is_available
    }

    /// Notes that the check, or a part of it, is left out.
    pub(crate) fn left_out(self, why: &str) {
        println!("`{}` is left out: {why}", self.check);
        self.write("left out", why);
    }

    fn write(self, what: &str, why: &str) {
        let Some(path) = std::env::var_os(FILE) else { return };
        let Self { suite, fixture, check } = self;
        // One write, since processes share the file.
        let line = format!("{suite}\t{fixture}\t{check}\t{what}\t{why}\n");
        let file = OpenOptions::new().append(true).create(true).open(path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written
            .unwrap_or_else(|error| panic!("{FILE} names a file that cannot be written: {error}"));
    }
}
