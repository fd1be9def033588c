//! Time: the [`Timestamp`] that every record carries and the [`Clock`] it is read from.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time with nanosecond precision, in UTC.
///
/// Counts nanoseconds since the Unix epoch in an `i64`, which covers the years 1677 to 2262; arithmetic saturates at
/// these ends. Its text form is RFC 3339 in UTC with up to nine fractional digits.
///
/// ```
/// use dlq_core::Timestamp;
///
/// let at: Timestamp = "2026-11-21T03:00:00.5Z".parse()?;
/// assert_eq!(at.to_string(), "2026-11-21T03:00:00.500000000Z");
/// assert_eq!(at.as_nanos() % 1_000_000_000, 500_000_000);
/// # Ok::<(), dlq_core::InvalidTimestamp>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The last representable time, used for "never".
    pub const MAX: Self = Self(i64::MAX);

    /// The time that lies `nanos` nanoseconds after the Unix epoch.
    #[must_use]
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// The time that lies `millis` milliseconds after the Unix epoch; saturates.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the Unix epoch.
    #[must_use]
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Milliseconds since the Unix epoch, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// This time plus `duration`; saturates at [`Timestamp::MAX`].
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// This time minus `duration`; saturates at the earliest representable time.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }

    /// Returns the time from `earlier` to this time; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        // The distance of two times may be more than an `i64` holds.
        let nanos = i128::from(self.0) - i128::from(earlier.0);
        Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}

/// Whole nanoseconds; saturates.
#[inline]
fn nanos(duration: Duration) -> i64 {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(duration.subsec_nanos()))
}

impl Timestamp {
    /// The text form, which always has this length: the years that can be have four digits.
    fn text(self) -> [u8; 30] {
        // Formatted by hand: every record and many headers carry times, and a general formatter is slower.
        const DAY: i64 = 86_400_000_000_000;
        let of_day = self.0.rem_euclid(DAY);
        let (year, month, day) = date(self.0.div_euclid(DAY));
        let seconds = of_day / 1_000_000_000;
        let mut text = *b"0000-00-00T00:00:00.000000000Z";
        for (place, number) in [
            (0..4, year),
            (5..7, month),
            (8..10, day),
            (11..13, seconds / 3600),
            (14..16, seconds / 60 % 60),
            (17..19, seconds % 60),
            (20..29, of_day % 1_000_000_000),
        ] {
            let mut rest = number as u32;
            for digit in text[place].iter_mut().rev() {
                *digit += (rest % 10) as u8;
                rest /= 10;
            }
        }
        text
    }
}

/// Year, month and day of the Gregorian calendar, so many days after the epoch. Years are counted from March, so that the
/// day that some have more is their last: the algorithm `civil_from_days` of Howard Hinnant's "chrono-Compatible Low-Level
/// Date Algorithms" (2013).
fn date(days: i64) -> (i64, i64, i64) {
    // Days between the first of March of the year 0 and the epoch; and days of 400, 100, 4 and 1 years.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (400 * era + year + i64::from(month <= 2), month, day)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).unwrap_or_default())
    }
}

/// A text that is not a time.
#[derive(Debug, thiserror::Error)]
#[error("`{text}` is not a time; write RFC 3339, e.g. `2026-11-21T03:00:00Z`")]
pub struct InvalidTimestamp {
    text: String,
}

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<jiff::Timestamp>()
            .ok()
            .and_then(|time| i64::try_from(time.as_nanosecond()).ok())
            .map(Self)
            .ok_or_else(|| InvalidTimestamp { text: text.chars().take(80).collect() })
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(std::str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Source of the times that are stored.
///
/// Every component that writes a time takes a clock, so that tests decide what "now" is.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// A clock that can be handed around.
pub type SharedClock = Arc<dyn Clock>;

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The clock of the machine, shared.
    #[must_use]
    pub fn shared() -> SharedClock {
        Arc::new(Self)
    }
}

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the machine's clock is read"
    )]
    fn now(&self) -> Timestamp {
        // A machine whose clock is set before 1970 is wrong, but must not stop a consumer.
        match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(elapsed) => Timestamp::EPOCH.after(elapsed),
            Err(error) => Timestamp::EPOCH.before(error.duration()),
        }
    }
}

/// The clock of the machine as of its last tick, a few milliseconds ago at most, at a fifth of the cost: for leases and
/// other times that are long beside that. Where the system has no such clock, it is [`SystemClock`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoarseClock;

impl Clock for CoarseClock {
    #[cfg(target_os = "linux")]
    fn now(&self) -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Timestamp(now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec))
    }

    #[cfg(not(target_os = "linux"))]
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }
}

/// A clock that follows tokio's: it stands still and jumps with paused time.
///
/// For tests under `start_paused`: sleeping for an hour moves this clock by an hour at once.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    start: Timestamp,
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// A clock that shows `start` now and then moves with tokio's time.
    #[must_use]
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, origin: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        self.start.after(self.origin.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_with_nanoseconds() {
        for nanos in [0, 1, -1, 1_763_683_200_123_456_789, i64::MAX, i64::MIN] {
            let time = Timestamp::from_nanos(nanos);
            assert_eq!(time.to_string().parse::<Timestamp>().unwrap(), time, "{time}");
        }
    }

    #[test]
    fn text_is_that_of_the_calendar() {
        // Every day that can be, each at another time of the day.
        for day in -106_751..=106_751_i64 {
            let nanos =
                day * 86_400_000_000_000 + (day * 7_919_123_456_789).rem_euclid(86_400_000_000_000);
            let expected = jiff::Timestamp::from_nanosecond(i128::from(nanos)).unwrap();
            assert_eq!(Timestamp::from_nanos(nanos).to_string(), format!("{expected:.9}"));
        }
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::MAX.after(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::EPOCH.since(Timestamp::MAX), Duration::ZERO);
        assert_eq!(Timestamp::MAX.since(Timestamp::EPOCH).as_nanos(), i64::MAX as u128);
    }
}
