//! What the journal tells, process by process.

use std::path::Path;

use dlq_tests::{Entry, JOURNAL, Journal, MESSAGES, START};

/// The journal of a folder, from some line on.
pub(crate) struct History {
    lives: Vec<Vec<Entry>>,
    length: usize,
}

impl History {
    /// The journal past the first `skip` lines.
    pub(crate) fn of(folder: &Path, skip: usize) -> Self {
        let entries = Journal::read(&folder.join(JOURNAL)).unwrap();
        let length = entries.len();
        let mut lives = Vec::new();
        for entry in entries.into_iter().skip(skip) {
            if entry.what == START {
                lives.push(Vec::new());
            } else if let Some(life) = lives.last_mut() {
                life.push(entry);
            }
        }
        Self { lives, length }
    }

    /// Lines of the whole journal.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// How often something happened to a message.
    pub(crate) fn count(&self, what: &str, message: u64) -> u64 {
        self.lives.iter().map(|life| count(life, what, message)).sum()
    }

    /// How often something happened.
    pub(crate) fn total(&self, what: &str) -> u64 {
        (0..MESSAGES).map(|message| self.count(what, message)).sum()
    }

    /// Processes in which a message was begun, by the broker or in a run, and not brought to its end at the broker.
    pub(crate) fn cut_off(&self, message: u64) -> u64 {
        let cut = |life: &&Vec<Entry>| {
            let begun = count(life, "out", message) + count(life, "run", message) > 0;
            begun && count(life, "ack", message) == 0
        };
        self.lives.iter().filter(cut).count() as u64
    }

    /// Checks that a message is given as many runs as when nothing interrupts it, `most`. A run that a death cut off, or whose
    /// end it kept from being recorded, is made again; so are all of them where the last had begun, since its letter may
    /// be written, its key have started over, and the broker not know of it.
    pub(crate) fn runs_at_most(&self, message: u64, most: u64) {
        let mut known = 0;
        for (n, life) in self.lives.iter().enumerate() {
            let runs = count(life, "run", message);
            assert!(
                known + runs <= most,
                "message {message}: {known} runs, and {runs} in life {n}"
            );
            known = if known + runs == most { 0 } else { known + runs.saturating_sub(1) };
        }
    }

    /// Checks what idempotency promises: no process runs a message again that it has handled, nor does any process run
    /// one that was acknowledged. What is left are claims in flight when a process died; returns how many such runs
    /// succeeded twice.
    pub(crate) fn no_run_after_success(&self) -> u64 {
        let mut repeated = 0;
        for message in 0..MESSAGES {
            let (mut succeeded, mut acknowledged) = (0, false);
            for life in &self.lives {
                let mut handled = false;
                for Entry { what, .. } in life.iter().filter(|entry| entry.message == message) {
                    match what.as_str() {
                        "run" => {
                            assert!(!handled, "message {message} ran after it had succeeded");
                            assert!(!acknowledged, "message {message} ran after it was settled");
                        }
                        "ok" => {
                            handled = true;
                            succeeded += 1;
                        }
                        "ack" => acknowledged = true,
                        _ => {}
                    }
                }
            }
            repeated += u64::saturating_sub(succeeded, 1);
        }
        repeated
    }
}

fn count(life: &[Entry], what: &str, message: u64) -> u64 {
    life.iter().filter(|entry| entry.what == what && entry.message == message).count() as u64
}
