use std::time::Duration;

use tokio::time::Instant;

// Ten counters instead of a list of ends: the memory does not grow with the traffic.
const BUCKETS: usize = 10;

/// Counts failures among what ended within the last so-and-so long, to a tenth of it.
#[derive(Debug)]
pub(super) struct Window {
    width: Duration,
    /// The start of the latest bucket.
    start: Instant,
    latest: usize,
    /// Failures and total.
    buckets: [(u32, u32); BUCKETS],
}

impl Window {
    pub(super) fn new(length: Duration) -> Self {
        let width = (length / 10).max(Duration::from_nanos(1));
        Self { width, start: Instant::now(), latest: 0, buckets: [(0, 0); BUCKETS] }
    }

    /// Counts one, and gives failures and total of the window.
    pub(super) fn record(&mut self, failed: bool, now: Instant) -> (u32, u32) {
        self.advance(now);
        let bucket = &mut self.buckets[self.latest];
        bucket.0 = bucket.0.saturating_add(u32::from(failed));
        bucket.1 = bucket.1.saturating_add(1);
        self.buckets.iter().fold((0, 0), |sum: (u32, u32), bucket| {
            (sum.0.saturating_add(bucket.0), sum.1.saturating_add(bucket.1))
        })
    }

    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.start).as_nanos() / self.width.as_nanos();
        // Nothing of the window is left, and the loop below would go round for as long as the consumer was idle.
        if passed >= BUCKETS as u128 {
            self.buckets = [(0, 0); BUCKETS];
            self.start = now;
            return;
        }
        for _ in 0..passed {
            self.start += self.width;
            self.latest = (self.latest + 1) % BUCKETS;
            self.buckets[self.latest] = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let second = Duration::from_secs(1);
        let mut window = Window::new(10 * second);
        let start = window.start;
        assert_eq!(window.record(true, start), (1, 1));
        assert_eq!(window.record(false, start + 5 * second), (1, 2));
        assert_eq!(window.record(true, start + 9 * second), (2, 3));
        assert_eq!(window.record(false, start + 10 * second), (1, 3), "the first is gone");
        assert_eq!(window.record(false, start + 100 * second), (0, 1));
    }
}
