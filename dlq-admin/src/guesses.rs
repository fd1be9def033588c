//! Failed logins, which are limited for each source and in total.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time after which failed logins are forgotten.
const WINDOW: Duration = Duration::from_secs(60);
/// Failed logins of one source within that time.
// Enough for somebody who mistypes, and no use for whoever tries tokens of 16 characters.
const OF_ONE: u32 = 10;
/// Failed logins of all sources within that time.
// Without it each address of a botnet would have its own ten.
const OF_ALL: u32 = 100;

/// Counts of the present window. No more sources are kept than may fail in total, which bounds the memory.
#[derive(Debug, Default)]
pub(crate) struct Guesses(Mutex<Option<Window>>);

#[derive(Debug)]
struct Window {
    began: Instant,
    total: u32,
    by_source: HashMap<Option<IpAddr>, u32>,
}

impl Guesses {
    /// Returns how long this source has to wait before it may try again; `None` if it may now.
    pub(crate) fn wait(&self, source: Option<IpAddr>) -> Option<Duration> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let window = window.as_mut().filter(|window| window.began.elapsed() < WINDOW)?;
        let of_one = window.by_source.get(&network(source)).copied().unwrap_or(0);
        let is_full = of_one >= OF_ONE || window.total >= OF_ALL;
        is_full.then(|| WINDOW.saturating_sub(window.began.elapsed()))
    }

    /// Counts a failed login.
    pub(crate) fn failed(&self, source: Option<IpAddr>) {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if window.as_ref().is_none_or(|window| window.began.elapsed() >= WINDOW) {
            *window = None;
        }
        let window = window.get_or_insert_with(|| Window {
            began: Instant::now(),
            total: 0,
            by_source: HashMap::new(),
        });
        // Beyond the bound nobody is let in until the window ends, so more need not be counted, and the map stays small.
        if window.total < OF_ALL {
            window.total += 1;
            *window.by_source.entry(network(source)).or_default() += 1;
        }
    }
}

/// Returns the network that one client commands: an address of version 4, or 64 bits of one of version 6.
fn network(source: Option<IpAddr>) -> Option<IpAddr> {
    // An address of version 4 may arrive as one of version 6 that holds it, and has to count as the same.
    match source?.to_canonical() {
        IpAddr::V6(address) => {
            // One subscriber is given 64 bits at least, and could use another address for each guess.
            let bits = address.to_bits() & !u128::from(u64::MAX);
            Some(IpAddr::V6(bits.into()))
        }
        address => Some(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_is_stopped_before_all_are() {
        let guesses = Guesses::default();
        let source = |n: u8| Some(IpAddr::from([10, 0, 0, n]));
        for _ in 0..OF_ONE {
            assert_eq!(guesses.wait(source(1)), None);
            guesses.failed(source(1));
        }
        assert!(guesses.wait(source(1)).is_some_and(|wait| wait <= WINDOW));
        assert_eq!(guesses.wait(source(2)), None);
        for n in 0..OF_ALL {
            guesses.failed(source(u8::try_from(n).unwrap()));
        }
        assert!(guesses.wait(source(200)).is_some(), "in total");
        let kept = guesses.0.lock().unwrap().as_ref().map(|window| window.by_source.len());
        assert!(kept.is_some_and(|kept| kept <= OF_ALL as usize));
    }

    #[test]
    fn addresses_of_one_network_are_one_source() {
        let of = |text: &str| network(Some(text.parse().unwrap()));
        assert_eq!(of("2001:db8::1"), of("2001:db8::2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
