//! Idempotency in memory passes every check.

dlq_testkit::idempotency_conformance!(dlq_testkit::idempotency::MemoryIdempotencyFixture);
