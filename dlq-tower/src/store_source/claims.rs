use dlq_core::store::Claim;
use dlq_core::{DeliveredFrom, Delivery};

/// The delivery that a claimed row is.
pub(super) fn delivery_of(claim: &Claim) -> Delivery {
    let letter = &claim.letter;
    // A record goes on with its count; a letter that was sent back begins a new life.
    let made = if claim.continues { letter.attempts } else { 0 };
    Delivery::new(letter.message.clone(), letter.origin.clone())
        .with_consumer(letter.consumer.as_str())
        .with_delivered_from(DeliveredFrom::Store)
        .with_attempt(made.saturating_add(1))
        .with_deliveries(letter.deliveries)
        .with_crashes(letter.crashes)
        .with_delayed_retries(letter.delayed_retries)
        .with_replays(letter.state.replays)
        .with_history(letter.history.clone())
        .with_death(claim.next_death())
}
