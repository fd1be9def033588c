//! A bank that is away for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tower_dlq::Classify;

/// Error of a charge.
#[derive(Debug, thiserror::Error, Classify)]
pub(crate) enum ChargeError {
    #[error("{0} is away")]
    #[classify(transient)]
    Away(String),
    #[error("amount must be positive, found {0}")]
    #[classify(permanent)]
    BadAmount(i64),
}

/// The bank's client. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Bank {
    back: Instant,
    charged: Arc<AtomicU64>,
}

impl Bank {
    /// A bank that is away for so long.
    pub(crate) fn away_for(outage: Duration) -> Self {
        Self { back: Instant::now() + outage, charged: Arc::default() }
    }

    pub(crate) fn is_away(&self) -> bool {
        Instant::now() < self.back
    }

    pub(crate) async fn charge(&self, card: &str, amount_cents: i64) -> Result<(), ChargeError> {
        if amount_cents <= 0 {
            return Err(ChargeError::BadAmount(amount_cents));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        if self.is_away() {
            return Err(ChargeError::Away(card.to_owned()));
        }
        self.charged.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the number of charges that went through.
    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }
}
