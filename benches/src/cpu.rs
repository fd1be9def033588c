//! Computing time of a server and its client.

use std::time::Duration;

use crate::measure::{computed, rate};

/// Computing time of a server and this process so far, if it is known.
pub(crate) type Computed = Option<[Duration; 2]>;

pub(crate) fn of_both(server: Option<u32>) -> Computed {
    Some([computed(server?)?, computed(std::process::id())?])
}

/// A way to handle messages, and the fastest of its rounds: other processes on the machine only ever add.
pub(crate) struct Run {
    name: String,
    time: Duration,
    /// Computing time of all rounds, and the number of messages.
    computed: [Duration; 2],
    messages: usize,
}

impl Run {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), time: Duration::MAX, computed: [Duration::ZERO; 2], messages: 0 }
    }

    #[cfg(feature = "nats")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Another round, which took so long, and began and ended when so much had been computed.
    pub(crate) fn add(&mut self, time: Duration, messages: usize, before: Computed, now: Computed) {
        self.time = time.min(self.time);
        if let (Some(before), Some(now)) = (before, now) {
            for ((sum, before), now) in self.computed.iter_mut().zip(before).zip(now) {
                *sum += now.saturating_sub(before);
            }
            self.messages += messages;
        }
    }

    /// The fastest round had `count` messages.
    pub(crate) fn show(&self, count: usize) {
        println!("{:<44} {:>10.0} messages/s", self.name, rate(self.time, count as u64));
        if self.messages > 0 {
            let [server, client] =
                self.computed.map(|time| time.as_secs_f64() * 1e6 / self.messages as f64);
            println!("  computed for each: server {server:.2} µs, client {client:.2} µs");
        }
    }

    /// Returns the speed relative to `other`.
    pub(crate) fn of(&self, other: &Self) -> f64 {
        other.time.as_secs_f64() / self.time.as_secs_f64()
    }

    /// Returns the speed relative to `other` if the server is the bound: whatever the client costs, if it has
    /// processors of its own.
    #[cfg(feature = "nats")]
    pub(crate) fn of_where_the_server_bounds(&self, other: &Self) -> Option<f64> {
        let [this, other] = [self, other].map(|run| run.computed[0].as_secs_f64());
        (this > 0.0).then(|| other / this)
    }
}
