//! What is left to chance, the same in every run.

/// A generator of numbers: xorshift (Marsaglia, 2003).
pub(crate) struct Random(u64);

impl Random {
    /// From the environment, or always the same.
    pub(crate) fn new() -> Self {
        Self(number("DLQ_E2E_SEED", 7).max(1))
    }

    pub(crate) fn below(&mut self, bound: u64) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound).unwrap()
    }
}

/// What the environment says, or the default.
pub(crate) fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}
