//! A payment provider that is having a bad day.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tower_dlq::Classify;

/// Error of a charge.
#[derive(Debug, thiserror::Error, Classify)]
pub(crate) enum ChargeError {
    #[error("provider timed out")]
    #[classify(transient)]
    Timeout,
    #[error("provider is offline")]
    #[classify(transient)]
    Offline,
    #[error("amount must be positive, found {0}")]
    #[classify(permanent)]
    BadAmount(i64),
}

/// The provider's client. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Provider {
    repaired: bool,
    charged: Arc<AtomicU64>,
}

impl Provider {
    pub(crate) fn new(repaired: bool) -> Self {
        Self { repaired, charged: Arc::default() }
    }

    /// Charges a card. Which bank it is decides what goes wrong.
    pub(crate) async fn charge(
        &self,
        card: &str,
        amount_cents: i64,
        attempt: u32,
    ) -> Result<(), ChargeError> {
        if amount_cents <= 0 {
            return Err(ChargeError::BadAmount(amount_cents));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        match card {
            "flaky-bank" if attempt == 1 => return Err(ChargeError::Timeout),
            "offline-bank" if !self.repaired => return Err(ChargeError::Offline),
            "slow-bank" if !self.repaired => tokio::time::sleep(Duration::from_secs(60)).await,
            "?" if !self.repaired => panic!("no bank issues cards of type `{card}`"),
            _ => {}
        }
        self.charged.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the number of charges that went through.
    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }
}
