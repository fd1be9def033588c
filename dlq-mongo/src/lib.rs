//! MongoDB as a store of dead letters and of idempotency keys.
