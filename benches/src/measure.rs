//! Timing: several rounds, of which the median or the fastest counts.

use std::time::{Duration, Instant};

/// Size of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Enough to see that it runs.
    Short,
    /// Enough to be quoted.
    Full,
}

impl Size {
    /// Picks a number.
    pub(crate) fn pick<T>(self, short: T, full: T) -> T {
        match self {
            Self::Short => short,
            Self::Full => full,
        }
    }
}

/// The median time of `rounds` runs of `work`.
pub(crate) fn median(rounds: usize, mut work: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..rounds.max(1))
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

/// The shortest time of `rounds` runs of `work`, each on what `make` makes, untimed. For work of nanoseconds, to which
/// other processes on the machine only ever add.
pub(crate) fn fastest<T>(
    rounds: usize,
    make: impl Fn() -> T,
    mut work: impl FnMut(&mut T),
) -> Duration {
    let times = (0..rounds.max(1)).map(|_| {
        let mut made = make();
        let start = Instant::now();
        work(&mut made);
        start.elapsed()
    });
    times.min().unwrap_or_default()
}

/// Time for each of `count` things, in nanoseconds.
pub(crate) fn nanos_each(time: Duration, count: u64) -> f64 {
    time.as_nanos() as f64 / count.max(1) as f64
}

/// Returns the number per second.
pub(crate) fn rate(time: Duration, count: u64) -> f64 {
    count as f64 / time.as_secs_f64().max(1e-9)
}

/// Returns the processor time of a process since it began, as Linux counts it; `None` elsewhere.
pub(crate) fn computed(process: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before may have spaces and brackets.
    let (_, fields) = text.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().ok());
    Some(Duration::from_millis(ticks.sum::<Option<u64>>()? * 10))
}
