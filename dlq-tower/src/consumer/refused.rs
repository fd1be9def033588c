//! Letters that a sink refuses, one by one: each waits with a delay of its own, and holds up nobody else (G4).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use dlq_core::{Death, LetterId, SharedClock, SystemClock, Timestamp};
use metrics::Gauge;
use tokio::time::Instant;

use crate::backoff::Growing;

/// Delays of a message whose letter was refused.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(300);

/// Number of refused letters that are remembered.
const REMEMBERED: usize = 4096;

/// Number of different letters, refused one after another with none written in between, that make a sink one that is down.
const SEVERAL: u32 = 8;

/// Time between two looks for messages that have gone: healthy messages do not pay for the refused.
const LOOK: Duration = Duration::from_secs(1);

/// Time past its delay after which a message is taken to be gone: another process has it, or nobody.
const GONE: Duration = Duration::from_secs(600);

/// Messages that stay with the broker because their letters are refused for good.
///
/// A refusal concerns one letter only: it has too many bytes, or belongs to a topic that may not be written. The consumer
/// goes on with the rest, offers the letter again and again with growing delays, and is unhealthy until the letter is
/// written or the message has gone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedLetters {
    /// Number of messages concerned.
    pub count: usize,
    /// The letter that was refused first.
    pub oldest: LetterId,
    /// Origin of the oldest letter's message.
    pub origin: String,
    /// Time at which the oldest letter was refused first.
    pub since: Timestamp,
    /// Latest error of the sink about the oldest letter.
    pub why: String,
}

impl fmt::Display for RefusedLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, oldest, origin, since, why } = self;
        write!(f, "refused letters: {count}, oldest {oldest} of {origin} since {since}: {why}")
    }
}

/// Memory of refused letters. Bounded: past the bound the oldest is forgotten, and is new when it comes again.
pub(super) struct Refused {
    letters: HashMap<Death, Letter>,
    order: VecDeque<Death>,
    /// Letters refused for the first time since one was written.
    in_a_row: u32,
    /// When it was last looked for those that have gone.
    looked: Option<Instant>,
    shown: Gauge,
    clock: SharedClock,
}

struct Letter {
    delay: Growing,
    /// When its message is handed out again at the earliest.
    again: Instant,
    since: Timestamp,
    origin: String,
    why: String,
}

/// The consequences of a refusal.
pub(super) struct Refusal {
    /// Time to wait before the letter is offered again.
    pub(super) after: Duration,
    /// True if so many other letters were refused before it that the sink itself must be down.
    pub(super) is_down: bool,
}

impl Refused {
    pub(super) fn new() -> Self {
        Self {
            letters: HashMap::new(),
            order: VecDeque::new(),
            in_a_row: 0,
            looked: None,
            shown: Gauge::noop(),
            clock: SystemClock::shared(),
        }
    }

    pub(super) fn shown_by(&mut self, shown: Gauge, clock: SharedClock) {
        shown.set(0.0);
        (self.shown, self.clock) = (shown, clock);
    }

    /// True if there is nothing to tell and nothing to count on.
    pub(super) fn is_quiet(&self) -> bool {
        self.letters.is_empty() && self.in_a_row == 0
    }

    /// Notes that a letter was refused. Only one that is refused for the first time says anything about the sink: those that
    /// come back would close the gate as often as they do.
    pub(super) fn refused(
        &mut self,
        death: Death,
        origin: impl fmt::Display,
        why: &str,
    ) -> Refusal {
        let is_new = !self.letters.contains_key(&death);
        if is_new {
            if self.letters.len() >= REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.letters.remove(&oldest);
            }
            self.order.push_back(death);
            self.in_a_row = self.in_a_row.saturating_add(1);
        }
        let now = Instant::now();
        // Delays are measured by `Instant`, because the clock may be set meanwhile. This time is for people only.
        let since = self.clock.now();
        let letter = self.letters.entry(death).or_insert_with(|| Letter {
            delay: Growing::new(FIRST_DELAY, LONGEST_DELAY),
            again: now,
            since,
            origin: origin.to_string(),
            why: String::new(),
        });
        let after = letter.delay.next();
        letter.again = now + after;
        why.clone_into(&mut letter.why);
        Refusal { after, is_down: is_new && self.in_a_row >= SEVERAL }
    }

    /// Notes that the message of `death` is over, and that the sink works if a letter `is_written`. Forgets those that have
    /// gone elsewhere, from time to time. Returns true if there is something else to tell.
    pub(super) fn over(&mut self, death: Death, is_written: bool) -> bool {
        if is_written {
            // One letter that is written shows that the sink works, whatever it refuses.
            self.in_a_row = 0;
        }
        let now = Instant::now();
        if !self.letters.contains_key(&death) && self.looked.is_some_and(|at| now < at + LOOK) {
            return false;
        }
        self.looked = Some(now);
        let before = self.letters.len();
        self.letters.retain(|known, letter| *known != death && now < letter.again + GONE);
        let letters = &self.letters;
        // The bound and the oldest letter are read off this order, so it must not name letters that are forgotten.
        self.order.retain(|known| letters.contains_key(known));
        before != self.letters.len()
    }

    /// Returns what health says of them.
    pub(super) fn told(&self) -> Option<RefusedLetters> {
        self.shown.set(self.letters.len() as f64);
        let oldest = self.order.front()?;
        let letter = self.letters.get(oldest)?;
        Some(RefusedLetters {
            count: self.letters.len(),
            oldest: oldest.letter,
            origin: letter.origin.clone(),
            since: letter.since,
            why: letter.why.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(number: u16) -> Death {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        Death { letter: LetterId::from_bytes(bytes), generation: 0 }
    }

    fn is_down(refused: &mut Refused, number: u16) -> bool {
        refused.refused(death(number), "there", "too large").is_down
    }

    #[tokio::test(start_paused = true)]
    async fn each_letter_has_delays_of_its_own() {
        let mut refused = Refused::new();
        let mut after = |number| refused.refused(death(number), "there", "no").after.as_secs();
        assert_eq!([1, 1, 1, 2].map(&mut after), [1, 2, 4, 1]);
        let longest = (0..20).map(|_| after(1)).max();
        assert_eq!(longest, Some(LONGEST_DELAY.as_secs()));
    }

    #[tokio::test(start_paused = true)]
    async fn several_different_letters_in_a_row_and_nothing_less_mean_that_the_sink_is_down() {
        let several = u16::try_from(SEVERAL).unwrap();
        let mut refused = Refused::new();
        for number in 1..several {
            assert!(!is_down(&mut refused, number));
            assert!(!is_down(&mut refused, number), "the same one");
        }
        refused.over(death(1_000), true);
        for number in several..2 * several - 1 {
            assert!(!is_down(&mut refused, number), "one was written in between");
        }
        assert!(is_down(&mut refused, 3_000));
        assert!(!is_down(&mut refused, 3_000), "it comes back");
        assert!(is_down(&mut refused, 3_001));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_over_or_gone_is_told_no_longer() {
        let mut refused = Refused::new();
        assert_eq!(refused.told(), None);
        for number in 1..=3 {
            is_down(&mut refused, number);
        }
        let told = refused.told().unwrap();
        assert_eq!((told.count, told.oldest, &*told.origin), (3, death(1).letter, "there"));
        assert!(refused.over(death(1), false));
        let told = refused.told().unwrap();
        assert_eq!((told.count, told.oldest), (2, death(2).letter));
        tokio::time::advance(GONE).await;
        is_down(&mut refused, 3);
        tokio::time::advance(FIRST_DELAY).await;
        assert!(refused.over(death(9), false));
        assert!(!refused.over(death(9), false), "nothing has changed");
        let told = refused.told().unwrap();
        assert_eq!((told.count, told.oldest), (1, death(3).letter));
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded() {
        let mut refused = Refused::new();
        for number in 0..=REMEMBERED {
            is_down(&mut refused, u16::try_from(number).unwrap());
        }
        assert_eq!((refused.letters.len(), refused.order.len()), (REMEMBERED, REMEMBERED));
        assert_eq!(refused.told().unwrap().oldest, death(1).letter);
    }
}
