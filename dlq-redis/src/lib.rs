//! Redis Streams as a transport, and Redis as a store of dead letters and of idempotency keys.
