/// Settings of a [`RedisIdempotency`](super::RedisIdempotency).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a configuration does nothing until the keys are opened with it"]
pub struct IdempotencyConfig {
    pub(super) prefix: String,
}

impl IdempotencyConfig {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self { prefix: "dlq".to_owned() }
    }

    /// Sets the start of all key names. Stores of one prefix share their keys. A hash tag, such as `{shop}`, puts all of them
    /// on one node of a cluster. Defaults to `dlq`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }
}

impl Default for IdempotencyConfig {
    fn default() -> Self {
        Self::new()
    }
}
