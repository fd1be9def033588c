use std::time::Duration;

/// A delay that doubles with each failure in a row, up to a cap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growing {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Growing {
    pub(crate) const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: first }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let delay = self.next;
        self.next = delay.saturating_mul(2).min(self.most);
        delay
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_cap_and_starts_over() {
        let second = Duration::from_secs(1);
        let mut delay = Growing::new(second, 3 * second);
        assert_eq!(
            [delay.next(), delay.next(), delay.next(), delay.next()],
            [1, 2, 3, 3].map(|n| n * second)
        );
        delay.reset();
        assert_eq!(delay.next(), second);
    }
}
