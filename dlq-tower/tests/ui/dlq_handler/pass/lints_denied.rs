//! What is generated is clean under the lints that careful crates deny.

#![deny(
    warnings,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    non_local_definitions
)]
#![deny(clippy::all, clippy::pedantic)]

/// Handlers for others.
pub mod handlers {
    use dlq_tower::extract::{Json, State};
    use dlq_tower::{Classify, dlq_handler};

    /// What goes wrong.
    #[derive(Debug, thiserror::Error, Classify)]
    pub enum ChargeError {
        /// It is slow.
        #[error("slow")]
        #[classify(transient, retry_after = after)]
        Slow {
            /// Until when.
            after: std::time::Duration,
        },
        /// It is wrong.
        #[error("wrong")]
        #[classify(permanent)]
        Wrong,
    }

    /// Charges.
    ///
    /// # Errors
    ///
    /// When it is slow or wrong.
    #[dlq_handler(
        name = "payments.charge",
        max_attempts = 5,
        terminal = ChargeError::Wrong,
        idempotency_key = |p: &String| p,
        order_by = |p: &String| p.len(),
    )]
    pub async fn charge(
        Json(_payment): Json<String>,
        State(wait): State<u64>,
    ) -> Result<(), ChargeError> {
        Err(ChargeError::Slow { after: std::time::Duration::from_secs(wait) })
    }
}

use handlers::charge;

#[dlq_tower::dlq_handler]
async fn private(_: bytes::Bytes) {}

fn main() {
    fn send_sync<T: Send + Sync + Clone + std::fmt::Debug>(_: &T) {}
    #[dlq_tower::dlq_handler]
    async fn inner() {}

    send_sync(&charge::handler());
    let _ = charge::handler().with_state(7_u64).name("other");
    send_sync(&private::handler().build().expect("it is complete"));
    send_sync(&inner::handler().build().expect("it is complete"));
    drop(charge(dlq_tower::extract::Json(String::new()), dlq_tower::extract::State(1)));
}
